"""Access rules of a cluster: any broker writes them, and every broker obeys, also while the coordinator is away."""

import pytest

from broker.membership.cluster_executor import GIVE_UP_MS
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    CREATE_ACLS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLUSTER,
    METADATA,
)
from tests.broker.engine_cluster import EngineCluster
from tests.broker.handlers.test_acls import STANDARD, rule, wanted

DESCRIBE = 8


@pytest.fixture
def cluster():
    return EngineCluster(3, authorizer_class_name=STANDARD, super_users="User:ANONYMOUS")


def ada(cluster, broker_id):
    """Return a client of a broker whose user is ada."""
    client = cluster.client(broker_id)
    client.conn.user = "ada"
    return client


def described(client):
    return [resource.resource_name for resource in client.ask(DESCRIBE_ACLS, 3, wanted()).resources]


def code_of_topic(cluster, broker_id, name="orders"):
    fields = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    (topic,) = ada(cluster, broker_id).ask(METADATA, 12, fields).topics
    return topic.error_code


def test_a_rule_that_one_broker_writes_holds_at_all(cluster):
    cluster.create("orders")
    assert code_of_topic(cluster, 3) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    answer = cluster.client(2).ask(CREATE_ACLS, 3, {"creations": [rule(operation=DESCRIBE)]})
    assert [result.error_code for result in answer.results] == [0]
    for broker_id in (1, 2, 3):
        assert described(cluster.client(broker_id)) == ["orders"]
        assert code_of_topic(cluster, broker_id) == ErrorCode.NONE
    (result,) = cluster.client(3).ask(DELETE_ACLS, 3, {"filters": [wanted()]}).filter_results
    assert [acl.resource_name for acl in result.matching_acls] == ["orders"]
    assert code_of_topic(cluster, 1) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_broker_that_starts_has_the_rules_before_it_serves(cluster):
    cluster.create("orders")
    cluster.client(2).ask(CREATE_ACLS, 3, {"creations": [rule(operation=DESCRIBE)]})
    cluster.kill(3)
    cluster.restart(3)
    assert cluster.nodes[3].broker.services.authorizer.acls == cluster.nodes[1].broker.services.authorizer.acls


def test_a_name_that_the_coordinator_cannot_keep_is_refused(cluster):
    (result,) = cluster.client(2).ask(CREATE_ACLS, 3, {"creations": [rule("a/b")]}).results
    assert result.error_code == ErrorCode.INVALID_REQUEST and "slash" in result.error_message


def test_a_client_without_rights_makes_no_topic_at_any_broker(cluster):
    topic = {"name": "mine", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    fields = {"topics": [topic], "timeout": 5_000, "validate_only": False}
    (result,) = ada(cluster, cluster.controller.id).ask(CREATE_TOPICS, 7, fields).topics
    assert result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_problems_of_the_cluster_are_shown_to_who_may_describe_it(cluster):
    cluster.nodes[2].coordinator.cut()
    cluster.later(1_000)
    assert ada(cluster, 2).ask(DESCRIBE_CLUSTER, 0, {}).error_message is None
    assert "does not answer since" in cluster.client(2).ask(DESCRIBE_CLUSTER, 0, {}).error_message


def lines_about_rules(cluster, broker_id):
    """Return the lines of a broker's audit log about rules, without the host."""
    lines = [line for line in cluster.nodes[broker_id].broker.reported if "an access rule" in line]
    return [f"{line.partition(' ')[0]} {line.partition(' from ')[2].partition(' ')[2]}" for line in lines]


RULE = "User:ada is allowed to READ Topic orders from host *"


def test_the_broker_that_writes_a_rule_names_the_client(cluster):
    cluster.client(2).ask(CREATE_ACLS, 3, {"creations": [rule()]})
    assert lines_about_rules(cluster, 2) == [f"User:ANONYMOUS added an access rule: {RULE}"]
    assert lines_about_rules(cluster, 1) == lines_about_rules(cluster, 3) == []


def test_a_client_is_named_with_the_error_though_it_leaves_while_the_coordinator_is_away(cluster):
    cluster.nodes[2].coordinator.cut()
    client = cluster.client(2)
    client.send(CREATE_ACLS, 3, {"creations": [rule()]})
    assert not client.answered()
    client.broker.engine.closed(client.conn)
    cluster.later(GIVE_UP_MS)
    (line,) = lines_about_rules(cluster, 2)
    assert line.startswith(f"User:ANONYMOUS added an access rule: {RULE}; this failed, at least in part: ")
    assert line.endswith("the change may have been made, or not")
