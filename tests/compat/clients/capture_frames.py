"""Capture the frames of real clients for tests/golden: each client uses a real server through a recorder.

    .venv/bin/python -m tests.compat.clients.capture_frames

This rewrites the files. Run it when a client has a new version or the broker serves a new API or version, and review
the diff. Record times are literals, so that they fit the clock of tests/broker/engine_client.py, which replays them.
"""

import asyncio
import json
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from importlib.metadata import version as version_of_package
from pathlib import Path

import aiokafka
import aiokafka.admin
import confluent_kafka
import kafka
import kafka.admin
from confluent_kafka import admin as confluent_admin

from benchmarks.apache import CLASSPATH
from broker.engine.api_table import APIS
from tests.compat import stock_java
from tests.compat.clients import franz_go_session, stock_go, stock_node
from tests.compat.clients.frame_recorder import FrameRecorder
from tests.compat.server_process import ServerProcess
from tests.compat.stock_process import ClientError
from tests.golden import frames
from tests.patience import SECONDS, until

TIME_MS = 1_700_000_000_000
TOPIC = "flights"
GROUP = "readers"
RECORDS = [(b"k%d" % n, b"v%d" % n) for n in range(3)]
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "log.roll.ms": 1 << 60,  # no roll by time, because markers have today's time and records have TIME_MS
    "auto.create.topics.enable": "false",
}
HEARTBEAT_MS = 100
PRODUCE = 0  # the only API whose client may want no answer
API_VERSIONS = 18
PREFERRED = 0  # the election type
REPEATED_MAX = 4  # exchanges kept per connection, API and version, because repeated polls add nothing new


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
    _confluent_transaction(address)
    _only(admin.alter_consumer_group_offsets(
        [confluent_kafka.ConsumerGroupTopicPartitions(GROUP, [confluent_kafka.TopicPartition(TOPIC, 0, 2)])]
    ))  # fmt: skip
    admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [partition]).result(SECONDS)
    mechanism = confluent_admin.ScramCredentialInfo(confluent_admin.ScramMechanism.SCRAM_SHA_256, 4096)
    _only(admin.alter_user_scram_credentials([confluent_admin.UserScramCredentialUpsertion("ann", mechanism, b"x")]))
    admin.describe_user_scram_credentials().result(SECONDS)
    for ask in (
        lambda: admin.describe_acls(_ANY_ACL).result(SECONDS),
        lambda: _only(admin.create_acls([_RULE])),
        lambda: _only(admin.delete_acls([_ANY_ACL])),
    ):
        with suppress(confluent_kafka.KafkaException):  # refused, because the broker has no authorizer
            ask()
    _only(admin.delete_consumer_groups([GROUP]))
    _only(admin.delete_topics([TOPIC]))


_ANY_ACL = confluent_admin.AclBindingFilter(
    confluent_admin.ResourceType.ANY, None, confluent_admin.ResourcePatternType.ANY, None, None,
    confluent_admin.AclOperation.ANY, confluent_admin.AclPermissionType.ANY,
)  # fmt: skip
_RULE = confluent_admin.AclBinding(
    confluent_admin.ResourceType.TOPIC, TOPIC, confluent_admin.ResourcePatternType.LITERAL, "User:ann", "*",
    confluent_admin.AclOperation.READ, confluent_admin.AclPermissionType.ALLOW,
)  # fmt: skip


def _confluent_transaction(address):
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": "payments"})
    producer.init_transactions(SECONDS)
    member = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": GROUP}).consumer_group_metadata()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(TOPIC, b"paid", partition=0, timestamp=TIME_MS)
        producer.send_offsets_to_transaction([confluent_kafka.TopicPartition(TOPIC, 0, 1)], member, SECONDS)
        end(SECONDS)


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
        _kafka_python_transaction(address)
        admin.list_transactions(transactional_id_pattern="pay.*")
        admin.describe_transactions(["payments"])
        admin.describe_producers([partition])
        _kafka_python_node(admin, partition)
        admin.delete_group_offsets(GROUP, [partition])
        admin.delete_groups([GROUP])
        admin.delete_topics([TOPIC])


def _kafka_python_node(admin, partition):
    """Ask the node about its quorum, directories, leaders, reassignments, config resources and SCRAM credentials."""
    admin.describe_metadata_quorum()
    (directory,) = {log_dir["log_dir"] for broker in admin.describe_log_dirs() for log_dir in broker["log_dirs"]}
    admin.alter_replica_log_dirs({(TOPIC, 0, 1): directory})
    admin.elect_leaders(PREFERRED, {TOPIC: [0]}, raise_errors=False)
    admin.alter_partition_reassignments({partition: [1]})
    admin.list_partition_reassignments()
    admin.list_config_resources()
    admin.describe_user_scram_credentials()


