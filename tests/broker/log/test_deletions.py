"""Deletion of old segments from a log and from the disk, and recovery after a crash in the middle."""

from random import Random
from weakref import ref

import pytest

from broker.log import log_reader
from broker.log.deletions import CHECKPOINT_WITHIN_MS, RENAMED_AT_ONCE
from broker.log.io_jobs import RemoveFiles
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.os_storage import OsStorage
from broker.now import Now
from broker.record.records import decode_records
from broker.wire.errors import ApiError, ErrorCode
from tests.broker.log.conftest import NOW, START_MS
from tests.broker.log.manager_world import Broker

DELAY_MS = 60_000
LATER = Now(NOW.ms + CHECKPOINT_WITHIN_MS, START_MS)


def filled(storage=None, batches=4, **topic):
    """Make a log of batches of one record, each in a separate segment and synced; return (broker, log)."""
    broker = Broker(storage, **({"segment_bytes": 1024, "file_delete_delay_ms": DELAY_MS} | topic))
    log = broker.open()
    while log.log_end_offset < batches:
        broker.append(log, b"%d" % log.log_end_offset * 700)
    broker.round()
    return broker, log


def names(storage, suffix=".log"):
    """Return the base offsets of the segments that have a file with this suffix."""
    return [int(name.split(".")[0]) for name in storage.list("flights-0") if name.endswith(suffix)]


def delete(broker, log, offset, now=NOW):
    broker.manager.delete_records(log, offset, now)


def tick(broker, now):
    broker.manager.tick(now)
    while syncs := broker.manager.take_syncs():
        broker.run(*syncs)


def values(log):
    numbers, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        region = log_reader.read(log, offset, 1 << 20, True).records
        for record in decode_records(region.file.read(region.position, region.length)):
            numbers += [int(record.value[:1])] if record.offset >= offset else []
        offset = record.offset + 1
    return numbers


def test_readers_find_the_later_beginning_of_the_log_immediately():
    broker, log = filled()
    delete(broker, log, 2)
    assert log.log_start_offset == 2 and [s.base_offset for s in log.segments.all] == [2, 3]
    with pytest.raises(ApiError) as refused:
        log_reader.read(log, 1, 1000, True)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert values(log) == [2, 3]


def test_the_start_may_stand_inside_a_segment():
    broker = Broker()
    log = broker.open()
    for value in (b"a", b"b", b"c"):
        broker.append(log, value)
    delete(broker, log, 2)
    assert (log.log_start_offset, len(log.segments.all)) == (2, 1)
    assert log_reader.offset_of_time(log, 0) == (2, START_MS)
    assert log_reader.offset_of_id(log, 0) == 2
    assert log_reader.ids_of(log, 0, 2) == ()


def test_a_log_of_which_all_is_deleted_goes_on_where_it_was():
    broker, log = filled()
    last_id = log.last_id
    delete(broker, log, 4)
    assert (log.log_start_offset, log.log_end_offset, len(log.segments.all)) == (4, 4, 1)
    tick(broker, LATER)
    again = Broker(broker.storage)
    log = again.open()
    assert (log.log_start_offset, log.log_end_offset, log.last_id) == (4, 4, last_id)
    assert again.append(log).base_offset == 4


def test_an_offset_past_the_high_watermark_is_refused():
    broker, log = filled()
    with pytest.raises(ApiError) as refused:
        delete(broker, log, 5)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE and log.log_start_offset == 0


def test_a_lower_offset_than_the_start_changes_nothing():
    broker, log = filled()
    delete(broker, log, 3)
    delete(broker, log, 1)
    assert log.log_start_offset == 3


