"""The id index: it maps offsets to ids and an id to its offset, by binary search over checked entries."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.index.id_index import IdIndex
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.port import StorageError
from broker.wire.id_entries import ENTRY_BYTES, IdEntry, read_entries

BASE = 1_000


def index_of(runs):
    """Return an index of runs (gap before the first id, length), dense in offsets, and the id of each offset."""
    index = IdIndex(MemoryStorage().open("s.idindex", create=True), BASE)
    ids, next_id = [], 10
    for gap, length in runs:
        first = next_id + gap
        index.append(BASE + len(ids), [(first, length)])
        ids += range(first, first + length)
        next_id = first + length
    return index, ids


RUNS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=20)


@given(RUNS, st.data())
def test_ids_of_a_range_are_its_runs_cut_to_it(runs, data):
    index, ids = index_of(runs)
    first = data.draw(st.integers(0, len(ids)))
    end = data.draw(st.integers(first, len(ids)))
    range_runs = index.runs(BASE + first, BASE + end)
    assert [run_first + i for run_first, length in range_runs for i in range(length)] == ids[first:end]


@given(RUNS)
def test_what_is_written_together_has_an_entry_for_each_run(runs):
    index, ids = index_of(runs)
    together = IdIndex(MemoryStorage().open("s.idindex", create=True), BASE)
    together.append(BASE, index.runs(BASE, BASE + len(ids)))
    assert list(together.entries()) == list(index.entries()) and len(together) == len(runs)


@given(RUNS, st.integers(0, 250))
def test_an_id_finds_the_first_offset_not_below_it(runs, wanted):
    index, ids = index_of(runs)
    assert index.offset_of_id(wanted) == next((BASE + n for n, id in enumerate(ids) if id >= wanted), None)


@given(RUNS | st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=16, max_size=40), st.data())
def test_a_region_holds_the_entries_of_a_range(runs, data):
    index, ids = index_of(runs)
    first = data.draw(st.integers(0, len(ids) - 1))
    end = data.draw(st.integers(first + 1, len(ids)))
    is_newest = data.draw(st.booleans())
    region = index.region(BASE + first, BASE + end, is_newest=is_newest)
    entries = list(read_entries(region.file.read(region.position, region.length), BASE))
    assert entries[0].offset <= BASE + first and entries[-1].offset + entries[-1].length >= BASE + end
    assert len(entries) <= end - first, "no more than it needs"


@pytest.mark.parametrize("entries", [20, 2_000])
def test_the_newest_entries_are_found_by_one_read_however_long_the_index_is(entries, monkeypatch):
    """Else a follower costs its leader more with each record."""
    index, ids = index_of([(1, 1)] * entries)
    reads, read = [], index.file.read
    monkeypatch.setattr(index.file, "read", lambda *args: reads.append(args) or read(*args))
    region = index.region(BASE + len(ids) - 3, BASE + len(ids), is_newest=True)
    assert region.length == 3 * ENTRY_BYTES and len(reads) == 1


def test_a_batch_of_several_runs_takes_an_entry_each():
    index, _ = index_of([])
    index.append(BASE, [(100, 2), (4096, 3)])
    assert [index.entry(n) for n in range(len(index))] == [IdEntry(BASE, 2, 100), IdEntry(BASE + 2, 3, 4096)]
    assert index.last_id() == 4098


def test_an_empty_index_has_nothing():
    index, _ = index_of([])
    assert (len(index), index.last_id(), index.offset_of_id(5)) == (0, None, None)
    assert index.runs(BASE, BASE + 5) == () and index.region(BASE, BASE + 5).length == 0


def test_a_damaged_entry_is_named_and_never_answered_with():
    index, _ = index_of([(0, 3)] * 3)
    data = bytearray(index.file.read(0, 60))
    data[ENTRY_BYTES + 9] ^= 1
    index.file.truncate(0)
    index.file.append(data)
    assert index.entry(1) is None
    newest = partial(index.region, BASE + 1, BASE + 9, is_newest=True)
    for use in (lambda: index.runs(BASE, BASE + 9), lambda: index.offset_of_id(14), newest):
        with pytest.raises(StorageError, match="s.idindex: the entry at byte 20 is damaged"):
            use()


def test_entries_of_another_segment_do_not_pass():
    """The check is seeded with the base offset, so that a page of another file is detected."""
    index, _ = index_of([(0, 3)])
    other = IdIndex(index.file, BASE + 1)
    assert other.entry(0) is None
