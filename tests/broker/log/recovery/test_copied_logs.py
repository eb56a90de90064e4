"""Recovery of a follower's log: gaps that its leader's cleaner left stand, and all damage is still found by the ids."""

from random import Random

import pytest

from broker.log import log_appender, log_reader
from broker.log.copied_appender import append_copied
from broker.log.io_jobs import SyncJournal
from broker.log.segment import INDEX, TIME_INDEX
from broker.log.storage.memory_storage import MemoryStorage
from broker.record.batch import BATCH_PREFIX, walk
from broker.record.control import Marker
from broker.settings.config import TopicConfig
from broker.wire.id_entries import ENTRY_BYTES
from tests.broker.log.compaction.cleaner_world import CleanerWorld
from tests.broker.log.conftest import NOW, START_MS, append, new_worker, reopen
from tests.broker.log.copying import (
    ALL_BYTES,
    aborted_of,
    answer_of,
    bytes_of,
    copy,
    follower_at,
    headers_of,
    ids_of,
    producers_of,
)
from tests.broker.log.manager_world import kinds
from tests.broker.log.test_journal import Broker as DurableBroker

LOG, IDS = (f"flights-0/{0:020d}{suffix}" for suffix in (".log", ".idindex"))


def compacted(segment_bytes=1024, epochs=True):
    """Return a leader's log with gaps before, between and inside batches, with producers, transactions and epochs."""
    world = CleanerWorld(segment_bytes=segment_bytes)
    worker, log = world.worker, world.log
    sent = {"producer_epoch": 0, "transactional": True}
    world.put(("a", "0"))
    world.put(("b", "0"), ("c", "0"), ("d", "1"), producer_id=5, producer_epoch=0, base_sequence=0)
    world.put(("b", "1"), producer_id=7, base_sequence=0, **sent)
    log_appender.append_marker(log, 7, 0, Marker(False, 1), worker, world.now)
    if epochs:
        log.start_leader_epoch(2)
    for n in range(6):
        world.put(("a", str(n)), ("c", str(n)), timestamp_ms=START_MS + n)
    world.put(("e", "1"), producer_id=8, base_sequence=0, **sent)
    log_appender.append_marker(log, 8, 0, Marker(True, 1), worker, world.now)
    world.roll()
    world.put(("f", "1"), producer_id=7, base_sequence=1, **sent)
    log_appender.append_marker(log, 7, 0, Marker(False, 2), worker, world.now)
    world.put(("g", "1"), ("h", "x" * 400))
    world.clean()
    headers = headers_of(log)
    ends = [0] + [header.last_offset + 1 for header in headers]
    assert sum(header.base_offset > end for header, end in zip(headers, ends, strict=False)) >= 3
    assert any(header.record_count <= header.last_offset_delta for header in headers)
    return log


def copied(leader, sizes=(1 << 20,), **config):
    """Return a follower's storage, its log, and its position after the first batch."""
    storage = MemoryStorage()
    follower = follower_at(storage=storage, **config)
    follower.follow(leader.leader_epoch)
    records, ids = answer_of(leader, 0, 1)
    append_copied(follower, records, ids, NOW)
    position = follower.position()
    copy(leader, follower, sizes)
    return storage, follower, position


def copy_of(storage):
    other = MemoryStorage()
    other.directories = set(storage.directories)
    for path, content in storage.files.items():
        other.replace(path, bytes(content.data))
    return other


def put(storage, path, data):
    storage.replace(path, bytes(data))


def data_of(storage, path):
    return bytes(storage.files[path].data)


def is_part_of(log, whole):
    """Return True if a log has a first part of another's batches, with their ids and nothing else."""
    ids = {offset: id for offset, id in ids_of(whole).items() if offset < log.log_end_offset}
    return bytes_of(whole).startswith(bytes_of(log)) and ids_of(log) == ids


# --- gaps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[1], [200, 500], [1 << 20]])
@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_a_log_with_gaps_is_recovered_whole(sizes, is_checkpointed):
    leader = compacted()
    storage, follower, position = copied(leader, sizes)
    opened, report = reopen(copy_of(storage), position if is_checkpointed else None)
    assert not report.cut and report.batches_read == len(headers_of(leader)) - is_checkpointed
    assert bytes_of(opened) == bytes_of(leader) and ids_of(opened) == ids_of(leader)
    assert (opened.last_id, opened.epochs) == (leader.last_id, leader.epochs)
    assert producers_of(opened) == producers_of(follower) and aborted_of(opened) == aborted_of(follower) != []


