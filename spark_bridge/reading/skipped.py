"""Batches that a read with onPoison=skip leaves out: each has a valid CRC, and records that cannot be decoded.

A task reports the batches of its range as a JSON array, in offset order:

    [{"topic": "flights", "partition": 0, "base_offset": 100, "last_offset": 199, "reason": "..."}, ...]
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

FAIL, SKIP = "fail", "skip"
"""The values of the option onPoison."""

SKIPPED_MAX = 10_000
"""Batches that the read of one range leaves out. With more the read fails, because a log in this state needs a person.
Their names take about two megabytes."""


class SkippedBatch(NamedTuple):
    """A batch that was left out, and why."""

    topic: str
    partition: int
    base_offset: int
    last_offset: int
    reason: str

    def __str__(self) -> str:
        offsets = f"offsets {self.base_offset} to {self.last_offset}"
        return f"{self.topic}-{self.partition}: the batch of {offsets} cannot be decoded: {self.reason}"


def to_dicts(batches: Iterable[SkippedBatch]) -> list[dict[str, Any]]:
    return [batch._asdict() for batch in batches]


def from_dicts(batches: Iterable[dict[str, Any]]) -> tuple[SkippedBatch, ...]:
    """Invert `to_dicts`. Raise TypeError if a field is missing or unknown."""
    return tuple(SkippedBatch(**batch) for batch in batches)


def to_json(batches: Iterable[SkippedBatch]) -> str:
    return json.dumps(to_dicts(batches))


def from_json(text: str) -> tuple[SkippedBatch, ...]:
    """Invert `to_json`. Raise ValueError or TypeError for other text."""
    return from_dicts(json.loads(text))
