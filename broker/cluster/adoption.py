"""The adoption: the data of a server alone is brought into an empty coordinator, before its broker registers.

The nodes of topics, settings, quotas, credentials and producer ids are written as if the cluster had always had them.

| step | operations |
|---|---|
| begin | one Multi creates /flakelog_adoption and /cluster/id; it fails if the coordinator belongs to a cluster |
| bring | producer ids, settings, topics: each Multi checks the version of /flakelog_adoption |
| end | delete /flakelog_adoption |

A coordinator with a cluster id and without /flakelog_adoption is whole, because only the first step creates both nodes
and only the last one deletes the marker. A broker that registers reads the cluster id first, then the marker.

After a crash the same broker begins again. It raises the marker's version, so that a late write of its earlier life
fails, and skips the nodes that are there already. It accepts a node only with the bytes that it would write itself.

The state of a partition has no leader and this broker as its ISR, with the last leader epoch of its log. The first
controller then elects the broker as after a death, with an epoch above each one in the log.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from broker.cluster.acl_documents import CHANGE_PATHS, PARENTS, AclResource, encode_acls, resource_of
from broker.cluster.adoption_marker import ADOPTION, AdoptionMarker
from broker.cluster.config_entity import ConfigEntity, ScramCredential, encode_scram, topic_entity, user_entity
from broker.cluster.documents import (
    CLUSTER_ID,
    NO_LEADER,
    TOPICS,
    Assignment,
    LeaderAndIsr,
    Topic,
    TopicPartition,
    decode_cluster_id,
    encode_cluster_id,
    encode_config,
    partition_path,
    partitions_path,
    state_path,
    topic_path,
)
from broker.cluster.procedure import Procedure, read, read_children, read_node, write
from broker.cluster.producer_id_blocks import skip_used_ids
from broker.cluster.registration import create_if_missing, create_persistent_nodes
from broker.security.authorization.acl import AclBinding
from coordination.errors import FlakelogError
from coordination.port import (
    OPERATION_BYTES,
    BadVersion,
    Check,
    ConnectionLost,
    CoordinationError,
    Create,
    Delete,
    Get,
    Multi,
    Node,
    NodeExists,
    NoNode,
    Set,
    check_operation,
    parent,
)

CREATES_AT_ONCE = 500
BYTES_AT_ONCE = 500_000
"""The limits of one Multi; a coordinator takes up to 1,040,000 bytes."""


class AdoptionRefused(FlakelogError):
    """The coordinator cannot take the data of this directory. The message names the node, and says what to do."""


@dataclass(frozen=True)
class AdoptedTopic:
    """A topic of a server alone; `leader_epochs` has the last leader epoch of each partition."""

    topic_id: UUID
    leader_epochs: tuple[int, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AdoptedData:
    """All that a server alone has decided.

    `configs` are the settings of brokers and the quotas, `credentials` those of each user by mechanism (SCRAM-SHA-256),
    and `first_unused_producer_id` is above each producer id that the server gave away.
    """

    cluster_id: str
    topics: Mapping[str, AdoptedTopic] = field(default_factory=dict)
    configs: Mapping[ConfigEntity, Mapping[str, str]] = field(default_factory=dict)
    credentials: Mapping[str, Mapping[str, ScramCredential]] = field(default_factory=dict)
    first_unused_producer_id: int = 0
    acls: frozenset[AclBinding] = frozenset()


def adopt(broker_id: int, data: AdoptedData, *, creates_at_once: int = CREATES_AT_ONCE) -> Procedure[bool]:
    """Bring the data of a directory into the coordinator. Return False if that was complete before.

    Each start of a directory that does not know yet that it belongs to a coordinator begins with this, also one without
    topics; `register` follows. Raise AdoptionRefused, or AdoptionIncomplete if another broker's adoption is in the way.
    """
    configs = [*_config_creates(data), *_acl_creates(data.acls)]
    topics = [_topic_creates(broker_id, name, topic) for name, topic in sorted(data.topics.items())]
    _check(create for group in [configs, *topics] for create in group)
    version = yield from _begin(AdoptionMarker(broker_id, data.cluster_id), configs, topics)
    if version is None:
        return False
    yield from create_persistent_nodes()
    for path in (*PARENTS, *CHANGE_PATHS) if data.acls else ():
        yield from create_if_missing(path)
    yield from skip_used_ids(broker_id, data.first_unused_producer_id)
    for batch in _batches([*([create] for create in configs), *topics], creates_at_once):
        yield from _create(batch, version)
    yield from _end(version)
    return True


# The nodes


def _config_creates(data: AdoptedData) -> list[Create]:
    """Return the nodes of brokers, users, clients and addresses, parents first."""
    settings = {entity: dict(values) for entity, values in data.configs.items()}
    for user, credentials in data.credentials.items():
        texts = {mechanism: encode_scram(credential) for mechanism, credential in credentials.items()}
        settings.setdefault(user_entity(user), {}).update(texts)
    nodes = {entity.path: encode_config(values) for entity, values in settings.items()}
    for entity in settings:
        if len(entity.names) > 1:
            clients = parent(entity.path)
            nodes.setdefault(parent(clients), b"")
            nodes[clients] = b""
    return [Create(path, nodes[path]) for path in sorted(nodes)]


def _acl_creates(acls: Iterable[AclBinding]) -> list[Create]:
    """Return the nodes of resources with access rules."""
    by_resource: dict[AclResource, list[AclBinding]] = {}
    for binding in acls:
        by_resource.setdefault(resource_of(binding), []).append(binding)
    for resource in by_resource:
        try:
            resource.check()
        except ValueError as error:
            raise AdoptionRefused(f"An access rule cannot be brought into the coordinator: {error}") from error
    return [Create(resource.path, encode_acls(by_resource[resource])) for resource in sorted(by_resource)]


def _topic_creates(broker_id: int, name: str, topic: AdoptedTopic) -> list[Create]:
    """Return the nodes of a topic, in Kafka's order."""
    assignments = {index: Assignment((broker_id,)) for index in range(len(topic.leader_epochs))}
    creates = [
        Create(topic_entity(name).path, encode_config(topic.settings)),
        Create(topic_path(name), Topic(topic.topic_id, assignments).encode()),
        Create(partitions_path(name)),
    ]
    for index, leader_epoch in enumerate(topic.leader_epochs):
        partition = TopicPartition(name, index)
        state = LeaderAndIsr(NO_LEADER, (broker_id,), leader_epoch)
        creates += [Create(partition_path(partition)), Create(state_path(partition), state.encode())]
    return creates


