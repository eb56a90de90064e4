"""Reads and writes of settings, quotas and credentials in the coordinator, which any broker may carry out.

A write sets the entity's node and creates a change node below /config/changes, which tells the other brokers to read
the entity again. Kafka writes the two one after the other; here one Multi does both, in the same order, so that each
change has its change node. As in Kafka, the write of a node that exists checks that /controller exists.

A client id, user or IP address without settings has no node, as in Kafka: its node is deleted with the last setting. A
topic's and a broker's node stays.

A Set names the version that was read. If another broker has written meanwhile, the node is read again and the change
is made anew, so the quotas that one broker writes and the credentials of another, in one document, are both kept.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from broker.cluster.config_entity import (
    CLIENT_TYPE,
    CONFIG,
    ENTITY_TYPES,
    IP_TYPE,
    USER_TYPE,
    ConfigEntity,
    decode_entity_path,
    user_entity,
)
from broker.cluster.documents import (
    CONFIG_CHANGES,
    CONTROLLER,
    DamagedDocument,
    decode_config,
    encode_config,
    encode_config_change,
)
from broker.cluster.procedure import Pause, Procedure, read, read_children, read_node, write
from coordination.errors import FlakelogError
from coordination.port import (
    ANY_VERSION,
    BadVersion,
    Check,
    Children,
    ConnectionLost,
    CoordinationError,
    Create,
    Delete,
    Get,
    Multi,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Set,
    check_operation,
    parent,
)

CONFIG_CHANGE = f"{CONFIG_CHANGES}/config_change_"
CONTROLLER_RETRY_MS = 200
CONTROLLER_TRIES = 50
"""A write waits 10 s for a controller, which is more than an election needs after the session of the last one ended."""

_DELETED_IF_EMPTY = (CLIENT_TYPE, USER_TYPE, IP_TYPE)

Settings: TypeAlias = dict[str, str]
Change: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Returns the new settings of an entity for its present ones. It may be called more than once."""


class NoController(FlakelogError):
    """No broker is the controller, so no settings can be written."""


class Configs(NamedTuple):
    """The settings of entities, and the reason for each entity whose node is damaged. No entity is in both."""

    settings: dict[ConfigEntity, Settings]
    damaged: dict[ConfigEntity, str]


def read_configs() -> Procedure[Configs]:
    """Return the settings of all entities that have a node. Nodes whose names no broker writes are left out."""
    paths = yield from _read_paths(list(ENTITY_TYPES))
    users = [path for path in paths if path.startswith(f"{USER_TYPE}/")]
    paths += yield from _read_paths([f"{user}/{CLIENT_TYPE}" for user in users])
    entities: list[ConfigEntity] = []
    for path in paths:
        with suppress(DamagedDocument):
            entities.append(decode_entity_path(CONFIG, path))
    return (yield from read_entities(entities, missing_is_empty=False))


def read_entities(entities: Iterable[ConfigEntity], *, missing_is_empty: bool) -> Procedure[Configs]:
    """Return the settings of entities. An entity without a node has empty settings, or is left out."""
    entities = list(entities)
    outcomes = yield from read([Get(entity.path) for entity in entities])
    configs = Configs({}, {})
    for entity, outcome in zip(entities, outcomes, strict=True):
        if isinstance(outcome, NoNode):
            if missing_is_empty:
                configs.settings[entity] = {}
        elif isinstance(outcome, CoordinationError):
            raise outcome
        else:
            assert isinstance(outcome, Node)
            try:
                configs.settings[entity] = decode_config(entity.path, outcome.data)
            except DamagedDocument as error:
                configs.damaged[entity] = str(error)
    return configs


