"""Requests of a read before it fetches: topics, leaders, offsets by time and id."""

import pytest

from broker.wire.errors import ErrorCode
from spark_bridge.reading import cluster as asking
from spark_bridge.reading.cluster import Description, NoSuchTopic, Patience, Topic, Unreachable
from spark_bridge.reading.network import Refused
from tests.spark_bridge.memory_cluster import BOOTSTRAP, LEADER, TOPIC_ID, Cluster


def ask(network):
    return asking.Cluster([BOOTSTRAP, LEADER], network, Patience(attempts=3))


def test_a_topic_has_its_id_and_the_leaders_of_its_partitions():
    topic = Topic("t", str(TOPIC_ID), {0: LEADER, 1: BOOTSTRAP})
    assert ask(Cluster(10)).describe(["t", "t"]) == Description("c", {"t": topic})


def test_all_topics_can_be_asked_for_and_the_internal_ones_are_marked():
    topics = ask(Cluster(10)).describe().topics
    assert {name: topic.internal for name, topic in topics.items()} == {"t": False, "__consumer_offsets": True}


def test_a_partition_without_a_leader_is_there():
    network = Cluster(10)
    network.leaders[0] = -1
    assert ask(network).describe(["t"]).topics["t"].leaders == {0: None, 1: BOOTSTRAP}


def test_a_topic_that_does_not_exist_is_reported_immediately():
    """An unknown topic fails immediately, because a mistyped name needs no wait for brokers to learn of it."""
    network = Cluster(10)
    with pytest.raises(NoSuchTopic, match="there is no topic 'flihgts'"):
        ask(network).describe(["flihgts"])
    assert network.paused == []


def test_the_ends_of_all_partitions_are_asked_of_their_leaders():
    network = Cluster(90, start=10)
    assert ask(network).earliest("t") == {0: 10, 1: 10}
    assert ask(network).latest("t") == {0: 90, 1: 90}
    assert network.connected == [BOOTSTRAP, LEADER, BOOTSTRAP] * 2  # metadata, then one request to each leader


@pytest.mark.parametrize(("time_ms", "offset"), [(0, 10), (55, 55), (89, 89), (90, None)])
def test_a_time_is_the_first_offset_not_before_it_or_none(time_ms, offset):
    assert ask(Cluster(90, start=10)).first_at_time("t", time_ms) == {0: offset, 1: offset}


@pytest.mark.parametrize(("id", "offset"), [(0, 10), (1055, 55), (1089, 89), (1090, None)])
def test_an_id_is_the_first_offset_not_before_it_or_none(id, offset):
    """With the private tag, timestamps are read as ids (broker.wire.tags)."""
    assert ask(Cluster(90, start=10)).first_at_id("t", id) == {0: offset, 1: offset}


@pytest.mark.parametrize("ids", [True, False])
def test_whether_a_broker_keeps_ids_is_asked_of_a_record(ids):
    """A record shows if the broker keeps ids; Apache Kafka ignores the tag and would take ids for times."""
    assert ask(Cluster(90, start=10, ids=ids)).keeps_ids("t") is ids


def test_an_empty_topic_counts_as_one_that_keeps_ids():
    assert ask(Cluster(0, ids=False)).keeps_ids("t") is True


@pytest.mark.parametrize("fault", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ConnectionResetError(), TimeoutError()])
def test_a_fault_in_passing_is_waited_out(fault):
    network = Cluster(90, faults=[fault, None, fault])
    assert ask(network).latest("t") == {0: 90, 1: 90}
    assert network.paused == [100, 200]


def test_after_some_attempts_it_gives_up_and_says_why():
    network = Cluster(90)
    network.down |= {BOOTSTRAP, LEADER}
    with pytest.raises(Unreachable, match="3 attempts: .*bootstrap:9092: .*refused; leader:9093: .*refused"):
        ask(network).latest("t")
    assert network.paused == [100, 200]


def test_a_refusal_is_raised_immediately():
    network = Cluster(90, faults=[ErrorCode.TOPIC_AUTHORIZATION_FAILED])
    with pytest.raises(Refused, match=r"offsets of t-0: the broker answered TOPIC_AUTHORIZATION_FAILED"):
        ask(network).latest("t")
    assert network.paused == []
