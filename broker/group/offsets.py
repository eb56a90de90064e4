"""The committed offsets of a group, and their expiry (KIP-211)."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

NO_OFFSET = -1
NO_EPOCH = -1
NO_EXPIRY = -1
NO_METADATA = ""


class CommittedOffset(NamedTuple):
    """The offset a group resumes from, with the metadata its consumer committed.

    Times are wall ms. Only old clients that choose a retention (OffsetCommit v2-4) set `expire_ms`; otherwise
    `offsets.retention.minutes` applies.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = NO_EXPIRY


NO_COMMITTED_OFFSET = CommittedOffset(NO_OFFSET, NO_EPOCH, NO_METADATA, commit_ms=-1)


class GroupOffsets:
    """Offsets by topic and partition: at most one for each existing partition, because commits are checked for it."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, CommittedOffset]] = {}

    def __len__(self) -> int:
        return sum(len(partitions) for partitions in self._topics.values())

    def __iter__(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self._topics.items():
            for partition, committed in partitions.items():
                yield topic, partition, committed

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        return self._topics.get(topic, {}).get(partition)

    def has_topic(self, topic: str) -> bool:
        return topic in self._topics

    def keys(self) -> Iterator[tuple[str, int]]:
        """Iterate over a snapshot of (topic, partition); offsets added meanwhile may be missed."""
        for topic in list(self._topics):
            for partition in list(self._topics.get(topic, ())):
                yield topic, partition

    def of_topics(self, is_wanted: Callable[[str], bool]) -> list[tuple[str, int]]:
        """Return (topic, partition) of the offsets in topics for which `is_wanted` is True."""
        return [(topic, partition) for topic in self._topics if is_wanted(topic) for partition in self._topics[topic]]

    def put(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        self._topics.setdefault(topic, {})[partition] = committed

    def remove(self, topic: str, partition: int) -> bool:
        """Remove an offset; return False if it did not exist."""
        partitions = self._topics.get(topic, {})
        is_removed = partitions.pop(partition, None) is not None
        if not partitions:
            self._topics.pop(topic, None)
        return is_removed


def is_expired(committed: CommittedOffset, unused_since_ms: int | None, now_wall_ms: int, retention_ms: int) -> bool:
    """Return True if an offset has expired.

    An offset with an expiry time expires then. Any other is kept for `retention_ms` from `unused_since_ms` (when its
    group became empty), or from its commit if that is None.
    """
    if committed.expire_ms != NO_EXPIRY:
        return now_wall_ms >= committed.expire_ms
    base_ms = committed.commit_ms if unused_since_ms is None else unused_since_ms
    return now_wall_ms - base_ms >= retention_ms
