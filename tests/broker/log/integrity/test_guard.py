"""Damage that appears while the broker runs: files that are removed, and bits that flip in old segments."""

import random

import pytest

from broker.log import log_reader
from broker.log.integrity.guard import FIRST_PASS_MS, LOOK_EVERY_MS, Guard
from broker.log.integrity.region_check import RegionCheck
from broker.log.storage.os_storage import OsStorage
from broker.wire.errors import ApiError, ErrorCode
from tests.broker.engine_client import FETCH, LIST_OFFSETS, EngineBroker, fetch_request, values_of
from tests.broker.log.integrity.mutations import append, copy_of

SMALL = {"segment_bytes": 1024, "index_interval_bytes": 0}
LOG, IDS, INDEX, TIMES = (f"flights-0/{0:020d}{suffix}" for suffix in (".log", ".idindex", ".index", ".timeindex"))


def filled(number=8, **properties):
    broker = EngineBroker()
    broker.create("flights", **(SMALL | properties))
    for n in range(number):
        append(broker, "flights", b"%d" % n, b"x" * 300)
    broker.pump()
    return broker


def flip(broker, path, at):
    broker.storage.files[path].data[at] ^= 4


def log_of(broker):
    return broker.services.logs.get("flights", 0)


# --- removed files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".log", ".idindex"])
def test_a_file_that_is_removed_while_it_is_written_to_makes_produce_fail_by_name(suffix):
    broker = filled(1)
    del broker.storage.files[f"flights-0/{0:020d}{suffix}"]
    client = broker.connect()
    client.produce("flights", b"lost")
    broker.at(broker.now_ms + LOOK_EVERY_MS)
    assert client.produce("flights", b"refused").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert suffix in log_of(broker).offline and "removed" in log_of(broker).offline


def test_on_a_real_disk_files_that_are_written_to_are_found_and_a_removed_one_is_missed(tmp_path):
    broker = EngineBroker(OsStorage(str(tmp_path)))
    broker.create("flights", 2)
    client = broker.connect()
    for partition in range(2):
        client.produce("flights", b"kept", partition=partition)
    (tmp_path / LOG).unlink()
    broker.at(broker.now_ms + LOOK_EVERY_MS)
    codes = [client.produce("flights", b"more", partition=partition).error_code for partition in range(2)]
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, 0]


def test_a_topic_that_is_deleted_during_the_look_is_no_removed_file():
    broker = filled(1)
    held = broker.hold_syncs()
    broker.at(broker.now_ms + LOOK_EVERY_MS)
    assert [type(job).__name__ for job in held] == ["FillReserve", "LookForFiles"]
    broker.delete("flights")
    broker.release()
    assert not any("removed" in line for line in broker.reported)


# --- the scrub -------------------------------------------------------------------------------------------------------


def scrubbed(broker, slices=100):
    """Let the scrub pass over all closed segments."""
    broker.at(broker.now_ms + FIRST_PASS_MS)
    for _ in range(slices):
        if broker.services.logs.scrub.passes:
            return
        broker.at(broker.now_ms + 1_000)
    raise AssertionError("the scrub does not end")


def test_the_scrub_reads_each_closed_segment_once_a_day():
    broker = filled().restarted()
    size = sum(segment.size for segment in log_of(broker).segments.all[:-1])
    scrubbed(broker)
    assert broker.services.logs.scrub.bytes_read == size > 0
    broker.at(broker.now_ms + 3_600_000)
    assert broker.services.logs.scrub.passes == 1 and not broker.services.logs.scrub.errors


@pytest.mark.parametrize("path, at", [(LOG, 100), (LOG, 3), (IDS, 9)])
def test_the_scrub_takes_a_damaged_partition_offline_by_name(path, at):
    broker = filled().restarted()
    flip(broker, path, at)
    scrubbed(broker)
    assert path.partition(".")[0] in log_of(broker).offline
    assert broker.services.logs.scrub.errors == 1


@pytest.mark.parametrize("path", [INDEX, TIMES])
def test_the_scrub_rebuilds_wrong_indexes(path):
    broker = filled().restarted()
    whole = bytes(broker.storage.files[path].data)
    flip(broker, path, len(whole) - 1)
    scrubbed(broker)
    assert bytes(broker.storage.files[path].data) == whole and log_of(broker).offline is None
    assert any("they are rebuilt" in line for line in broker.reported)


def test_the_scrub_can_be_off():
    guard = Guard(None, lambda log: False, pytest.fail)
    assert guard.next_deadline_ms(0, 0) is None and guard.tick([], 10**9, 0) == []


# --- no false alarms -------------------------------------------------------------------------------------------------


