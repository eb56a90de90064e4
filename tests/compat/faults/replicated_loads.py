"""Load on replicated topics while brokers die: no client sees an error, and every acknowledged record is there.

Each load is a thread with its own client. A load of numbers writes a few to the partitions of its topic in turn, and
waits for their acknowledgements before it writes more. So a test knows exactly which number each offset must have.
"""

import statistics
import time
from contextlib import ExitStack, contextmanager
from itertools import count
from threading import Event, Thread

import confluent_kafka
import kafka

from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.client.core import LATEST
from broker.client.offset_lookup import find_offset
from broker.record.records import BatchRecord, encode_batch
from tests.compat import stock_java
from tests.compat.clients import stock_go
from tests.compat.cluster_servers import PARTITIONS
from tests.compat.faults.cluster_loads import NAMES, TransactionLoad
from tests.compat.stock_clients import QUIET
from tests.patience import MS, SECONDS, until

PAUSE_SECONDS = 0.15
REQUEST_MS = 10_000
"""The request timeout of all clients. Most have 30 s by default, which is long for a test with a paused broker."""
TRANSACTION_MS = 900_000
"""The longest timeout of a transaction that brokers allow. A transaction past its timeout fences its producer."""


class Librdkafka:
    """confluent-kafka, idempotent."""

    def __init__(self, bootstrap):
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "socket.timeout.ms": REQUEST_MS}
        self._producer = confluent_kafka.Producer(settings | QUIET)

    def write(self, topic, values):
        """Write each value to its partition, the first to partition 0; return their offsets."""
        offsets, errors = [None] * len(values), []

        def delivered(at, error, message):
            if error is not None:
                errors.append(error)
            else:
                offsets[at] = message.offset()

        for at, value in enumerate(values):
            report = lambda error, message, at=at: delivered(at, error, message)  # noqa: E731
            self._producer.produce(topic, value, partition=at % len(PARTITIONS), on_delivery=report)
        assert self._producer.flush(SECONDS) == 0 and not errors, errors
        return offsets

    def close(self):
        pass


class KafkaPython:
    """kafka-python, which is idempotent by default."""

    def __init__(self, bootstrap):
        servers = bootstrap.split(",")
        self._producer = kafka.KafkaProducer(bootstrap_servers=servers, request_timeout_ms=REQUEST_MS)

    def write(self, topic, values):
        sent = [self._producer.send(topic, value, partition=at % len(PARTITIONS)) for at, value in enumerate(values)]
        self._producer.flush(SECONDS)
        return [future.get(SECONDS).offset for future in sent]

    def close(self):
        self._producer.close(SECONDS)


class _InAProcess:
    """A client of another language in a StockProcess; `more` are arguments that its calls need."""

    def __init__(self, process, bootstrap, more):
        self._process = process
        self._arguments = {"address": bootstrap, "name": f"producer-{next(NAMES)}", "spread": len(PARTITIONS)} | more

    def write(self, topic, values):
        texts = [value.decode() for value in values]
        return self._offsets(self._process.ask("produceOn", topic=topic, values=texts, **self._arguments))

    def close(self):
        self._process.ask("closeProducer", **self._arguments)


class Java(_InAProcess):
    """Apache Kafka's producer, which is idempotent by default."""

    def __init__(self, process, bootstrap):
        super().__init__(process, bootstrap, {"config": {"request.timeout.ms": str(REQUEST_MS)}})

    @staticmethod
    def _offsets(answer):
        return [offset for _, offset in answer]


class FranzGo(_InAProcess):
    """franz-go, which is idempotent by default."""

    def __init__(self, process, bootstrap):
        super().__init__(process, bootstrap, {"versions": franz_go_versions()})

    @staticmethod
    def _offsets(answer):
        return answer


def franz_go_versions():
    """Return the newest version of each API for franz-go, which uses no others."""
    from broker.engine.api_table import APIS

    return {key: api.newest for key, api in APIS.items()}


class OwnClient:
    """Flakelog's client as an idempotent producer. It repeats a batch until the broker tells the ids of its records."""

    def __init__(self, bootstrap):
        self._client = Client(bootstrap, timeout_ms=REQUEST_MS)
        producer = self._client.retry(self._client.core.init_producer_id, timeout_ms=MS)
        self._producer = dict(zip(("producer_id", "producer_epoch"), producer))
        self._sequences = dict.fromkeys(PARTITIONS, 0)
        self.ids = {partition: [] for partition in PARTITIONS}

    def write(self, topic, values):
        offsets = [None] * len(values)
        for partition in PARTITIONS:
            own = range(partition, len(values), len(PARTITIONS))
            records = [BatchRecord(delta, 0, None, values[at], ()) for delta, at in enumerate(own)]
            result = self._repeat(topic, partition, records)
            self.ids[partition] += [first + step for first, number in result.runs for step in range(number)]
            for delta, at in enumerate(own):
                offsets[at] = result.base_offset + delta
        return offsets

    def _repeat(self, topic, partition, records):
        """Write a batch; repeat it until it is acknowledged."""
        sequence = self._sequences[partition]
        self._sequences[partition] += len(records)
        now_ms = int(time.time() * 1000)
        batch = encode_batch(records, base_timestamp_ms=now_ms, base_sequence=sequence, **self._producer)
        return self._client.retry(lambda: self._client.core.produce(topic, partition, batch), timeout_ms=MS)

    def close(self):
        self._client.close()


