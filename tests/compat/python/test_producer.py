"""The Producer against the real server: early Kafka's behaviour (https://kafka.apache.org/07/documentation.html)."""

import pytest

from broker.client.blocking import Client
from broker.client.errors import ProduceError
from broker.client.producer import Producer
from broker.client.producer_outcomes import Delivered

NOBODY = "127.0.0.1:1"
SOON_MS = 300  # how long these tests wait for a broker that does not exist


@pytest.fixture
def topic(broker, name):
    with Client(broker.address) as client:
        client.create_topic(name, 3)
    return name


def read(broker, topic):
    """Return {partition: [(key, value), ...]}."""
    with Client(broker.address) as client:
        fetched = {partition: client.fetch(topic, partition, 0, max_wait_ms=0)[0] for partition in range(3)}
    return {partition: [(record.key, record.value) for record in records] for partition, records in fetched.items()}


def test_leaving_the_block_waits_for_every_message(broker, topic):
    with Producer(broker.address, queue_time_ms=10_000) as producer:
        for n in range(1_000):
            assert producer.send(topic, str(n), key="k") is None
    values = [value for records in read(broker, topic).values() for _, value in records]
    assert values == [b"%d" % n for n in range(1_000)]


def test_equal_keys_go_to_one_partition(broker, topic):
    with Producer(broker.address) as producer:
        for n in range(30):
            producer.send(topic, "v", key=str(n % 10))
    keys = [{key for key, _ in records} for records in read(broker, topic).values()]
    assert sum(map(len, keys)) == 10


def test_a_synchronous_send_answers_with_the_place(broker, topic):
    with Producer(broker.address, partitioner=lambda key, partitions: partitions - 1) as producer:
        delivered = [producer.send_and_wait(topic, b"v") for _ in range(2)]
    assert delivered == [Delivered(topic, 2, 0), Delivered(topic, 2, 1)]


def test_the_users_encoder_and_partitioner_are_asked(broker, topic):
    """The Producer calls the user's encoder, and the user's partitioner with the encoded key.

    They correspond to serializer.class and partitioner.class: partition(key, numPartitions).
    """
    calls = []

    def by_length(key, partitions):
        calls.append((key, partitions))
        return len(key) % partitions

    with Producer(broker.address, encoder=lambda n: b"%03d" % n, partitioner=by_length) as producer:
        producer.send(topic, 7, key="four")
        producer.send(topic, 8, key="fives")
    assert calls == [(b"four", 3), (b"fives", 3)]
    assert read(broker, topic) == {0: [], 1: [(b"four", b"007")], 2: [(b"fives", b"008")]}


def test_a_partitioner_that_chooses_what_is_not_there_is_told_so(broker, topic):
    with Producer(broker.address, partitioner=lambda key, partitions: 3) as producer:
        with pytest.raises(ValueError, match="chose 3; .* has partitions 0 to 2"):
            producer.send(topic, "v")


def test_none_is_a_tombstone(broker, topic):
    with Producer(broker.address) as producer:
        producer.send(topic, None, key="gone")
    assert [(b"gone", None)] in read(broker, topic).values()


def test_what_cannot_be_encoded_is_refused_before_it_is_sent():
    with pytest.raises(TypeError, match="dict is neither bytes nor text: give the Producer an encoder"):
        Producer(NOBODY).send("t", {})


def test_a_callback_is_called_once_for_each_message(broker, topic):
    deliveries = []
    with Producer(broker.address, partitioner=lambda key, partitions: 0) as producer:
        for _ in range(3):
            producer.send(topic, "v", callback=lambda error, delivered: deliveries.append((error, delivered)))
    assert deliveries == [(None, Delivered(topic, 0, offset)) for offset in range(3)]


def test_a_failure_without_a_callback_is_raised_by_flush_and_once():
    """flush raises the failure of messages without a callback, so that no message is dropped silently."""
    producer = Producer(NOBODY, timeout_ms=SOON_MS)
    producer.send("t", "v")
    producer.send("t", "v")
    with pytest.raises(ProduceError, match=f"2 messages were not .* within 300 ms: .* no answer from {NOBODY}"):
        producer.flush()
    producer.flush()


def test_a_failure_told_to_a_callback_is_not_raised_too():
    failures = []
    with Producer(NOBODY, timeout_ms=SOON_MS) as producer:
        producer.send("t", "v", callback=lambda error, delivered: failures.append((type(error), delivered)))
    assert failures == [(ProduceError, None)]


def test_what_the_block_raised_is_not_hidden_by_a_failure():
    with pytest.raises(KeyError):
        with Producer(NOBODY, timeout_ms=SOON_MS) as producer:
            producer.send("t", "v")
            raise KeyError


def test_a_synchronous_send_raises():
    with pytest.raises(ProduceError, match=f"t: not acknowledged within 300 ms: .* no answer from {NOBODY}"):
        Producer(NOBODY, timeout_ms=SOON_MS).send_and_wait("t", "v")


def test_a_queue_that_stays_full_is_told_after_its_time():
    """A send to a full queue fails after its timeout (queue.enqueueTimeout.ms, QueueFullException)."""
    producer = Producer(NOBODY, timeout_ms=3_000, queue_size=1, enqueue_timeout_ms=200)
    producer.send("t", "v")
    with pytest.raises(ProduceError, match="the queue stayed full for 200 ms"):
        producer.send("t", "v")


def test_a_compression_that_is_none_of_kafkas_is_named():
    with pytest.raises(ValueError, match="'zip'"):
        Producer(NOBODY, compression="zip")
