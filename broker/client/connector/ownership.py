"""Ownership of partitions: the writes that claim, commit and release them, and how lost answers are settled.

    claim      create the owner's node, and write the offset as it is, so that the version of its node rises
    commit     write the offset at the version that the owner knows
    release    write the offset at that version, and delete the owner's node

Each is one Multi. An owner's node that is made anew has version 0 again, so only the offset's version tells a late
write of an earlier owner from one of the present owner.

After a lost answer, and after a write that failed, the offset is read first and the owner second. If this consumer
owns the partition then, no other has claimed it since the offset was read, so the version that was read is the one to
name. A claim whose answer was lost may still be carried out later. It is therefore repeated until it succeeds or finds
another owner: either raises the version, and the late one fails.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from broker.client.connector.assignment import TopicView
from broker.client.connector.events import Claimed, Event, Lost, Released, Stopped, Trouble
from broker.client.connector.offsets_topic import Age, compare
from broker.client.connector.parallel import together
from broker.client.connector.registration import Registration
from broker.client.registry.nodes import (
    OffsetsTopic,
    StreamId,
    decode_offset,
    decode_owner,
    encode_offset,
    encode_owner,
    offset_path,
    offsets_topic_path,
    owned_topic_path,
    owner_path,
)
from broker.cluster.documents import DamagedDocument, TopicPartition
from broker.cluster.procedure import Outcome, Procedure, read, read_node, write
from coordination.port import Check, ConnectionLost, CoordinationError, Create, Delete, Get, Node, NoNode, Set

TRIES_MAX = 20
"""The tries to claim, commit or release a partition while other writes come in between; then it counts as not done."""


@dataclass
class Ownership:
    """A partition that the consumer owns.

    `topic` is the topic that it was claimed of. `version` is that of the offset's node, None if it is missing.
    `topic_version` is that of the topic's node above it; None once the topic was made again, so that its positions mean
    nothing. `position` is the offset after the last
    record that the program is done with, None before the first one is known. The partition is stopped for good before
    it is released, and unsure while the owner's node is read after a write that failed.
    """

    stream: StreamId
    topic: TopicView
    topic_version: int | None
    version: int | None
    committed: int | None
    position: int | None
    is_stopped: bool = False
    is_unsure: bool = False


class Claim(Enum):
    """The end of a claim."""

    OWNED = "owned"
    CONFLICT = "another consumer owns it"
    AGAIN = "something else has changed meanwhile"


class Ownerships:
    """The partitions of a consumer. `session_id` is that of the session in which it is registered."""

    def __init__(self, group: str, registration: Registration, notify: Callable[[Event], None]) -> None:
        self.session_id = 0
        self.owned: dict[TopicPartition, Ownership] = {}
        self._group = group
        self._registration = registration
        self._notify = notify

    # --- the program's side

    def delivers(self, partition: TopicPartition) -> bool:
        own = self.owned.get(partition)
        return own is not None and not own.is_stopped and not own.is_unsure

    def move_to(self, partition: TopicPartition, offset: int) -> None:
        """Set the position of a partition; ignore one that is not owned, or is being released."""
        own = self.owned.get(partition)
        if own is not None and not own.is_stopped:
            own.position = offset

    def uncommitted(self) -> list[TopicPartition]:
        return [partition for partition, own in self.owned.items() if own.position not in (None, own.committed)]

    def drop(self, partitions: Iterable[TopicPartition], why: str) -> None:
        """Give up partitions that may have another owner."""
        for partition in partitions:
            if self.owned.pop(partition, None) is not None:
                self._notify(Lost(partition, why))

    # --- claims

    def claim(
        self, streams: Mapping[TopicPartition, StreamId], topics: Mapping[str, tuple[TopicView, int]]
    ) -> Procedure[dict[TopicPartition, Claim]]:
        """Claim partitions. `topics` has each topic, and the version of the node of its offsets."""
        claims = yield from together(
            self._claim(partition, stream, *topics[partition.topic]) for partition, stream in streams.items()
        )
        return dict(zip(streams, claims, strict=True))

    def _claim(
        self, partition: TopicPartition, stream: StreamId, topic: TopicView, topic_version: int
    ) -> Procedure[Claim]:
        must_read_owner = False
        for _ in range(TRIES_MAX):
            node = yield from read_node(offset_path(self._group, partition))
            try:
                offset = self._offset(partition, node)
            except DamagedDocument as error:
                self._notify(Trouble(f"{partition} is not claimed: {error}"))
                return Claim.AGAIN
            owner = (yield from self._owner(partition, watch=True)) if must_read_owner else None
            if owner is not None and owner.stream.consumer != stream.consumer:
                return Claim.CONFLICT
            writes = claim_writes(self._group, partition, stream, node, offset, replaces=owner is not None)
            check = Check(offsets_topic_path(self._group, partition.topic), topic_version)
            outcome = yield from write(self._registration.write(check, *writes))
            if isinstance(outcome, tuple):
                self.owned[partition] = Ownership(
                    stream, topic, topic_version, next_version(None if node is None else node.version), offset, offset
                )
                self._notify(Claimed(partition, stream, offset, topic))
                return Claim.OWNED
            index = self._registration.failed_index(outcome)
            if index == 0:
                return Claim.AGAIN
            if index == 2 and isinstance(outcome, NoNode) and owner is None:
                yield from write(Create(owned_topic_path(self._group, partition.topic)))
            elif index != 1:
                must_read_owner = True
        return Claim.AGAIN

    def keep(self, topic: TopicView, topic_version: int) -> None:
        """Keep partitions that were claimed of this same topic, of which another consumer has noted more since."""
        for partition, own in self.owned.items():
            is_same = compare(OffsetsTopic(own.topic.topic_id, own.topic.czxid), topic) is Age.SAME
            if partition.topic == topic.name and own.topic_version is not None and is_same:
                own.topic_version = topic_version

    # --- commits

    def commit(self, partitions: Iterable[TopicPartition]) -> Procedure[list[TopicPartition]]:
        """Commit the positions of partitions; return those that could not be committed."""
        wanted = [partition for partition in partitions if partition in self.owned]
        done = yield from together(self._commit(partition) for partition in wanted)
        return [partition for partition, is_done in zip(wanted, done, strict=True) if not is_done]

    def _commit(self, partition: TopicPartition) -> Procedure[bool]:
        for _ in range(TRIES_MAX):
            own = self.owned.get(partition)
            if own is None:
                return False
            offset = own.position
            if offset == own.committed:
                return True
            if own.topic_version is None:
                return False
            writes = commit_writes(self._group, partition, own.version, offset)
            outcome = yield from write(self._registration.write(*self._checks(partition, own), *writes))
            if isinstance(outcome, tuple):
                own.version, own.committed = next_version(own.version), offset
                return True
            yield from self._settle(partition, own, outcome)
        return False

    # --- releases

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Let no more records of these partitions be handed out."""
        for partition in partitions:
            own = self.owned.get(partition)
            if own is not None and not own.is_stopped:
                own.is_stopped = True
                self._notify(Stopped(partition))

    def release(self, partitions: Iterable[TopicPartition]) -> Procedure[None]:
        """Stop partitions, and commit and release each at once."""
        wanted = list(partitions)
        self.stop(wanted)
        yield from together(self._release(partition) for partition in wanted)

    def _release(self, partition: TopicPartition) -> Procedure[None]:
        is_released = False  # True once a release got no answer: it may have been carried out, or may be yet
        while True:
            own = self.owned.get(partition)
            if own is None:
                return
            offset = own.committed if own.topic_version is None or own.position is None else own.position
            writes = release_writes(self._group, partition, own.version, offset)
            outcome = yield from write(self._registration.write(*self._checks(partition, own), *writes))
            if isinstance(outcome, tuple):
                self._released(partition)
                return
            is_released |= isinstance(outcome, ConnectionLost)
            yield from self._settle(partition, own, outcome, is_released=is_released)

    def _released(self, partition: TopicPartition) -> None:
        del self.owned[partition]
        self._notify(Released(partition))

    # --- what is

    def _checks(self, partition: TopicPartition, own: Ownership) -> list[Check]:
        """Return the Check that the offsets still belong to the topic that the partition was claimed of."""
        if own.topic_version is None:
            return []
        return [Check(offsets_topic_path(self._group, partition.topic), own.topic_version)]

    def _settle(
        self, partition: TopicPartition, own: Ownership, outcome: Outcome, *, is_released: bool = False
    ) -> Procedure[None]:
        """After a write that failed or got no answer, read whether the consumer still owns the partition.

        Until then nothing of it is handed out if the write failed. `is_released` says that a missing owner is the
        consumer's own doing.
        """
        index = self._registration.failed_index(outcome)
        own.is_unsure = index is not None
        if index == 0 and own.topic_version is not None:
            own.topic_version = yield from self._topic_version(own.topic)
            if own.topic_version is None:
                self.stop([partition])
        node = yield from read_node(offset_path(self._group, partition))
        owner = yield from self._owner(partition)
        if self.owned.get(partition) is not own:
            return
        if owner is None or (owner.stream, owner.session_id) != (own.stream, self.session_id):
            if is_released:
                self._released(partition)
            else:
                self.drop([partition], f"{'nobody' if owner is None else owner.stream} owns it")
            return
        own.is_unsure = False
        own.version = None if node is None else node.version
        try:
            own.committed = self._offset(partition, node)
        except DamagedDocument:
            own.committed = None  # the next commit replaces it

    def _topic_version(self, topic: TopicView) -> Procedure[int | None]:
        """Return the version of the node of a topic's offsets, None if they are those of another topic now."""
        path = offsets_topic_path(self._group, topic.name)
        node = yield from read_node(path)
        try:
            stored = None if node is None else OffsetsTopic.decode(path, node.data)
        except DamagedDocument:
            return None
        is_same = stored is not None and not stored.is_clearing and compare(stored, topic) is Age.SAME
        return node.version if node is not None and is_same else None

    def _owner(self, partition: TopicPartition, *, watch: bool = False) -> Procedure["_Owner | None"]:
        """Return the owner of a partition; None if its node is missing. An owner that cannot be read is a stranger."""
        path = owner_path(self._group, partition)
        (outcome,) = yield from read([Get(path, watch=watch)])
        if isinstance(outcome, NoNode):
            return None
        if isinstance(outcome, CoordinationError):
            raise outcome
        assert isinstance(outcome, Node)
        try:
            return _Owner(decode_owner(path, outcome.data), outcome.owner)
        except DamagedDocument as error:
            self._notify(Trouble(str(error)))
            return _Owner(StreamId("?", 0), outcome.owner)

    def _offset(self, partition: TopicPartition, node: Node | None) -> int | None:
        return None if node is None else decode_offset(offset_path(self._group, partition), node.data)


