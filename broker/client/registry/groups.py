"""The groups of early Kafka's consumers in ZooKeeper: read them, move their offsets, remove them. Without I/O.

Each function is a procedure for `coordination.port.run`.

A group may come to life while a change is made: a consumer registers itself below `ids`, then claims partitions, each
by one Multi that creates the owner node and sets the offset node. So a change is one Multi too, and it begins with a
guard: it deletes the node `ids` and creates it again. ZooKeeper refuses to delete a node that has children, so no
consumer was registered at that moment, whichever program it is of. Each offset node is named with the version that was
read. What holds:

- A consumer that has registered before the change stops it: nothing is changed, and the caller is told.
- A consumer that has claimed a partition since the group was read has raised a version, also if it is gone again: the
  change stops as a whole.
- A consumer that read an offset before the change, and claims the partition after it, names the old version. So its
  claim fails, and it reads the new offset. Kafka 0.8's own consumers name no version. They read offsets after they have
  registered, so they see the change or stop it.
- If the answer is lost, the change may be whole or absent, never a part of it.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from broker.client.errors import ClientError
from broker.client.registry.nodes import (
    CONSUMERS,
    ConsumerRegistration,
    StreamId,
    decode_offset,
    decode_owner,
    encode_offset,
    group_path,
    ids_path,
    offset_path,
    offsets_path,
    offsets_topic_path,
    owners_path,
    partition_number,
)
from broker.cluster.documents import TopicPartition
from broker.cluster.json_document import DamagedDocument
from coordination.port import (
    PERSISTENT,
    BadVersion,
    Children,
    CoordinationError,
    Create,
    Delete,
    Get,
    Multi,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Set,
    check_operation,
    child,
    parent,
)

T = TypeVar("T")
Procedure = Generator[Operation, Any, T]

DEPTH_MAX = 4  # GROUP/offsets/TOPIC/PARTITION
DELETIONS_AT_ONCE = 500


class GroupChanged(ClientError):
    """A group that was written since it was read, so that nothing was changed."""


class GroupLives(GroupChanged):
    """A group with a consumer that lives, so that nothing was changed."""


@dataclass(frozen=True)
class RegistryGroup:
    """A group as its nodes tell it. `nodes` has all of them by path, the parents first.

    `problems` names the damaged nodes, which are in no other field.
    """

    name: str
    nodes: Mapping[str, Node]
    consumers: Mapping[str, ConsumerRegistration]
    owners: Mapping[TopicPartition, StreamId]
    offsets: Mapping[TopicPartition, int]
    problems: tuple[str, ...]

    @property
    def is_living(self) -> bool:
        """True while a consumer is registered or owns a partition."""
        prefix = f"{ids_path(self.name)}/"
        return any(path.startswith(prefix) or node.owner != PERSISTENT for path, node in self.nodes.items())

    @property
    def touched_ms(self) -> int:
        """The time at which a node of the group was written last, by ZooKeeper's clock."""
        return max((node.mtime_ms for node in self.nodes.values()), default=0)


def read_names() -> Procedure[tuple[str, ...]]:
    """Return the names of all groups, in order."""
    try:
        names: tuple[str, ...] = yield Children(CONSUMERS)
    except NoNode:
        return ()
    return names


def read_group(name: str) -> Procedure[RegistryGroup]:
    """Return a group. One that does not exist has no nodes."""
    nodes: dict[str, Node] = {}
    yield from _read_tree(group_path(name), nodes, DEPTH_MAX)
    problems: list[str] = []

    consumers = {}
    for path in sorted(_children(nodes, ids_path(name))):
        try:
            consumers[path.rpartition("/")[2]] = ConsumerRegistration.decode(path, nodes[path].data)
        except DamagedDocument as error:
            problems.append(str(error))
    owners = _by_partition(owners_path(name), nodes, decode_owner, problems)
    offsets = _by_partition(offsets_path(name), nodes, decode_offset, problems)
    known = {partition: offset for partition, offset in offsets.items() if offset is not None}
    return RegistryGroup(name, nodes, consumers, owners, known, tuple(problems))


def _by_partition(
    path: str, nodes: Mapping[str, Node], decode: Callable[[str, bytes], T], problems: list[str]
) -> dict[TopicPartition, T]:
    """Return what the nodes PATH/TOPIC/PARTITION say, sorted. Add the damaged ones to `problems`."""
    documents: dict[TopicPartition, T] = {}
    for node_path, node in nodes.items():
        above = parent(node_path)
        if parent(above) == path:
            try:
                number = partition_number(above, node_path.rpartition("/")[2])
                documents[TopicPartition(above.rpartition("/")[2], number)] = decode(node_path, node.data)
            except DamagedDocument as error:
                problems.append(str(error))
    return dict(sorted(documents.items()))