def test_a_segment_that_was_open_at_the_start_is_not_judged_as_sealed_by_its_size_at_the_start():
    """Appends fill it, it is rolled and closed, and only then the walk of its first part comes back."""
    broker = filled(1).restarted(clean=False)
    log = log_of(broker)
    check = RegionCheck(log, log.segments.active, 0)
    for n in range(8):
        append(broker, "flights", b"later %d" % n, b"x" * 300)
    broker.services.logs.syncs.start_round()
    broker.pump()
    after = RegionCheck(log, log.segments.all[0], 0)
    assert log.segments.all[0].base_offset == 0 and not after.is_sealed
    for region_check in (check, after):
        region_check.run()
        assert region_check.damage is None and region_check.rebuilt is None and region_check.span is not None
        region_check.apply()
    assert 0 not in log.segments.unverified and log.offline is None


def test_the_wrong_index_of_a_segment_that_is_appended_to_keeps_the_entries_of_the_appends():
    broker = filled(2, segment_bytes=100_000).restarted(clean=False)
    flip(broker, INDEX, 3)
    for n in range(3):
        append(broker, "flights", b"later %d" % n, b"x" * 300)
    whole = copy_of(broker.storage)
    values = broker.connect().fetch("flights", 1)
    assert values[1::2] == [b"x" * 300] * 5 and log_of(broker).offline is None
    assert bytes(broker.storage.files[INDEX].data)[8:] == bytes(whole.files[INDEX].data)[8:]
    assert bytes(broker.storage.files[INDEX].data)[:8] != bytes(whole.files[INDEX].data)[:8]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_to_segments_while_threads_verify_them_is_no_damage(seed):
    """Retention, deleted records, rolls, syncs and deleted topics, between the steps of walks and of the scrub."""
    chance = random.Random(seed)
    broker = filled(10, retention_bytes=4_000, file_delete_delay_ms=0).restarted(clean=chance.random() < 0.5)
    written = 0
    for _ in range(60):
        broker.held = None
        if chance.random() < 0.6:
            broker.hold_syncs()
        act = chance.randrange(7)
        if broker.services.metadata.topic("flights") is None:
            broker.create("flights", **SMALL)
        log = log_of(broker)
        if act < 2:
            append(broker, "flights", b"more", b"y" * 400)
            written += 1
        elif act == 2:
            start = chance.randint(log.log_start_offset, log.high_watermark)
            broker.services.logs.delete_records(log, start, broker.now)
        elif act == 3:
            broker.services.logs.syncs.start_round()
        elif act == 4 and chance.random() < 0.2:
            broker.delete("flights")
        else:
            offset = chance.randint(log.log_start_offset, log.log_end_offset)
            read_or_refused(broker, offset)
        broker.at(broker.now_ms + chance.choice((1, 500, FIRST_PASS_MS)))
        broker.release()
    assert written and not broker.services.logs.offline
    assert not any("offline" in line or "rebuilt" in line or "damaged" in line for line in broker.reported)


def read_or_refused(broker, offset):
    from broker.log import log_reader
    from broker.log.integrity.verify_job import VerifyJob

    log = log_of(broker)
    try:
        log_reader.verify(log, log.segments.all[0], offset, waits=False)
    except ApiError as error:
        raise AssertionError("no read is refused") from error
    except Exception as unverified:
        segment = unverified.segment
        broker.services.logs.syncs.add_job(VerifyJob(log, segment, max(offset, segment.base_offset), object()))


def test_a_fetch_whose_region_was_verified_waits_for_as_many_bytes_as_it_asks_for():
    broker = filled(2, segment_bytes=100_000).restarted()
    client = broker.connect()
    client.send(FETCH, 12, fetch_request("flights", max_wait_ms=5_000, min_bytes=50_000))
    assert client.replies() == []
    broker.at(broker.now_ms + 5_000)
    ((_, answer),) = client.replies()
    assert len(values_of(answer)) == 4


# --- wrong indexes that a walk ends before ---------------------------------------------------------------------------


@pytest.mark.parametrize("position", [1 << 23, 700])
def test_an_index_entry_past_the_end_is_no_verified_index(position):
    broker = filled(2, segment_bytes=100_000).restarted(clean=False)
    broker.storage.files[INDEX].data[-4:] = position.to_bytes(4, "big")
    client = broker.connect()
    client.fetch("flights", 0)
    assert client.fetch("flights", 3) == [b"1", b"x" * 300]
    assert log_of(broker).offline is None


def test_indexes_that_a_full_disk_keeps_from_being_replaced_stay_unverified():
    broker = filled(6)
    broker.services.logs.syncs.start_round()
    broker.pump()
    for _ in range(2):
        append(broker, "flights", b"more", b"x" * 300)
    flip(broker, INDEX, 3)
    disk = broker.storage
    disk.files[max(path for path in disk.files if path.startswith("flights") and path.endswith(".index"))].data.clear()
    disk.free_bytes = 0
    after = EngineBroker(disk, 60_000)
    assert not after.services.logs.offline
    client = after.connect()
    client.send(FETCH, 12, fetch_request("flights", 0))
    ((_, refused),) = client.replies()
    assert refused.partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert 0 in log_of(after).segments.unverified and log_of(after).offline is None