class NumbersLoad:
    """A thread that writes numbers with a client, to all partitions of a topic in turn."""

    def __init__(self, cluster, writer, at_once=2):
        self.cluster, self.writer = cluster, writer
        self.topic = f"{type(writer).__name__}-{next(NAMES)}"
        cluster.create(self.topic)
        self.offsets = {partition: [] for partition in PARTITIONS}  # of acknowledged records
        self.seconds = []  # the duration of each write
        self.fault = None
        self._at_once = at_once * len(PARTITIONS)
        self._ending = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def total(self):
        return sum(map(len, self.offsets.values()))

    def _run(self):
        try:
            for number in count(0, self._at_once):
                if self._ending.wait(PAUSE_SECONDS):
                    return
                self._write(range(number, number + self._at_once))
        except Exception as fault:
            self.fault = fault

    def _write(self, numbers):
        begin = time.monotonic()
        offsets = self.writer.write(self.topic, [b"%d" % number for number in numbers])
        self.seconds.append(time.monotonic() - begin)
        for at, offset in enumerate(offsets):
            self.offsets[at % len(PARTITIONS)].append(offset)

    def await_more(self, writes=3):
        """Wait for `writes` more acknowledged writes."""
        wanted = len(self.seconds) + writes
        until(lambda: self.fault or len(self.seconds) >= wanted, f"more writes to {self.topic}")
        assert self.fault is None, f"{self.topic}: {self.fault!r}"

    def abandon(self):
        """Stop without a check."""
        self._ending.set()
        self._thread.join(SECONDS)

    def stop(self):
        self.abandon()
        assert not self._thread.is_alive(), f"{self.topic}: its last write is not acknowledged"
        assert self.fault is None, f"{self.topic}: {self.fault!r}"
        self.writer.close()

    def check(self):
        """Check that each partition has exactly the numbers that were written to it, in order, with rising ids.

        Return all ids.
        """
        with Consumer(self.cluster.bootstrap, [self.topic]) as consumer:
            records = {partition: [] for partition in PARTITIONS}
            while sum(map(len, records.values())) < self.total:
                for record in consumer.poll(timeout_ms=MS):
                    records[record.partition].append(record)
        for partition, row in records.items():
            acknowledged = self.offsets[partition]
            assert acknowledged == [*range(len(acknowledged))], f"{self.topic}-{partition}: offsets as acknowledged"
            assert [record.offset for record in row] == acknowledged, f"{self.topic}-{partition}: offsets as read"
            numbers = [partition + step * len(PARTITIONS) for step in acknowledged]
            assert [int(record.value) for record in row] == numbers, f"{self.topic}-{partition}: values"
            ids = [record.id for record in row]
            assert ids == sorted(set(ids)), f"{self.topic}-{partition}: ids rise"
            if isinstance(self.writer, OwnClient):
                assert ids == self.writer.ids[partition], f"{self.topic}-{partition}: ids as they were told"
        with Client(self.cluster.bootstrap) as client:
            ends = [self._end_of(client, partition) for partition in PARTITIONS]
        assert ends == [len(self.offsets[partition]) for partition in PARTITIONS], f"{self.topic}: nothing more"
        return [record.id for row in records.values() for record in row]

    def _end_of(self, client, partition):
        """Return the end of a partition, whose leader may move back to the preferred one meanwhile."""
        return client.retry(lambda: find_offset(client.core, self.topic, partition, LATEST), timeout_ms=MS)


