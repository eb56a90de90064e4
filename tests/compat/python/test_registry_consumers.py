"""Consumers that agree through a real ZooKeeper, and plain kazoo that reads what they write: Kafka 0.8's layout."""

import json
import time
from dataclasses import replace
from uuid import UUID

import pytest
from kazoo.client import KazooClient

from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.events import Claimed, Lost, MadeAgain, Stopped, Trouble
from broker.client.connector.rebalance import Phase, RegistryConsumer
from broker.client.connector.topic_filter import TopicFilter, TopicStreams
from broker.client.registry.nodes import ConsumerId
from broker.cluster.documents import Assignment, Topic, TopicPartition, topic_path
from broker.now import Now
from coordination.access import Access
from coordination.embedded_zookeeper import MAX_SESSION_TIMEOUT_MS, TICK_MS, EmbeddedZooKeeper
from coordination.port import CoordinationError
from coordination.zookeeper import ZooKeeperCoordinator
from tests.patience import until

SESSION_MS = 10_000
CONFIG = ConnectorConfig(
    zookeeper_session_timeout_ms=SESSION_MS, rebalance_goes_on=True, auto_commit_interval_ms=200
)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def now():
    return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)


class Running:
    """A consumer's core and its session. `turn` does all that is due."""

    def __init__(self, hosts, uuid, streams, config):
        self.name = str(ConsumerId("host", uuid))
        access = Access(session_timeout_ms=config.zookeeper_session_timeout_ms)
        self.coordinator = ZooKeeperCoordinator(hosts, access)
        self.core = RegistryConsumer("g", self.name, streams, config)
        self.events = []

    def turn(self):
        for event in self.coordinator.take_events():
            self.core.happened(event, now())
        self.core.tick(now())
        while operations := self.core.take(now()):
            for operation in operations:
                try:
                    outcome = self.coordinator.execute(operation)
                except CoordinationError as error:
                    outcome = error
                self.core.answered(operation, outcome, now())
        for event in self.core.take_events():
            self.events.append(event)
            if isinstance(event, Claimed) and event.offset is None:
                self.core.placed(event.partition, 0, now())

    def die(self):
        """End as a process that was killed, once its session is over."""
        self.coordinator.close()

    def claimed(self, partition):
        return [event.offset for event in self.events if isinstance(event, Claimed) and event.partition == partition]