def test_segments_with_gaps_are_sound_below_the_checkpoint():
    leader = compacted(segment_bytes=1 << 20)
    storage, follower, _ = copied(leader, segment_bytes=1024, index_interval_bytes=0)
    follower.roll()
    position = follower.position()
    assert len(follower.segments.all) > 1
    for is_indexed in (True, False):
        if not is_indexed:
            for path in [path for path in storage.files if path.endswith((INDEX, TIME_INDEX))]:
                storage.remove(path)
        opened, report = reopen(copy_of(storage), position, TopicConfig(index_interval_bytes=0))
        assert not report.cut and bytes_of(opened) == bytes_of(leader)
        for time_ms in range(START_MS, START_MS + 8):
            assert log_reader.offset_of_time(opened, time_ms) == log_reader.offset_of_time(leader, time_ms)
        for offset in range(leader.log_end_offset):
            read = log_reader.read(opened, offset, 1, True).records
            assert read.file.read(read.position, read.length) == answer_with_record(leader, offset)


def answer_with_record(leader, offset):
    read = log_reader.read(leader, offset, 1, True).records
    return read.file.read(read.position, read.length)


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [LOG, IDS])
@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_a_write_torn_at_any_byte_leaves_the_whole_batches_with_their_ids(path, is_checkpointed):
    whole, follower, position = copied(compacted())
    ends = [0] + [at + header.size for at, header in walk(data_of(whole, LOG))]
    synced = (position.log_bytes if path == LOG else position.id_bytes) if is_checkpointed else 0
    for size in range(synced, len(data_of(whole, path))):
        storage = copy_of(whole)
        put(storage, path, data_of(whole, path)[:size])
        opened, _ = reopen(storage, position if is_checkpointed else None)
        assert is_part_of(opened, follower), size
        if path == LOG:
            assert opened.segments.active.size == max(end for end in ends if end <= size)
        again, report = reopen(storage, position if is_checkpointed else None)
        assert not report.cut and bytes_of(again) == bytes_of(opened) and ids_of(again) == ids_of(opened)


@pytest.mark.parametrize("path", [LOG, IDS])
def test_a_flipped_byte_anywhere_past_the_checkpoint_cuts_the_log_before_its_batch(path):
    whole, follower, position = copied(compacted(epochs=False))
    starts = [at for at, _ in walk(data_of(whole, LOG))]
    first = position.log_bytes if path == LOG else position.id_bytes
    assert follower.epochs == [(0, 0)]
    for at in range(first, len(data_of(whole, path))):
        storage = copy_of(whole)
        data = bytearray(data_of(whole, path))
        data[at] ^= 1
        put(storage, path, data)
        opened, report = reopen(storage, position)
        if path == LOG and at - starts[-1] in (14, 15):
            continue  # the last batch may be of a later leader
        assert report.cut and is_part_of(opened, follower), at
        if path == LOG:
            assert opened.segments.active.size == max(start for start in starts if start <= at)


@pytest.mark.parametrize("length", [1, 16, 61, 4096])
def test_zeros_in_place_of_any_bytes_cut_the_log_before_their_batch(length):
    """A power cut may leave zeros where a write did not reach the disk."""
    whole, follower, position = copied(compacted(epochs=False))
    data = data_of(whole, LOG)
    for at in range(position.log_bytes, len(data)):
        storage = copy_of(whole)
        put(storage, LOG, (data[:at] + bytes(length) + data[at + length :])[: len(data)])
        opened, _ = reopen(storage, position)
        assert is_part_of(opened, follower), at


@pytest.mark.parametrize("number", range(1, 4))
def test_a_batch_whose_ids_are_lost_is_lost_with_all_after_it(number):
    """Without its ids the batch could be taken for one of a gap, and its record would get a second id."""
    whole, follower, position = copied(compacted())
    data = data_of(whole, IDS)
    assert number * ENTRY_BYTES < len(data)
    storage = copy_of(whole)
    put(storage, IDS, data[: number * ENTRY_BYTES] + data[(number + 1) * ENTRY_BYTES :])
    opened, report = reopen(storage, position)
    lost = ids_in(data, number)
    assert report.reason.endswith("its ids are not in the id index")
    assert opened.log_end_offset <= lost and is_part_of(opened, follower)


