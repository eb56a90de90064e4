"""A broker's registration: /brokers/ids/N for as long as its session lives (Kafka's registerBroker).

Its czxid is the broker epoch: each life of a broker has a higher one, and the controller's orders name it (rule E3).
Registration ends with a read of /controller_epoch, below which the broker refuses all orders (rule E2): StopReplica
with `delete` passes the check of the leader epoch, so a late order of a replaced controller could delete a new topic.
"""

from typing import NamedTuple

from broker.cluster.adoption_marker import ADOPTION, POLL_MS, wait_for_adoption
from broker.cluster.documents import (
    CLUSTER_ID,
    CONTROLLER_EPOCH,
    PERSISTENT_PATHS,
    DamagedDocument,
    Registration,
    broker_path,
    decode_cluster_id,
    decode_epoch,
    encode_cluster_id,
)
from broker.cluster.procedure import Pause, Procedure, read, read_node, write
from coordination.errors import FlakelogError
from coordination.port import ConnectionLost, Create, Get, Multi, NodeExists, NoNode, Set

TICK_MS = 2_000
"""ZooKeeper ends a session up to a tick after its time is over; this is the tick of most configurations."""


class Registered(NamedTuple):
    """This life of the broker: its epoch, the controller epoch below which it refuses orders, and its cluster."""

    broker_epoch: int
    controller_epoch: int
    cluster_id: str


class BrokerIdTaken(FlakelogError):
    """Another live broker has this broker's id."""


class OtherCluster(FlakelogError):
    """The data directory belongs to another cluster than the coordinator."""


def register(
    broker_id: int,
    registration: Registration,
    *,
    session_id: int,
    session_timeout_ms: int,
    cluster_id: str,
    is_new_directory: bool,
    directory: str = "The data directory",
    coordinator: str = "the coordinator",
) -> Procedure[Registered]:
    """Register a broker for the present session.

    `cluster_id` is that of the data directory; a directory that belongs to no cluster yet brings a random one, which
    the first broker of a cluster writes. Wait while another broker brings its data into the coordinator. Raise
    OtherCluster, BrokerIdTaken or AdoptionIncomplete, whose messages say what to do; `directory` and `coordinator` are
    the words for the two in them.
    """
    yield from create_persistent_nodes()
    coordinator_cluster_id = yield from _read_cluster_id(cluster_id)
    if coordinator_cluster_id != cluster_id and not is_new_directory:
        raise OtherCluster(
            f"{directory} belongs to cluster {cluster_id}, {coordinator} to cluster {coordinator_cluster_id}: start "
            "this broker with the zookeeper.connect of its own cluster, or with an empty data directory"
        )
    yield from wait_for_adoption(session_timeout_ms)
    broker_epoch = yield from _create(broker_id, registration, session_id, session_timeout_ms)
    epoch = yield from read_node(CONTROLLER_EPOCH)
    return Registered(broker_epoch, 0 if epoch is None else decode_epoch(epoch.data), coordinator_cluster_id)


def await_cluster() -> Procedure[None]:
    """Wait until another broker has begun the cluster, and has brought all of its directory along.

    No change node tells of what it brings. So a broker that read the settings earlier would never learn of the rest.
    """
    while (yield from read_node(CLUSTER_ID)) is None:
        yield Pause(POLL_MS, "the first broker begins the cluster")
    while (yield from read_node(ADOPTION)) is not None:
        yield Pause(POLL_MS, "the first broker brings its data directory along")


def create_persistent_nodes() -> Procedure[None]:
    """Create the nodes that each broker expects, unless they exist."""
    nodes = yield from read([Get(path) for path in PERSISTENT_PATHS])
    for path, node in zip(PERSISTENT_PATHS, nodes, strict=True):
        if isinstance(node, NoNode):
            yield from create_if_missing(path)


def create_if_missing(path: str) -> Procedure[None]:
    """Create a node without data, and those above it, unless it exists."""
    while isinstance((yield from write(Create(path))), ConnectionLost):
        pass


def _read_cluster_id(proposed: str) -> Procedure[str]:
    while True:
        node = yield from read_node(CLUSTER_ID)
        if node is not None:
            return decode_cluster_id(node.data)
        yield from write(Create(CLUSTER_ID, encode_cluster_id(proposed)))


def _create(
    broker_id: int, registration: Registration, session_id: int, session_timeout_ms: int
) -> Procedure[int]:
    """Create the node; return its czxid.

    Kafka creates it empty and sets its data in the same Multi, to learn the czxid from the answer; here the czxid is
    read, and the Multi only gives the node the version that Kafka's has.
    """
    path = broker_path(broker_id)
    pauses_ms = iter((session_timeout_ms, TICK_MS))
    while True:
        node = yield from read_node(path)
        if node is None:
            multi = Multi((Create(path, ephemeral=True), Set(path, registration.encode(), 0)))
            outcome = yield from write(multi)
            if isinstance(outcome, NoNode):
                raise outcome
            if isinstance(outcome, NodeExists | ConnectionLost) or isinstance(outcome, tuple):
                continue  # the next read tells whose node it is
            raise AssertionError(outcome)
        if node.owner == session_id:
            return node.czxid
        pause_ms = next(pauses_ms, None)
        if pause_ms is None:
            raise BrokerIdTaken(
                f"Another broker with id {broker_id} is registered{_addresses(path, node.data)}: "
                "give this one another broker.id, or stop the other"
            )
        yield Pause(
            pause_ms,
            f"broker id {broker_id} is registered, perhaps by this broker's own last session: waiting {pause_ms} ms "
            "for that session to end",
        )


def _addresses(path: str, data: bytes) -> str:
    """Return where a registered broker is, for people; nothing if its registration cannot be read."""
    try:
        endpoints = Registration.decode(path, data).endpoints
    except DamagedDocument:
        return ""
    return f" at {', '.join(f'{endpoint.host}:{endpoint.port}' for endpoint in endpoints)}" if endpoints else ""
