"""`/metrics` of a real server: Prometheus text with figures that match the server's work."""

import re
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from broker.client.blocking import Client
from flakelog.metric_table import SERVER
from tests.broker.any_api import World, code_of
from tests.broker.engine_client import batch_of
from tests.compat.raw_connection import SocketLine
from tests.compat.server_process import ServerProcess
from tests.patience import SECONDS


def transact(address):
    """Leave a transaction open, and commit an offset of a group."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": "payments"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("orders", b"1")
    producer.flush(SECONDS)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
    consumer.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("metrics") / "data") as server:
        yield server


def text_of(server):
    with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
        return answer.read().decode()


def read(server):
    """Return {(name, labels): value}."""
    families = text_string_to_metric_families(text_of(server))
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples
    }


@pytest.fixture(scope="module")
def samples(server):
    """Produce three messages, fetch them, and return the samples."""
    with Client(server.address) as client:
        client.create_topic("flights")
        for value in (b"one", b"two", b"three"):
            client.produce("flights", 0, batch_of(value))
        client.fetch("flights", 0, 0)
    return read(server)


FLIGHTS = (("topic", "flights"),)
FLIGHTS_0 = (("partition", "0"), ("topic", "flights"))


@pytest.mark.parametrize(
    "name, labels, value",
    [
        ("flakelog_messages_in_total", (), 3),
        ("flakelog_topic_messages_in_total", FLIGHTS, 3),
        ("flakelog_topic_failed_produce_requests_total", FLIGHTS, None),
        ("flakelog_request_seconds_count", (("api", "Produce"),), 3),
        ("flakelog_request_seconds_bucket", (("api", "Produce"), ("le", "+Inf")), 3),
        ("flakelog_log_end_offset", FLIGHTS_0, 3),
        ("flakelog_log_start_offset", FLIGHTS_0, 0),
        ("flakelog_log_appended_total", FLIGHTS_0, 3),
        ("flakelog_partitions_offline", (), 0),
        ("flakelog_partitions_uncleanable", (), 0),
        ("flakelog_open_transactions", (), 0),
        ("flakelog_cleaner_passes_total", (), 0),
        ("flakelog_cleaner_max_dirty_ratio", (), 0),
        ("flakelog_connections_opened_total", (), 1),
        ("flakelog_open_files", (), 4),
    ],
)
def test_the_figure_is_there_and_right(samples, name, labels, value):
    if value is None:
        assert samples.get((name, labels), 0) == 0
    else:
        assert samples[name, labels] == value


def test_the_server_has_exactly_the_metrics_of_the_table(server):
    """The offset of the clock is missing, because no other id service runs."""
    text = text_of(server)
    kinds = dict(re.findall(r"^# TYPE (flakelog_\w+) (\w+)$", text, re.MULTILINE))
    meanings = dict(re.findall(r"^# HELP (flakelog_\w+) (.+)$", text, re.MULTILINE))
    rows = [row for rows in SERVER.values() for row in rows if row.name != "flakelog_ids_clock_offset_seconds"]
    assert kinds == {row.name: row.kind for row in rows}
    assert meanings == {row.name: row.meaning for row in rows}


def test_every_byte_that_came_in_can_go_out(samples):
    assert samples["flakelog_topic_in_bytes_total", FLIGHTS] == samples["flakelog_topic_out_bytes_total", FLIGHTS] > 0
    assert samples["flakelog_network_received_bytes_total", ()] > samples["flakelog_in_bytes_total", ()]


def test_groups_and_transactions_are_counted(server, samples):
    transact(server.address)
    found = read(server)
    assert found["flakelog_groups", (("state", "Empty"),)] == 1
    place = (("group", "readers"), ("partition", "0"), ("topic", "orders"))
    assert found["flakelog_group_committed_offset", place] == 0
    assert found["flakelog_group_lag_messages", place] == 1 and found["flakelog_group_lag_bytes", place] > 0
    assert found["flakelog_group_partitions_left_out", ()] == 0
    assert found["flakelog_transactional_ids", (("state", "Ongoing"),)] == found["flakelog_open_transactions", ()] == 1


def test_who_is_over_a_quota_is_counted(server, samples):
    world = World(SocketLine(server.address))
    ops = [{"key": "request_percentage", "value": 1e-6, "remove": False}]
    entity = [{"entity_type": "client-id", "entity_name": "test"}]
    assert not code_of(world.ask("AlterClientQuotas", {"entries": [{"entity": entity, "ops": ops}]}))
    world.ask("Metadata", {"topics": []})
    world.ask("Metadata", {"topics": []})
    found = read(server)
    assert found["flakelog_throttled_total", (("quota", "request_percentage"),)] >= 1
    assert found["flakelog_throttled_seconds_total", (("quota", "request_percentage"),)] >= 1


def test_the_process_is_measured_too(samples):
    assert samples["process_resident_memory_bytes", ()] > 1 << 20
    assert ("python_gc_collections_total", (("generation", "0"),)) in samples


def test_partitions_beyond_the_limit_are_counted_and_have_no_samples(tmp_path):
    with ServerProcess(tmp_path / "data", {"flakelog.metrics.partitions.max": "3"}) as server:
        with Client(server.address) as client:
            client.create_topic("first", 2)
            client.create_topic("second", 4)
        found = read(server)
    assert found["flakelog_partitions_left_out", ()] == 3
    assert sum(name == "flakelog_log_size_bytes" for name, _ in found) == 3
    assert found["flakelog_topic_messages_in_total", (("topic", "second"),)] == 0