def _check(creates: Iterable[Create]) -> None:
    """Refuse data that no coordinator can keep, before anything is written."""
    for create in creates:
        try:
            check_operation(create)
        except ValueError as error:
            raise AdoptionRefused(f"The coordinator cannot keep {create.path[:300]!r}: {error}") from error


def _batches(groups: Iterable[list[Create]], creates_at_once: int) -> Iterator[list[Create]]:
    """Put groups together as long as a Multi has room. A group that is larger than a Multi is divided."""
    batch: list[Create] = []
    size = 0
    for group in groups:
        group_size = sum(map(_size, group))
        if len(batch) + len(group) > creates_at_once or size + group_size > BYTES_AT_ONCE:
            if batch:
                yield batch
            batch, size = [], 0
        for create in group:
            if batch and (len(batch) == creates_at_once or size + _size(create) > BYTES_AT_ONCE):
                yield batch
                batch, size = [], 0
            batch.append(create)
            size += _size(create)
    if batch:
        yield batch


def _size(create: Create) -> int:
    return OPERATION_BYTES + len(create.path.encode()) + len(create.data)


# The steps


def _begin(marker: AdoptionMarker, configs: list[Create], topics: list[list[Create]]) -> Procedure[int | None]:
    """Mark the coordinator as incomplete. Return the version of the marker, or None if the adoption was complete."""
    while True:
        cluster = yield from read_node(CLUSTER_ID)
        if cluster is None:
            yield from _refuse_nodes_in_use(configs, topics)
            yield from create_if_missing(parent(CLUSTER_ID))
            multi = Multi((Create(ADOPTION, marker.encode()), Create(CLUSTER_ID, encode_cluster_id(marker.cluster_id))))
            outcome = yield from write(multi)
            if not isinstance(outcome, CoordinationError):
                return 0
            if isinstance(outcome, NodeExists) and outcome.index == 0 and (yield from _is_orphan()):
                raise AdoptionRefused(f"The coordinator has {ADOPTION} and no {CLUSTER_ID}: use an empty path of it")
            if not isinstance(outcome, NodeExists | ConnectionLost):
                raise outcome
            continue
        cluster_id = decode_cluster_id(cluster.data)
        if cluster_id != marker.cluster_id:
            raise AdoptionRefused(
                f"The data directory belongs to cluster {marker.cluster_id} and has data of a server alone, but the "
                f"coordinator belongs to cluster {cluster_id}: start this broker with an empty path of the "
                "coordinator, or with an empty data directory"
            )
        node = yield from read_node(ADOPTION)
        if node is None:
            return None
        if AdoptionMarker.decode(node.data) != marker:
            raise AdoptionMarker.decode(node.data).incomplete()
        outcome = yield from write(Set(ADOPTION, node.data, node.version))
        if isinstance(outcome, int):
            return outcome
        if not isinstance(outcome, BadVersion | NoNode | ConnectionLost):
            assert isinstance(outcome, CoordinationError)
            raise outcome


