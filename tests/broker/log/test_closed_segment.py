"""Closed segments: readers open them, a few at a time; after a clean stop the start opens none of them."""

import gc

import pytest

from broker.log import log_reader
from broker.log.log_manager import LogManager
from broker.log.non_blocking_reader import look_up
from broker.log.recovery import clean_stop
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.os_storage import OsStorage
from broker.record.batch import walk
from broker.settings.config import BrokerConfig, TopicConfig
from broker.wire.errors import ApiError

from .conftest import START_MS, append, new_worker, uuid_of

TOPIC = uuid_of(7)
SMALL = TopicConfig(segment_bytes=1024)
SEGMENTS = 40
CLOSED = tuple(f"flights-0/{2 * number:020d}" for number in range(SEGMENTS - 1))
FILES = 4  # files of a segment
SMALL_READS = 64 * 1024  # bytes that a check of a segment may read


def opened(storage, topic_id=TOPIC, report=pytest.fail, max_open_files=1 << 30, **broker):
    manager = LogManager(storage, BrokerConfig(**broker), report, max_open_files)
    manager.load_checkpoint()
    manager.open("flights", 0, SMALL, topic_id)
    manager.opened()
    return manager


def run(manager):
    while syncs := manager.take_syncs():
        for sync in syncs:
            sync.run()
            manager.synced(sync)


def filled(storage, **broker):
    """Fill a log with forty segments of two batches each; all but the last are on the disk."""
    manager, worker = opened(storage, **broker), new_worker()
    log = manager.get("flights", 0)
    for number in range(2 * SEGMENTS):
        append(log, b"%d" % number + b"x" * 400, worker=worker, timestamp_ms=START_MS + number)
        run(manager)
    assert len(log.segments.all) == SEGMENTS
    return manager, log


def offsets_of(log):
    offsets, offset = [], log.log_start_offset
    while offset < log.high_watermark:
        region = log_reader.read(log, offset, 1 << 20, True, with_ids=True).records
        offsets += [header.base_offset for _, header in walk(region.file.read(region.position, region.length))]
        offset = offsets[-1] + 1
    return offsets


def bytes_read(storage, paths):
    return sum(size for path, size in storage.bytes_read.items() if path.startswith(paths))


def test_a_segment_that_is_on_the_disk_is_closed_and_all_can_be_read_with_few_open():
    storage = MemoryStorage()
    manager, log = filled(storage, max_open_segments=3)
    assert len(storage.open_files) <= 2 * FILES, "the segment that is written to, and perhaps one that was just synced"
    assert offsets_of(log) == list(range(2 * SEGMENTS))
    assert len(storage.open_files) <= (1 + 3) * FILES and len(manager.open_segments) == 3


def test_the_segments_read_last_stay_open():
    storage = MemoryStorage()
    _, log = filled(storage, max_open_segments=2)
    for offset in (0, 2, 0, 4):
        log_reader.read(log, offset, 1, True)
    assert {file.path for file in storage.open_files if file.path.startswith(CLOSED)} == {
        path + suffix for path in (CLOSED[0], CLOSED[2]) for suffix in (".log", ".index")
    }


def test_times_and_ids_are_found_in_closed_segments():
    _, log = filled(MemoryStorage(), max_open_segments=1)
    first_ids = [log_reader.ids_of(log, offset, offset + 1)[0][0] for offset in range(2 * SEGMENTS)]
    assert [log_reader.offset_of_id(log, id) for id in first_ids] == list(range(2 * SEGMENTS))
    assert [log_reader.offset_of_time(log, START_MS + n)[0] for n in range(2 * SEGMENTS)] == list(range(2 * SEGMENTS))


def test_a_region_keeps_its_file_when_the_segment_is_closed_and_removed(tmp_path):
    _, log = filled(OsStorage(str(tmp_path)), max_open_segments=1)
    region = log_reader.read(log, 0, 1 << 20, True).records
    log_reader.read(log, 2, 1, True)
    (tmp_path / (CLOSED[0] + ".log")).unlink()
    assert [header.base_offset for _, header in walk(region.file.read(region.position, region.length))] == [0, 1]


def test_closed_segments_take_a_third_of_the_storages_files_at_most():
    assert opened(MemoryStorage(), max_open_files=1200).open_segments.limit == 1200 // 3 // FILES
    assert opened(MemoryStorage(), max_open_files=10).open_segments.limit == 1


def test_a_start_after_a_clean_stop_opens_no_closed_segment():
    storage = MemoryStorage()
    filled(storage)[0].close()
    storage.bytes_read.clear()
    log = opened(storage).get("flights", 0)
    assert not bytes_read(storage, CLOSED)
    assert bytes_read(storage, "flights-0/") < SMALL_READS
    assert [segment.newest_ms for segment in log.segments.all[:2]] == [START_MS + 1, START_MS + 3]
    assert offsets_of(log) == list(range(2 * SEGMENTS))


def test_a_start_after_a_crash_reads_what_is_past_the_checkpoint_and_little_of_what_is_before_it():
    storage, worker, value = MemoryStorage(), new_worker(), b"x" * 100_000
    manager = opened(storage)
    manager.configure({"flights": TopicConfig(segment_bytes=1_000_000)})
    log = manager.get("flights", 0)
    for _ in range(35):
        append(log, value, worker=worker)
    manager.syncs.start_round()
    run(manager)
    append(log, value, worker=worker)
    storage.bytes_read.clear()
    log = opened(storage).get("flights", 0)
    assert log.log_end_offset == 36 and len(log.segments.all) == 4
    assert len(value) < bytes_read(storage, "flights-0/") < len(value) + 4 * SMALL_READS


