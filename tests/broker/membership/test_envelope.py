"""A broker lets its connection act for another principal (KIP-590): for the web console, at other brokers."""

from ipaddress import ip_address

import pytest

from broker.security.authorization.acl import AclBinding, Operation, PatternType, Permission, ResourceType
from broker.wire.errors import ErrorCode, WireError
from broker.wire.principal_data import decode_principal, encode_principal
from tests.broker.engine_client import CREATE_TOPICS, DESCRIBE_CLUSTER, METADATA
from tests.broker.engine_cluster import BROKERS, CLIENTS, EngineCluster

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ENVELOPE = 58


def cluster_of(**settings):
    cluster = EngineCluster(2, **settings)
    topics = [
        {"name": name, "num_partitions": 2, "replication_factor": -1, "assignments": (), "configs": []}
        for name in ("orders", "payments")
    ]
    request = {"topics": topics, "timeout": 30_000, "validate_only": False}
    cluster.client(cluster.controller.id).ask(CREATE_TOPICS, 7, request)
    cluster.later(1_000)
    return cluster


@pytest.fixture
def cluster():
    """Run brokers that are super users, and let ada describe the topic orders."""
    cluster = cluster_of(authorizer_class_name=STANDARD, super_users="User:ANONYMOUS")
    grant(cluster, "*")
    return cluster


def grant(cluster, host):
    kind, pattern = ResourceType.TOPIC, PatternType.LITERAL
    rule = AclBinding(kind, pattern, "orders", "User:ada", host, Operation.DESCRIBE, Permission.ALLOW)
    for node in cluster.nodes.values():
        node.broker.services.authorizer.use(frozenset([rule]))


def connected(cluster, listener=BROKERS, user="ANONYMOUS"):
    client = cluster.nodes[1].broker.connect(listener=listener)
    client.conn.user = user
    return client


def envelope(client, principal=None, host=b"", data=b""):
    principal = encode_principal("User", "ada") if principal is None else principal
    fields = {"request_data": data, "request_principal": principal, "client_host_address": host}
    return client.ask(ENVELOPE, 0, fields).error_code


def topics_of(client):
    return sorted(topic.name for topic in client.ask(METADATA, 12, {"topics": None}).topics)


def test_the_requests_that_follow_are_judged_by_the_principal(cluster):
    client = connected(cluster)
    assert topics_of(client) == ["orders", "payments"]
    assert envelope(client) == ErrorCode.NONE
    assert topics_of(client) == ["orders"]
    assert client.conn.user == "ada", "quotas of the user hold too"
    assert topics_of(connected(cluster)) == ["orders", "payments"], "other connections are not meant"


def test_a_request_that_was_answered_before_is_judged_anew(cluster):
    """The rights of a connection are kept by API."""
    client = connected(cluster)
    assert client.ask(DESCRIBE_CLUSTER, 0, {}).cluster_id
    assert client.ask(METADATA, 12, {"topics": [{"name": "payments", "topic_id": None}]}).topics[0].error_code == 0
    envelope(client)
    (topic,) = client.ask(METADATA, 12, {"topics": [{"name": "payments", "topic_id": None}]}).topics
    assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_the_host_of_the_principal_is_judged_and_not_that_of_the_broker(cluster):
    grant(cluster, "192.0.2.7")
    client = connected(cluster)
    envelope(client, host=ip_address("192.0.2.7").packed)
    assert topics_of(client) == ["orders"]
    other = connected(cluster)
    envelope(other)
    assert topics_of(other) == []


def test_the_audit_log_names_the_principal_and_its_host(cluster):
    client = connected(cluster)
    envelope(client)
    client.ask(METADATA, 12, {"topics": [{"name": "payments", "topic_id": None}]})
    assert cluster.nodes[1].broker.reported[-1].startswith(
        "Principal = User:ada is Denied operation = DESCRIBE from host = local on resource = Topic:LITERAL:payments"
    )


@pytest.mark.parametrize("listener", [CLIENTS, BROKERS])
def test_who_lacks_cluster_action_acts_for_nobody(cluster, listener):
    client = connected(cluster, listener, "eve")
    assert envelope(client) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert client.conn.user == "eve" and topics_of(client) == []


def test_a_connection_that_acts_for_another_has_that_ones_right_to_envelopes(cluster):
    client = connected(cluster)
    envelope(client)
    assert envelope(client, encode_principal("User", "ANONYMOUS")) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert topics_of(client) == ["orders"]


@pytest.mark.parametrize(
    "principal",
    [b"", b"\0", encode_principal("Group", "ada"), encode_principal("User", ""), encode_principal("User", "*")],
)
def test_what_is_no_user_is_refused(cluster, principal):
    client = connected(cluster)
    assert envelope(client, principal) == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
    assert envelope(client, host=b"\1\2\3") == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
    assert client.conn.user == "ANONYMOUS"


def test_an_envelope_with_a_request_in_it_is_refused(cluster):
    """Kafka's brokers send such ones to a controller of a quorum, which there is not here."""
    client = connected(cluster)
    assert envelope(client, data=b"\0\3\0\0") == ErrorCode.INVALID_REQUEST
    assert client.conn.user == "ANONYMOUS"


def test_a_listener_of_clients_serves_none_without_an_authorizer():
    cluster = cluster_of()
    client = connected(cluster, CLIENTS)
    fields = {"request_data": b"", "request_principal": encode_principal("User", "ada"), "client_host_address": b""}
    client.send(ENVELOPE, 0, fields)
    assert client.closed
    assert envelope(connected(cluster)) == ErrorCode.NONE


def test_a_server_alone_serves_none():
    from tests.broker.engine_client import EngineBroker

    client = EngineBroker(authorizer_class_name=STANDARD, super_users="User:ANONYMOUS").connect()
    fields = {"request_data": b"", "request_principal": encode_principal("User", "ada"), "client_host_address": b""}
    client.send(ENVELOPE, 0, fields)
    assert client.closed


def test_a_principal_is_encoded_as_kafka_does():
    """DefaultPrincipalData.json: a version, then two compact strings, a flag, and no tags."""
    data = encode_principal("User", "ada")
    assert data == b"\0\0" + b"\5User" + b"\4ada" + b"\0" + b"\0"
    assert decode_principal(data) == ("User", "ada")
    for wrong in (b"", data[:-1], data + b"\0", b"\0\1" + data[2:], b"\0\0\5Us"):
        with pytest.raises(WireError, match="no principal"):
            decode_principal(wrong)


def test_an_ipv4_address_in_the_form_of_ipv6_is_the_ipv4_address_of_a_rule(cluster):
    grant(cluster, "192.0.2.7")
    client = connected(cluster)
    assert envelope(client, host=ip_address("::ffff:192.0.2.7").packed) == ErrorCode.NONE
    assert topics_of(client) == ["orders"]
