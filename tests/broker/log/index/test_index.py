"""Offset and time index: sparse, ordered, in Kafka's formats; lookups work without some of the entries."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log import log_reader
from broker.log.index.index import OffsetIndex, TimeIndex
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.port import StorageError
from broker.settings.config import TopicConfig
from tests.broker.log.conftest import START_MS, append, new_worker, reopen


def new(kind, *entries):
    index = kind(MemoryStorage().open("x", create=True))
    for entry in entries:
        index.append(entry)
    return index


def test_entries_are_laid_out_as_kafkas():
    """Kafka's OffsetIndex and TimeIndex are big endian, with relative offsets of four bytes."""
    assert new(OffsetIndex, (7, 4096)).file.read(0, 99) == struct.pack(">ii", 7, 4096)
    assert new(TimeIndex, (START_MS, 7)).file.read(0, 99) == struct.pack(">qi", START_MS, 7)


def test_an_entry_does_not_follow_a_piece_of_one():
    """The disk took only a piece of a closing segment's last entry, and refused the cut that should remove it."""
    storage = MemoryStorage()
    index = TimeIndex(storage.open("x", create=True))
    index.append((START_MS, 7))
    storage.free_bytes, storage.failing_cuts = 5, {"x"}
    with pytest.raises(StorageError):
        index.append((START_MS + 1, 8))
    storage.free_bytes, storage.failing_cuts = None, set()
    index.append((START_MS + 2, 9))
    assert [index[n] for n in range(len(index))] == [(START_MS, 7), (START_MS + 2, 9)]


@given(st.sets(st.integers(0, 1000)), st.integers(-5, 1005))
def test_a_lookup_is_the_last_entry_not_after_the_offset(offsets, wanted):
    index = new(OffsetIndex, *((offset, offset * 10) for offset in sorted(offsets)))
    assert index.position_before(wanted) == max((o * 10 for o in offsets if o <= wanted), default=0)


@given(st.sets(st.integers(0, 1000)), st.integers(-5, 1005))
def test_a_time_lookup_is_the_last_entry_below_the_time(times, wanted):
    index = new(TimeIndex, *((time, n) for n, time in enumerate(sorted(times))))
    assert index.offset_before(wanted) == max((n for n, t in enumerate(sorted(times)) if t < wanted), default=0)


def test_below_the_first_entry_and_without_any_a_lookup_begins_at_the_start():
    assert new(OffsetIndex).position_before(5) == 0
    assert new(OffsetIndex, (9, 100)).position_before(5) == 0


def test_times_only_rise_and_no_time_is_no_entry():
    index = new(TimeIndex)
    for time, offset in ((-1, 0), (50, 1), (50, 2), (40, 3), (60, 4)):
        index.append_risen((time, offset))
    assert [index[n] for n in range(len(index))] == [(50, 1), (60, 4)]


def test_times_rise_from_what_a_cut_has_left():
    index = new(TimeIndex)
    index.append_risen((50, 1), (90, 2))
    index.keep(1)
    index.append_risen((40, 3), (60, 4))
    assert [index[n] for n in range(len(index))] == [(50, 1), (60, 4)]


def test_entries_past_a_position_are_dropped_half_ones_too():
    index = new(OffsetIndex, (0, 0), (5, 100), (9, 200))
    index.file.append(b"half")
    index.drop_from(200)
    assert (len(index), index.file.size) == (2, 16)


@pytest.mark.parametrize("interval", [0, 300, 4096])
def test_an_entry_names_the_last_offset_of_the_batch_at_its_position(interval):
    """Kafka's dump tool checks this: its LogSegment.append adds (largest offset, physical position)."""
    log, _ = reopen(MemoryStorage(), config=TopicConfig(index_interval_bytes=interval))
    worker = new_worker()
    for n in range(60):
        append(log, b"x" * 100, b"y" * 100, worker=worker, timestamp_ms=START_MS + n % 7)
    (segment,) = log.segments.all
    batches = dict(segment.batches())
    entries = [segment.offsets[n] for n in range(len(segment.offsets))]
    assert len(entries) == (60 * 275 // 4400 if interval == 4096 else 59 if not interval else len(entries)) > 2
    for relative, position in entries:
        assert batches[position].last_offset == relative
    gaps = [b[1] - a[1] for a, b in zip(entries, entries[1:], strict=False)]
    assert all(gap > interval for gap in gaps), "sparse: at least the interval between two"


def test_a_time_entry_is_the_largest_time_up_to_its_offset():
    """Times out of order make no entry that could mislead a lookup (KIP-33)."""
    log, _ = reopen(MemoryStorage(), config=TopicConfig(index_interval_bytes=0))
    worker = new_worker()
    times = [START_MS + t for t in (5, 3, 9, 1, 9, 2, 30, 4)]
    for time in times:
        append(log, b"x", worker=worker, timestamp_ms=time)
    (segment,) = log.segments.all
    for time, offset in (segment.times[n] for n in range(len(segment.times))):
        assert time == max(times[: offset + 1])
    for wanted in range(START_MS, START_MS + 32):
        expected = next(((n, t) for n, t in enumerate(times) if t >= wanted), None)
        assert log_reader.offset_of_time(log, wanted) == expected


@given(st.lists(st.tuples(st.sampled_from(["add", "cut", "find"]), st.integers(0, 1_500)), max_size=60))
def test_what_was_appended_or_cut_between_lookups_is_seen(steps):
    """A lookup keeps the block that it read last; a block has 256 entries."""
    index, offsets = new(OffsetIndex), []
    for step, number in [*steps, *(("find", hundreds) for hundreds in range(0, 3_000, 250))]:
        if step == "add":
            for _ in range(number % 400):
                offsets.append((offsets[-1] if offsets else 0) + number + 1)
                index.append((offsets[-1], 4_000 + len(offsets)))
        elif step == "cut":
            del offsets[number:]
            index.keep(len(offsets))
        else:
            wanted = number * 100
            rank = sum(offset <= wanted for offset in offsets)
            assert index.rank(wanted) == rank
            assert index.position_before(wanted) == (4_000 + rank if rank else 0)
            last = 4_001 + rank if rank < len(offsets) else 77
            assert index.span_of(wanted, 77) == (index.position_before(wanted), last)