def _children(nodes: Mapping[str, Node], path: str) -> set[str]:
    return {path_below for path_below in nodes if parent(path_below) == path}


def _read_tree(path: str, nodes: dict[str, Node], depth: int) -> Procedure[None]:
    """Read a node and those below it. A node that is deleted meanwhile is left out."""
    try:
        nodes[path] = yield Get(path)
        names: tuple[str, ...] = () if depth == 0 else (yield Children(path))
    except NoNode:
        return
    for name in names:
        yield from _read_tree(child(path, name), nodes, depth - 1)


def move(group: RegistryGroup, offsets: Mapping[TopicPartition, int]) -> Procedure[None]:
    """Set offsets of a group without consumers, all or none; partitions without an offset get one.

    A node TOPIC may say which topic of that name the offsets belong to. If all its offsets are moved, they belong to
    the topic of today, so the node says nothing any more. If some are not, it stays, because those may be offsets of an
    earlier topic. Raise GroupLives or GroupChanged.
    """
    if group_path(group.name) not in group.nodes:
        yield from _make_parent()
    guard = _guard(group)
    made = {operation.path for operation in guard if isinstance(operation, Create)}
    operations: list[Create | Set | Delete] = [*guard]
    operations += _missing(group, offsets_path(group.name), made)
    for partition, offset in offsets.items():
        topic_path = offsets_topic_path(group.name, partition.topic)
        operations += _missing(group, topic_path, made)
        path, data = offset_path(group.name, partition), encode_offset(offset)
        before = group.nodes.get(path)
        operations.append(Create(path, data) if before is None else Set(path, data, before.version))
    written = {operation.path for operation in operations}
    for topic_path in {parent(offset_path(group.name, partition)): None for partition in offsets}:
        stored = group.nodes.get(topic_path)
        if stored is not None and stored.data and _children(group.nodes, topic_path) <= written:
            operations.append(Set(topic_path, b"", stored.version))
    yield from _change(group, operations, len(guard))


def remove(group: RegistryGroup) -> Procedure[None]:
    """Remove a group without consumers. Raise GroupLives or GroupChanged.

    A group with many nodes is removed in several steps, each with the guard. A consumer that comes to life between two
    of them keeps the offsets that are left.
    """
    ids = ids_path(group.name)
    below = [path for path in reversed([*group.nodes]) if path not in (ids, group_path(group.name))]
    guard = _guard(group)
    for begin in range(0, len(below), DELETIONS_AT_ONCE):
        deletions = [Delete(path, group.nodes[path].version) for path in below[begin : begin + DELETIONS_AT_ONCE]]
        yield from _change(group, [*guard, *deletions], len(guard))
        guard = [Delete(ids), Create(ids)]
    last: list[Create | Set | Delete] = [Delete(ids)] if below or ids in group.nodes else []
    yield from _change(group, [*last, Delete(group_path(group.name))], len(last))


def _make_parent() -> Procedure[None]:
    """Make /consumers, which an ensemble without brokers may lack."""
    try:
        yield Create(CONSUMERS)
    except NodeExists:
        pass


def check_stopped(group: RegistryGroup) -> None:
    """Raise GroupLives if the group had consumers when it was read."""
    if group.is_living:
        raise _lives(group.name)


def _guard(group: RegistryGroup) -> list[Create | Set | Delete]:
    """Return operations that fail if a consumer is registered; see the text of the module."""
    ids = ids_path(group.name)
    if ids in group.nodes:
        return [Delete(ids), Create(ids, group.nodes[ids].data)]
    return [*_missing(group, group_path(group.name), set()), Create(ids)]


def _missing(group: RegistryGroup, path: str, made: set[str]) -> list[Create | Set | Delete]:
    """Return the creation of a node, if the group has none there; note it in `made`."""
    if path in group.nodes or path in made:
        return []
    made.add(path)
    return [Create(path)]


def _change(group: RegistryGroup, operations: list[Create | Set | Delete], guards: int) -> Procedure[None]:
    check_stopped(group)
    multi = Multi(tuple(operations))
    try:
        check_operation(multi)
    except ValueError as error:
        raise ClientError(f"group {group.name}: {error}; name fewer topics or partitions") from error
    try:
        yield multi
    except (NotEmpty, NodeExists, NoNode, BadVersion) as error:
        if error.index is not None and error.index < guards and isinstance(error, (NotEmpty, NodeExists)):
            raise _lives(group.name) from error
        raise GroupChanged(f"group {group.name} was written meanwhile ({_reason(error)}); look at it again") from error


def _lives(name: str) -> GroupLives:
    return GroupLives(f"group {name} has consumers in ZooKeeper that live; stop them first")


def _reason(error: CoordinationError) -> str:
    return str(error) or type(error).__name__