class Group:
    def __init__(self, hosts):
        self.hosts = hosts
        self.kazoo = KazooClient(hosts)
        self.kazoo.start()
        self.running = []

    def start(self, uuid, streams=TopicStreams({"t": 1}), config=CONFIG):
        consumer = Running(self.hosts, uuid, streams, config)
        self.running.append(consumer)
        return consumer

    def until(self, condition, what):
        def is_met():
            for consumer in self.running:
                consumer.turn()
            return condition()

        until(is_met, what)

    def die(self, consumer):
        self.running.remove(consumer)
        consumer.die()

    def make_topic(self, name, partitions, topic_id=1):
        topic = Topic(UUID(int=topic_id), {number: Assignment((1,)) for number in range(partitions)})
        self.kazoo.create(topic_path(name), topic.encode(), makepath=True)

    def text(self, path):
        return self.kazoo.get(path)[0].decode() if self.kazoo.exists(path) else None

    def owner(self, partition):
        return self.text(f"/consumers/g/owners/{partition.topic}/{partition.partition}")

    def offset(self, partition):
        return self.text(f"/consumers/g/offsets/{partition.topic}/{partition.partition}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def group(server, request):
    group = Group(server.hosts)
    group.make_topic("t", 2)
    yield group
    for consumer in group.running:
        consumer.die()
    for path in ("/consumers", "/brokers"):
        group.kazoo.delete(path, recursive=True)
    group.kazoo.stop()
    group.kazoo.close()


def test_consumers_share_a_topic_and_plain_kazoo_sees_the_layout_of_kafka_0_8(group):
    first = group.start("a")
    group.until(lambda: first.core.owned == {T0, T1}, "the first consumer owns all")
    second = group.start("b")
    group.until(lambda: first.core.owned == {T0} and second.core.owned == {T1}, "both have a half")
    assert (group.owner(T0), group.owner(T1)) == ("host:a-0", "host:b-0")
    assert sorted(group.kazoo.get_children("/consumers/g/ids")) == ["host:a", "host:b"]
    registration = json.loads(group.text("/consumers/g/ids/host:a"))
    assert registration["subscription"] == {"t": 1} and registration["pattern"] == "static"
    assert group.kazoo.exists("/consumers/g/ids/host:a").ephemeralOwner == first.coordinator.session_id
    assert group.kazoo.exists("/consumers/g/owners/t/0").ephemeralOwner == first.coordinator.session_id
    assert group.kazoo.exists("/consumers/g/offsets/t/0").ephemeralOwner == 0


@pytest.mark.parametrize("asked_ms, granted_ms", [(100, 2 * TICK_MS), (90_000, MAX_SESSION_TIMEOUT_MS)])
def test_a_consumer_counts_with_the_session_that_zookeeper_grants(group, asked_ms, granted_ms):
    """ZooKeeper grants 2 ticks at least and maxSessionTimeout at most, whatever a client asks for."""
    config = replace(CONFIG, zookeeper_session_timeout_ms=asked_ms)
    before_ms = now().ms
    first = group.start("a", config=config)
    group.until(lambda: first.core.owned == {T0, T1}, "the consumer owns all")
    assert first.coordinator.session_timeout_ms == granted_ms
    assert first.core.may_deliver(T0, before_ms + granted_ms)
    assert not first.core.may_deliver(T0, now().ms + granted_ms)
    assert Trouble(f"ZooKeeper grants sessions of {granted_ms} ms, not of {asked_ms} ms") in first.events


def test_progress_is_committed_and_goes_along_with_the_partition(group):
    first = group.start("a")
    group.until(lambda: first.core.owned == {T0, T1}, "the first consumer owns all")
    first.core.processed(T0, 7)
    group.until(lambda: group.offset(T0) == "7", "the commit by time")
    first.core.processed(T1, 9)
    second = group.start("b")
    group.until(lambda: second.core.owned == {T1}, "the second has a half")
    assert second.claimed(T1) == [9]
    assert Stopped(T1) in first.events
    second.core.processed(T1, 12)
    second.core.close(now())
    group.until(lambda: first.core.owned == {T0, T1}, "the first has all again")
    assert second.core.phase is Phase.CLOSED
    assert first.claimed(T1)[-1] == 12
    assert group.kazoo.get_children("/consumers/g/ids") == ["host:a"]


def test_the_partitions_of_a_consumer_that_dies_go_to_others_from_its_last_commit(group):
    first, second = group.start("a"), group.start("b")
    group.until(lambda: first.core.owned == {T0} and second.core.owned == {T1}, "both have a half")
    second.core.processed(T1, 5)
    group.until(lambda: group.offset(T1) == "5", "the commit by time")
    second.core.processed(T1, 6)
    group.die(second)
    group.until(lambda: first.core.owned == {T0, T1}, "the first owns all")
    assert first.claimed(T1)[-1] == 5


def test_a_consumer_whose_registration_is_deleted_registers_again(group):
    first = group.start("a")
    group.until(lambda: first.core.owned == {T0, T1}, "the consumer owns all")
    group.kazoo.delete("/consumers/g/ids/host:a")
    group.until(lambda: any(isinstance(event, Lost) for event in first.events), "the consumer notices")
    group.until(lambda: first.core.owned == {T0, T1}, "the consumer owns all again")


def test_plain_kazoo_sets_where_a_group_begins(group):
    group.kazoo.create("/consumers/g/offsets/t/1", b"42", makepath=True)
    first = group.start("a")
    group.until(lambda: first.core.owned == {T0, T1}, "the consumer owns all")
    assert (first.claimed(T0), first.claimed(T1)) == ([None], [42])


def test_new_partitions_and_new_topics_that_match_join_by_themselves(group):
    first = group.start("a", TopicStreams({}, TopicFilter("t|web-.*"), 1))
    group.until(lambda: first.core.owned == {T0, T1}, "the consumer owns all")
    group.make_topic("web-1", 1)
    group.until(lambda: TopicPartition("web-1", 0) in first.core.owned, "the new topic")
    grown = Topic(UUID(int=1), {number: Assignment((1,)) for number in range(3)})
    group.kazoo.set(topic_path("t"), grown.encode())
    group.until(lambda: TopicPartition("t", 2) in first.core.owned, "the new partition")
    assert json.loads(group.text("/consumers/g/ids/host:a"))["pattern"] == "white_list"


def test_a_topic_that_is_made_again_begins_without_offsets(group):
    first = group.start("a")
    group.until(lambda: first.core.owned == {T0, T1}, "the consumer owns all")
    first.core.processed(T0, 7)
    group.until(lambda: group.offset(T0) == "7", "the commit by time")
    group.kazoo.delete(topic_path("t"))
    group.make_topic("t", 2, topic_id=2)
    group.until(lambda: first.claimed(T0) == [None, None], "the new topic is claimed without an offset")
    assert MadeAgain("t") in first.events
    assert group.offset(T0) in ("-1", "0")