def ids_in(data, number):
    """Return the first offset of an entry of a segment that begins at 0."""
    return int.from_bytes(data[number * ENTRY_BYTES : number * ENTRY_BYTES + 4], "big")


def test_a_batch_that_is_lost_is_no_gap():
    """The ids have its offsets."""
    whole, follower, position = copied(compacted())
    data = data_of(whole, LOG)
    for at, header in list(walk(data))[1:-1]:
        storage = copy_of(whole)
        put(storage, LOG, data[:at] + data[at + header.size :])
        opened, report = reopen(storage, position)
        assert report.cut and opened.segments.active.size == at and is_part_of(opened, follower)


@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_an_epoch_that_falls_after_a_gap_cuts_the_log_before_the_one_that_rose(is_checkpointed):
    whole, follower, position = copied(compacted(epochs=False))
    data = data_of(whole, LOG)
    batches = list(walk(data))
    gaps = [
        (at, header)
        for (at, header), (_, after) in zip(batches, batches[1:], strict=False)
        if after.base_offset > header.last_offset + 1 and at >= position.log_bytes
    ]
    assert gaps
    for at, header in gaps:
        storage = copy_of(whole)
        damaged = bytearray(data)
        BATCH_PREFIX.pack_into(damaged, at, header.base_offset, header.batch_length, 1)
        put(storage, LOG, damaged)
        opened, report = reopen(storage, position if is_checkpointed else None)
        assert report.reason == f"{LOG} at byte {at}: leader epoch 1 stands before 0"
        assert opened.log_end_offset <= header.base_offset and opened.epochs == [(0, 0)]


def test_what_a_crash_left_after_a_gap_does_not_cut_a_good_batch_of_a_new_epoch():
    """Old bytes may look like a batch of an earlier epoch; their CRC does not hold."""
    whole, follower, position = copied(compacted())
    data = data_of(whole, LOG)
    batches = list(walk(data))
    number = next(n for n, (_, header) in enumerate(batches) if header.leader_epoch == 2)
    end = batches[number][0] + batches[number][1].size
    stale = bytearray(data[slice(position.log_bytes, batches[1][0] + batches[1][1].size)])
    later = batches[number][1].last_offset + 5
    BATCH_PREFIX.pack_into(stale, 0, later, batches[1][1].batch_length, 0)
    stale[-1] ^= 1
    put(whole, LOG, data[:end] + stale)
    opened, _ = reopen(whole, position)
    assert opened.segments.active.size == end and opened.epochs == follower.epochs == [(0, 0), (2, 6)]


# --- an empty log whose first batch begins below its end -------------------------------------------------------------


@pytest.fixture
def deleted():
    """Return a leader's log that begins within a batch of three records, at offset 2."""
    world = CleanerWorld(segment_bytes=1 << 20)
    world.put(("a", "0"), ("b", "0"), ("c", "0"), ("d", "0"))
    world.put(("e", "0"))
    world.log.advance_start(2)
    return world.log


def test_a_log_that_began_within_a_batch_is_recovered_from_the_position_when_it_was_empty(deleted):
    storage = MemoryStorage()
    empty = follower_at(2, storage).position()
    storage = MemoryStorage()
    follower = follower_at(2, storage)
    copy(deleted, follower)
    for position in (empty, follower.position()):
        opened, report = reopen(copy_of(storage), position)
        assert not report.cut and (opened.log_start_offset, opened.log_end_offset) == (2, 5)
        assert bytes_of(opened) == bytes_of(deleted) and ids_of(opened) == ids_of(deleted)


def test_a_log_that_began_within_a_batch_and_lost_it_is_empty_as_before(deleted):
    storage = MemoryStorage()
    follower = follower_at(2, storage)
    empty = follower.position()
    copy(deleted, follower)
    for path in (LOG, IDS):
        for size in range(len(answer_of(deleted, 2, 1)[0]) if path == LOG else ENTRY_BYTES):
            torn = copy_of(storage)
            put(torn, path, data_of(torn, path)[:size])
            opened, _ = reopen(torn, empty)
            assert (opened.log_start_offset, opened.log_end_offset) == (2, 2), (path, size)
            copy(deleted, opened)
            again, report = reopen(torn, empty)
            assert not report.cut and bytes_of(again) == bytes_of(deleted) and ids_of(again) == ids_of(deleted)


