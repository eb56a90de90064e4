"""Members of ours and of stock clients share one group, with cooperative-sticky, whoever leads it."""

from contextlib import contextmanager
from itertools import count

import confluent_kafka
import kafka
import pytest
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from broker.client.blocking import Client
from broker.client.group import Assigned, Lost, Revoke, Trouble, Waits
from broker.client.group_config import GroupMemberConfig
from broker.client.group_thread import GroupThread
from tests.compat.stock_java import StockJava, missing
from tests.patience import until

NO_JAVA = missing()
PARTITIONS = 6
SESSION_MS, HEARTBEAT_MS = 10_000, 200
GROUPS = count()


class Ours:
    """A member in a thread, whose program releases what it shall at once."""

    def __init__(self, address, group, topic, session_ms=SESSION_MS):
        config = GroupMemberConfig(session_timeout_ms=session_ms, heartbeat_interval_ms=HEARTBEAT_MS)
        self.thread = GroupThread(address, group, [topic], config, lambda: None)
        self.partitions = set()
        self.lost, self.waits, self.troubles = [], [], []
        self.thread.start()

    def poll(self):
        for event in self.thread.poll():
            if isinstance(event, Assigned):
                self.partitions |= {number for _, number in event.partitions}
            elif isinstance(event, Revoke):
                self.partitions -= {number for _, number in event.partitions}
                self.thread.released(event.partitions)
            elif isinstance(event, Lost):
                self.lost.append(event)
            elif isinstance(event, Waits):
                self.waits.append(event)
            elif isinstance(event, Trouble):
                self.troubles.append(event)

    def close(self):
        self.thread.close()


class Librdkafka:
    def __init__(self, address, group, topic):
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        )
        self._consumer.subscribe([topic])

    @property
    def partitions(self):
        return {assigned.partition for assigned in self._consumer.assignment()}

    def poll(self):
        self._consumer.consume(10, 0.05)

    def close(self):
        self._consumer.close()


class KafkaPython:
    def __init__(self, address, group, topic):
        self._consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            partition_assignment_strategy=[CooperativeStickyAssignor],
        )

    @property
    def partitions(self):
        return {assigned.partition for assigned in self._consumer.assignment()}

    def poll(self):
        self._consumer.poll(500)

    def close(self):
        self._consumer.close()


@pytest.fixture(params=["flakelog", pytest.param("kafka", marks=pytest.mark.soak)])
def membership(request):
    """Return the arguments of a member: the address of Flakelog or Apache Kafka, a new group and a new topic."""
    is_ours = request.param == "flakelog"
    address = request.getfixturevalue("broker").address if is_ours else request.getfixturevalue("kafka")
    name = f"mixed-{next(GROUPS)}"
    with Client(address) as client:
        client.create_topic(name, PARTITIONS)
    return address, name, name


@contextmanager
def closing(members):
    try:
        yield members
    finally:
        for member in members:
            member.close()


def settle(members):
    """Poll until the members share all partitions evenly, each with one owner."""

    def is_shared():
        for member in members:
            member.poll()
        shares = [member.partitions for member in members]
        sizes = [len(share) for share in shares]
        return sum(sizes) == len(set().union(*shares)) == PARTITIONS and max(sizes) - min(sizes) <= 1

    until(is_shared, what=f"the partitions shared ({[sorted(m.partitions) for m in members]})")


def test_a_member_waits_for_another_that_is_busy_and_reports_no_trouble(membership):
    """A JoinGroup waits for members that join late. The broker is there meanwhile, and answers all others."""
    with closing([KafkaPython(*membership)]) as members:  # it joins while its program polls
        settle(members)
        members.append(Ours(*membership, session_ms=6_000))
        busy, ours = members

        def has_waited():
            ours.poll()
            return len(ours.waits) >= 2

        until(has_waited, "two joins that were cut off, while the other member does not poll")
        assert (ours.troubles, ours.partitions) == ([], set())
        settle(members)
        assert not ours.troubles


class Java:
    """Kafka's own consumer. Its partitions are those of the last poll."""

    def __init__(self, address, group, topic):
        self.partitions = set()
        self._java = StockJava()
        self._java.__enter__()
        config = {
            "group.id": group,
            "group.protocol": "classic",
            "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
            "session.timeout.ms": str(SESSION_MS),
            "heartbeat.interval.ms": str(HEARTBEAT_MS),
        }
        self._java.ask("join", address=address, topic=topic, name="java", config=config)

    def poll(self):
        self.partitions = set(self._java.ask("assigned", name="java"))

    def close(self):
        self._java.ask("leave", name="java")
        self._java.__exit__()


JAVA_IN_SOAK = [pytest.mark.soak, pytest.mark.skipif(NO_JAVA is not None, reason=NO_JAVA or "")]
LEADS = pytest.mark.parametrize(
    ("stock", "leads"),
    [
        pytest.param(Librdkafka, True, id="librdkafka-ours-leads"),
        pytest.param(KafkaPython, False, id="kafka-python-stock-leads"),
        pytest.param(Librdkafka, False, id="librdkafka-stock-leads", marks=pytest.mark.soak),
        pytest.param(KafkaPython, True, id="kafka-python-ours-leads", marks=pytest.mark.soak),
        pytest.param(Java, True, id="java-ours-leads", marks=JAVA_IN_SOAK),
        pytest.param(Java, False, id="java-java-leads", marks=JAVA_IN_SOAK),
    ],
)


@LEADS
def test_a_group_of_ours_and_a_stock_clients_members_shares_the_partitions(stock, leads, membership):
    first, second = (Ours, stock) if leads else (stock, Ours)
    with closing([first(*membership)]) as members:
        settle(members)
        before = set(members[0].partitions)
        members.append(second(*membership))
        settle(members)
        assert members[0].partitions < before, "what it keeps stays with it"
        members.append(Ours(*membership))
        settle(members)
        members.pop(0).close()
        settle(members)
        assert not any(member.lost for member in members if isinstance(member, Ours))
