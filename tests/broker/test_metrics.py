"""The broker's metrics (early Kafka's MBeans), checked against the requests that were made."""

import pytest

from broker.engine.engine import Engine
from broker.metrics import BOUNDS_NS, Latency
from tests.broker.any_api import EngineLine, World
from tests.broker.engine_client import FETCH, METADATA, PRODUCE, EngineBroker, fetch_request, produce_request
from tests.broker.transactional import TransactionalProducer

MS = 1_000_000


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights")
    return broker


def figures(broker, topic="flights"):
    return broker.services.metrics.by_topic(broker.services.logs.all())[topic]


def total(broker):
    return broker.services.metrics.total(broker.services.logs.all())


def test_a_duration_counts_in_the_bucket_whose_bound_it_does_not_pass():
    latency = Latency()
    for duration_ns in (1, BOUNDS_NS[0], BOUNDS_NS[0] + 1, BOUNDS_NS[-1] + 1):
        latency.observe(duration_ns)
    assert (latency.counts[0], latency.counts[1], latency.counts[-1], latency.number) == (2, 1, 1, 4)
    assert latency.max_ns == BOUNDS_NS[-1] + 1
    assert list(BOUNDS_NS) == sorted(set(BOUNDS_NS))


@pytest.mark.parametrize("acks", [1, 0])
def test_each_produce_is_counted_whichever_way_it_goes(broker, acks):
    client = broker.connect()
    for _ in range(3):
        client.send(PRODUCE, 9, produce_request("flights", b"a", b"b", acks=acks))
    assert broker.services.metrics.requests[PRODUCE].number == 3
    assert figures(broker).messages_in == 6
    assert figures(broker).bytes_in == broker.services.logs.get("flights", 0).segments.size


def test_waiting_for_data_is_part_of_a_fetch(broker):
    broker.engine = Engine(broker.services, lambda: broker.now_ms * MS)
    client = broker.connect()
    client.send(FETCH, 12, fetch_request("flights", max_wait_ms=400))
    assert FETCH not in broker.services.metrics.requests
    broker.at(broker.now_ms + 500)
    latency = broker.services.metrics.requests[FETCH]
    assert latency.number == 1 and 400 * MS <= latency.max_ns <= 500 * MS


def test_bytes_that_are_fetched_are_counted_each_time(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.fetch("flights")
    client.fetch("flights")
    assert figures(broker).bytes_out == 2 * figures(broker).bytes_in


def test_refusals_count_for_the_topic_where_there_is_one(broker):
    client = broker.connect()
    client.produce("flights", b"one", partition=7)
    client.produce("nowhere", b"one")
    client.ask(FETCH, 12, fetch_request("flights", 99))
    client.ask(FETCH, 12, fetch_request("nowhere"))
    assert (figures(broker).failed_produce, total(broker).failed_produce) == (1, 2)
    assert (figures(broker).failed_fetch, total(broker).failed_fetch) == (1, 2)
    assert set(broker.services.metrics.by_topic(broker.services.logs.all())) == {"flights"}


def test_totals_never_fall_when_a_topic_is_deleted(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"one", partition=7)
    before = total(broker)
    broker.delete("flights")
    after = total(broker)
    assert (after.messages_in, after.bytes_in, after.failed_produce) == (1, before.bytes_in, 1)
    assert broker.services.metrics.by_topic(broker.services.logs.all()) == {}


def test_bytes_and_connections_of_the_network_are_counted(broker):
    client = broker.connect()
    client.ask(METADATA, 12, {"topics": None})
    metrics = broker.services.metrics
    assert metrics.connections_opened == 1 and broker.engine.connections == 1
    assert metrics.bytes_received > 0 and metrics.bytes_sent > metrics.bytes_received


def test_groups_and_transactional_ids_are_counted_by_their_state(broker):
    assert (broker.services.coordinators.group_states(), broker.services.coordinators.transaction_states()) == ({}, {})
    producers = [TransactionalProducer(broker, name) for name in ("a", "b", "c")]
    for producer in producers:
        producer.init()
    producers[0].write("flights", b"a")
    producers[1].write("flights", b"b")
    assert producers[1].end(True) == 0
    assert broker.services.coordinators.transaction_states() == {"Ongoing": 1, "CompleteCommit": 1, "Empty": 1}
    world = World(EngineLine(broker))
    world.member()
    world.group = "readers"
    world.commit()
    assert broker.services.coordinators.group_states() == {"Stable": 1, "Empty": 1}
