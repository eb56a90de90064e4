"""A client with all rights on topics, groups and transactions sends what only brokers may send, at each listener.

It moves no leader, deletes no log, shrinks no ISR, and raises no controller epoch; Kafka's ClusterAction guards these.
"""

from types import SimpleNamespace

import pytest

from broker.client.address import Address
from broker.client.connection import ClientConnection
from broker.engine.api_table import INTER_BROKER
from broker.membership.calls import FetchCall, exchange_of_call, is_denied, response_to_call
from broker.membership.peer_calls import PeerCall
from broker.security.authorization.acl import AclBinding, Operation, PatternType, Permission, ResourceType
from broker.wire.fetch import FetchPartition, FetchRequest
from tests.broker.engine_client import CREATE_TOPICS, OFFSET_FOR_LEADER_EPOCH
from tests.broker.engine_cluster import BROKERS, CLIENTS, EngineCluster
from tests.broker.membership.stranger_requests import EPOCH, REQUESTS

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOPICS = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
ALL_RIGHTS = frozenset(
    AclBinding(kind, PatternType.LITERAL, "*", "User:ada", "*", Operation.ALL, Permission.ALLOW) for kind in TOPICS
)


@pytest.fixture
def cluster():
    """Run brokers with a topic of two copies. They are super users, and ada has rights on topics and the like only."""
    cluster = EngineCluster(
        2, authorizer_class_name=STANDARD, super_users="User:ANONYMOUS", replication_enable=True,
        offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1,
    )  # fmt: skip
    given = [{"partition_index": 0, "broker_ids": [1, 2]}]
    fields = {"name": "flights", "num_partitions": -1, "replication_factor": -1, "assignments": given, "configs": []}
    request = {"topics": [fields], "timeout": 30_000, "validate_only": False}
    cluster.client(cluster.controller.id).ask(CREATE_TOPICS, 7, request)
    assert cluster.client(1).produce("flights", b"a").error_code == 0
    cluster.later(1_000)
    for node in cluster.nodes.values():
        node.broker.services.authorizer.use(ALL_RIGHTS)
    return cluster


def stranger(cluster, broker_id, listener):
    client = cluster.nodes[broker_id].broker.connect(listener=listener)
    client.conn.user = "ada"
    return client


def state(cluster):
    """Return all that a stranger must not change: what each broker knows and has, and what the coordinator has."""
    nodes = cluster.nodes.values()
    images = [[(topic.name, topic.id, topic.partitions) for topic in node.member.image.topics()] for node in nodes]
    roles = [(node.member.image.live_ids, node.member.image.controller_id) for node in nodes]
    logs = [
        [(log.name, log.log_end_offset, log.leader_epoch) for log in node.broker.services.logs.all()] for node in nodes
    ]
    stored = [cluster.ensemble.node(path) for path in ("/controller_epoch", "/latest_producer_id_block")]
    return images, roles, logs, stored


def ask(client, call):
    """Return the response to a call, None if the broker has closed the connection."""
    address, frames = Address("localhost", 1), ClientConnection("ada")
    _, data = frames.request(exchange_of_call(address, call))
    client.feed(data)
    if client.closed:
        return None
    (answer,) = frames.receive(memoryview(client.received), is_reused=False)
    return response_to_call(call, answer.body)


def test_there_is_a_request_for_each_api_of_brokers():
    assert REQUESTS.keys() == {api.name for api in INTER_BROKER.values()} | {"WriteTxnMarkers"}


@pytest.mark.parametrize("listener", [CLIENTS, BROKERS])
@pytest.mark.parametrize("broker_id", [1, 2])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_of_brokers_is_denied_and_changes_nothing(cluster, name, broker_id, listener):
    topic = cluster.controller.member.image.topic("flights")
    epoch = cluster.nodes[broker_id].member.broker_epoch
    order = {"controller_epoch": EPOCH, "broker_epoch": epoch}
    at = SimpleNamespace(topic_id=topic.id, state=topic.partitions[0], epoch=epoch, order=order)
    before = state(cluster)
    response = ask(stranger(cluster, broker_id, listener), PeerCall(broker_id, REQUESTS[name](at)))
    assert response is None or is_denied(response)
    assert response is not None or (listener == CLIENTS and name != "WriteTxnMarkers")
    cluster.later(1_000)
    assert state(cluster) == before
    assert response is None or cluster.nodes[broker_id].broker.services.audit.denied_total


@pytest.mark.parametrize("listener", [CLIENTS, BROKERS])
def test_a_fetch_in_the_name_of_a_broker_is_denied(cluster, listener):
    """A follower's offset would move the high watermark, and bring a broker that has nothing into the ISR."""
    topic = cluster.controller.member.image.topic("flights")
    fields = {"replica_id": 2, "replica_epoch": cluster.nodes[2].member.broker_epoch}
    request = FetchRequest(0, 1, 1 << 20, [FetchPartition(topic.id, 0, 5, 1 << 20)], **fields)
    before = state(cluster)
    assert is_denied(ask(stranger(cluster, 1, listener), FetchCall(1, request)))
    assert state(cluster) == before


@pytest.mark.parametrize("listener", [CLIENTS, BROKERS])
def test_the_end_of_an_epoch_is_told_to_who_may_describe_the_topic(cluster, listener):
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    request = {"replica_id": -2, "topics": [{"topic": "flights", "partitions": [partition]}]}
    client = stranger(cluster, 1, listener)
    assert client.ask(OFFSET_FOR_LEADER_EPOCH, 4, request).topics[0].partitions[0].error_code == 0
    for node in cluster.nodes.values():
        node.broker.services.authorizer.use(frozenset())
    assert client.ask(OFFSET_FOR_LEADER_EPOCH, 4, request).topics[0].partitions[0].error_code == 29
