"""DescribeTopicPartitions through the wire (KIP-966): pages of partitions, with a cursor."""

from dataclasses import replace

import pytest

from broker.metadata.change import Change
from broker.metadata.topic import PartitionState
from broker.services.authorized_operations import TOPIC
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import DESCRIBE_TOPIC_PARTITIONS, EngineBroker


@pytest.fixture
def broker():
    broker = EngineBroker(max_request_partition_size_limit=3)
    for name, partitions in (("b", 4), ("a", 1), ("c", 2)):
        broker.create(name, partitions)
    return broker


@pytest.fixture
def client(broker):
    return broker.connect()


def page(client, *names, cursor=None, limit=2_000):
    """Ask for a page; return ({topic: its partitions or its error}, next cursor)."""
    cursor_fields = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    fields = {"topics": [{"name": name} for name in names], "response_partition_limit": limit, "cursor": cursor_fields}
    answer = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, fields)
    topics = {
        topic.name: topic.error_code or [partition.partition_index for partition in topic.partitions]
        for topic in answer.topics
    }
    after = answer.next_cursor
    return topics, after and (after.topic_name, after.partition_index)


def test_all_topics_come_in_pages_each_partition_once(client):
    assert page(client) == ({"a": [0], "b": [0, 1]}, ("b", 2))
    assert page(client, cursor=("b", 2)) == ({"b": [2, 3], "c": [0]}, ("c", 1))
    assert page(client, cursor=("c", 1)) == ({"c": [1]}, None)


def test_a_page_that_ends_with_a_topic_goes_on_with_the_next(client):
    assert page(client, "a", "c") == ({"a": [0], "c": [0, 1]}, None)
    assert page(client, limit=1) == ({"a": [0]}, ("b", 0))
    assert page(client, limit=0) == ({"a": [0]}, ("b", 0))


def test_the_topic_of_a_cursor_may_be_gone_meanwhile(client):
    assert page(client, cursor=("aa", 5)) == ({"b": [0, 1, 2]}, ("b", 3))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert page(client, "aa", "c", cursor=("aa", 5)) == ({"aa": unknown, "c": [0, 1]}, None)


def test_a_cursor_past_the_last_partition_goes_on_with_the_next_topic(client):
    assert page(client, cursor=("b", 9)) == ({"b": [], "c": [0, 1]}, None)


def test_topics_that_are_not_there_are_answered_with_errors(client):
    assert page(client, "nowhere", "a/b", "a") == (
        {"a": [0], "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION, "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        None,
    )


@pytest.mark.parametrize("cursor", [("b", 0), ("a", -1)])
def test_a_cursor_that_is_no_place_in_what_is_asked_for_is_refused(client, cursor):
    assert page(client, "a", cursor=cursor) == ({"a": ErrorCode.INVALID_REQUEST}, None)


def test_a_partition_is_told_with_its_leader_and_empty_lists_where_java_expects_them(broker, client):
    """Kafka's admin client fails if the eligible leader replicas are null, although the schema allows null."""
    fields = {"topics": [{"name": "a"}], "response_partition_limit": 10, "cursor": None}
    (topic,) = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, fields).topics
    (partition,) = topic.partitions
    assert (topic.topic_id, topic.is_internal) == (broker.services.metadata.topic("a").id, False)
    assert (partition.leader_id, partition.leader_epoch) == (1, 0)
    assert (partition.replica_nodes, partition.isr_nodes) == ((1,), (1,))
    assert (partition.eligible_leader_replicas, partition.last_known_elr, partition.offline_replicas) == ((), (), ())
    assert topic.topic_authorized_operations == TOPIC == 0b110111111000


def test_a_partition_of_several_copies_names_the_members_of_its_elr(broker, client):
    image = broker.services.metadata
    state = PartitionState(1, 3, (1, 2, 3), (1,), elr=(3,), offline=(2,))
    image.apply([Change({"a": replace(image.topic("a"), partitions=(state,))})])
    fields = {"topics": [{"name": "a"}], "response_partition_limit": 10, "cursor": None}
    ((partition,),) = [topic.partitions for topic in client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, fields).topics]
    assert (partition.replica_nodes, partition.isr_nodes) == ((1, 2, 3), (1,))
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((3,), ())


@pytest.mark.parametrize(
    ("state", "isr", "elr", "last_known"),
    [
        (PartitionState(-1, 3, (2, 3, 1), (3,), elr=(2,), offline=(2, 3)), (), (2, 3), (3,)),
        (PartitionState(-1, 3, (2, 3, 1), (3,), elr=(1,), offline=(2, 3)), (), (1, 3), (3,)),
        (PartitionState(-1, 3, (2, 3, 1), (3, 1), offline=(2, 3)), (3, 1), (), ()),
        (PartitionState(1, 3, (2, 3, 1), (1,), elr=(2, 3), offline=(2, 3)), (1,), (2, 3), ()),
    ],
    ids=["nobody is left", "an eligible one may lead soon", "one of the ISR may lead soon", "one leads"],
)
def test_the_last_members_of_an_isr_that_is_offline_are_in_the_elr_as_for_kafka_4(
    broker, client, state, isr, elr, last_known
):
    image = broker.services.metadata
    image.apply([Change({"a": replace(image.topic("a"), partitions=(state,))})])
    fields = {"topics": [{"name": "a"}], "response_partition_limit": 10, "cursor": None}
    ((partition,),) = [topic.partitions for topic in client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, fields).topics]
    shown = partition.isr_nodes, partition.eligible_leader_replicas, partition.last_known_elr
    assert shown == (isr, elr, last_known)


def test_a_partition_that_is_offline_has_no_leader_and_names_its_replica(broker, client):
    """So Apache Kafka 4.3 answers for a partition whose only replica is in a failed log directory."""
    broker.services.log_of("c", 1).offline = "its disk is gone"
    fields = {"topics": [{"name": "c"}], "response_partition_limit": 10, "cursor": None}
    (topic,) = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, fields).topics
    served, offline = topic.partitions
    assert (served.leader_id, served.isr_nodes, served.offline_replicas) == (1, (1,), ())
    assert (offline.error_code, offline.leader_id, offline.leader_epoch) == (0, -1, 0)
    assert (offline.replica_nodes, offline.isr_nodes, offline.offline_replicas) == ((1,), (), (1,))
    assert (offline.eligible_leader_replicas, offline.last_known_elr) == ((1,), (1,))
