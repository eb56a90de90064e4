"""The figures of a mirror: rates, lag and errors."""

from collections.abc import Mapping
from typing import NamedTuple

from broker.client.leaders import Partition


class PartitionLag(NamedTuple):
    """How far a partition was copied. Offsets of the source; None while they are not known."""

    copied: int | None
    """The offset after the last record that the target has acknowledged."""
    end: int | None

    @property
    def lag(self) -> int | None:
        """Return the number of offsets that are not copied yet."""
        return None if self.copied is None or self.end is None else max(0, self.end - self.copied)


class MirrorFigures(NamedTuple):
    """The figures of a mirror since its start. `stopped` are the topics that are no longer copied, and why."""

    seconds: float
    records: int
    bytes: int
    partitions: Mapping[Partition, PartitionLag]
    stopped: Mapping[str, str]

    @property
    def lag(self) -> int:
        """Return the number of offsets that are not copied yet, of the partitions where it is known."""
        return sum(partition.lag or 0 for partition in self.partitions.values())