def write_config(entity: ConfigEntity, change: Mapping[str, str] | Change) -> Procedure[Settings]:
    """Give an entity other settings, and tell the brokers. Return the settings that were written.

    `change` is the new settings, or a function of the present ones. Raise ValueError if the coordinator cannot keep
    the entity's name or its settings, NoController, or DamagedDocument if a function cannot see the present settings.
    """
    for _ in range(CONTROLLER_TRIES):
        written = yield from _write(entity, change)
        if written is not None:
            return written
        yield Pause(CONTROLLER_RETRY_MS, f"the settings of {entity} wait for the election of a controller")
    raise NoController(f"The settings of {entity} were not changed, because the cluster has no controller now: retry")


def _write(entity: ConfigEntity, change: Mapping[str, str] | Change) -> Procedure[Settings | None]:
    """Write the settings of an entity; return None if no broker is the controller."""
    path = entity.path
    change_node = Create(CONFIG_CHANGE, encode_config_change(entity.entity_path), sequential=True)
    while True:
        check_operation(Get(path))
        node = yield from read_node(path)
        settings = dict(change(_decode(path, node)) if callable(change) else change)
        data = encode_config(settings)
        deletions: Sequence[Delete] = ()
        if node is None:
            operation = Multi((Create(path, data), change_node))
        else:
            if not settings:
                deletions = yield from _deletions(entity, node)
            writes = deletions or (Set(path, data, node.version),)
            operation = Multi((Check(CONTROLLER, ANY_VERSION), *writes, change_node))
        check_operation(operation)
        outcome = yield from write(operation)
        if not isinstance(outcome, CoordinationError):
            return settings
        if isinstance(outcome, ConnectionLost):
            if (yield from _is_written(path, node, None if deletions else data)):
                return settings
        elif isinstance(outcome, NoNode) and outcome.index == 0:
            if node is not None:
                return None
            yield from _create_parents(path)
        elif isinstance(outcome, NoNode) and outcome.index == len(operation.operations) - 1:
            yield from _create_parents(CONFIG_CHANGE)
        elif not isinstance(outcome, NodeExists | BadVersion | NoNode | NotEmpty):
            raise outcome


def _deletions(entity: ConfigEntity, node: Node) -> Procedure[list[Delete]]:
    """Return the deletions of an entity's node, and of the nodes above it that are of no more use.

    Return none if the node stays: that of a topic or a broker, or of a user whose client ids have quotas.
    """
    if entity.entity_type not in _DELETED_IF_EMPTY or (yield from read_children(entity.path)):
        return []
    deletions = [Delete(entity.path, node.version)]
    if len(entity.names) > 1:
        user, clients = user_entity(entity.names[0]).path, parent(entity.path)
        if len((yield from read_children(clients))) == 1:
            deletions.append(Delete(clients))
            user_node = yield from read_node(user)
            if user_node is not None and user_node.data in (b"", encode_config({})):
                deletions.append(Delete(user, user_node.version))
    return deletions


def _decode(path: str, node: Node | None) -> Settings:
    return {} if node is None else decode_config(path, node.data)


def _is_written(path: str, before: Node | None, data: bytes | None) -> Procedure[bool]:
    """Return True if the next write of a node after `before` was the one of `data`; None stands for its deletion.

    Another broker's equal write is taken for this one: it was told to the brokers as well.
    """
    node = yield from read_node(path)
    if data is None:
        return node is None
    version = 0 if before is None else before.version + 1
    return node is not None and (node.version, node.data) == (version, data)


def _create_parents(path: str) -> Procedure[None]:
    """Create the nodes above a path, empty as Kafka's."""
    outcome = yield from write(Create(parent(path)))
    if isinstance(outcome, CoordinationError) and not isinstance(outcome, NodeExists | ConnectionLost):
        raise outcome


def _read_paths(parents: list[str]) -> Procedure[list[str]]:
    """Return the children of nodes below /config, as paths below /config."""
    outcomes = yield from read([Children(f"{CONFIG}/{path}") for path in parents])
    paths: list[str] = []
    for path, outcome in zip(parents, outcomes, strict=True):
        if isinstance(outcome, CoordinationError) and not isinstance(outcome, NoNode):
            raise outcome
        paths += [f"{path}/{name!s}" for name in outcome] if isinstance(outcome, tuple) else []
    return paths
