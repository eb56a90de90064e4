"""Flakelog's Python API at an Apache Kafka of three brokers: leaders on each, and one that dies."""

import asyncio

import confluent_kafka.admin
import pytest

from benchmarks.native import Unavailable
from broker.client.async_consumer import AsyncConsumer
from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.client.consumer_config import ConsumerConfig
from broker.client.errors import BrokerError
from broker.client.producer import Producer
from flakelog.admin import Admin
from tests.compat.numbers_topic import WAIT_MS, values
from tests.compat.python.kafka_cluster import NODES, KafkaCluster
from tests.patience import until

pytestmark = pytest.mark.soak

PARTITIONS = 6
ALONE = ConsumerConfig(fetch_max_wait_ms=50)
BY_HAND = ConsumerConfig(fetch_max_wait_ms=50, auto_commit_interval_ms=None)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    try:
        with KafkaCluster(tmp_path_factory.mktemp("kafka-cluster")) as cluster:
            yield cluster
    except Unavailable as why:
        pytest.skip(str(why))


def create(cluster, name, copies):
    """Make a topic whose partitions have leaders on all brokers."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.servers})
    spread = [[NODES[(number + copy) % 3] for copy in range(copies)] for number in range(PARTITIONS)]
    new = confluent_kafka.admin.NewTopic(name, PARTITIONS, replica_assignment=spread)
    admin.create_topics([new])[name].result()
    for server in cluster.servers.split(","):
        with Admin(server) as ours:
            until(lambda ours=ours: leaders(ours, name) == set(NODES), f"leaders on all brokers, at {server}")
    return name


def leaders(admin, name):
    try:
        return {partition.leader for partition in admin.replicas(name).values()}
    except BrokerError:  # the broker does not know the topic yet
        return set()


@pytest.fixture
def topic(cluster, name):
    return create(cluster, name, 3)


def send(cluster, topic, numbers, **settings):
    with Producer(cluster.servers, **settings) as producer:
        for number in numbers:
            producer.send(topic, str(number), partition=number % PARTITIONS)


def test_a_consumer_reads_partitions_of_all_brokers(cluster, topic, tmp_path):
    send(cluster, topic, range(60), ids="header", directory=tmp_path)
    with Consumer(cluster.servers, topic, config=ALONE) as consumer:
        records = [next(consumer) for _ in range(60)]
        consumer.seek_to_end()
        assert sum(consumer.position(topic, number) for number in range(PARTITIONS)) == 60
    assert values(records) == list(range(60)) and len({record.id for record in records}) == 60


def test_members_of_a_group_share_partitions_of_all_brokers(cluster, topic):
    send(cluster, topic, range(60))
    with (
        Consumer(cluster.servers, topic, group=topic, config=BY_HAND) as first,
        Consumer(cluster.servers, topic, group=topic, config=BY_HAND) as second,
    ):
        records = []
        while len(first.assignment) != 3 or len(second.assignment) != 3 or len(records) < 60:
            records += first.poll(50) + second.poll(50)
        first.commit()
        second.commit()
        with Admin(cluster.servers) as admin:
            assert set(admin.lag(topic).values()) == {0}


def test_one_call_fetches_from_all_brokers(cluster, topic):
    send(cluster, topic, range(60))
    with Client(cluster.servers) as client:
        fetched = client.multifetch({(topic, number): 0 for number in range(PARTITIONS)})
        assert values(record for records, _ in fetched.values() for record in records) == list(range(60))
        ends = {key: following for key, (_, following) in fetched.items()}
        assert all(records == [] for records, _ in client.multifetch(ends, max_wait_ms=30).values())


def test_transactions_span_brokers(cluster, topic):
    with Producer(cluster.servers, transactional_id=topic) as producer:
        for base in (0, 100):
            with producer.transaction():
                for number in range(base, base + 60):
                    producer.send(topic, str(number), partition=number % PARTITIONS)
    config = ConsumerConfig(isolation_level="read_committed", fetch_max_wait_ms=50)
    with Consumer(cluster.servers, topic, config=config) as consumer:
        assert len({next(consumer).value for _ in range(120)}) == 120


def test_a_consumer_and_a_producer_follow_leaders_that_move_away_and_back(cluster, topic):
    """The leaders of node 2 go to other nodes when it dies, and come back by an election: two new epochs each."""
    away = {number for number in range(PARTITIONS) if NODES[number % 3] == 2}
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.servers})
    with (
        Consumer(cluster.servers, topic, timeout_ms=WAIT_MS, config=ALONE) as consumer,
        Producer(cluster.servers) as producer,
        Admin(cluster.addresses[1]) as ours,
    ):

        def led_by_2():
            return {number for (_, number), nodes in ours.replicas(topic).items() if nodes.leader == 2}

        def pass_on(numbers):
            for number in numbers:
                producer.send(topic, str(number), partition=number % PARTITIONS)
            producer.flush()
            assert values(next(consumer) for _ in numbers) == list(numbers)

        pass_on(range(60))
        cluster.kill(2)
        pass_on(range(60, 120))
        cluster.start(2)
        until(lambda: all(len(nodes.in_sync) == 3 for nodes in ours.replicas(topic).values()), "node 2 is in sync")
        until(lambda: elect(admin, topic) and led_by_2() == away, "node 2 leads its partitions again")
        pass_on(range(120, 180))
        assert consumer.figures().fetches.resets == 0


def elect(admin, topic):
    """Let the preferred leaders of a topic's partitions lead them."""
    partitions = [confluent_kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
    return admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, partitions).result()


def test_a_consumer_begins_a_topic_that_was_made_again_anew(cluster, topic):
    """KIP-516: its epochs begin at 0 again, below those that the consumer knows."""
    send(cluster, topic, range(60))
    with Consumer(cluster.servers, topic, timeout_ms=WAIT_MS, config=ALONE) as consumer:
        assert values(next(consumer) for _ in range(60)) == list(range(60))
        with Admin(cluster.servers) as admin:
            before = admin.topic(topic).id
            admin.delete_topic(topic)
            create(cluster, topic, 3)
            until(lambda: admin.topic(topic).id != before, "the topic has another id")
        send(cluster, topic, range(100, 160))
        assert values(next(consumer) for _ in range(60)) == list(range(100, 160))


def test_readers_go_on_when_a_broker_dies(cluster, name):
    """Its partitions with copies get other leaders; those without wait, and hold up no other partition."""
    replicated, lost = (create(cluster, f"{name}-{copies}", copies) for copies in (3, 1))
    send(cluster, replicated, range(60))
    send(cluster, lost, range(60))
    with (
        Consumer(cluster.servers, replicated, timeout_ms=WAIT_MS, config=ALONE) as alone,
        Consumer(cluster.servers, replicated, group=replicated, timeout_ms=WAIT_MS, config=BY_HAND) as member,
    ):
        assert len([next(alone) for _ in range(60)]) == len([next(member) for _ in range(60)]) == 60
        cluster.kill(3)
        send(cluster, replicated, range(60, 120))
        assert values(next(alone) for _ in range(60)) == list(range(60, 120))
        assert values(next(member) for _ in range(60)) == list(range(60, 120))
        member.commit()

    async def read():
        async with AsyncConsumer(cluster.servers, lost, timeout_ms=WAIT_MS, config=ALONE) as consumer:
            return [await anext(consumer) for _ in range(40)]

    assert {record.partition for record in asyncio.run(read())} == {0, 1, 3, 4}