def _is_orphan() -> Procedure[bool]:
    """Return True if there is a marker without a cluster id, which no adoption leaves behind."""
    marker, cluster = yield from read([Get(ADOPTION), Get(CLUSTER_ID)])
    return isinstance(marker, Node) and isinstance(cluster, NoNode)


def _refuse_nodes_in_use(configs: list[Create], topics: list[list[Create]]) -> Procedure[None]:
    """Raise AdoptionRefused if a coordinator without a cluster id has topics, or other settings of the same owners."""
    names = yield from read_children(TOPICS)
    if names:
        raise AdoptionRefused(
            f"The coordinator has {len(names)} topics already ({', '.join(names[:3])}{', ...' if names[3:] else ''}), "
            "so the topics of this data directory cannot be brought into it: use an empty path of the coordinator"
        )
    yield from _missing([*configs, *(creates[0] for creates in topics)])


def _create(creates: list[Create], version: int) -> Procedure[None]:
    """Create nodes in one Multi; skip those that an earlier attempt created."""
    pending = creates
    while pending:
        outcome = yield from write(Multi((Check(ADOPTION, version), *pending)))
        if not isinstance(outcome, CoordinationError):
            return
        if outcome.index == 0:
            raise _superseded()
        if not isinstance(outcome, NodeExists | ConnectionLost):
            raise outcome
        pending = yield from _missing(pending)


def _missing(creates: list[Create]) -> Procedure[list[Create]]:
    """Return the nodes that do not exist yet. Raise AdoptionRefused for a node with other data."""
    outcomes = yield from read([Get(create.path) for create in creates])
    missing: list[Create] = []
    for create, outcome in zip(creates, outcomes, strict=True):
        if isinstance(outcome, NoNode):
            missing.append(create)
        elif isinstance(outcome, CoordinationError):
            raise outcome
        elif not isinstance(outcome, Node) or outcome.data != create.data:
            raise AdoptionRefused(
                f"The coordinator has {create.path} already, with data that is not from this data directory: use an "
                "empty path of the coordinator, or delete that node"
            )
    return missing


def _end(version: int) -> Procedure[None]:
    """Delete the marker: the coordinator is whole."""
    while True:
        outcome = yield from write(Delete(ADOPTION, version))
        if isinstance(outcome, BadVersion):
            raise _superseded()
        if isinstance(outcome, NoNode) or not isinstance(outcome, CoordinationError):
            return
        if not isinstance(outcome, ConnectionLost):
            raise outcome


def _superseded() -> AdoptionRefused:
    return AdoptionRefused(
        f"Another process brings the same data directory into the coordinator ({ADOPTION} has changed): stop one of "
        "both, and start the other again"
    )
