"""Three brokers and a ZooKeeper under load: what dies, hangs or fills up takes nothing away that was acknowledged."""

import signal
from contextlib import ExitStack
from itertools import count
from threading import Event, Thread

import pytest
from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from broker.client.consumer import Consumer
from coordination.embedded_zookeeper import EmbeddedZooKeeper
from tests.compat.cluster_servers import PARTITIONS, Alone, Servers
from tests.compat.faults.small_disk import SmallDisk
from tests.patience import SECONDS, until

FULL = 2
"""The broker whose disk is small."""
CUT = 3
"""The broker whose network is cut."""
DISK_BYTES = 64 << 20
ROUNDS = 20
"""How often the soak makes each fault."""
NAMES = count()


class Load:
    """A thread that writes numbers to all partitions of a topic in turn, each once."""

    def __init__(self, cluster):
        self.cluster, self.topic = cluster, f"load-{next(NAMES)}"
        cluster.create(self.topic)
        self.acknowledged = {partition: [] for partition in PARTITIONS}
        self.errors = []
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0})
        self._ending = Event()
        self._thread = Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self):
        for number in count():
            if self._ending.wait(0.002):
                break
            partition = number % len(PARTITIONS)
            self._producer.produce(self.topic, b"%d" % number, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error, message):
        if error is None:
            self.acknowledged[message.partition()].append(int(message.value()))
        else:
            self.errors.append(error)

    def await_more(self, partitions=PARTITIONS, number=20):
        """Wait until `number` more messages of each of these partitions are acknowledged."""
        before = {partition: len(self.acknowledged[partition]) for partition in partitions}
        until(
            lambda: all(len(self.acknowledged[partition]) >= before[partition] + number for partition in partitions),
            f"{number} more messages in each of {[*partitions]}",
        )

    def led_by(self, number):
        """Return the partitions that a broker leads, and those of the others."""
        leaders = self.cluster.leaders(self.topic)
        own = [partition for partition in PARTITIONS if leaders[partition] == number]
        return own, [partition for partition in PARTITIONS if partition not in own]

    def end(self):
        """Stop writing, and check that each acknowledged number is there once, in order, with an id of its own."""
        self._ending.set()
        self._thread.join(SECONDS)
        assert self._producer.flush(SECONDS) == 0 and not self.errors, self.errors
        expected = {partition: numbers for partition, numbers in self.acknowledged.items()}
        total = sum(map(len, expected.values()))
        values, ids = {partition: [] for partition in PARTITIONS}, {partition: [] for partition in PARTITIONS}
        with Consumer(self.cluster.bootstrap, [self.topic]) as consumer:
            while sum(map(len, values.values())) < total:
                for record in consumer.poll(timeout_ms=SECONDS * 1000):
                    values[record.partition].append(int(record.value))
                    ids[record.partition].append(record.id)
        assert values == expected
        assert all(row == sorted(row) for row in ids.values()), "ids rise in each partition"
        assert len({id for row in ids.values() for id in row}) == total, "no id comes twice"


