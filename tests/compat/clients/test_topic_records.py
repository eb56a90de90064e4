"""Topic settings that concern records (https://kafka.apache.org/documentation/#topicconfigs), seen by stock clients.

The tests check the times and ids that clients read, and the errors that they receive.
"""

import time
from itertools import count

import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker.record.batch import walk
from tests.compat.stock_clients import CLIENTS, LINGER_MS, Message
from tests.patience import SECONDS

HOUR_MS = 3_600_000
_numbers = count()


@pytest.fixture(params=CLIENTS)
def client(request):
    return CLIENTS[request.param]


def make_topic(broker, **config):
    name = f"asking-{next(_numbers)}"
    named = {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, 1, config=named)])[name].result(SECONDS)
    return name


def send(broker, topic, *messages, **config):
    """Send the messages with confluent-kafka in one batch, and return its report of each: [(error, message), ...]."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "linger.ms": LINGER_MS} | config)
    reported = []
    for message in messages:
        producer.produce(topic, partition=0, on_delivery=lambda *report: reported.append(report), **message)
    assert producer.flush(SECONDS) == 0
    return reported


def read(broker, topic, number):
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.address, "group.id": "unused"})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        return consumer.consume(number, SECONDS)
    finally:
        consumer.close()


def codecs_in(broker, topic):
    """Return the codecs of the batches on the disk."""
    segment = broker.directory_of(f"{topic}-0") / f"{0:020d}.log"
    return {header.compression for _, header in walk(segment.read_bytes())}


def test_log_append_time_is_what_a_consumer_reads_and_the_producer_is_told(broker):
    topic = make_topic(broker, message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    ((error, delivered),) = send(broker, topic, {"value": b"v", "timestamp": 5})
    (message,) = read(broker, topic, 1)
    assert error is None and message.timestamp() == delivered.timestamp()
    kind, time_ms = message.timestamp()
    assert kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME
    assert before_ms <= time_ms <= int(time.time() * 1000)


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_every_client_reads_what_the_broker_packed(broker, client, codec):
    topic = make_topic(broker, compression_type=codec)
    sent = [Message(b"k%d" % n, b"value %d " % n * 20, (("h", b"x"),)) for n in range(50)]
    for own in (None, "gzip"):
        client.produce(broker.address, topic, sent, own)
    assert client.read(broker.address, topic, 100) == sent * 2
    assert codecs_in(broker, topic) == {["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(codec)}


def test_a_producer_is_told_which_record_has_no_key(broker):
    """librdkafka reports the faulty record's own error (KIP-467), and for the other records why they failed."""
    topic = make_topic(broker, cleanup_policy="compact")
    reported = send(broker, topic, {"key": b"a", "value": b"1"}, {"value": b"2"}, {"key": b"c", "value": b"3"})
    codes = [error.code() for error, _ in reported]
    assert codes[1] == confluent_kafka.KafkaError.INVALID_RECORD and None not in codes
    assert send(broker, topic, {"key": b"a", "value": b"1"})[0][0] is None


def test_kafka_python_is_told_of_a_time_that_is_too_old(broker):
    topic = make_topic(broker, message_timestamp_before_max_ms=str(HOUR_MS))
    producer = kafka.KafkaProducer(bootstrap_servers=broker.address)
    try:
        now_ms = int(time.time() * 1000)
        producer.send(topic, b"v", timestamp_ms=now_ms - HOUR_MS // 2).get(SECONDS)
        with pytest.raises(kafka.errors.InvalidTimestampError):
            producer.send(topic, b"v", timestamp_ms=now_ms - 2 * HOUR_MS).get(SECONDS)
    finally:
        producer.close()


def test_a_stock_consumer_reads_each_records_id_from_its_header(broker, client):
    topic = make_topic(broker, flakelog_id_header="true")
    sent = [Message(b"k", b"%d" % n, (("own", b"1"), ("flakelog-id", b"forged"))) for n in range(20)]
    client.produce(broker.address, topic, sent, "gzip")
    received = client.read(broker.address, topic, 20)
    ids = [int(dict(message.headers)["flakelog-id"]) for message in received]
    assert ids == sorted(set(ids))
    assert [message.headers for message in received] == [(("own", b"1"), ("flakelog-id", b"%d" % id)) for id in ids]
    assert [message._replace(headers=()) for message in received] == [message._replace(headers=()) for message in sent]
