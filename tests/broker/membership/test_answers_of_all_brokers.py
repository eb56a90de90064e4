"""What clients learn of a cluster is true on every broker within a second of a change, whichever they ask."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    DESCRIBE_CLUSTER,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_QUORUM,
    DESCRIBE_TOPIC_PARTITIONS,
    FIND_COORDINATOR,
    LIST_GROUPS,
    METADATA,
    OFFSET_COMMIT,
)
from tests.broker.engine_cluster import ONE_COPY, EngineCluster
from tests.broker.membership.cluster_steps import ALL, delete, leaders

SECOND_MS = 1_000
GROUPS = [f"readers-{n}" for n in range(9)]


@pytest.fixture
def cluster():
    return EngineCluster(3, offsets_topic_num_partitions=3, **ONE_COPY)


def answers(cluster, api, version, fields):
    """Return the answer of each living broker, a second after the last change."""
    cluster.later(SECOND_MS)
    living = [node.id for node in cluster.nodes.values() if node.is_alive]
    return {broker_id: cluster.client(broker_id).ask(api, version, fields) for broker_id in living}


def lose(cluster, broker_id):
    cluster.kill(broker_id)
    cluster.expire(broker_id)


def lose_controller(cluster):
    """End the controller; return its id."""
    dead = cluster.controller.id
    lose(cluster, dead)
    return dead


def other_than(*brokers):
    return [broker_id for broker_id in ALL if broker_id not in brokers]


# --- brokers, controller and leaders ---------------------------------------------------------------------------------


def test_metadata_has_the_live_brokers_the_controller_and_the_leaders(cluster):
    cluster.create("flights", 3)
    dead = lose_controller(cluster)
    cluster.create("late")
    for answer in answers(cluster, METADATA, 12, {"topics": None}).values():
        assert [broker.node_id for broker in answer.brokers] == other_than(dead)
        assert answer.controller_id == cluster.controller.id != dead
        topics = {topic.name: topic for topic in answer.topics}
        assert set(topics) == {"flights", "late"}
        flights = {row.partition_index: row.leader_id for row in topics["flights"].partitions}
        assert flights == {n: -1 if n + 1 == dead else n + 1 for n in range(3)}
    cluster.restart(dead)
    cluster.later(SECOND_MS)
    assert [leaders(cluster, "flights", broker_id) for broker_id in ALL] == [[1, 2, 3]] * 3


def test_describe_cluster_has_the_live_brokers_and_the_controller(cluster):
    dead = lose_controller(cluster)
    for answer in answers(cluster, DESCRIBE_CLUSTER, 0, {}).values():
        assert [broker.broker_id for broker in answer.brokers] == other_than(dead)
        assert answer.controller_id == cluster.controller.id
    cluster.restart(dead)
    for answer in answers(cluster, DESCRIBE_CLUSTER, 0, {}).values():
        assert [broker.broker_id for broker in answer.brokers] == list(ALL)


def test_describe_topic_partitions_has_leaders_and_offline_replicas(cluster):
    request = {"topics": [{"name": "flights"}], "response_partition_limit": 10}
    cluster.create("flights", 3)
    lose(cluster, 3)
    for answer in answers(cluster, DESCRIBE_TOPIC_PARTITIONS, 0, request).values():
        rows = [(row.leader_id, list(row.offline_replicas)) for row in answer.topics[0].partitions]
        assert rows == [(1, []), (2, []), (-1, [3])]
    cluster.restart(3)
    cluster.later(1_000)
    delete(cluster, "flights")
    for answer in answers(cluster, DESCRIBE_TOPIC_PARTITIONS, 0, request).values():
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_describe_quorum_has_the_controller_as_its_only_voter_in_an_epoch_that_rises(cluster):
    request = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}

    def quorum():
        """Return the (leader, epoch) in which all brokers agree."""
        leaders = set()
        for answer in answers(cluster, DESCRIBE_QUORUM, 2, request).values():
            (row,) = answer.topics[0].partitions
            assert [voter.replica_id for voter in row.current_voters] == [row.leader_id]
            assert [node.node_id for node in answer.nodes] == [row.leader_id]
            leaders.add((row.leader_id, row.leader_epoch))
        (agreed,) = leaders
        return agreed

    first, epoch = quorum()
    assert first == cluster.controller.id
    lose_controller(cluster)
    second, later_epoch = quorum()
    assert second == cluster.controller.id != first and later_epoch > epoch


# --- groups ----------------------------------------------------------------------------------------------------------


def coordinators(cluster):
    """Return the coordinator of each group, -1 if it has none; all brokers say the same."""
    request = {"key_type": 0, "coordinator_keys": GROUPS}
    by_broker = []
    for answer in answers(cluster, FIND_COORDINATOR, 4, request).values():
        assert {row.error_code for row in answer.coordinators} <= {0, ErrorCode.COORDINATOR_NOT_AVAILABLE}
        by_broker.append({row.key: row.node_id for row in answer.coordinators})
    assert all(node_ids == by_broker[0] for node_ids in by_broker)
    return by_broker[0]


def test_find_coordinator_names_the_broker_that_has_the_group_or_none_while_that_is_away(cluster):
    before = coordinators(cluster)
    assert set(before.values()) == set(ALL)
    dead = lose_controller(cluster)
    away = {group: -1 if broker_id == dead else broker_id for group, broker_id in before.items()}
    assert coordinators(cluster) == away
    cluster.restart(dead)
    assert coordinators(cluster) == before


def test_list_groups_has_each_group_at_its_coordinator_only(cluster):
    def listed():
        rows = answers(cluster, LIST_GROUPS, 4, {"states_filter": []}).items()
        assert {answer.error_code for _, answer in rows} == {0}
        return sorted((group.group_id, broker_id) for broker_id, answer in rows for group in answer.groups)

    cluster.create("flights", 3)
    for group, broker_id in coordinators(cluster).items():
        commit(cluster.client(broker_id), group)
    everything = sorted(coordinators(cluster).items())
    assert listed() == everything
    lose(cluster, 3)
    assert listed() == [(group, broker_id) for group, broker_id in everything if broker_id != 3]
    cluster.restart(3)
    assert listed() == everything


def commit(client, group):
    """Commit an offset as a program without members does, so that the group exists."""
    partition = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
    request = {"group_id": group, "topics": [{"name": "flights", "partitions": [partition]}]}
    answer = client.ask(OFFSET_COMMIT, 8, request | {"generation_id_or_member_epoch": -1, "member_id": ""})
    assert answer.topics[0].partitions[0].error_code == 0


# --- disks -----------------------------------------------------------------------------------------------------------


def test_describe_log_dirs_has_the_logs_that_a_broker_has_and_none_of_a_deleted_topic(cluster):
    def logs():
        described = answers(cluster, DESCRIBE_LOG_DIRS, 4, {"topics": None})
        return {
            broker_id: [
                (topic.name, row.partition_index)
                for topic in answer.results[0].topics
                for row in topic.partitions
            ]
            for broker_id, answer in described.items()
        }

    cluster.create("flights", 6)
    assert logs() == {n: [("flights", n - 1), ("flights", n + 2)] for n in ALL}
    lose(cluster, 2)
    cluster.create("late", assignments=(3,))
    assert logs() == {1: [("flights", 0), ("flights", 3)], 3: [("flights", 2), ("flights", 5), ("late", 0)]}
    cluster.restart(2)
    cluster.later(1_000)
    delete(cluster, "flights")
    assert logs() == {1: [], 2: [], 3: [("late", 0)]}
