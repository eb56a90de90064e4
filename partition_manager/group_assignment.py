"""The partitions that a consumer group assigns to one task, asked for again and again.

Without a group, a task takes its partitions by their numbers (assignment.py). With one, the group's store tells which
partitions the task reads now, and which of them it shall hand over to another process.
"""

from typing import Protocol

from partition_manager.asks import Asks
from partition_manager.notes import Note, Notes
from partition_manager.ports import Answer, AwaitShare, ReleasePartition, Share, TopicPartition


class Reader(Protocol):
    """The receiver of a new share."""

    def shared(self, now_ms: int) -> None: ...


class GroupAssignment:
    """The share of one task. The reader is told when `share` changes."""

    def __init__(self, asks: Asks, notes: Notes, reader: Reader) -> None:
        self.share = Share(0, {})
        self._asks = asks
        self._notes = notes
        self._reader = reader
        self._topics: tuple[str, ...] = ()
        self._held: dict[TopicPartition, int] = {}  # grants of the partitions that the task has opened
        self._is_stopped = False

    def subscribe(self, topics: tuple[str, ...], now_ms: int) -> None:
        """Ask for partitions of these topics; once is enough, unless the topics change."""
        if topics != self._topics:
            self._topics = topics
            self._asks.forget(self)
            self._await(now_ms)

    def stop(self) -> None:
        """Ask for nothing more. The partitions are given back when the store leaves the group."""
        self._is_stopped = True
        self._asks.forget(self)

    def mine(self, topic: str) -> list[int]:
        """Return the partitions of `topic` that the task shall read, ascending."""
        share = self.share
        return sorted(number for name, number in share.grants.keys() - share.revoked if name == topic)

    def opened(self, partition: TopicPartition) -> None:
        """Remember the grant that the task reads a partition with."""
        self._held[partition] = self.share.grants[partition]

    def is_lost(self, partition: TopicPartition) -> bool:
        """Return True if the grant that the task reads a partition with no longer holds."""
        return self._held.get(partition) != self.share.grants.get(partition)

    def closed(self, partition: TopicPartition, now_ms: int) -> None:
        """Give a partition back, whose progress is stored."""
        grant = self._held.pop(partition, None)
        if grant is not None and not self._is_stopped:
            self._asks.ask(self._held, ReleasePartition(*partition, grant), _nothing, now_ms)

    def _await(self, now_ms: int) -> None:
        self._asks.ask(self, AwaitShare(self._topics, self.share.version), self._answered, now_ms)

    def _answered(self, answer: Answer, now_ms: int) -> None:
        if not isinstance(answer, Share):
            return
        for level, text in answer.notes:
            self._notes.add(Note(level, text))
        self.share = answer
        self._reader.shared(now_ms)
        self._await(now_ms)


def _nothing(answer: Answer, now_ms: int) -> None:
    """A release needs no answer."""
