"""Search for a batch in a segment: by the index, then from header to header."""

import pytest

from broker.log.last_writes import LAST_WRITES
from broker.log.non_blocking_reader import find_now
from broker.log.segment import Segment
from broker.log.storage.memory_storage import MemoryStorage
from broker.record.batch import HEADER_BYTES, read_header
from broker.record.records import BatchRecord, encode_batch
from broker.wire.frame import FileRegion
from broker.wire.id_entries import ENTRY_BYTES
from tests.broker.watched_storage import WatchedStorage

SMALL, LARGE, HUGE = 1, 6_000, 40_000


def batch_of(number, size):
    records = [BatchRecord(n, 0, None, bytes(size)) for n in range(3)]
    return encode_batch(records, base_timestamp_ms=0, base_offset=100 + 3 * number)


def write(segment, number, sizes, interval_bytes):
    """Append the batches from `number` on with one write; return their positions."""
    batches = [batch_of(number + n, size) for n, size in enumerate(sizes)]
    placed = [(read_header(batch), 100 + 3 * (number + n), batch) for n, batch in enumerate(batches)]
    start = segment.size
    segment.append(placed, ((number * 10, 3 * len(sizes)),), interval_bytes)
    return [start + sum(map(len, batches[:n])) for n in range(len(sizes))]


def segment_of(sizes, interval_bytes, in_one_write=1, storage=None):
    """Return a segment of batches, each of three records with values of one of these sizes, and their positions."""
    storage = storage or MemoryStorage()
    storage.make_directory("flights-0")
    segment, positions = Segment(storage, "flights-0", 100, create=True), []
    for number in range(0, len(sizes), in_one_write):
        positions += write(segment, number, sizes[number : number + in_one_write], interval_bytes)
    return segment, positions


@pytest.mark.parametrize("in_one_write", [1, 7])
@pytest.mark.parametrize("interval_bytes", [0, 4_096, 1 << 20])
@pytest.mark.parametrize(
    "sizes", [[SMALL] * 900, [LARGE] * 30, [HUGE] * 5, [SMALL, HUGE] * 8, [HUGE] + [SMALL] * 500, [LARGE, SMALL] * 40]
)
def test_each_offset_is_found_whatever_lies_before_it(sizes, interval_bytes, in_one_write):
    segment, positions = segment_of(sizes, interval_bytes, in_one_write)
    for number, position in enumerate(positions):
        for offset in range(100 + 3 * number, 103 + 3 * number):
            for location in (segment.find(offset), find_now(segment, offset, with_ids=False)):
                assert location is not None and (location[0], location[1].base_offset) == (position, 100 + 3 * number)
    assert segment.find(100 + 3 * len(sizes)) is None


@pytest.mark.parametrize("number", range(50 - LAST_WRITES, 50))
def test_the_last_writes_are_found_without_reading_what_lies_before_them(number):
    """Most consumers follow the log's end, and so does each fetch that waits for an append."""
    storage = WatchedStorage()
    segment, positions = segment_of([SMALL] * 50, 1 << 20, storage=storage)
    storage.read_bytes.clear()
    assert segment.find(100 + 3 * number + 2)[0] == positions[number]
    assert storage.read_bytes[segment.log.path] <= len(batch_of(number, SMALL)) + HEADER_BYTES


@pytest.mark.parametrize("in_one_write", [1, 3])
def test_whole_writes_are_found_from_the_last_ones_on_without_a_read(in_one_write):
    """A follower that is a few writes behind asks from the beginning of one of them on."""
    storage, entries = WatchedStorage(), LAST_WRITES + 8
    segment, positions = segment_of([SMALL, LARGE] * (entries * in_one_write // 2), 1 << 20, in_one_write, storage)
    ends = [*positions[::in_one_write], segment.size]
    storage.read_bytes.clear()
    for first in range(entries - LAST_WRITES, entries):
        for last in range(first + 1, entries + 1):
            for spare in (0, 1):
                regions = segment.writes_from(100 + 3 * in_one_write * first, ends[last] - ends[first] + spare)
                assert regions == (
                    FileRegion(segment.log, ends[first], ends[last] - ends[first]),
                    FileRegion(segment.ids.file, first * ENTRY_BYTES, (last - first) * ENTRY_BYTES),
                )
    assert not storage.read_bytes


def test_no_write_is_found_that_is_larger_than_the_limit_or_begins_elsewhere_or_is_an_old_one():
    segment, positions = segment_of([SMALL] * 100, 1 << 20)
    newest = segment.size - positions[99]
    assert segment.writes_from(100 + 3 * 99, newest) is not None
    assert segment.writes_from(100 + 3 * 99, newest - 1) is None
    assert segment.writes_from(100 + 3 * 99 + 1, newest) is None
    assert segment.writes_from(100 + 3 * 100, newest) is None
    assert segment.writes_from(100, newest) is None


def test_after_a_failed_write_the_batches_before_it_are_found():
    storage = WatchedStorage()
    segment, positions = segment_of([SMALL] * 5, 1 << 20, storage=storage)
    storage.faults[segment.log.path] = MemoryError()
    with pytest.raises(MemoryError):
        write(segment, 5, [SMALL, SMALL], 1 << 20)
    storage.faults.clear()
    assert segment.find(115) is None and segment.find(112)[0] == positions[4]
    assert write(segment, 5, [LARGE], 1 << 20) == [segment.find(117)[0]]


def test_after_a_cut_no_batch_behind_it_is_found():
    segment, positions = segment_of([SMALL] * 5, 1 << 20)
    segment.cut(positions[3], 3 * ENTRY_BYTES)
    assert segment.find(109) is None and segment.find(108)[0] == positions[2]
    assert segment.writes_from(106, 1 << 20) is None
