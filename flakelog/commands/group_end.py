"""The end of `flakelog consume --group` without --follow: when has the group read all that was there?

The time in which nothing comes counts when each assigned partition was fetched, and read up to what its fetch saw.
Before, more comes: a new group waits `group.initial.rebalance.delay.ms` for members, and a busy server answers late.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.client.consumer_figures import PartitionFigures
    from broker.client.group_protocol import Partition

IDLE_MS = 2_000  # with --committed, messages behind an open transaction may still come


class GroupEnd:
    """Knows when a member has read its partitions up to `ends`, or nothing comes any more."""

    def __init__(self, ends: "Mapping[Partition, int | None]") -> None:
        self._ends = ends
        self._idle_since_ms: int | None = None
        self._missing_since_ms: int | None = None

    def came(self, now_ms: int) -> None:
        """Take note that messages came."""
        self._idle_since_ms = now_ms
        self._missing_since_ms = None

    def is_reached(self, partitions: "Mapping[Partition, PartitionFigures]", now_ms: int) -> bool:
        """Return True at the end. `partitions` are the assigned partitions, of which there may be none yet."""
        if partitions and all(
            figures.position is not None and figures.position >= (self._ends.get(partition) or 0)
            for partition, figures in partitions.items()
        ):
            return True
        if not partitions or missing(partitions):
            self._idle_since_ms = None
            self._missing_since_ms = now_ms if self._missing_since_ms is None else self._missing_since_ms
            return False
        self._missing_since_ms = None
        self._idle_since_ms = now_ms if self._idle_since_ms is None else self._idle_since_ms
        return now_ms - self._idle_since_ms >= IDLE_MS

    def missing_ms(self, now_ms: int) -> int:
        """Return for how long nothing has come though a partition is `missing`, or the member has none."""
        return 0 if self._missing_since_ms is None else now_ms - self._missing_since_ms


def missing(partitions: "Mapping[Partition, PartitionFigures]") -> "list[Partition]":
    """Return the partitions that were not fetched since they were assigned, or have more than was read of them."""
    return [partition for partition, figures in partitions.items() if figures.lag is None or figures.lag > 0]
