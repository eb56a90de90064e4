"""What is appended to a segment: a batch that has got its place."""

from collections.abc import Sequence
from typing import TypeAlias

from broker.record.batch import BatchHeader

Placed: TypeAlias = tuple[memoryview, BatchHeader, int, Sequence[tuple[int, int]]]
"""A batch, its header, its base offset, and its ids as runs (first id, how many)."""