def _kafka_python_transaction(address):
    producer = kafka.KafkaProducer(bootstrap_servers=address, transactional_id="payments")
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.send(TOPIC, b"paid", partition=0, timestamp_ms=TIME_MS)
        offsets = {kafka.TopicPartition(TOPIC, 0): kafka.structs.OffsetAndMetadata(1, "", -1)}
        producer.send_offsets_to_transaction(offsets, GROUP)
        end()
    producer.close()


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
        await _aiokafka_transaction(address, partition)
        await admin.delete_topics([TOPIC])
    finally:
        await admin.close()


async def _aiokafka_produce(address):
    for config in ({"acks": 1, "compression_type": "snappy"}, {"enable_idempotence": True}, {"acks": 0}):
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, linger_ms=50, **config) as producer:
            for key, value in RECORDS:
                await producer.send_and_wait(TOPIC, value, key, 0, timestamp_ms=TIME_MS)


async def _aiokafka_transaction(address, partition):
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, transactional_id="payments") as producer:
        for end in (producer.commit_transaction, producer.abort_transaction):
            await producer.begin_transaction()
            await producer.send_and_wait(TOPIC, b"paid", partition=0, timestamp_ms=TIME_MS)
            await producer.send_offsets_to_transaction({partition: 1}, GROUP)
            await end()


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


# --- Apache Kafka's Java clients ---------------------------------------------------------------------------------

JAVA_READS = {"group.id": GROUP, "auto.offset.reset": "earliest", "heartbeat.interval.ms": HEARTBEAT_MS}
JAVA_ADMIN = (
    "describeCluster", "describeFeatures", "listTopics", "listGroups", "listTransactions", "describeQuotas",
    "describeScram", "listReassignments", "listConfigResources",
)  # fmt: skip


def java(address):
    with stock_java.StockJava() as client:

        def ask(call, **arguments):
            return client.ask(call, address=address, **arguments)

        ask("createTopic", topic=TOPIC, partitions=2)
        values = {"topic": TOPIC, "partition": 0, "values": ["v0", "v1", "v2"], "timestamp": TIME_MS}
        ask("produce", **values)
        ask("join", name="one", topic=TOPIC, config=JAVA_READS)
        ask("take", names=["one"], count=3)
        ask("describeGroup", group=GROUP)
        ask("leave", name="one")
        offsets = {"group": GROUP, "offsets": [{"topic": TOPIC, "partition": 0, "offset": 3}]}
        ask("transaction", **values, **offsets, config={"transactional.id": "payments"})
        ask("transaction", **values, commit=False, config={"transactional.id": "payments"})
        ask("read", topic=TOPIC, count=6, config={"isolation.level": "read_committed"})
        ask("read", topic=TOPIC, count=1, offset=1, epoch=0)
        ask("ends", topic=TOPIC, time=TIME_MS)
        _java_hanging_transaction(ask)
        _java_admin(ask)
        ask("deleteTopics", topics=[TOPIC])


def _java_admin(ask):
    for call in JAVA_ADMIN:
        ask(call)
    for call in ("listOffsets", "describeTopic", "describeProducers", "electLeaders"):
        ask(call, topic=TOPIC)
    ask("deleteRecords", topic=TOPIC, before=1)
    ask("groupOffsets", group=GROUP)
    ask("alterGroupOffset", group=GROUP, topic=TOPIC, offset=1)
    ask("deleteGroupOffset", group=GROUP, topic=TOPIC)
    ask("deleteGroup", group=GROUP)
    ask("describeLogDirs", node=1)
    ask("describeTransaction", id="payments")
    ask("fenceProducers", id="payments")
    ask("createPartitions", topic=TOPIC, partitions=3)
    ask("alterConfigs", type="TOPIC", name=TOPIC, changes=[["SET", "segment.ms", "5000"]])
    ask("alterQuota", user="ann", name="producer_byte_rate", rate=1024)
    ask("updateFeature", name="metadata.version", level=25)
    for call in ("describeAcls", "createAcl", "deleteAcl"):
        with suppress(ClientError):  # refused, because the broker has no authorizer
            ask(call, topic=TOPIC, user="ann")


