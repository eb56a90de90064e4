"""What brokers of Kafka 3.9 read of ours: the advertised versions, and quotas in the coordinator."""

import json

import pytest

from tests.broker.engine_client import ALTER_QUOTAS
from tests.broker.engine_cluster import BROKERS, CLIENTS, EngineCluster

API_VERSIONS = 18
ONLY_OF_BROKERS = {4: 7, 5: 4, 6: 8, 7: 3, 67: 0}
"""Keys and the versions that brokers of Kafka 3.9 send."""


@pytest.fixture
def cluster():
    return EngineCluster(1)


def advertised(cluster, listener):
    client = cluster.nodes[1].broker.connect(listener=listener)
    answer = client.ask(API_VERSIONS, 3, {"client_software_name": "kafka", "client_software_version": "3.9.1"})
    return {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}


def test_the_listener_of_brokers_advertises_the_requests_that_only_brokers_send(cluster):
    """A broker of Kafka sends AllocateProducerIds and AddPartitionsToTxn v5 only if they are advertised."""
    shown = advertised(cluster, BROKERS)
    assert {key: shown[key][1] for key in ONLY_OF_BROKERS} == ONLY_OF_BROKERS
    assert shown[24] == (0, 5)


def test_the_listener_of_clients_advertises_no_request_that_only_brokers_send(cluster):
    shown = advertised(cluster, CLIENTS)
    assert not shown.keys() & ONLY_OF_BROKERS.keys()
    assert shown[24] == (0, 3)


@pytest.mark.parametrize(
    ("kind", "name", "quota", "text"),
    [
        ("client-id", "app", "producer_byte_rate", "1024"),
        ("user", "ann", "consumer_byte_rate", "1024"),
        ("user", "ann", "request_percentage", "1024.0"),
        ("user", None, "controller_mutation_rate", "1024.0"),
        ("ip", "10.0.0.1", "connection_creation_rate", "1024"),
    ],
)
def test_a_quota_is_written_as_the_type_that_kafka_reads_it_as(cluster, kind, name, quota, text):
    """Kafka's brokers take a rate of bytes for a whole number, and refuse 1024.0 (QuotaConfig)."""
    entity = [{"entity_type": kind, "entity_name": name}]
    entry = {"entity": entity, "ops": [{"key": quota, "value": 1_024.0, "remove": False}]}
    client = cluster.client(1)
    assert client.ask(ALTER_QUOTAS, 1, {"entries": [entry], "validate_only": False}).entries[0].error_code == 0
    node = f"/config/{ {'client-id': 'clients', 'user': 'users', 'ip': 'ips'}[kind]}/{name or '<default>'}"
    assert json.loads(cluster.ensemble.nodes[node].data)["config"] == {quota: text}
