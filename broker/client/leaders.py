"""What a client knows of the leaders of partitions, so that it never goes back to an older one (KIP-320).

A broker that has not heard of an election yet names the former leader. Its answer is recognized by its leader epoch,
which is lower than one seen before, and is ignored. The epochs of another topic id begin anew, because the topic was
deleted and made again (KIP-516). An answer without an epoch or a topic id, from Kafka before 2.8, is always believed.

A leader is in doubt after an error that says it moved, and after its broker did not answer. It is looked up again
before the next request. If the look-up brings nothing newer, the same leader is asked again, because it may be late.
"""

from typing import NamedTuple, TypeAlias
from uuid import UUID

from broker.client.address import Address

NO_EPOCH = -1

Partition: TypeAlias = tuple[str, int]
"""A topic's name and the index of a partition."""


class Leader(NamedTuple):
    """The leader of a partition, and its epoch, NO_EPOCH if the broker that was asked names none."""

    address: Address
    epoch: int = NO_EPOCH


class _Leadership(NamedTuple):
    """The newest answer about a partition. The leader is None while the partition is offline."""

    topic_id: UUID
    epoch: int
    leader: Leader | None


class Leaders:
    """The leaders of partitions."""

    def __init__(self) -> None:
        self._leaders: dict[Partition, Leader] = {}  # those that are not in doubt
        self._newest: dict[Partition, _Leadership] = {}  # answers with an epoch, also those in doubt

    def get(self, partition: Partition) -> Leader | None:
        """Return the partition's leader, None if it must be looked up."""
        return self._leaders.get(partition)

    def learn(self, partition: Partition, address: Address | None, epoch: int, topic_id: UUID | None) -> bool:
        """Take an answer about a partition, whose `address` is None without a leader. Return True if it is news.

        An answer that is older than what is known changes nothing, and the known leader is no longer in doubt. Neither
        is it after an answer that repeats it.
        """
        if topic_id is None or epoch == NO_EPOCH:
            self._newest.pop(partition, None)
            self._set(partition, None if address is None else Leader(address))
            return True
        answer = _Leadership(topic_id, epoch, None if address is None else Leader(address, epoch))
        known = self._newest.get(partition)
        is_older = known is not None and known.topic_id == topic_id and epoch < known.epoch
        newest = known if known is not None and is_older else answer
        is_news = partition in self._leaders and not is_older or newest != known
        self._newest[partition] = newest
        self._set(partition, newest.leader)
        return is_news

    def doubt(self, partition: Partition) -> None:
        """Look up the leader before the next request."""
        self._leaders.pop(partition, None)

    def doubt_broker(self, address: Address) -> None:
        """Look up the partitions of a broker that did not answer: others may lead them by now."""
        self._leaders = {key: leader for key, leader in self._leaders.items() if leader.address != address}

    def forget_topic(self, name: str) -> None:
        """Forget the partitions of a topic that was deleted."""
        self._leaders = {key: leader for key, leader in self._leaders.items() if key[0] != name}
        self._newest = {key: newest for key, newest in self._newest.items() if key[0] != name}

    def _set(self, partition: Partition, leader: Leader | None) -> None:
        if leader is None:
            self._leaders.pop(partition, None)
        else:
            self._leaders[partition] = leader