def test_files_are_renamed_when_the_checkpoint_says_so_and_removed_after_the_delay():
    broker, log = filled()
    delete(broker, log, 2)
    assert names(broker.storage) == [0, 1, 2, 3], "the checkpoint still speaks of them"
    tick(broker, LATER)
    assert broker.checkpoint()["flights-0"].log_start_offset == 2
    assert names(broker.storage) == [2, 3] and names(broker.storage, ".log.deleted") == [0, 1]
    assert broker.manager.next_deadline_ms(LATER.ms) <= NOW.ms + DELAY_MS
    tick(broker, Now(NOW.ms + DELAY_MS - 1, START_MS))
    assert names(broker.storage, ".deleted")
    tick(broker, Now(NOW.ms + DELAY_MS, START_MS))
    assert not names(broker.storage, ".deleted")


def test_what_begins_later_within_a_second_is_one_checkpoint():
    broker, log = filled()
    for offset in (1, 2, 3):
        delete(broker, log, offset)
    broker.manager.tick(LATER)
    assert len(broker.manager.take_syncs()) == 1


def test_thousands_of_files_are_renamed_bit_by_bit():
    """Otherwise all clients would wait for the renames."""
    broker, log = filled(batches=RENAMED_AT_ONCE + 3)
    delete(broker, log, RENAMED_AT_ONCE + 2)
    tick(broker, LATER)
    assert len(names(broker.storage)) == 3, "two, and the one that is written to"
    assert broker.manager.next_deadline_ms(LATER.ms) <= LATER.ms
    tick(broker, LATER)
    assert names(broker.storage) == [RENAMED_AT_ONCE + 2]
    tick(broker, Now(LATER.ms + DELAY_MS, START_MS))
    assert names(broker.storage, ".deleted") == []


def test_a_checkpoint_under_way_is_waited_for():
    """The running checkpoint may describe the log as it was before."""
    broker, log = filled()
    broker.append(log)
    broker.manager.syncs.start_round()
    (sync,) = broker.manager.take_syncs()
    delete(broker, log, 2)
    broker.manager.tick(LATER)
    broker.run(sync)
    broker.run()
    assert names(broker.storage) == [0, 1, 2, 3], "that one does not say it"
    tick(broker, Now(LATER.ms + CHECKPOINT_WITHIN_MS, START_MS))
    assert names(broker.storage) == [2, 3]


def test_a_sync_covers_what_was_dropped_before_it():
    """Until the checkpoint has the new start, recovery reads through the dropped segments to the records acknowledged
    after them."""
    broker = Broker(segment_bytes=1024)
    log = broker.open()
    for _ in range(4):
        broker.append(log, b"x" * 700)
    delete(broker, log, 2)
    log.ask_sync(soon=True)
    (sync,) = broker.manager.take_syncs()
    assert [file.path.endswith(f"{0:020d}.log") for file in sync.files].count(True) == 1
    broker.run(sync)
    broker.append(log, b"x")
    log.ask_sync(soon=True)
    (sync,) = broker.manager.take_syncs()
    assert {int(file.path.split("/")[-1].split(".")[0]) for file in sync.files} == {3}


def test_a_checkpoint_that_cannot_be_written_leaves_the_files():
    broker, log = filled()
    delete(broker, log, 2)
    broker.manager.tick(LATER)
    broker.run()
    broker.storage.free_bytes = 0
    broker.run()
    broker.storage.free_bytes = None
    assert names(broker.storage) == [0, 1, 2, 3]
    broker.round()
    assert names(broker.storage) == [2, 3], "the next one that is written says it too"


def test_time_makes_old_segments_go():
    broker, log = filled(retention_ms=5_000)
    due = broker.manager.next_deadline_ms(NOW.ms)
    tick(broker, Now(due, START_MS + 5_000))
    assert log.log_start_offset == 0
    due += broker.manager.config.log_retention_check_interval_ms
    tick(broker, Now(due, START_MS + 5_001))
    assert (log.log_start_offset, log.log_end_offset) == (4, 4)


