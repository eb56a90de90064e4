"""DescribeCluster through the wire (KIP-700, KIP-919)."""

import pytest

from broker.services.authorized_operations import CLUSTER, NOT_ASKED
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import DESCRIBE_CLUSTER, EngineBroker


@pytest.fixture
def client():
    return EngineBroker().connect()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_it_is_one_node_which_is_the_controller(client, version):
    answer = client.ask(DESCRIBE_CLUSTER, version, {"include_cluster_authorized_operations": False})
    assert answer.error_code == 0 and answer.cluster_id == client.broker.services.metadata.cluster_id
    (node,) = answer.brokers
    assert (node.broker_id, node.host, node.port) == (answer.controller_id, "localhost", 9092)
    assert answer.cluster_authorized_operations == NOT_ASKED


def test_without_access_rules_all_operations_are_allowed(client):
    """Kafka without an authorizer allows the same operations: create, alter, describe, cluster action, describe and
    alter configs, idempotent write."""
    answer = client.ask(DESCRIBE_CLUSTER, 2, {"include_cluster_authorized_operations": True})
    assert answer.cluster_authorized_operations == CLUSTER == 0b1111110100000 | 1 << 7 | 1 << 5


@pytest.mark.parametrize(
    "kind, code", [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_controllers_are_not_to_be_asked_for_here(client, kind, code):
    answer = client.ask(DESCRIBE_CLUSTER, 1, {"endpoint_type": kind})
    assert answer.error_code == code and answer.error_message and not answer.brokers
