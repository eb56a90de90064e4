"""The figures of a mirror: rates, lag and errors."""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import NamedTuple

from broker.client.leaders import Partition

RUNNING, PAUSED = "running", "paused"


class PartitionLag(NamedTuple):
    """How far a partition was copied. Offsets of the source; None while they are not known."""

    copied: int | None
    """The offset after the last record that the target has acknowledged."""
    end: int | None

    @property
    def lag(self) -> int | None:
        """Return the number of offsets that are not copied yet."""
        return None if self.copied is None or self.end is None else max(0, self.end - self.copied)


class TopicCounts(NamedTuple):
    """The counts of a topic since the mirror's start. `errors` are answers of the target that were failures."""

    records: int = 0
    bytes: int = 0
    errors: int = 0

    def plus(self, more: "TopicCounts") -> "TopicCounts":
        """Return the sums."""
        return TopicCounts(self.records + more.records, self.bytes + more.bytes, self.errors + more.errors)


class MirrorFigures(NamedTuple):
    """The figures of a mirror since its start, by topics of the source.

    `stopped` are the topics that are no longer copied, and why.
    """

    seconds: float
    topics: Mapping[str, TopicCounts]
    partitions: Mapping[Partition, PartitionLag]
    stopped: Mapping[str, str]
    state: str = RUNNING

    @property
    def total(self) -> TopicCounts:
        """Return the sum over all topics."""
        return reduce(TopicCounts.plus, self.topics.values(), TopicCounts())

    @property
    def lag(self) -> int | None:
        """Return the number of offsets that are not copied yet, of the partitions where it is known; None without any.
        """
        return _sum(self.partitions.values())

    def counts(self, topic: str) -> TopicCounts:
        """Return the counts of one topic."""
        return self.topics.get(topic, TopicCounts())

    def lag_of(self, topic: str) -> int | None:
        """Return the lag of one topic, as `lag` does."""
        return _sum(partition for (name, _), partition in self.partitions.items() if name == topic)


def _sum(partitions: Iterable[PartitionLag]) -> int | None:
    lags = [partition.lag for partition in partitions if partition.lag is not None]
    return sum(lags) if lags else None


class MirrorRates:
    """The records and bytes a second of each topic between two figures, or since the start."""

    def __init__(self, before: MirrorFigures | None, after: MirrorFigures) -> None:
        self._before = {} if before is None else before.topics
        self._after = after.topics
        self._seconds = after.seconds - (0.0 if before is None else before.seconds)

    def records(self, topic: str | None = None) -> float:
        """Return the records a second of a topic, or of all."""
        return self._rate("records", topic)

    def size(self, topic: str | None = None) -> float:
        """Return the bytes a second of a topic, or of all."""
        return self._rate("bytes", topic)

    def _rate(self, name: str, topic: str | None) -> float:
        topics = self._after if topic is None else [topic]
        none = TopicCounts()
        copied = sum(
            getattr(self._after.get(topic, none), name) - getattr(self._before.get(topic, none), name)
            for topic in topics
        )
        return copied / self._seconds if self._seconds > 0 else 0.0
