"""What real clients send, captured for tests/golden: each does what it can against a real server, through a recorder.

    .venv/bin/python -m tests.compat.capture_frames

writes the files anew; do it when a client is a newer one, or the broker serves what it did not, and read the change.
Times of records are literal, so that they fit the clock of tests/broker/engine_client.py, where they are replayed.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import aiokafka
import aiokafka.admin
import confluent_kafka
import kafka
import kafka.admin
from confluent_kafka import admin as confluent_admin

from tests.compat.frame_recorder import FrameRecorder
from tests.compat.server_process import ServerProcess
from tests.compat.stock_clients import until
from tests.golden import frames

SECONDS = 20
TIME_MS = 1_700_000_000_000
TOPIC = "flights"
GROUP = "readers"
RECORDS = [(b"k%d" % n, b"v%d" % n) for n in range(3)]
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "auto.create.topics.enable": "false",
}
HEARTBEAT_MS = 100
PRODUCE = 0  # it alone can want no answer
ALIKE_MAX = 4  # of one version of one API on one connection: polling goes on and says nothing new


# --- confluent-kafka ---------------------------------------------------------------------------------------------


def confluent(address):
    admin = confluent_admin.AdminClient({"bootstrap.servers": address})
    _only(admin.create_topics([confluent_admin.NewTopic(TOPIC, 2, config={"retention.ms": "-1"})]))
    admin.list_topics(timeout=SECONDS)
    _confluent_produce(address)
    _confluent_consume(address)
    resource = confluent_admin.ConfigResource(confluent_admin.ResourceType.TOPIC, TOPIC)
    _only(admin.describe_configs([resource]))
    change = confluent_admin.ConfigEntry(
        "segment.ms", "5000", incremental_operation=confluent_admin.AlterConfigOpType.SET
    )
    change = confluent_admin.ConfigResource(confluent_admin.ResourceType.TOPIC, TOPIC, incremental_configs=[change])
    _only(admin.incremental_alter_configs([change]))
    _only(admin.create_partitions([confluent_admin.NewPartitions(TOPIC, 3)]))
    admin.describe_cluster().result(SECONDS)
    _only(admin.describe_topics(confluent_kafka.TopicCollection([TOPIC])))
    partition = confluent_kafka.TopicPartition(TOPIC, 0)
    _only(admin.list_offsets({partition: confluent_admin.OffsetSpec.latest()}))
    admin.list_consumer_groups().result(SECONDS)
    _only(admin.describe_consumer_groups([GROUP]))
    _only(admin.list_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions(GROUP)]))
    _only(admin.delete_records([confluent_kafka.TopicPartition(TOPIC, 0, 1)]))
    _only(admin.delete_consumer_groups([GROUP]))
    _only(admin.delete_topics([TOPIC]))


def _only(futures):
    (future,) = futures.values()
    return future.result(SECONDS)


def _confluent_produce(address):
    for config in ({"acks": "1", "compression.type": "lz4"}, {"enable.idempotence": True}, {"acks": "0"}):
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 50} | config)
        for key, value in RECORDS:
            producer.produce(TOPIC, value, key, partition=0, timestamp=TIME_MS)
        assert producer.flush(SECONDS) == 0


def _confluent_consume(address):
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([TOPIC])
    until(lambda: consumer.consume(1, 1), what="a message")
    consumer.commit(asynchronous=False)
    partition = confluent_kafka.TopicPartition(TOPIC, 0, TIME_MS)
    consumer.committed([partition], SECONDS)
    consumer.offsets_for_times([partition], SECONDS)
    consumer.get_watermark_offsets(partition, SECONDS)
    consumer.close()


# --- kafka-python ------------------------------------------------------------------------------------------------


def kafka_python(address):
    with kafka.KafkaAdminClient(bootstrap_servers=address) as admin:
        admin.create_topics([kafka.admin.NewTopic(TOPIC, 2, 1)])
        _kafka_python_produce(address)
        _kafka_python_consume(address)
        admin.list_topics()
        admin.describe_topics([TOPIC])
        admin.describe_topic_partitions([TOPIC])
        admin.describe_cluster()
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, TOPIC, {"segment.ms": "5000"})
        admin.alter_configs([resource])
        admin.describe_configs([resource])
        admin.create_partitions({TOPIC: kafka.admin.NewPartitions(3)})
        partition = kafka.TopicPartition(TOPIC, 0)
        admin.list_partition_offsets({partition: kafka.admin.OffsetSpec.LATEST})
        admin.list_groups()
        admin.describe_groups([GROUP])
        admin.list_group_offsets([GROUP])
        admin.delete_records({partition: 1})
        admin.delete_groups([GROUP])
        admin.delete_topics([TOPIC])


def _kafka_python_produce(address):
    for config in ({"acks": 1, "enable_idempotence": False, "compression_type": "gzip"}, {"acks": "all"}):
        producer = kafka.KafkaProducer(bootstrap_servers=address, linger_ms=50, **config)
        for key, value in RECORDS:
            producer.send(TOPIC, value, key, partition=0, timestamp_ms=TIME_MS)
        producer.flush(SECONDS)
        producer.close()


def _kafka_python_consume(address):
    consumer = kafka.KafkaConsumer(
        TOPIC,
        bootstrap_servers=address,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    until(lambda: consumer.poll(10_000), what="a message")
    consumer.poll(5 * HEARTBEAT_MS)
    consumer.commit()
    partition = kafka.TopicPartition(TOPIC, 0)
    consumer.committed(partition)
    consumer.offsets_for_times({partition: TIME_MS})
    consumer.end_offsets([partition])
    consumer.close()


# --- aiokafka ----------------------------------------------------------------------------------------------------


def aiokafka_session(address):
    asyncio.run(asyncio.wait_for(_aiokafka(address), 2 * SECONDS))


async def _aiokafka(address):
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        await admin.create_topics([aiokafka.admin.NewTopic(TOPIC, 2, 1)])
        await _aiokafka_produce(address)
        await _aiokafka_consume(address)
        await admin.list_topics()
        await admin.describe_topics([TOPIC])
        await admin.describe_cluster()
        resource = aiokafka.admin.config_resource.ConfigResource(
            aiokafka.admin.config_resource.ConfigResourceType.TOPIC, TOPIC, {"segment.ms": "5000"}
        )
        await admin.alter_configs([resource])
        await admin.describe_configs([resource])
        await admin.create_partitions({TOPIC: aiokafka.admin.NewPartitions(3)})
        await admin.list_consumer_groups()
        await admin.describe_consumer_groups([GROUP])
        await admin.list_consumer_group_offsets(GROUP)
        partition = aiokafka.TopicPartition(TOPIC, 0)
        await admin.delete_records({partition: aiokafka.admin.RecordsToDelete(1)})
        await admin.delete_topics([TOPIC])
    finally:
        await admin.close()


async def _aiokafka_produce(address):
    for config in ({"acks": 1, "compression_type": "snappy"}, {"enable_idempotence": True}, {"acks": 0}):
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, linger_ms=50, **config) as producer:
            for key, value in RECORDS:
                await producer.send_and_wait(TOPIC, value, key, 0, timestamp_ms=TIME_MS)


async def _aiokafka_consume(address):
    consumer = aiokafka.AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=address,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    await consumer.start()
    try:
        await consumer.getone()
        await asyncio.sleep(5 * HEARTBEAT_MS / 1000)
        await consumer.commit()
        partition = aiokafka.TopicPartition(TOPIC, 0)
        await consumer.committed(partition)
        await consumer.offsets_for_times({partition: TIME_MS})
        await consumer.end_offsets([partition])
    finally:
        await consumer.stop()


# --- capturing ---------------------------------------------------------------------------------------------------

SESSIONS = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka_session}


def capture(client, directory):
    """The exchanges of one client with a server of its own."""
    with FrameRecorder() as recorder:
        settings = SETTINGS | {"advertised.listeners": recorder.listener}
        with ServerProcess(Path(directory) / client, settings) as server:
            recorder.forward_to(server.address)
            SESSIONS[client](recorder.address)
            return _without_repeats(recorder.exchanges())


def _without_repeats(exchanges):
    """The first few of those that are alike; never one from the middle, as some count on the ones before them. What
    was still waiting when the client went has no answer."""
    seen = Counter()
    kept = []
    for each in exchanges:
        if each.answer is None and each.api_key != PRODUCE:
            continue
        alike = each.connection, each.api_key, each.version
        seen[alike] += 1
        if seen[alike] <= ALIKE_MAX:
            kept.append(each)
    return kept


def main():
    with tempfile.TemporaryDirectory() as directory:
        for client in sys.argv[1:] or SESSIONS:
            exchanges = capture(client, directory)
            frames.write(frames.HERE / f"{client}{frames.SUFFIX}", f"{client} {version(client)}", exchanges)
            print(f"{client}: {len(exchanges)} requests")


if __name__ == "__main__":
    main()