def test_segments_past_the_checkpoint_are_closed_as_soon_as_they_are_recovered():
    storage = MemoryStorage()
    filled(storage)
    log = opened(storage).get("flights", 0)
    assert not [file for file in storage.open_files if file.path.startswith(CLOSED)]
    assert offsets_of(log) == list(range(2 * SEGMENTS))


def test_what_a_clean_stop_noted_holds_once():
    storage = MemoryStorage()
    filled(storage)[0].close()
    assert len(clean_stop.decode(bytes(storage.files[clean_stop.FILE].data))["flights-0", TOPIC.hex]) == SEGMENTS - 1
    opened(storage)
    assert clean_stop.FILE not in storage.files


@pytest.mark.parametrize("data", [b"", b"[]\n00000000\n", b"{}\n"])
def test_segments_are_looked_at_where_the_note_is_damaged(data):
    storage = MemoryStorage()
    filled(storage)[0].close()
    storage.replace(clean_stop.FILE, data)
    storage.bytes_read.clear()
    assert offsets_of(opened(storage).get("flights", 0)) == list(range(2 * SEGMENTS))
    assert bytes_read(storage, CLOSED)


@pytest.mark.parametrize("failing", ["failing_opens", "failing_reads"])
def test_a_note_that_cannot_be_read_is_named_and_removed_and_the_start_is_one_after_a_crash(failing):
    """It must not stay: after a later crash it might be readable again, and would call that crash a clean stop."""
    storage, lines = MemoryStorage(), []
    filled(storage)[0].close()
    getattr(storage, failing).add(clean_stop.FILE)
    manager = LogManager(storage, BrokerConfig(), lines.append)
    manager.load_checkpoint()
    assert not manager.stopped_cleanly
    manager.open("flights", 0, SMALL, TOPIC)
    manager.opened()
    assert lines == [f"{clean_stop.FILE}: Input/output error; the start checks each log, as after a crash"]
    assert offsets_of(manager.get("flights", 0)) == list(range(2 * SEGMENTS))
    assert clean_stop.FILE not in storage.power_cut(lambda n: 0).files


@pytest.mark.parametrize("suffix", [".log", ".idindex"])
def test_a_segment_that_was_cut_after_a_clean_stop_takes_the_partition_offline_by_name(suffix):
    storage = MemoryStorage()
    filled(storage)[0].close()
    path = CLOSED[5] + suffix
    storage.replace(path, bytes(storage.files[path].data[:-1]))
    lines = []
    manager = opened(storage, report=lines.append)
    assert len(lines) == 1 and path in lines[0]
    with pytest.raises(ApiError, match="is offline"):
        manager.get("flights", 0)


def test_indexes_that_went_after_a_clean_stop_are_written_anew():
    storage = MemoryStorage()
    filled(storage)[0].close()
    for suffix in (".index", ".timeindex"):
        storage.remove(CLOSED[5] + suffix)
    assert offsets_of(opened(storage).get("flights", 0)) == list(range(2 * SEGMENTS))
    assert storage.files[CLOSED[5] + ".timeindex"].data


def test_a_writer_that_rolls_faster_than_a_thread_syncs_waits_for_the_disk():
    storage = MemoryStorage()
    manager, worker = opened(storage, max_open_segments=4), new_worker()
    log = manager.get("flights", 0)
    for _ in range(2 * SEGMENTS):
        append(log, b"x" * 400, worker=worker)
    assert len(log.segments.all) == SEGMENTS and len(storage.open_files) <= (1 + 4) * FILES
    assert storage.files[CLOSED[20] + ".log"].synced
    run(manager)
    assert manager.open_segments.unsynced == 0 and log.unflushed == 0


def test_a_sync_that_the_writer_waits_for_and_that_fails_takes_the_log_offline():
    storage, lines = MemoryStorage(), []
    log, worker = opened(storage, max_open_segments=1, report=lines.append).get("flights", 0), new_worker()
    storage.failing_syncs.add(CLOSED[0] + ".log")
    with pytest.raises(ApiError, match=CLOSED[0]):
        for _ in range(2 * SEGMENTS):
            append(log, b"x" * 400, worker=worker)
    assert log.offline is not None and "a sync failed" in log.offline
    assert lines == [f"partition flights-0 is offline: {log.offline}"]


def test_a_rolled_segment_is_synced_soon_so_that_it_can_be_closed():
    manager, worker = opened(MemoryStorage()), new_worker()
    log = manager.get("flights", 0)
    for _ in range(2):
        append(log, b"x" * 400, worker=worker)
    assert manager.take_syncs() == []
    append(log, b"x" * 400, worker=worker)
    assert [sync.log for sync in manager.take_syncs()] == [log]


def test_a_thread_that_looks_into_a_segment_leaves_none_of_its_files_open():
    """The garbage collector may run late, and file descriptors must not wait for it."""
    storage = MemoryStorage()
    _, log = filled(storage)
    gc.collect()
    gc.disable()
    try:
        before = len(storage.open_files)
        for segment in log.segments.all[:-1]:
            look_up(segment, segment.base_offset + 1)
        assert len(storage.open_files) == before
    finally:
        gc.enable()
