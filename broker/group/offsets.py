"""The committed offsets of one group, and which of them have expired (KIP-211)."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

NO_OFFSET = -1
NO_EPOCH = -1
NO_EXPIRY = -1
NO_METADATA = ""


class CommittedOffset(NamedTuple):
    """The offset a group goes on from, with what its consumer wanted kept beside it.

    Times are wall ms. `expire_ms` is set only by old clients that name a retention themselves (OffsetCommit v2-4);
    otherwise `offsets.retention.minutes` decides.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = NO_EXPIRY


NO_COMMITTED_OFFSET = CommittedOffset(NO_OFFSET, NO_EPOCH, NO_METADATA, commit_ms=-1)


class GroupOffsets:
    """Offsets by topic and partition. In all at most one for each partition there is: commits are checked for that."""

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

    def places(self) -> Iterator[tuple[str, int]]:
        """(topic, partition) of each, for who goes through them while they come and go: of those that come some."""
        for topic in list(self._topics):
            for partition in list(self._topics.get(topic, ())):
                yield topic, partition

    def of_topics(self, is_wanted: Callable[[str], bool]) -> list[tuple[str, int]]:
        """Where offsets are committed in such topics."""
        return [(topic, partition) for topic in self._topics if is_wanted(topic) for partition in self._topics[topic]]

    def put(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        self._topics.setdefault(topic, {})[partition] = committed

    def remove(self, topic: str, partition: int) -> bool:
        """Forget one; False if there was none."""
        partitions = self._topics.get(topic, {})
        found = partitions.pop(partition, None) is not None
        if not partitions:
            self._topics.pop(topic, None)
        return found


def is_expired(committed: CommittedOffset, unused_since_ms: int | None, now_wall_ms: int, retention_ms: int) -> bool:
    """Has an offset expired? It is kept for `retention_ms` from when nobody used it any longer: `unused_since_ms`
    (its group became empty), or from its commit when that is None. One with an expiry of its own goes by that."""
    if committed.expire_ms != NO_EXPIRY:
        return now_wall_ms >= committed.expire_ms
    base_ms = committed.commit_ms if unused_since_ms is None else unused_since_ms
    return now_wall_ms - base_ms >= retention_ms
