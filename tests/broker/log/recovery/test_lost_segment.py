"""Starts of a log whose checkpoint names a segment without its .log file.

A truncation to the log's start removes the segment, and a power cut may bring some of its files back. A lost file looks
alike if the checkpoint has no bytes of it: a line names the loss. A lost file with synced bytes is damage.
"""

from dataclasses import replace
from itertools import product

import pytest

from broker.log import log_reader
from broker.log.checkpoint import LogPosition
from broker.log.log_reader import read
from broker.log.recovery.synced import LogDamaged
from broker.log.storage.memory_storage import MemoryStorage
from broker.record.batch import walk
from broker.settings.config import TopicConfig
from broker.wire.id_entries import read_entries
from tests.broker.log.conftest import START_MS, append, new_worker, reopen

INDEXED = TopicConfig(index_interval_bytes=1)
SUFFIXES = "idindex", "index", "timeindex", "txnindex"
ANEW = LogPosition(0, 0, -1, 0, 0, 0, -1, 0, 0)


@pytest.mark.parametrize("kept", list(product((False, True), repeat=len(SUFFIXES))), ids=str)
def test_files_of_the_lost_segment_do_not_count_for_the_one_that_is_made_in_its_place(kept):
    storage = MemoryStorage()
    log, _ = reopen(storage, config=INDEXED)
    for size in (10, 20, 30):
        append(log, b"old" * size, worker=new_worker())
    path = f"flights-0/{0:020d}."
    storage.remove(path + "log")
    for suffix, is_kept in zip(SUFFIXES, kept, strict=True):
        if not is_kept:
            storage.remove(path + suffix)
    log, _ = reopen(storage, ANEW)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    worker = new_worker(START_MS + 1)
    for number in range(8):
        append(log, b"%d" % number, worker=worker)
    for offset in range(8):
        result = read(log, offset, 1, True, with_ids=True)
        records = result.records.file.read(result.records.position, result.records.length)
        entries = result.ids.entries.file.read(result.ids.entries.position, result.ids.entries.length)
        assert [header.base_offset for _, header in walk(records)] == [offset]
        assert [entry.offset for entry in read_entries(entries, 0)] == [offset]
    again, _ = reopen(storage)
    assert (again.log_end_offset, log_reader.ids_of(again, 0, 8)) == (8, log_reader.ids_of(log, 0, 8))


def test_a_segment_of_deleted_records_that_the_checkpoint_begins_with_is_read_to_its_end():
    """A truncation has lowered the checkpoint to it. What follows it is in a later segment."""
    small, storage, worker = TopicConfig(segment_bytes=1024), MemoryStorage(), new_worker()
    log, _ = reopen(storage, config=small)
    for _ in range(4):
        append(log, b"x" * 600, worker=worker)
    bases, ids = log.segments.bases, log_reader.ids_of(log, 2, 4)
    assert bases == [0, 1, 2, 3]
    again, _ = reopen(storage, replace(ANEW, log_start_offset=1), config=small)
    assert (again.log_start_offset, again.log_end_offset) == (1, 4)
    assert log_reader.ids_of(again, 2, 4) == ids


SMALL = TopicConfig(segment_bytes=1024)
FIRST = f"flights-0/{0:020d}."


def in_segments(log, worker, number=4):
    """Append batches, and begin a segment with each."""
    for _ in range(number):
        append(log, b"x" * 600, worker=worker)


@pytest.mark.parametrize("others", [0, 4])
def test_a_missing_log_file_with_synced_bytes_is_damage_also_if_all_its_records_were_deleted(others):
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage, config=SMALL)
    in_segments(log, worker, 1)
    log.advance_start(1)
    checkpointed = log.position()
    assert (checkpointed.offset, checkpointed.log_start_offset, checkpointed.segment) == (1, 1, 0)
    append(log, b"in the first segment", worker=worker)
    in_segments(log, worker, others)
    assert len(log.segments.all) == 1 + others
    storage.remove(FIRST + "log")
    before = {path: bytes(content.data) for path, content in storage.files.items()}
    with pytest.raises(LogDamaged, match=f"there is no file {FIRST}log, though it was synced"):
        reopen(storage, checkpointed, config=SMALL)
    assert {path: bytes(content.data) for path, content in storage.files.items()} == before


def test_a_deleted_segment_whose_removal_was_interrupted_is_no_damage():
    """All records of the checkpoint's segment were deleted, and the next segment begins at the checkpoint's offset."""
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage, config=SMALL)
    in_segments(log, worker, 1)
    log.advance_start(1)
    checkpointed = log.position()
    in_segments(log, worker, 3)
    assert log.segments.bases == [0, 1, 2, 3]
    for suffix in (".log", *SUFFIXES):
        storage.remove(FIRST + suffix.lstrip("."))
    again, report = reopen(storage, checkpointed, config=SMALL)
    assert (again.log_start_offset, again.log_end_offset, report.cut) == (1, 4, False)


def test_later_segments_that_go_with_the_missing_first_one_are_named_in_the_line():
    """A truncation that began the log anew looks alike, so this is no damage."""
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage, config=SMALL)
    in_segments(log, worker)
    size, id_bytes = sum(segment.size for segment in log.segments.all[1:]), log.segments.all[0].ids.file.size
    storage.remove(FIRST + "log")
    again, report = reopen(storage, ANEW, config=SMALL)
    assert again.log_end_offset == 0 and report.cut
    assert report.line(again) == (
        "partition flights-0 recovered: ends at offset 0, 0 batches past the checkpoint; "
        f"cut 0 bytes, {id_bytes} bytes of ids and 3 segments of {size} bytes (there is no file {FIRST}log)"
    )


def test_segments_behind_a_missing_one_are_named_in_the_line_too():
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage, config=SMALL)
    in_segments(log, worker)
    for suffix in ("log", *SUFFIXES):
        storage.remove(f"flights-0/{1:020d}.{suffix}")
    again, report = reopen(storage, config=SMALL)
    assert again.log_end_offset == 1
    assert f"2 segments of {2 * log.segments.active.size} bytes (there is no file flights-0/{1:020d}.log)" in (
        report.line(again)
    )


@pytest.mark.parametrize("size", [0, 1])
def test_a_log_file_that_ends_at_a_batch_before_its_ids_is_named_in_the_line(size):
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage)
    for _ in range(3):
        append(log, b"a", worker=worker)
    data = storage.files[FIRST + "log"].data
    position = size * len(data) // 3
    del data[position:]
    again, report = reopen(storage)
    assert again.log_end_offset == size and report.cut
    assert f"cut 0 bytes, {20 * (3 - size)} bytes of ids" in report.line(again)
    assert report.line(again).endswith(f"({FIRST}log ends at byte {position}, its ids go on)")