def test_a_search_by_time_from_the_start_that_deleted_records_left_reads_no_wrong_index():
    broker = filled(4, segment_bytes=100_000).restarted(clean=False)
    log = log_of(broker)
    broker.services.logs.delete_records(log, 3, broker.now)
    for number in range(log.segments.active.offsets.file.size // 8):
        flip(broker, INDEX, 8 * number + 4)
    assert log_reader.offset_of_time(log, 0)[0] == 3


def test_a_search_by_time_finds_the_same_records_while_a_bit_of_the_time_index_is_flipped():
    """Until the scrub comes, a segment of an earlier process is searched without the index."""
    broker = filled(20, segment_bytes=2048).restarted()
    log, size = log_of(broker), len(broker.storage.files[TIMES].data)
    largest = [segment.max_timestamp_ms for segment in log.segments.all]
    times = sorted({time for timestamp_ms in largest for time in (timestamp_ms - 1, timestamp_ms)})
    whole = [log_reader.offset_of_time(log, time) for time in times]
    assert size and 0 in log.segments.unverified_times
    for at in range(size):
        flip(broker, TIMES, at)
        broker = broker.restarted()  # so that nothing of the index is in memory
        assert [log_reader.offset_of_time(log_of(broker), time) for time in times] == whole
        flip(broker, TIMES, at)


def test_a_client_that_asks_for_a_time_gets_its_offset_from_a_thread_while_the_time_index_is_damaged():
    broker = filled(20, segment_bytes=2048).restarted()
    log = log_of(broker)
    newest = log.segments.all[0].max_timestamp_ms
    whole = log_reader.offset_of_time(log, newest)
    for at in range(7, len(broker.storage.files[TIMES].data), 12):
        flip(broker, TIMES, at)
    parts = [{"partition_index": 0, "timestamp": newest, "current_leader_epoch": -1}]
    topics = [{"name": "flights", "partitions": parts}]
    answer = broker.connect().ask(LIST_OFFSETS, 6, {"replica_id": -1, "isolation_level": 0, "topics": topics})
    (partition,) = answer.partitions if hasattr(answer, "partitions") else answer.topics[0].partitions
    assert (partition.error_code, partition.offset) == (0, whole[0])


@pytest.mark.parametrize("is_closed", [False, True])
def test_rebuilt_indexes_of_a_segment_that_was_closed_since_the_start_cover_its_later_records(is_closed):
    broker = filled(2, segment_bytes=2048).restarted(clean=False)
    flip(broker, INDEX, 3)
    log = log_of(broker)
    before = RegionCheck(log, log.segments.active, 0)
    for n in range(8):
        append(broker, "flights", b"later %d" % n, b"x" * 300)
    newest = log.segments.all[0].max_timestamp_ms
    broker.services.logs.syncs.start_round()
    broker.pump()
    if not is_closed:
        before.run()
        before.apply()
    assert broker.connect().fetch("flights", 0)[0] == b"0"
    assert log.segments.all[0].max_timestamp_ms == newest and log.offline is None
    assert log_reader.offset_of_time(log, newest) == (log.segments.all[0].next_offset - 2, newest)


def test_new_batches_behind_old_ones_of_a_segment_are_not_found_by_a_wrong_index():
    broker = filled(3, segment_bytes=100_000, index_interval_bytes=700).restarted(clean=False)
    broker.storage.files[INDEX].data[-4:] = (3_000).to_bytes(4, "big")
    for n in range(3, 30):
        append(broker, "flights", b"%d" % n, b"x" * 300)
    assert broker.connect().fetch("flights", 6)[0] == b"3"


def test_the_end_of_old_batches_is_verified_once_for_the_new_ones_behind_them():
    broker = filled(30, segment_bytes=100_000, index_interval_bytes=700).restarted(clean=False)
    append(broker, "flights", b"new", b"x" * 300)
    log = log_of(broker)
    assert broker.connect().fetch("flights", log.opened_at) == [b"new", b"x" * 300]
    assert log.segments.unverified and log.trusted_from == log.opened_at


def test_segments_that_this_process_began_are_read_while_older_ones_are_unverified():
    broker = filled(2).restarted(clean=False)
    for n in range(2, 8):
        append(broker, "flights", b"%d" % n, b"x" * 300)
    log = log_of(broker)
    assert broker.connect().fetch("flights", log.segments.active.base_offset)
    assert log.segments.unverified and log.opened_at < log.trusted_from == log.segments.active.base_offset
