"""Stock clients held to a quota (KIP-13, KIP-219, KIP-599) are slower, but otherwise work as usual.

Every test here has also passed against Apache Kafka 4.3.1 with the same settings.
"""

import time
from itertools import count

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker.client.blocking import Client
from broker.client.core import CLIENT_ID
from tests.broker.any_api import World, code_of
from tests.compat.raw_connection import SocketLine
from tests.compat.server_process import ServerProcess
from tests.compat.stock_clients import AioKafka, KafkaPython
from tests.patience import SECONDS, until

# With two windows a client may use the quota of one second in one burst, and not the quota of ten seconds.
SETTINGS = {"quota.window.num": 2, "controller.quota.window.num": 2, "group.initial.rebalance.delay.ms": 0}
RATE = 20_000
VALUES = [b"%d " % n + bytes(4_000) for n in range(20)]
LEAST_SECONDS = sum(map(len, VALUES)) / RATE - 2  # one second's quota in one burst, and one under way

_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("quotas") / "data", SETTINGS) as server:
        yield server


@pytest.fixture
def alter(server):
    """Return alter("client-id", "slow", producer_byte_rate=1_000), which sets quotas of a client or user."""

    def altered(kind, name, **quotas):
        ops = [{"key": key, "value": float(value), "remove": False} for key, value in quotas.items()]
        entry = {"entity": [{"entity_type": kind, "entity_name": name}], "ops": ops}
        world = World(SocketLine(server.address))
        assert not code_of(world.ask("AlterClientQuotas", {"entries": [entry], "validate_only": False}))

    return altered


@pytest.fixture
def topic(server):
    name = f"quotas-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": server.address})
    (made,) = admin.create_topics([NewTopic(name, 1, 1)]).values()
    made.result(SECONDS)
    return name


def produce(server, topic, values, on_throttle=None, **config):
    """Produce one batch per value."""
    failed = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": server.address,
            "linger.ms": 0,
            "throttle_cb": on_throttle or (lambda event: None),
        }
        | config
    )
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: error and failed.append(error))
        assert producer.flush(SECONDS) == 0
    assert not failed, failed


def test_a_producer_is_held_to_its_quota_and_told_so(server, topic, alter):
    alter("client-id", "slow writer", producer_byte_rate=RATE)
    throttles = []
    began = time.monotonic()
    produce(server, topic, VALUES, throttles.append, **{"client.id": "slow writer"})
    assert time.monotonic() - began > LEAST_SECONDS
    assert max(event.throttle_time for event in throttles) > 0


def test_a_consumer_is_held_to_its_quota_and_gets_all(server, topic, alter):
    produce(server, topic, VALUES)
    alter("client-id", "slow reader", consumer_byte_rate=RATE)
    config = {"bootstrap.servers": server.address, "client.id": "slow reader", "group.id": topic}
    throttles, messages = [], []
    consumer = confluent_kafka.Consumer(config | {"auto.offset.reset": "earliest", "throttle_cb": throttles.append})
    began = time.monotonic()
    consumer.subscribe([topic])
    until(
        lambda: messages.extend(consumer.consume(100, 0.1)) or len(messages) >= len(VALUES),
        what="all that was produced",
    )
    assert time.monotonic() - began > LEAST_SECONDS
    assert [message.value() for message in messages] == VALUES
    assert max(event.throttle_time for event in throttles) > 0
    consumer.close()


@pytest.mark.parametrize("client", [KafkaPython, AioKafka], ids=lambda client: client.name)
def test_clients_that_meet_answers_without_records_read_on(server, topic, alter, client):
    """A client reads on after a throttled answer without partitions, which otherwise comes only in fetch sessions."""
    some = VALUES[:12]
    produce(server, topic, some)
    alter("client-id", None, consumer_byte_rate=RATE)
    assert [message.value for message in client.read(server.address, topic, len(some))] == some


def test_our_own_client_is_held_to_it_too_and_reads_on(server, topic, alter):
    produce(server, topic, VALUES)
    alter("client-id", CLIENT_ID, consumer_byte_rate=RATE)
    began, fetched, offset = time.monotonic(), [], 0
    with Client(server.address) as client:
        while len(fetched) < len(VALUES):
            records, offset = client.fetch(topic, 0, offset)
            fetched += records
    assert time.monotonic() - began > LEAST_SECONDS
    assert [record.value for record in fetched] == VALUES


def test_javas_admin_client_waits_until_it_may_make_topics_again(server, alter, java):
    """Java's admin client receives THROTTLING_QUOTA_EXCEEDED and retries automatically."""
    names = [f"quotas-{next(_numbers)}" for _ in range(2)]
    alter("user", "ANONYMOUS", controller_mutation_rate=2)
    began = time.monotonic()
    for name in names:
        java.ask("createTopic", address=server.address, topic=name, partitions=8)
    assert time.monotonic() - began > 1, "of 8 partitions 4 may come in one burst, and 2 a second after that"