def test_a_reader_of_a_deleted_segment_still_gets_its_bytes(tmp_path):
    storage = OsStorage(str(tmp_path))
    broker, log = filled(storage, file_delete_delay_ms=0)
    region = log_reader.read(log, 0, 2000, True).records
    delete(broker, log, 4)
    tick(broker, LATER)
    tick(broker, LATER)
    assert names(storage) == [3] and not names(storage, ".deleted")
    (record,) = decode_records(region.file.read(region.position, region.length))
    assert record.value == b"0" * 700


def test_a_topic_made_anew_keeps_its_files():
    """Its first segment has the name of a deleted one."""
    broker, log = filled()
    delete(broker, log, 2)
    broker.manager.tick(LATER)
    broker.delete(0)
    log = broker.open()
    broker.append(log, b"new")
    broker.round()
    tick(broker, Now(NOW.ms + DELAY_MS, START_MS))
    assert names(broker.storage) == [0] and log.log_start_offset == 0
    assert Broker(broker.storage).open().log_end_offset == 1


def test_files_of_a_topic_that_is_gone_need_no_removing():
    RemoveFiles(MemoryStorage(), "flights-0", ("flights-0/0.log.deleted",)).run()


def test_a_disk_that_does_not_rename_is_said_and_the_next_start_removes_them():
    broker, log = filled()
    delete(broker, log, 2)
    broker.manager.tick(LATER)
    del broker.storage.files[f"flights-0/{1:020d}.index"]  # the worst case: something else removed a file
    broker.run()
    broker.run()
    again = Broker(broker.storage)
    assert values(again.open()) == [2, 3] and names(broker.storage) == [2, 3] and not again.lines


class _Stop(Exception):
    pass


class _StopsAt(MemoryStorage):
    """Storage whose process is killed at change number `steps` of a file name."""

    steps = 1 << 30

    def _step(self):
        self.steps -= 1
        if self.steps < 0:
            raise _Stop

    def rename(self, source, target):
        self._step()
        super().rename(source, target)

    def remove(self, path):
        self._step()
        super().remove(path)

    def replace(self, path, data):
        self._step()
        super().replace(path, data)


def killed(steps):
    """Delete records, with a kill after `steps` changes; return the broker, and True if the deletion was finished."""
    storage = _StopsAt()
    broker, log = filled(storage, file_delete_delay_ms=0)
    storage.steps = steps
    try:
        delete(broker, log, 3)
        tick(broker, LATER)
        tick(broker, LATER)
    except _Stop:
        pass
    ended, storage.steps = storage.steps >= 0, 1 << 30
    return broker, ended


def check(storage, last_id):
    """Assert that the log is as before the deletion or as after it."""
    broker = Broker(storage)
    log = broker.open()
    assert not broker.lines, broker.lines
    assert log.log_start_offset in (0, 3) and log.log_end_offset == 4 and log.last_id == last_id
    assert values(log) == list(range(log.log_start_offset, 4))
    assert names(storage) == list(range(log.log_start_offset, 4))
    assert not names(storage, ".deleted")
    assert broker.append(log, b"4").base_offset == 4


def test_a_kill_at_any_step_leaves_a_sound_log():
    steps, ended = 0, False
    while not ended:
        broker, ended = killed(steps)
        check(broker.storage, broker.manager.get("flights", 0).last_id)
        steps += 1
    assert steps > 20


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_at_any_step_leaves_a_sound_log(seed):
    random = Random(seed)
    for steps in range(32):
        broker, _ = killed(steps)
        check(broker.storage.power_cut(random.randrange), broker.manager.get("flights", 0).last_id)


def test_the_files_of_segments_that_were_never_synced_are_released_without_another_append():
    """An open file keeps its space on the disk, although it has no name any more."""
    broker, log = filled()
    for _ in range(3):
        broker.append(log, bytes(700))
    dropped = [ref(segment) for segment in log.segments.all[:6]]
    delete(broker, log, 6)
    tick(broker, LATER)
    assert names(broker.storage) == [6]
    assert [segment() for segment in dropped] == [None] * 6
