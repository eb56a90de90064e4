"""Search for a batch in a segment: by the index, then from header to header."""

import pytest

from broker.log.non_blocking_reader import find_now
from broker.log.segment import Segment
from broker.log.storage.memory_storage import MemoryStorage
from broker.record.batch import read_header
from broker.record.records import Record, encode_batch

SMALL, LARGE, HUGE = 1, 6_000, 40_000


def segment_of(sizes, interval_bytes):
    """Return a segment of batches, each of three records with values of one of these sizes, and their positions."""
    storage = MemoryStorage()
    storage.make_directory("flights-0")
    segment, placed = Segment(storage, "flights-0", 100, create=True), []
    for number, size in enumerate(sizes):
        records = [Record(n, 0, None, bytes(size)) for n in range(3)]
        batch = encode_batch(records, base_timestamp_ms=0, base_offset=100 + 3 * number)
        placed.append((segment.size, batch))
        runs = ((number * 10, 3),)
        segment.append([(read_header(batch), 100 + 3 * number, batch)], runs, interval_bytes)
    return segment, [position for position, _ in placed]


@pytest.mark.parametrize("interval_bytes", [0, 4_096, 1 << 20])
@pytest.mark.parametrize(
    "sizes", [[SMALL] * 900, [LARGE] * 30, [HUGE] * 5, [SMALL, HUGE] * 8, [HUGE] + [SMALL] * 500, [LARGE, SMALL] * 40]
)
def test_each_offset_is_found_whatever_lies_before_it(sizes, interval_bytes):
    segment, positions = segment_of(sizes, interval_bytes)
    for number, position in enumerate(positions):
        for offset in range(100 + 3 * number, 103 + 3 * number):
            for found in (segment.find(offset), find_now(segment, offset, with_ids=False)):
                assert found is not None and (found[0], found[1].base_offset) == (position, 100 + 3 * number)
    assert segment.find(100 + 3 * len(sizes)) is None