class TransactionLoad:
    """A thread that writes a number to each partition of a topic in one transaction, and aborts every third."""

    def __init__(self, cluster):
        self.cluster, self.topic = cluster, f"transactions-{next(NAMES)}"
        cluster.create(self.topic)
        self.committed = []
        self.fault = None
        settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": self.topic, "linger.ms": 0}
        self._producer = Producer(settings)
        self._ending = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._repeat(self._producer.init_transactions)
            for number in count():
                if self._ending.is_set():
                    break
                self._transact(number)
        except Exception as fault:
            self.fault = fault

    def _transact(self, number):
        producer = self._producer
        producer.begin_transaction()
        for partition in PARTITIONS:
            producer.produce(self.topic, b"%d" % number, partition=partition)
        if number % 3 == 0:
            self._repeat(producer.abort_transaction)
            return
        try:
            self._repeat(producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._repeat(producer.abort_transaction)
        else:
            self.committed.append(number)

    def _repeat(self, call):
        """Repeat a call of a transaction while librdkafka says that it may be."""
        while True:
            try:
                return call(5)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def await_more(self, number=5):
        before = len(self.committed)
        until(lambda: self.fault or len(self.committed) >= before + number, f"{number} more transactions")
        assert self.fault is None, self.fault

    def end(self):
        """Stop, and check that every transaction is whole: in all partitions, or in none."""
        self._ending.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive() and self.fault is None, self.fault
        expected = {partition: self.committed for partition in PARTITIONS}
        values = {partition: [] for partition in PARTITIONS}
        settings = {"bootstrap.servers": self.cluster.bootstrap, "group.id": "audit", "enable.partition.eof": False}
        consumer = StockConsumer(settings | {"isolation.level": "read_committed"})
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in PARTITIONS])

        def read():
            for message in consumer.consume(500, 0.5):
                assert message.error() is None, message.error()
                values[message.partition()].append(int(message.value()))
            return all(row and row[-1] == self.committed[-1] for row in values.values())

        until(read, "the last transaction in all partitions")
        consumer.close()
        assert values == expected


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """Return the disk of one broker, and None where this user may not mount one."""
    with ExitStack() as stack:
        try:
            yield stack.enter_context(SmallDisk(tmp_path_factory.mktemp("small") / "disk", DISK_BYTES))
        except pytest.skip.Exception:
            yield None


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory):
    """Return a ZooKeeper that these tests kill."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper, small_disk):
    directory = tmp_path_factory.mktemp("brokers")
    prefixes = {}
    if small_disk is not None:
        prefixes[FULL] = small_disk.prefix
        (directory / str(FULL)).symlink_to(small_disk.directory)
    with ExitStack() as stack:
        yield Servers(directory, f"{zookeeper.hosts}/cluster", stack, prefixes, proxied=(CUT,))


@pytest.fixture(params=[0, *(pytest.param(number, marks=pytest.mark.soak) for number in range(1, ROUNDS))])
def loads(cluster):
    """Yield both loads, and check at the end what they have written."""
    load, transactions = Load(cluster), TransactionLoad(cluster)
    load.await_more()
    transactions.await_more()
    yield load, transactions
    cluster.await_leaders(load.topic)
    load.await_more()
    transactions.await_more()
    load.end()
    transactions.end()
    assert not any("a fault of" in server.log for server in cluster.servers.values())


def test_the_controller_is_killed_and_another_takes_its_place(cluster, loads):
    load, _ = loads
    killed = cluster.controller
    own, others = load.led_by(killed)
    assert own and others
    cluster[killed].kill()
    load.await_more(others)
    until(lambda: cluster.controller not in (-1, killed), "another controller")
    until(lambda: set(cluster.leaders(load.topic)[partition] for partition in own) == {-1}, "the death is seen")
    load.await_more(others)
    made = f"made-without-{killed}-{next(NAMES)}"
    cluster.create(made, 2)
    assert killed not in cluster.leaders(made).values()
    cluster[killed].start()


def test_zookeeper_is_killed_and_reads_and_writes_go_on(cluster, loads, zookeeper):
    load, transactions = loads
    zookeeper.kill()
    load.await_more(number=200)
    transactions.await_more()
    made = f"made-later-{next(NAMES)}"
    with pytest.raises(KafkaException):
        cluster.ask_for(made, 2, timeout_s=2)
    load.await_more()
    zookeeper.start()
    until(lambda: len(cluster.brokers) == 3, "all brokers")
    until(lambda: _is_made(cluster, made), "a topic can be created again")


def _is_made(cluster, topic):
    """Create a topic unless it is there; the request that timed out may have created it."""
    try:
        cluster.ask_for(topic, 2, timeout_s=10)
    except KafkaException as error:
        return error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    return True


def test_a_broker_that_slept_past_its_session_takes_part_again(cluster, loads):
    load, _ = loads
    number = next(number for number in cluster.servers if number != cluster.controller)
    own, others = load.led_by(number)
    cluster[number].send_signal(signal.SIGSTOP)
    until(lambda: {cluster.leaders(load.topic)[partition] for partition in own} == {-1}, "the end of its session")
    load.await_more(others)
    cluster[number].send_signal(signal.SIGCONT)
    until(lambda: {cluster.leaders(load.topic)[partition] for partition in own} == {number}, "it leads again")


def test_a_controller_that_slept_past_its_session_changes_nothing(cluster, loads):
    load, _ = loads
    slept = cluster.controller
    _, others = load.led_by(slept)
    cluster[slept].send_signal(signal.SIGSTOP)
    load.await_more(others)
    until(lambda: cluster.controller not in (-1, slept), "another controller")
    cluster[slept].send_signal(signal.SIGCONT)
    until(lambda: cluster.controller not in (-1, slept), "the old controller knows the new one")


def test_a_broker_cut_from_zookeeper_past_its_session_serves_on_and_takes_part_again(cluster, loads):
    load, _ = loads
    own, _ = load.led_by(CUT)
    cluster.to_zookeeper[CUT].cut()
    other = Alone(cluster[1])
    until(lambda: {other.leaders(load.topic)[partition] for partition in own} == {-1}, "the end of its session")
    load.await_more()  # of its partitions too, as rule E7 says
    cluster.to_zookeeper[CUT].heal()
    until(lambda: {other.leaders(load.topic)[partition] for partition in own} == {CUT}, "it leads again")


def test_a_broker_that_the_others_cannot_reach_serves_on_and_hears_of_changes_later(cluster, loads):
    load, transactions = loads
    cluster.from_brokers[CUT].cut()
    load.await_more(number=200)
    made = f"made-beside-a-cut-{next(NAMES)}"
    cluster.ask_for(made, len(PARTITIONS))
    reached = [number for number in cluster.servers if number != CUT]
    until(lambda: made in Alone(cluster[reached[0]]).topics, "the topic on the others")
    cluster.from_brokers[CUT].heal()
    cluster.await_leaders(made)
    until(lambda: made in Alone(cluster[CUT]).topics, "the topic on the broker that was cut off")
    cluster.produce(made, "after")


def test_a_full_disk_of_one_broker_stops_only_its_own_partitions(cluster, loads, small_disk):
    if small_disk is None:
        pytest.skip("no small disk: this user may not mount one")
    load, _ = loads
    own, others = load.led_by(FULL)
    small_disk.fill()
    load.await_more(others, number=200)
    small_disk.free()
    load.await_more(own)