def test_a_power_cut_leaves_a_log_that_began_within_a_batch_empty_or_with_its_first_batches(deleted):
    storage = MemoryStorage()
    follower = follower_at(2, storage)
    storage.sync_directory("flights-0")
    empty = follower.position()
    copy(deleted, follower, [1])
    for seed in range(200):
        after = storage.power_cut(lambda n: seed * 31 % n)  # noqa: B023
        if not after.directories:
            after.make_directory("flights-0")
        opened, _ = reopen(after, empty)
        assert opened.log_start_offset == 2 and opened.log_end_offset in (2, 4, 5), seed
        assert bytes_of(deleted).startswith(bytes_of(opened))


def test_records_of_a_deleted_segment_do_not_come_back_in_an_empty_log(deleted):
    """Their ids are not above the last one, which the checkpoint has."""
    storage = MemoryStorage()
    follower = follower_at(2, storage)
    copy(deleted, follower)
    position = follower_at(5, last_id=follower.last_id).position()
    opened, _ = reopen(storage, position)
    assert (opened.log_start_offset, opened.log_end_offset, bytes_of(opened)) == (5, 5, b"")


# --- the journal -----------------------------------------------------------------------------------------------------


def jobs_of(broker, *kinds):
    """Run the broker's jobs of these kinds; with none, run all."""
    while jobs := broker.manager.take_syncs():
        for job in jobs:
            if not kinds or isinstance(job, kinds):
                job.run()
                broker.manager.synced(job)


def dense(number):
    """Return a leader's log of single records."""
    world = CleanerWorld()
    for n in range(number):
        world.put((str(n), "1"))
    return world.log


def take(broker, leader, max_bytes=ALL_BYTES):
    """Copy one answer to the broker's log; its job for the disk waits."""
    log = broker.log()
    log.follow(leader.leader_epoch)
    append_copied(log, *answer_of(leader, log.log_end_offset, max_bytes), NOW)
    broker.manager.appended(log)


def test_batches_without_gaps_are_durable_by_the_journal():
    leader = dense(9)
    broker = DurableBroker()
    take(broker, leader)
    assert broker.log().durability.end_offset == 0
    jobs_of(broker, SyncJournal)
    assert broker.log().durability.end_offset == 9
    after = broker.storage.power_cut(lambda n: 0)
    cut = DurableBroker(after, later_ms=100)
    assert bytes_of(cut.log()) == bytes_of(leader) and ids_of(cut.log()) == ids_of(leader)


@pytest.mark.parametrize("seed", range(60))
def test_batches_after_a_gap_are_durable_once_the_logs_own_files_are_synced(seed):
    """What counts as durable is there after a power cut, and the journal never brings back what is not."""
    leader = compacted()
    chance = Random(seed).randrange
    broker = DurableBroker()
    log = broker.log()
    durable = [0]
    while log.log_end_offset < leader.log_end_offset:
        take(broker, leader, 1 + chance(500))
        for job in broker.manager.take_syncs():
            if chance(3):
                job.run()
                broker.manager.synced(job)
                durable.append(log.durability.end_offset)
    assert durable == sorted(durable)
    cut = DurableBroker(broker.storage.power_cut(chance), later_ms=100)
    assert cut.log().log_end_offset >= durable[-1] and is_part_of(cut.log(), leader)
    copy(leader, cut.log())
    assert bytes_of(cut.log()) == bytes_of(leader) and ids_of(cut.log()) == ids_of(leader)


def test_a_gap_asks_for_a_sync_of_the_log():
    leader = compacted()
    broker = DurableBroker()
    take(broker, leader)
    log = broker.log()
    jobs = broker.manager.take_syncs()
    assert kinds(jobs) == ["SyncLog"] and log.durability.end_offset == 0
    for job in jobs:
        job.run()
        broker.manager.synced(job)
    assert log.durability.end_offset == log.log_end_offset


def test_a_leaders_log_takes_no_gap_either_that_its_ids_do_not_show():
    """A leader's batch with a wrong offset past the checkpoint is damage."""
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage)
    append(log, b"a", worker=worker)
    position = log.position()
    append(log, b"b", worker=worker)
    append(log, b"c", worker=worker)
    data = bytearray(data_of(storage, LOG))
    for at, header in list(walk(data))[1:]:
        BATCH_PREFIX.pack_into(data, at, header.base_offset + 1, header.batch_length, 0)
    put(storage, LOG, data)
    opened, report = reopen(storage, position)
    assert opened.log_end_offset == 1 and report.reason.endswith("its ids are not in the id index")
