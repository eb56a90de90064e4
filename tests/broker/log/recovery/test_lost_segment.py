"""A truncation to a log's start removes its segment. A power cut then may bring some of the segment's files back."""

from dataclasses import replace
from itertools import product

import pytest

from broker.log import log_reader
from broker.log.checkpoint import LogPosition
from broker.log.log_reader import read
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
