"""Requests of a read before it fetches: topics, leaders, offsets by time and id."""

import pytest

from broker.client.errors import NotAuthenticated
from broker.wire.errors import ErrorCode
from spark_bridge.reading import cluster as asking
from spark_bridge.reading.cluster import Description, NoSuchTopic, Patience, Topic, Unreachable
from spark_bridge.reading.network import BrokerRefused
from tests.spark_bridge.memory_cluster import (
    BOOTSTRAP,
    DESCRIBE_CONFIGS,
    KAFKA_2_1,
    KAFKA_3_9,
    KAFKA_4_0,
    LEADER,
    LIST_OFFSETS,
    TOPIC_ID,
    Cluster,
)


def ask(cluster):
    return asking.Cluster(cluster, Patience(attempts=3))


def test_a_topic_has_its_id_and_the_leaders_of_its_partitions():
    topic = Topic("t", str(TOPIC_ID), {0: LEADER, 1: BOOTSTRAP})
    assert ask(Cluster(10)).describe(["t", "t"]) == Description("c", {"t": topic})


def test_all_topics_can_be_asked_for_and_the_internal_ones_are_marked():
    topics = ask(Cluster(10)).describe().topics
    assert {name: topic.internal for name, topic in topics.items()} == {"t": False, "__consumer_offsets": True}


def test_a_partition_without_a_leader_is_there():
    cluster = Cluster(10)
    cluster.leaders[0] = -1
    assert ask(cluster).describe(["t"]).topics["t"].leaders == {0: None, 1: BOOTSTRAP}


def test_a_topic_that_does_not_exist_is_reported_immediately():
    """An unknown topic fails immediately, because a mistyped name needs no wait for brokers to learn of it."""
    cluster = Cluster(10)
    with pytest.raises(NoSuchTopic, match="there is no topic 'flihgts'"):
        ask(cluster).describe(["flihgts"])
    assert cluster.paused == []


def test_the_ends_of_all_partitions_are_asked_of_their_leaders():
    cluster = Cluster(90, start=10)
    assert ask(cluster).earliest("t") == {0: 10, 1: 10}
    assert ask(cluster).latest("t") == {0: 90, 1: 90}
    assert cluster.connected == [BOOTSTRAP, LEADER]


def test_all_questions_of_a_plan_take_one_connection_and_one_request_for_each_broker():
    """Each question about a pattern of 40 topics opened its connections anew, 383 in all."""
    cluster = Cluster(90, start=10, topics=[f"t{n}" for n in range(40)])
    log = ask(cluster)
    described = log.describe(None)
    offsets = log.snapshot(described)
    for topic in described.topics:
        assert offsets.earliest(topic) == {0: 10, 1: 10}
        assert offsets.latest(topic) == {0: 90, 1: 90}
        assert offsets.latest(topic, committed=True) == {0: 90, 1: 90}
        assert offsets.first_at_time(topic, 55) == {0: 55, 1: 55}
        assert offsets.first_at_id(topic, 1055) == {0: 55, 1: 55}
        assert log.keeps_ids(topic)
    assert cluster.connected == [BOOTSTRAP, LEADER]
    # Metadata and the offset of an id once more, because keeps_ids is a question about one topic.
    assert cluster.requests == {"api_versions": 2, "metadata": 2, "list_offsets": 2 * 6}


def test_a_thousand_partitions_take_as_many_requests_as_one():
    cluster = Cluster(90)
    cluster.leaders = {partition: partition % 2 for partition in range(1_000)}
    assert len(ask(cluster).latest("t")) == 1_000
    assert cluster.requests == {"api_versions": 2, "metadata": 1, "list_offsets": 2}


def test_the_latest_committed_offsets_are_the_last_stable_ones():
    """A read of committed records ends before the first open transaction (KIP-98)."""
    cluster = Cluster(90)
    cluster.open_from = 70
    assert ask(cluster).latest("t") == {0: 90, 1: 90}
    assert ask(cluster).latest("t", committed=True) == {0: 70, 1: 70}


@pytest.mark.parametrize(
    ("versions", "list_offsets", "metadata"), [(KAFKA_2_1, 4, 7), (KAFKA_3_9, 7, 12), (KAFKA_4_0, 7, 12)]
)
def test_versions_are_negotiated_with_each_broker(versions, list_offsets, metadata):
    cluster = Cluster(90, ids=False, versions=versions)
    cluster.topic_id = TOPIC_ID if metadata >= 10 else None
    assert ask(cluster).latest("t") == {0: 90, 1: 90}
    assert not ask(cluster).keeps_ids("t")
    assert cluster.asked_versions["list_offsets"] == list_offsets
    assert cluster.asked_versions["metadata"] == metadata


