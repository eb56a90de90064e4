"""A client with all rights on topics, groups and transactions sends what only brokers may send, at each listener.

It moves no leader, deletes no log, shrinks no ISR, and raises no controller epoch; Kafka's ClusterAction guards these.
"""

from types import SimpleNamespace

import pytest
from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.types import BrokerId, ProducerId, TopicName, TransactionalId
from kio.schema.write_txn_markers.v1.request import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from kio.static.primitive import i16, i32, i64

from broker.client.address import Address
from broker.client.connection import ClientConnection
from broker.engine.api_table import INTER_BROKER
from broker.membership.calls import FetchCall, exchange_of_call, is_denied, response_to_call
from broker.membership.peer_calls import PeerCall
from broker.security.authorization.acl import AclBinding, Operation, PatternType, Permission, ResourceType
from broker.wire.fetch import FetchPartition, FetchRequest
from broker.wire.inter_broker import (
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionTopic,
    ControlledShutdownRequest,
    IsrMember,
)
from tests.broker.engine_client import CREATE_TOPICS, OFFSET_FOR_LEADER_EPOCH
from tests.broker.engine_cluster import BROKERS, CLIENTS, EngineCluster
from tests.broker.membership.orders import leader_and_isr, stop_replica, update_metadata

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
EPOCH = 99
"""The controller epoch of a stranger's orders, far above the real one."""
TOPICS = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
ALL_RIGHTS = frozenset(
    AclBinding(kind, PatternType.LITERAL, "*", "User:ada", "*", Operation.ALL, Permission.ALLOW) for kind in TOPICS
)
REQUESTS = {
    "LeaderAndIsr": lambda at: leader_and_isr("flights", (0, 2, 50), topic_id=at.topic_id, **at.order),
    "StopReplica": lambda at: stop_replica("flights", 0, delete=True, leader_epoch=50, **at.order),
    "UpdateMetadata": lambda at: update_metadata("flights", (0, 2, 50), topic_id=at.topic_id, controller_epoch=EPOCH),
    "ControlledShutdown": lambda at: ControlledShutdownRequest(broker_id=BrokerId(1), broker_epoch=i64(at.epoch)),
    "AlterPartition": lambda at: AlterPartitionRequest(
        broker_id=BrokerId(1), broker_epoch=i64(at.epoch), topics=(_without_followers(at),)
    ),
    "AllocateProducerIds": lambda at: AllocateProducerIdsRequest(
        broker_id=BrokerId(1), broker_epoch=i64(at.epoch)
    ),
    "AddPartitionsToTxn": lambda at: AddPartitionsToTxnRequest(
        transactions=(
            AddPartitionsToTxnTransaction(
                transactional_id=TransactionalId("orders"),
                producer_id=ProducerId(7),
                producer_epoch=i16(0),
                verify_only=False,
                topics=(AddPartitionsToTxnTopic(name=TopicName("flights"), partitions=(i32(0),)),),
            ),
        ),
    ),
    "WriteTxnMarkers": lambda at: WriteTxnMarkersRequest(
        markers=(
            WritableTxnMarker(
                producer_id=ProducerId(7),
                producer_epoch=i16(0),
                transaction_result=True,
                topics=(WritableTxnMarkerTopic(name=TopicName("flights"), partition_indexes=(i32(0),)),),
                coordinator_epoch=i32(1),
            ),
        )
    ),
}


def _without_followers(at):
    data = AlterPartitionData(
        partition_index=i32(0),
        leader_epoch=i32(at.state.leader_epoch),
        new_isr_with_epochs=(IsrMember(broker_id=BrokerId(1), broker_epoch=i64(at.epoch)),),
        partition_epoch=i32(at.state.partition_epoch),
    )
    return AlterPartitionTopic(topic_id=at.topic_id, partitions=(data,))


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
    (answer,) = frames.receive(memoryview(bytearray(client.received)))
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
