"""Limits and quotas of clients do not hold for requests between brokers."""

from broker.engine.engine import Engine
from tests.broker.engine_client import ALTER_QUOTAS, FETCH, METADATA, fetch_request
from tests.broker.engine_cluster import BROKERS, CLIENTS, EngineCluster


def assert_known_to_all(cluster, name, partitions):
    for broker_id in cluster.nodes:
        (topic,) = cluster.client(broker_id).ask(METADATA, 12, {"topics": [{"topic_id": None, "name": name}]}).topics
        assert [partition.leader_id in cluster.nodes for partition in topic.partitions] == [True] * partitions


def test_an_order_may_name_more_partitions_than_a_request_of_a_client():
    cluster = EngineCluster(3, max_request_partitions=5, max_request_items=20, max_cold_request_bytes=1_100)
    assert cluster.create("flights", partitions=60) == 0
    assert_known_to_all(cluster, "flights", 60)


def test_no_quota_holds_back_the_orders_of_a_controller():
    clock = [0]

    def clock_ns():
        clock[0] += 1_000_000
        return clock[0]

    cluster = EngineCluster(3, engine=lambda services: Engine(services, clock_ns))
    ops = [{"key": "request_percentage", "value": 0.001, "remove": False}]
    entity = [{"entity_type": "client-id", "entity_name": str(cluster.controller.id)}]
    request = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
    assert cluster.client(1).ask(ALTER_QUOTAS, 1, request).entries[0].error_code == 0
    for number in range(5):
        assert cluster.create(f"flights-{number}", partitions=6) == 0
        assert_known_to_all(cluster, f"flights-{number}", 6)


def test_an_order_waits_for_the_settings_of_its_topic_however_many_clients_wait():
    """The controller does not repeat an order that was refused: the partition would have no leader for ever."""
    cluster = EngineCluster(3, max_delayed_operations=2)
    cluster.create("flights", partitions=3)
    for _ in range(3):
        cluster.client(2).send(FETCH, 11, fetch_request("flights", partition=1, max_wait_ms=60_000))
    assert cluster.nodes[2].broker.services.purgatory.overflowed
    assert cluster.create("storms", partitions=3) == 0
    assert cluster.client(2).produce("storms", b"a", partition=1).error_code == 0


def test_no_limit_and_no_quota_of_connections_holds_at_the_listener_of_brokers():
    """With KIP-402, clients never keep out brokers; a peer at a unix socket has no address for a quota either."""
    cluster = EngineCluster(3, max_connections=3, max_connections_per_ip=3)
    broker = cluster.nodes[1].broker
    ops = [{"key": "connection_creation_rate", "value": 1, "remove": False}]
    entity = [{"entity_type": "ip", "entity_name": None}]
    request = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
    assert cluster.client(1).ask(ALTER_QUOTAS, 1, request).entries[0].error_code == 0
    of_brokers = [broker.engine.opened(f"local:{number}", broker.now, BROKERS) for number in range(9)]
    assert [conn.close_reason for conn in of_brokers] == [None] * 9
    of_clients = [broker.engine.opened(f"10.0.0.7:{number}", broker.now, CLIENTS) for number in range(9)]
    assert any(conn.close_reason for conn in of_clients)
    for conn in (*of_brokers, *of_clients):
        broker.engine.closed(conn)
