"""What is appended to a segment: batches that have got their places, and the ids of all of them."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from broker.record.batch import BatchHeader

Placed: TypeAlias = tuple[memoryview, BatchHeader, int]
"""A batch, its header, and its base offset."""


def each_ones_runs(placed: Sequence[Placed], runs: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    """Of the ids that batches have together, as runs (first id, how many), batch by batch those that are its own."""
    left = deque(runs)
    first_id, length = left.popleft()
    for _, header, _ in placed:
        own: list[tuple[int, int]] = []
        wanted = header.record_count
        while wanted:
            if not length:
                first_id, length = left.popleft()
            some = min(wanted, length)
            own.append((first_id, some))
            first_id, length, wanted = first_id + some, length - some, wanted - some
        yield own