def _java_hanging_transaction(ask):
    """Leave a transaction open as a dead producer does, and abort it in its partition as an administrator does."""
    values = {"topic": TOPIC, "partition": 1, "values": ["lost"], "timestamp": TIME_MS}
    ask("leaveTransactionOpen", **values, config={"transactional.id": "hanging"})
    ask("abortTransaction", topic=TOPIC, partition=1)


# --- Node.js -----------------------------------------------------------------------------------------------------


def kafkajs(address):
    _node("kafkajs", address)


def platformatic(address):
    _node("platformatic", address)


def _node(name, address):
    with stock_node.stock_node() as node:

        def ask(call, **arguments):
            return node.ask(f"{name}.{call}", address=address, topic=TOPIC, group=GROUP, timestamp=TIME_MS, **arguments)

        ask("createTopic", partitions=2)
        ask("produce", values=["v0", "v1"], partition=0)
        ask("produce", values=["v2"], partition=0, idempotent=True)
        ask("read", count=3)
        ask("transaction", id="paid", values=["paid"], partition=0, offset=1)
        ask("transaction", id="not paid", values=["not"], partition=0, offset=1, abort=True)
        ask("setGroupOffset", offset=1)
        ask("groupOffset")
        ask("listTopics")
        ask("listGroups")
        ask("describeGroup")
        ask("createPartitions", partitions=3)
        ask("deleteRecords", before=1)
        ask("setTopicConfig", name="segment.ms", value="5000")
        ask("deleteGroup")
        ask("deleteTopic")


# --- capturing ---------------------------------------------------------------------------------------------------

SESSIONS = {
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka_session,
    "java": java,
    "kafkajs": kafkajs,
    "platformatic": platformatic,
    "franz-go-oldest": franz_go_session.oldest,
    "franz-go-newest": franz_go_session.newest,
}


def missing(client):
    """Return why the client's session cannot run here, or None if it can."""
    if client == "java":
        return stock_java.missing()
    if client.startswith("franz-go"):
        return stock_go.missing()
    return stock_node.missing() if client in ("kafkajs", "platformatic") else None


def version(client):
    if client == "java":
        return next(jar for jar in CLASSPATH.read_text().split(":") if "kafka-clients-" in jar)[-9:-4]
    if client.startswith("franz-go"):
        return stock_go.version()
    packages = {"kafkajs": "kafkajs", "platformatic": "@platformatic/kafka"}
    if client in packages:
        return json.loads((stock_node.PACKAGES / packages[client] / "package.json").read_text())["version"]
    return version_of_package(client)


def capture(client, directory):
    """Run one client's session against a new server, and return its exchanges."""
    with FrameRecorder() as recorder:
        settings = SETTINGS | {"advertised.listeners": recorder.listener}
        with ServerProcess(Path(directory) / client, settings) as server:
            recorder.forward_to(server.address)
            SESSIONS[client](recorder.address)
            return _without_repeats(recorder.exchanges())


def _without_repeats(exchanges):
    """Keep only the first REPEATED_MAX exchanges of each connection, API and version.

    The first ones are kept because a later exchange may depend on those before it. Requests without an answer, which
    still waited when the client left, are dropped, except for Produce. ApiVersions is kept only as the first exchange
    of all, because every connection begins with it.
    """
    seen = Counter()
    selected = []
    for exchange in exchanges:
        if exchange.answer is None and exchange.api_key != PRODUCE:
            continue
        if exchange.api_key == API_VERSIONS and selected:
            continue
        kind = exchange.connection, exchange.api_key, exchange.version
        seen[kind] += 1
        if seen[kind] <= REPEATED_MAX:
            selected.append(exchange)
    return selected


def main():
    with tempfile.TemporaryDirectory() as directory:
        for client in sys.argv[1:] or SESSIONS:
            if reason := missing(client):
                print(f"{client}: {reason}")
                continue
            exchanges = capture(client, directory)
            frames.write(frames.HERE / f"{client}{frames.SUFFIX}", f"{client} {version(client)}", exchanges)
            print(f"{client}: {len(exchanges)} requests")
    print_versions()


def print_versions():
    """Print the served versions of each API that some golden file covers, and those that no file covers."""
    covered = frames.asked()
    for key, api in APIS.items():
        served = set(range(api.oldest, api.newest + 1))
        print(f"{api.name}: has {sorted(served & covered[key])}, lacks {sorted(served - covered[key])}")


if __name__ == "__main__":
    main()
