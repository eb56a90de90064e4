"""Load on a cluster while something dies: threads that write, and check at their end that nothing is missing."""

from contextlib import contextmanager
from itertools import count
from threading import Event, Thread

from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import KafkaException, Producer, TopicPartition

from broker.client.consumer import Consumer
from tests.compat.cluster_servers import PARTITIONS
from tests.patience import SECONDS, until

NAMES = count()
PAUSE_SECONDS = 0.05
"""Between two transactions, so that the load leaves CPU to what the test waits for."""


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
    """A thread that writes a number to each partition of a topic in one transaction, and aborts every third.

    `more` are settings of librdkafka, and `pause_s` is the time between two transactions.
    """

    def __init__(self, cluster, more=None, pause_s=PAUSE_SECONDS):
        self.cluster, self.topic = cluster, f"transactions-{next(NAMES)}"
        cluster.create(self.topic)
        self.committed = []
        self.fault = None
        settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": self.topic, "linger.ms": 0}
        self._producer = Producer(settings | (more or {}))
        self._pause_s = pause_s
        self._ending = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._repeat(self._producer.init_transactions)
            for number in count():
                if self._ending.wait(self._pause_s):
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

    def abandon(self):
        """Stop without a check."""
        self._ending.set()
        self._thread.join(SECONDS)

    def end(self):
        """Stop, and check that every transaction is whole: in all partitions, or in none."""
        self.abandon()
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


@contextmanager
def loads_of(cluster):
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