class GroupLoad:
    """A thread with the only member of a group, which reads a topic of numbers and commits its offsets."""

    def __init__(self, load):
        self.load = load
        self.group = f"readers-of-{load.topic}"
        self.committed = {partition: 0 for partition in PARTITIONS}
        self.positions = {partition: 0 for partition in PARTITIONS}
        self.fault = None
        self._ending = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _settings(self):
        bootstrap = self.load.cluster.bootstrap
        fixed = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        return {"bootstrap.servers": bootstrap, "group.id": self.group} | fixed | QUIET

    def _run(self):
        try:
            consumer = confluent_kafka.Consumer(self._settings())
            consumer.subscribe([self.load.topic])
            while not (self._ending.is_set() and self._has_all()):
                self._read(consumer)
            consumer.close()
        except Exception as fault:
            self.fault = fault

    def _has_all(self):
        return all(self.positions[partition] >= len(self.load.offsets[partition]) for partition in PARTITIONS)

    def _read(self, consumer):
        messages = consumer.consume(500, 0.2)
        for message in messages:
            assert message.error() is None, message.error()
            self._check(message)
        if messages:
            self._commit(consumer)

    def _check(self, message):
        """A message comes after the one before; after a rebalance the group may go back, to what it has committed."""
        partition, offset, position = message.partition(), message.offset(), self.positions[message.partition()]
        assert self.committed[partition] <= offset <= position, (partition, offset, position, self.committed)
        assert int(message.value()) == partition + offset * len(PARTITIONS)
        self.positions[partition] = offset + 1

    def _commit(self, consumer):
        """Commit the positions; if that fails, the next commit covers them."""
        try:
            committed = consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException:
            return
        for position in committed:
            if position.error is None:
                self.committed[position.partition] = max(position.offset, self.committed[position.partition])

    def abandon(self):
        """Stop once all acknowledged records are read, without a check."""
        self._ending.set()
        self._thread.join(SECONDS)

    def stop(self):
        """Stop once all acknowledged records are read, and check that the offsets are there."""
        self.abandon()
        assert self.fault is None and not self._thread.is_alive(), f"{self.group}: {self.fault!r}"
        consumer = confluent_kafka.Consumer(self._settings())
        places = [confluent_kafka.TopicPartition(self.load.topic, partition) for partition in PARTITIONS]
        stored = {place.partition: place.offset for place in consumer.committed(places, SECONDS)}
        consumer.close()
        assert all(stored[partition] >= self.committed[partition] for partition in PARTITIONS), (stored, self.committed)


class Loads:
    """All loads of one cluster. `processes` are stock clients of other languages: pairs of a writer and its process."""

    def __init__(self, cluster, processes=()):
        self.cluster = cluster
        writers = [kind(cluster.bootstrap) for kind in (Librdkafka, KafkaPython, OwnClient)]
        writers += [kind(process, cluster.bootstrap) for kind, process in processes]
        self.numbers = [NumbersLoad(cluster, writer) for writer in writers]
        times = {"socket.timeout.ms": REQUEST_MS, "transaction.timeout.ms": TRANSACTION_MS}
        self.transactions = TransactionLoad(cluster, QUIET | times, PAUSE_SECONDS)
        self.group = GroupLoad(self.numbers[0])

    def await_more(self):
        """Wait for more acknowledged writes and transactions of every load."""
        self.await_numbers()
        self.transactions.await_more(2)

    def await_numbers(self):
        """Wait for more acknowledged writes of every load of numbers, which need no coordinator."""
        for load in self.numbers:
            load.await_more()

    def end(self):
        """Stop all loads, wait for all replicas, and check the records."""
        for load in self.numbers:
            load.stop()
        self.group.stop()
        self.transactions.end()
        self.cluster.await_level()
        for load in self.numbers:
            load.check()

    def abandon(self):
        """Stop all loads of a round that failed, so that they do not disturb the rounds after it."""
        for load in (*self.numbers, self.transactions, self.group):
            load.abandon()

    @property
    def topics(self):
        return [load.topic for load in (*self.numbers, self.transactions)]

    def report(self, what):
        """Print how long the writes of each client took."""
        for load in self.numbers:
            seconds = sorted(load.seconds)
            p99 = statistics.quantiles(seconds, n=100, method="inclusive")[98]
            name = type(load.writer).__name__
            print(f"{what}: {name}: {len(seconds)} writes, p99 {p99 * 1000:.0f} ms, longest {seconds[-1] * 1000:.0f}")


@contextmanager
def stock_processes():
    """Yield the stock clients of other languages that are here, as `Loads` takes them."""
    with ExitStack() as stack:
        kinds = []
        if stock_java.missing() is None:
            kinds.append((Java, stack.enter_context(stock_java.StockJava())))
        if stock_go.missing() is None:
            kinds.append((FranzGo, stack.enter_context(stock_go.stock_go())))
        yield kinds


@contextmanager
def replicated_loads(cluster, processes=()):
    """Yield loads that are at work; check at the end that they go on and that nothing is lost. Delete their topics."""
    cluster.mend()
    loads = Loads(cluster, processes)
    try:
        loads.await_more()
        yield loads
        cluster.await_in_sync()
        loads.await_more()
        loads.end()
    except BaseException:
        loads.abandon()
        raise
    cluster.delete(loads.topics)  # the next rounds are as fast as the first
    assert "a fault of" not in cluster.log and "Traceback" not in cluster.log
