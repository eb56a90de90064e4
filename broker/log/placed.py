"""What is appended to a segment: a batch that has got its place."""

from collections.abc import Sequence
from typing import NamedTuple

from broker.record.batch import BatchHeader


class Placed(NamedTuple):
    """A batch, its base offset, and its ids as runs (first id, how many)."""

    batch: memoryview
    header: BatchHeader
    base_offset: int
    runs: Sequence[tuple[int, int]]