class _Owner(NamedTuple):
    stream: StreamId
    session_id: int


def claim_writes(
    group: str, partition: TopicPartition, stream: StreamId, node: Node | None, offset: int | None, *, replaces: bool
) -> tuple[Create | Set | Delete, ...]:
    """Return the writes of a claim. `node` is the offset's; with `replaces`, an owner's node of this consumer goes."""
    path = owner_path(group, partition)
    return (
        offset_write(group, partition, None if node is None else node.version, offset),
        *([Delete(path)] if replaces else []),
        Create(path, encode_owner(stream), ephemeral=True),
    )


def commit_writes(
    group: str, partition: TopicPartition, version: int | None, offset: int | None
) -> tuple[Create | Set | Delete, ...]:
    return (offset_write(group, partition, version, offset),)


def release_writes(
    group: str, partition: TopicPartition, version: int | None, offset: int | None
) -> tuple[Create | Set | Delete, ...]:
    return (offset_write(group, partition, version, offset), Delete(owner_path(group, partition)))


def offset_write(group: str, partition: TopicPartition, version: int | None, offset: int | None) -> Create | Set:
    """Return the write of an offset whose node is at `version`; None creates the node."""
    path, data = offset_path(group, partition), encode_offset(offset)
    return Create(path, data) if version is None else Set(path, data, version)


def next_version(version: int | None) -> int:
    """Return the version of an offset's node after it was written at `version`."""
    return 0 if version is None else version + 1
