"""The limits of a batch of a stream, as the connector has them.

maxOffsetsPerTrigger is divided among the partitions by the offsets that each has left, at least one for each, so a
batch may exceed it by one offset for each partition. minOffsetsPerTrigger makes a batch wait, at most maxTriggerDelay.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000  # the connector's default, 15m

_Partition = TypeVar("_Partition")


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of one batch, in offsets; 0 is no limit."""

    max_offsets: int = 0
    min_offsets: int = 0
    max_delay_ms: int = MAX_TRIGGER_DELAY_MS

    def waits(self, offsets: int, waited_ms: int) -> bool:
        """Return True if `offsets` are too few for a batch yet. `waited_ms` is the time since the last batch."""
        return offsets < self.min_offsets and waited_ms < self.max_delay_ms


def share(sizes: Mapping[_Partition, int], most: int) -> dict[_Partition, int]:
    """Return how many offsets of each partition fit into a batch of `most`; 0 is no limit."""
    total = sum(sizes.values())
    if not most or total <= most:
        return dict(sizes)
    return {partition: min(size, max(1, most * size // total)) if size else 0 for partition, size in sizes.items()}