def test_a_request_that_the_broker_does_not_have_is_named():
    cluster = Cluster(90, versions=KAFKA_4_0 | {LIST_OFFSETS: (0, 1)})
    with pytest.raises(
        BrokerRefused, match="broker at leader:9093 serves v0 to v1 of ListOffsets; this client needs one"
    ):
        ask(cluster).latest("t")
    assert cluster.paused == []


def test_ids_are_refused_where_the_broker_keeps_none():
    with pytest.raises(BrokerRefused, match="the broker at leader:9093 keeps no ids; only Flakelog can find them"):
        ask(Cluster(90, ids=False)).first_at_id("t", 1000)


@pytest.mark.parametrize(("time_ms", "offset"), [(0, 10), (55, 55), (89, 89), (90, None)])
def test_a_time_is_the_first_offset_not_before_it_or_none(time_ms, offset):
    assert ask(Cluster(90, start=10)).first_at_time("t", time_ms) == {0: offset, 1: offset}


@pytest.mark.parametrize(("id", "offset"), [(0, 10), (1055, 55), (1089, 89), (1090, None)])
def test_an_id_is_the_first_offset_not_before_it_or_none(id, offset):
    """With the private tag, timestamps are read as ids (broker.wire.tags)."""
    assert ask(Cluster(90, start=10)).first_at_id("t", id) == {0: offset, 1: offset}


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("end", [0, 90])
def test_whether_a_broker_keeps_ids_is_asked_with_an_id(end, ids):
    """Flakelog marks its answer (broker.wire.tags); Apache Kafka ignores the tag and would take ids for times."""
    assert ask(Cluster(end, ids=ids)).keeps_ids("t") is ids


def test_the_cleanup_policy_says_which_topics_are_compacted():
    cluster = Cluster(90, topics="abcd", versions=KAFKA_4_0 | {DESCRIBE_CONFIGS: (0, 4)})
    cluster.policies = {"a": "compact", "b": "delete", "c": "compact,delete"}
    assert ask(cluster).compacted(["a", "b", "c", "d"]) == {"a", "c"}
    assert cluster.requests["describe_configs"] == 1


def test_a_broker_that_does_not_describe_topics_has_no_compacted_ones():
    cluster = Cluster(90)
    cluster.policies = {"t": "compact"}
    assert ask(cluster).compacted(["t"]) == frozenset()


@pytest.mark.parametrize("fault", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ConnectionResetError(), TimeoutError()])
def test_a_fault_in_passing_is_waited_out(fault):
    cluster = Cluster(90, faults=[fault, None, fault])
    assert ask(cluster).latest("t") == {0: 90, 1: 90}
    assert cluster.paused == [100, 200]


def test_each_wait_for_another_attempt_is_told_with_its_reason():
    cluster, reasons = Cluster(90, faults=[ConnectionResetError()]), []
    asking.Cluster(cluster, Patience(attempts=3), reasons.append).latest("t")
    assert len(reasons) == len(cluster.paused) == 1 and "leader:9093" in reasons[0]


def test_after_some_attempts_it_gives_up_and_says_why():
    cluster = Cluster(90)
    cluster.down |= {BOOTSTRAP, LEADER}
    with pytest.raises(Unreachable, match="3 attempts: .*bootstrap:9092.*refused; leader:9093.*refused"):
        ask(cluster).latest("t")
    assert cluster.paused == [100, 200]


def test_a_refusal_is_raised_immediately():
    cluster = Cluster(90, faults=[ErrorCode.TOPIC_AUTHORIZATION_FAILED])
    with pytest.raises(BrokerRefused, match="t-0: TOPIC_AUTHORIZATION_FAILED"):
        ask(cluster).latest("t")
    assert cluster.paused == []


def test_a_wrong_password_is_not_tried_again():
    """Reads and loads tried it for ten seconds, which may lock the user out."""
    cluster = Cluster(90, faults=[NotAuthenticated("leader:9093", "the login by PLAIN failed")])
    with pytest.raises(BrokerRefused, match="leader:9093: the login by PLAIN failed"):
        ask(cluster).latest("t")
    assert cluster.paused == []
