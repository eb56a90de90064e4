"""Records that stock clients write to a partition with copies on brokers of both kinds.

A record that all replicas in sync acknowledged must be there. One that only the leader acknowledged may be lost.
"""

from confluent_kafka import Consumer, Producer, TopicPartition

from broker.client import consumer
from tests.compat.stock_clients import QUIET
from tests.patience import MS, SECONDS, until

BATCH = 50
LOST_BATCHES = 8
"""The successor may have the first of them, which was sent to it already."""


class _Batch:
    """Records that librdkafka writes to partition 0. `acknowledged` has values by their offsets."""

    def __init__(self, bootstrap, topic, values, settings):
        self.acknowledged, self.errors = {}, []
        self.producer = Producer({"bootstrap.servers": bootstrap} | settings | QUIET)
        for value in values:
            self.producer.produce(topic, value, partition=0, on_delivery=self._delivered)

    def _delivered(self, error, message):
        if error is None:
            self.acknowledged[message.offset()] = message.value().decode()
        else:
            self.errors.append(error)

    def flush(self):
        assert self.producer.flush(SECONDS) == 0 and not self.errors, self.errors


class WrittenRecords:
    """The acknowledged records of the only partition of a topic: `values` by their offsets."""

    def __init__(self, brokers, topic, java):
        self.values = {}
        self._brokers, self._topic, self._java = brokers, topic, java

    def write(self, text, codec="none"):
        """Write a batch with librdkafka and one with Java, and wait until all replicas in sync have them."""
        for client, write in (("librdkafka", self._write_by_librdkafka), ("java", self._write_by_java)):
            values = [f"{client}-{text}-{number}" * 5 for number in range(BATCH)]
            self.values |= write(values, {"acks": "all", "compression.type": codec})

    def write_to_leader(self, leader, text):
        """Write a batch that only the leader acknowledges, so that it may be lost."""
        values = [f"{text}-{number}" for number in range(BATCH)]
        self._write_by_librdkafka(values, {"acks": 1, "bootstrap.servers": self._brokers[leader].address})

    def lose(self, text, successor, killed=()):
        """Write batches that the successor of the leader lacks, and let it lead; return the bytes of the longer logs.

        The brokers in `killed`, the leader among them, die, and start again once the successor leads. Without any, the
        leader hands over in a preferred election.
        """
        brokers, topic = self._brokers, self._topic
        leader = brokers.leader(topic)
        copied = [number for number in brokers.replicas(topic) if number != successor]
        brokers.pause(successor)
        for batch in range(LOST_BATCHES):
            self.write_to_leader(leader, f"{text}-{batch}")
        brokers.await_equal_at(topic, *copied)
        longer = brokers.log_bytes(topic, leader)
        if killed:
            brokers.kill(*killed)
            brokers.resume(successor)
            brokers.await_leader(topic, successor)
            brokers.start(*killed)
        else:
            brokers.elect_preferred(topic)
            brokers.await_leader_at(leader, topic, successor)  # until then, the successor could go on to fetch from it
            brokers.resume(successor)
        return longer

    def begin(self, text):
        """Begin to write a batch that all replicas in sync are to acknowledge. `note` it when they have."""
        values = [f"{text}-{number}" for number in range(BATCH)]
        return _Batch(self._brokers.bootstrap, self._topic, values, {"acks": "all"})

    def note(self, batch):
        """Wait until a batch is acknowledged."""
        batch.flush()
        self.values |= batch.acknowledged

    def refusals(self, text):
        """Write a batch that all replicas in sync are to acknowledge, once; return the names of the errors."""
        settings = {"acks": "all", "message.send.max.retries": 0}
        batch = _Batch(self._brokers.bootstrap, self._topic, [text], settings)
        assert batch.producer.flush(SECONDS) == 0
        return {error.name() for error in batch.errors}

    def _write_by_librdkafka(self, values, settings):
        batch = _Batch(self._brokers.bootstrap, self._topic, values, settings)
        batch.flush()
        return batch.acknowledged

    def _write_by_java(self, values, settings):
        call = {"address": self._brokers.bootstrap, "topic": self._topic, "values": values, "config": settings}
        return {offset: value for (_, offset), value in zip(self._java.ask("produce", **call), values, strict=True)}

    def check(self):
        """Check that each acknowledged record is at its offset, and that ids rise."""
        with consumer.Consumer(self._brokers.bootstrap, [self._topic], timeout_ms=MS) as records:
            read, last_id = {}, -1
            while self.values.keys() - read.keys():
                record = next(records)
                assert record.id > last_id, record
                read[record.offset], last_id = record.value.decode(), record.id
        assert {offset: read[offset] for offset in self.values} == self.values

    def check_by_librdkafka(self):
        """Check that each acknowledged record is at its offset, at whatever broker leads."""
        consumer = Consumer({"bootstrap.servers": self._brokers.bootstrap, "group.id": "none"} | QUIET)
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        read = {}

        def has_all():
            records = consumer.consume(BATCH, 0.5)
            read.update({record.offset(): record.value().decode() for record in records if not record.error()})
            return self.values.keys() <= read.keys()

        until(has_all, f"the records of {self._topic}")
        consumer.close()
        assert {offset: read[offset] for offset in self.values} == self.values
