"""Every error that a request can be answered with: the API, the code, the versions that know it, and its cause.

tests/broker/test_every_error.py asks an engine for them, and tests/compat/test_errors_as_kafka.py asks Apache Kafka.
`kafka` is Kafka's code if it differs on purpose; a comment gives the reason. `inside` marks errors that no client can
cause (a failing disk, a limit that is set low), so Kafka is not asked.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from crc32c import crc32c

from broker.engine.api_table import APIS
from broker.log.storage.port import StorageError
from broker.record.compression import Codec
from broker.services.metadata import PRODUCER_ID_BLOCK
from broker.settings.config import LONG_MAX
from broker.txn.transaction import EPOCH_LAST
from broker.wire.errors import ErrorCode as E
from tests.broker.any_api import KEYS, World, batch_of, create_topic, offsets_of

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
NOWHERE = "nowhere"
FAR_AHEAD_MS = 1 << 52


class Case(NamedTuple):
    """An expected error. `ask` takes a World and returns the answer whose first error is checked; `settings` are the
    broker's."""

    api: str
    code: E
    ask: Callable[[World], object]
    oldest: int = 0
    newest: int = 99
    kafka: E | None = None
    inside: bool = False
    settings: dict = {}

    @property
    def kafkas(self):
        return self.code if self.kafka is None else self.kafka

    @property
    def versions(self):
        """Return the lowest and the highest version that the broker serves and that know the code."""
        api = APIS[KEYS[self.api]]
        ends = max(self.oldest, api.oldest), min(self.newest, api.newest)
        assert ends[0] <= ends[1], self
        return sorted(set(ends))


# --- Produce ---------------------------------------------------------------------------------------------------------


def to_topic(world, batch=None, **configs):
    return world.produce(world.create(1, **configs), batch)


def of_producer(world, epoch=0, sequence=0, transactional=False):
    fields = {"producer_epoch": epoch, "base_sequence": sequence, "transactional": transactional}
    return batch_of(producer_id=1_000_000 + world.number, **fields)


def after(world, *batches):
    """Produce the batches in order; return the answer to the last one."""
    topic = world.create(1)
    return [world.produce(topic, batch) for batch in batches][-1]


def in_transaction(world, batch=None, producer=None, name=None, partition=0):
    """Produce a batch in a transaction that has partition 0."""
    mine = world.producer()
    world.add(mine)
    producer = producer or mine
    fields = {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": 0}
    return world.produce(
        batch=batch or batch_of(**fields, transactional=True),
        partition=partition,
        transactional_id=world.transactional_id if name is None else name,
    )


def while_it_ends(world):
    """Produce a batch of the next transaction while the previous one waits for a partition to take its marker."""
    producer = world.producer()
    world.add(producer, (world.topic, 0), (world.topic, 1))
    world.broker.services.logs.get(world.topic, 1).offline = "a sync failed"
    world.end(producer, version=3)
    batch = batch_of(producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, transactional=True)
    return world.produce(batch=batch, transactional_id=world.transactional_id)


def plain_in_transaction(world):
    producer = world.producer()
    world.add(producer)
    world.write(producer)
    return world.produce(batch=batch_of(producer_id=producer[0], producer_epoch=producer[1], base_sequence=1))


def offline(world, topic=None):
    """Take a topic offline, as a disk failure does; return its name."""
    topic = topic or world.topic
    for log in world.broker.services.logs.all():
        if log.topic == topic:
            log.offline = "a sync failed"
    return topic


def full(world):
    """Fill the broker's disk."""
    world.broker.storage.free_bytes = 0
    return world


def garbage(world):
    """Return a topic with a batch whose payload holds no records, so that only a decoder notices; its timestamp is
    later than all others."""
    batch = bytearray(batch_of(time_ms=FAR_AHEAD_MS))
    batch[61:] = b"\xff" * (len(batch) - 61)
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    topic = world.create(1, message_timestamp_after_max_ms=LONG_MAX)
    world.produce(topic, batch, version=9)
    return topic


def never_synced(world):
    """Produce to a disk that never finishes its sync; return the answer."""
    topic = world.create(1, flakelog_durable_acks="true")
    world.broker.hold_syncs()
    return world.produce(topic)


def corrupt():
    batch = batch_of()
    batch[-1] ^= 1
    return batch


def fenced_batch(world):
    old = world.producer()
    world.add(old)
    world.end(old)
    world.producer()
    return world.write(old) if world.name != "Produce" else in_name_of(world, old)


def in_name_of(world, producer):
    fields = {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": 0, "transactional": True}
    return world.produce(batch=batch_of(**fields), transactional_id=world.transactional_id)


PRODUCE = [
    Case("Produce", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.produce(NOWHERE), newest=12),
    Case("Produce", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.produce(partition=7)),
    Case("Produce", E.UNKNOWN_TOPIC_ID, lambda w: w.produce(NOWHERE), oldest=13),
    Case("Produce", E.INVALID_REQUIRED_ACKS, lambda w: w.produce(acks=2)),
    Case("Produce", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.produce(NOWHERE, acks=2), newest=12),
    Case("Produce", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.produce(partition=7, acks=2)),
    Case("Produce", E.UNKNOWN_TOPIC_ID, lambda w: w.produce(NOWHERE, acks=2), oldest=13),
    Case("Produce", E.INVALID_REQUEST, lambda w: in_transaction(w, name="", partition=1)),
    Case("Produce", E.INVALID_TOPIC_EXCEPTION, lambda w: w.coordinated() or w.produce(OFFSETS)),
    Case("Produce", E.CORRUPT_MESSAGE, lambda w: w.produce(batch=corrupt())),
    Case("Produce", E.MESSAGE_TOO_LARGE, lambda w: to_topic(w, max_message_bytes=50)),
    # Flakelog stores such a batch in a separate segment.
    Case("Produce", E.NONE, lambda w: to_topic(w, batch_of(value=bytes(1_200_000)), segment_bytes=1 << 20,
         max_message_bytes=2_000_000), kafka=E.RECORD_LIST_TOO_LARGE),
    Case("Produce", E.INVALID_RECORD, lambda w: to_topic(w, batch_of(None), cleanup_policy="compact")),
    Case("Produce", E.INVALID_RECORD, lambda w: w.produce(batch=batch_of(control=True))),
    Case("Produce", E.INVALID_TIMESTAMP, lambda w: w.produce(batch=batch_of(time_ms=FAR_AHEAD_MS))),
    Case("Produce", E.UNSUPPORTED_COMPRESSION_TYPE, lambda w: w.produce(batch=batch_of(codec=Codec.ZSTD)), newest=6),
    Case("Produce", E.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda w: after(w, of_producer(w), of_producer(w, sequence=5))),
    Case("Produce", E.INVALID_PRODUCER_EPOCH, lambda w: after(w, of_producer(w, 2), of_producer(w, 1))),
    Case("Produce", E.INVALID_PRODUCER_EPOCH, fenced_batch),
    Case(
        "Produce", E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        lambda w: w.produce(batch=of_producer(w, transactional=True)),
    ),
    Case("Produce", E.INVALID_PRODUCER_ID_MAPPING, lambda w: in_transaction(w, name="nobody")),
    Case("Produce", E.INVALID_PRODUCER_ID_MAPPING, lambda w: in_transaction(w, producer=(1 << 40, 0))),
    Case("Produce", E.INVALID_TXN_STATE, lambda w: in_transaction(w, partition=1), newest=10),
    Case("Produce", E.TRANSACTION_ABORTABLE, lambda w: in_transaction(w, partition=1), oldest=11, newest=11),
    # From v12 on Kafka adds the partition automatically; clients rely on it only if they saw transaction.version 2.
    Case("Produce", E.TRANSACTION_ABORTABLE, lambda w: in_transaction(w, partition=1), oldest=12, kafka=E.NONE),
    Case("Produce", E.INVALID_TXN_STATE, plain_in_transaction),
    Case("Produce", E.KAFKA_STORAGE_ERROR, lambda w: w.produce(offline(w)), inside=True),
    Case("Produce", E.REQUEST_TIMED_OUT, never_synced, inside=True),
    Case("Produce", E.NOT_ENOUGH_REPLICAS, while_it_ends, inside=True),
]  # fmt: skip


# --- Fetch and other reads -------------------------------------------------------------------------------------------


def session_of(world, topic=None, version=None):
    return world.fetch(topic, session=(0, 0), version=version).session_id


def made_anew(world):
    """Fetch in a session whose topic was deleted and created again."""
    topic = world.create(1)
    session = session_of(world, topic)
    delete(world, topic)
    world.until(
        lambda: world.ask("Metadata", {"topics": [{"name": topic}], "allow_auto_topic_creation": False}, 12),
        lambda answer: answer.topics[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION,
    )
    world.create(1, topic)
    return world.fetch(session=(session, 1), topics=[])


def delete(world, topic):
    return world.ask("DeleteTopics", {"topics": [{"name": topic, "topic_id": None}], "timeout": 30_000}, 6)


def later(world):
    """Raise the leader epoch of partition 0, past the epoch that a client may know; return the topic."""
    topic = world.topic
    world.broker.services.logs.get(topic, 0).start_leader_epoch(7)
    return topic


def offsets(world, topic=None, partition=0, twice=1, **asked):
    wanted = offsets_of(topic or world.topic, [partition] * twice, **asked)
    return world.ask("ListOffsets", {"replica_id": -1, "isolation_level": 0, "topics": [wanted], "timeout": 1_000})


def epoch_end(world, topic=None, partition=0, current=-1):
    asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": 0}
    topics = [{"topic": topic or world.topic, "partitions": [asked]}]
    return world.ask("OffsetForLeaderEpoch", {"replica_id": -1, "topics": topics})


def delete_records(world, topic=None, partition=0, offset=0):
    asked = {"name": topic or world.topic, "partitions": [{"partition_index": partition, "offset": offset}]}
    return world.ask("DeleteRecords", {"topics": [asked], "timeout": 10_000})


def producers(world, topic=None, partition=0):
    asked = {"name": topic or world.topic, "partition_indexes": [partition]}
    return world.ask("DescribeProducers", {"topics": [asked]})


READS = [
    Case("Fetch", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.fetch(NOWHERE), newest=12),
    Case("Fetch", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.fetch(partition=7)),
    Case("Fetch", E.UNKNOWN_TOPIC_ID, lambda w: w.fetch(NOWHERE), oldest=13),
    Case("Fetch", E.INCONSISTENT_TOPIC_ID, made_anew, oldest=13),
    Case("Fetch", E.OFFSET_OUT_OF_RANGE, lambda w: w.fetch(fetch_offset=7)),
    Case("Fetch", E.UNKNOWN_LEADER_EPOCH, lambda w: w.fetch(current_leader_epoch=7), oldest=9),
    Case("Fetch", E.NOT_LEADER_OR_FOLLOWER, lambda w: w.fetch(replica=7)),
    Case("Fetch", E.FETCH_SESSION_ID_NOT_FOUND, lambda w: w.fetch(session=(77, 1)), oldest=7),
    Case("Fetch", E.INVALID_FETCH_SESSION_EPOCH, lambda w: w.fetch(session=(session_of(w), 5)), oldest=7),
    Case("Fetch", E.FETCH_SESSION_TOPIC_ID_ERROR, lambda w: w.fetch(session=(session_of(w, version=12), 1)), oldest=13),
    # Kafka 4 sends records that such a client cannot read.
    Case(
        "Fetch", E.UNSUPPORTED_COMPRESSION_TYPE,
        lambda w: w.fetch(w.create(1, compression_type="zstd")), newest=9, kafka=E.NONE,
    ),
    Case("Fetch", E.FENCED_LEADER_EPOCH, lambda w: w.fetch(later(w), current_leader_epoch=0), 9, inside=True),
    Case("Fetch", E.KAFKA_STORAGE_ERROR, lambda w: w.fetch(offline(w)), oldest=6, inside=True),
    Case("Fetch", E.NOT_LEADER_OR_FOLLOWER, lambda w: w.fetch(offline(w)), newest=5, inside=True),
    Case("ListOffsets", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: offsets(w, NOWHERE)),
    Case("ListOffsets", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: offsets(w, partition=7)),
    Case("ListOffsets", E.UNKNOWN_LEADER_EPOCH, lambda w: offsets(w, current_leader_epoch=7), oldest=4),
    Case("ListOffsets", E.INVALID_REQUEST, lambda w: offsets(w, twice=2)),
    Case("ListOffsets", E.UNSUPPORTED_VERSION, lambda w: offsets(w, timestamp=-3), newest=6),
    Case("ListOffsets", E.UNSUPPORTED_VERSION, lambda w: offsets(w, timestamp=-9)),
    Case("ListOffsets", E.FENCED_LEADER_EPOCH, lambda w: offsets(w, later(w), current_leader_epoch=0), 4, inside=True),
    Case("ListOffsets", E.KAFKA_STORAGE_ERROR, lambda w: offsets(w, offline(w)), inside=True),
    Case("ListOffsets", E.CORRUPT_MESSAGE, lambda w: offsets(w, garbage(w), timestamp=FAR_AHEAD_MS), inside=True),
    Case("OffsetForLeaderEpoch", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: epoch_end(w, NOWHERE)),
    Case("OffsetForLeaderEpoch", E.UNKNOWN_LEADER_EPOCH, lambda w: epoch_end(w, current=7)),
    Case("OffsetForLeaderEpoch", E.FENCED_LEADER_EPOCH, lambda w: epoch_end(w, later(w), current=0), inside=True),
    Case("OffsetForLeaderEpoch", E.KAFKA_STORAGE_ERROR, lambda w: epoch_end(w, offline(w)), inside=True),
    Case("DeleteRecords", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: delete_records(w, NOWHERE)),
    Case("DeleteRecords", E.OFFSET_OUT_OF_RANGE, lambda w: delete_records(w, offset=7)),
    Case("DeleteRecords", E.OFFSET_OUT_OF_RANGE, lambda w: delete_records(w, offset=-2)),
    Case("DeleteRecords", E.POLICY_VIOLATION, lambda w: delete_records(w, w.create(1, cleanup_policy="compact"))),
    Case("DeleteRecords", E.INVALID_TOPIC_EXCEPTION, lambda w: w.coordinated() or delete_records(w, OFFSETS)),
    Case("DeleteRecords", E.KAFKA_STORAGE_ERROR, lambda w: delete_records(w, offline(w)), inside=True),
    Case("DescribeProducers", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: producers(w, NOWHERE)),
    Case("DescribeProducers", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: producers(w, partition=7)),
    Case("DescribeProducers", E.INVALID_TOPIC_EXCEPTION, lambda w: producers(w, "a/b")),
    Case("DescribeProducers", E.KAFKA_STORAGE_ERROR, lambda w: producers(w, offline(w)), inside=True),
]  # fmt: skip


# --- topics and their settings ---------------------------------------------------------------------------------------


def metadata(world, *names, create=False):
    topics = [{"name": name, "topic_id": None} for name in names]
    return world.ask("Metadata", {"topics": topics, "allow_auto_topic_creation": create})


def many_at_once(world):
    return metadata(world, *(f"new-{world.number}-{n}" for n in range(3)), create=True)


def metadata_by_id(world, topic_id):
    asked = {"topics": [{"name": None, "topic_id": topic_id}], "allow_auto_topic_creation": False}
    return world.ask("Metadata", asked)


def make(world, name=None, twice=1, configs=(), timeout=30_000, **more):
    name = name or f"new-{world.number}-{world.version}"
    named = [{"name": key, "value": value} for key, value in configs]
    fields = create_topic(name, configs=named, **more)
    return world.ask("CreateTopics", fields | {"topics": fields["topics"] * twice, "timeout": timeout})


def assigned(*replicas):
    given = [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(replicas)]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": given}


def remove(world, *names, ids=(), timeout=30_000):
    topics = [{"name": name, "topic_id": None} for name in names] + [{"name": None, "topic_id": each} for each in ids]
    return world.ask("DeleteTopics", {"topic_names": names, "topics": topics, "timeout": timeout})


def grow(world, name=None, count=5, assignments=None, twice=1, timeout=30_000):
    given = None if assignments is None else [{"broker_ids": ids} for ids in assignments]
    topics = [{"name": name or world.topic, "count": count, "assignments": given}] * twice
    return world.ask("CreatePartitions", {"topics": topics, "timeout": timeout, "validate_only": False})


def past_quota(world, first, second):
    """Return the answer to the second request; the first one has used up the client's quota for a while (KIP-599)."""
    topics = world.create(1), world.create(1)
    quota(world, [("client-id", "test")], ("controller_mutation_rate", 0.001), validate_only=False)
    first(topics[0])
    return second(topics[1])


TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


def configs_of(world, kind, name):
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    return world.ask("DescribeConfigs", {"resources": [asked]})


def alter(world, kind, name, key, value, operation=0, twice=1):
    """Send AlterConfigs or IncrementalAlterConfigs."""
    config = {"name": key, "value": value}
    config |= {"config_operation": operation} if world.name == "IncrementalAlterConfigs" else {}
    resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
    return world.ask(world.name, {"resources": [resource] * twice, "validate_only": False})


def retention(world, value, topic=None, **more):
    return alter(world, TOPIC, topic or world.topic, "retention.ms", value, **more)


ALTER = ("AlterConfigs", "IncrementalAlterConfigs")

TOPICS = [
    Case("Metadata", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: metadata(w, NOWHERE), oldest=4),
    Case("Metadata", E.INVALID_TOPIC_EXCEPTION, lambda w: metadata(w, "a/b")),
    Case("Metadata", E.UNKNOWN_TOPIC_ID, lambda w: metadata_by_id(w, w.id_of(NOWHERE)), oldest=12),
    Case("Metadata", E.INVALID_REQUEST, lambda w: metadata_by_id(w, w.id_of(NOWHERE)), oldest=10, newest=11),
    Case("Metadata", E.LEADER_NOT_AVAILABLE, many_at_once, inside=True, settings={"auto_create_topics_max": 2}),
    Case("Metadata", E.INVALID_CONFIG, lambda w: metadata(w, OFFSETS, create=True), inside=True,
         settings={"offsets_topic_segment_bytes": 1 << 31}),
    Case("CreateTopics", E.TOPIC_ALREADY_EXISTS, lambda w: make(w, w.topic)),
    Case("CreateTopics", E.INVALID_TOPIC_EXCEPTION, lambda w: make(w, "a/b")),
    Case("CreateTopics", E.INVALID_TOPIC_EXCEPTION, lambda w: make(w, w.create(1, f"a.{w.number}").replace(".", "_"))),
    Case("CreateTopics", E.INVALID_PARTITIONS, lambda w: make(w, num_partitions=0)),
    Case("CreateTopics", E.INVALID_REPLICATION_FACTOR, lambda w: make(w, replication_factor=3)),
    Case("CreateTopics", E.INVALID_REPLICATION_FACTOR, lambda w: make(w, replication_factor=0)),
    Case("CreateTopics", E.INVALID_REPLICA_ASSIGNMENT, lambda w: make(w, **assigned([7]))),
    Case("CreateTopics", E.INVALID_REPLICA_ASSIGNMENT, lambda w: make(w, **assigned([1], []))),
    Case("CreateTopics", E.INVALID_REQUEST, lambda w: make(w, **assigned([1]) | {"num_partitions": 1})),
    Case("CreateTopics", E.INVALID_REQUEST, lambda w: make(w, twice=2)),
    Case("CreateTopics", E.INVALID_REQUEST, lambda w: make(w, "__cluster_metadata")),
    Case("CreateTopics", E.INVALID_CONFIG, lambda w: make(w, configs=[("no.such.setting", "1")])),
    Case("CreateTopics", E.INVALID_CONFIG, lambda w: make(w, configs=[("retention.ms", "soon")])),
    Case("CreateTopics", E.INVALID_CONFIG, lambda w: make(w, configs=[("retention.ms", None)])),
    Case("CreateTopics", E.TOPIC_ALREADY_EXISTS, lambda w: w.coordinated() or make(w, OFFSETS)),
    Case("CreateTopics", E.POLICY_VIOLATION, lambda w: make(w, num_partitions=10_001)),
    Case("CreateTopics", E.THROTTLING_QUOTA_EXCEEDED, inside=True, oldest=6,
         ask=lambda w: past_quota(w, lambda topic: make(w), lambda topic: make(w, "another"))),
    Case("DeleteTopics", E.THROTTLING_QUOTA_EXCEEDED, inside=True, oldest=5,
         ask=lambda w: past_quota(w, lambda topic: remove(w, topic), lambda topic: remove(w, topic))),
    Case("CreatePartitions", E.THROTTLING_QUOTA_EXCEEDED, inside=True, oldest=3,
         ask=lambda w: past_quota(w, lambda topic: grow(w, topic), lambda topic: grow(w, topic))),
    Case("CreateTopics", E.REQUEST_TIMED_OUT, lambda w: make(w, timeout=0)),
    Case("CreateTopics", E.REQUEST_TIMED_OUT, lambda w: make(w, timeout=-1)),
    Case("DeleteTopics", E.REQUEST_TIMED_OUT, lambda w: remove(w, w.topic, timeout=0)),
    Case("CreatePartitions", E.REQUEST_TIMED_OUT, lambda w: grow(w, timeout=0)),
    Case("DeleteTopics", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: remove(w, NOWHERE)),
    # Kafka allows deletion of its internal topics, and with them of all offsets that groups have committed.
    Case("DeleteTopics", E.UNKNOWN_TOPIC_ID, lambda w: remove(w, ids=[w.id_of(NOWHERE)]), oldest=6),
    Case("DeleteTopics", E.INVALID_REQUEST, lambda w: remove(w, w.topic, w.topic)),
    Case("DeleteTopics", E.INVALID_REQUEST, lambda w: remove(w, ids=[None]), oldest=6),
    Case("DeleteTopics", E.KAFKA_STORAGE_ERROR, lambda w: w.topic and remove(full(w), w.topic), inside=True),
    Case("DeleteTopics", E.TOPIC_DELETION_DISABLED, lambda w: remove(w, w.topic), 3, inside=True,
         settings={"delete_topic_enable": False}),
    Case("DeleteTopics", E.INVALID_REQUEST, lambda w: remove(w, w.topic), newest=2, inside=True,
         settings={"delete_topic_enable": False}),
    Case("CreatePartitions", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: grow(w, NOWHERE)),
    Case("CreatePartitions", E.INVALID_PARTITIONS, lambda w: grow(w, count=2)),
    Case("CreatePartitions", E.INVALID_PARTITIONS, lambda w: grow(w, count=1)),
    Case("CreatePartitions", E.INVALID_REPLICA_ASSIGNMENT, lambda w: grow(w, count=3, assignments=[[7]])),
    Case("CreatePartitions", E.INVALID_REPLICA_ASSIGNMENT, lambda w: grow(w, count=3, assignments=[[1], [1]])),
    Case("CreatePartitions", E.INVALID_REPLICA_ASSIGNMENT, lambda w: grow(w, count=3, assignments=[[]])),
    Case("CreatePartitions", E.INVALID_REQUEST, lambda w: grow(w, twice=2)),
    Case("DescribeConfigs", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: configs_of(w, TOPIC, NOWHERE)),
    Case("DescribeConfigs", E.INVALID_TOPIC_EXCEPTION, lambda w: configs_of(w, TOPIC, "a/b")),
    Case("DescribeConfigs", E.INVALID_REQUEST, lambda w: configs_of(w, BROKER, "7")),
    Case("DescribeConfigs", E.INVALID_REQUEST, lambda w: configs_of(w, 77, "x")),
    # Flakelog keeps no log levels or client metrics; group settings belong to a protocol that it does not serve.
    Case("DescribeConfigs", E.INVALID_REQUEST, lambda w: configs_of(w, LOGGER, "1"), kafka=E.NONE),
    Case("DescribeConfigs", E.INVALID_REQUEST, lambda w: configs_of(w, METRICS, "x"), kafka=E.NONE),
    *(Case(api, E.INVALID_REQUEST, lambda w: alter(w, METRICS, "x", "interval.ms", "100"), kafka=E.NONE)
      for api in ALTER),
    *(Case(api, E.INVALID_CONFIG, lambda w: alter(w, GROUP, "g", "consumer.session.timeout.ms", "50000"), kafka=E.NONE)
      for api in ALTER),
    *(Case(api, E.INVALID_REQUEST, lambda w: alter(w, GROUP, "", "consumer.session.timeout.ms", "50000"))
      for api in ALTER),
    *(Case(api, E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: retention(w, "1", NOWHERE)) for api in ALTER),
    *(Case(api, E.INVALID_CONFIG, lambda w: alter(w, TOPIC, w.topic, "no.such.setting", "1")) for api in ALTER),
    *(Case(api, E.INVALID_CONFIG, lambda w: retention(w, "soon")) for api in ALTER),
    *(Case(api, E.INVALID_REQUEST, lambda w: retention(w, None)) for api in ALTER),
    *(Case(api, E.INVALID_REQUEST, lambda w: alter(w, BROKER, "7", "log.cleaner.threads", "1")) for api in ALTER),
    *(Case(api, E.INVALID_REQUEST, lambda w: alter(w, 77, "x", "retention.ms", "1")) for api in ALTER),
    # Kafka never answers such a request.
    Case("AlterConfigs", E.INVALID_REQUEST, lambda w: retention(w, "1", twice=2), inside=True),
    Case("IncrementalAlterConfigs", E.INVALID_REQUEST, lambda w: retention(w, "1", twice=2)),
    # Kafka fails with an internal exception.
    Case("IncrementalAlterConfigs", E.INVALID_REQUEST, lambda w: retention(w, "1", operation=9),
         kafka=E.UNKNOWN_SERVER_ERROR),
    Case("IncrementalAlterConfigs", E.INVALID_CONFIG, lambda w: retention(w, "1", operation=2)),
    Case("ListConfigResources", E.UNSUPPORTED_VERSION, lambda w: w.ask(w.name, {"resource_types": [77]}), oldest=1),
    Case("DescribeTopicPartitions", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: pages(w, [NOWHERE])),
    Case("DescribeTopicPartitions", E.INVALID_TOPIC_EXCEPTION, lambda w: pages(w, ["a/b"])),
    Case("DescribeTopicPartitions", E.INVALID_REQUEST, lambda w: pages(w, ["a"], ("a", -1))),
]  # fmt: skip


def pages(world, names, cursor=None):
    place = None if cursor is None else dict(zip(("topic_name", "partition_index"), cursor, strict=True))
    asked = {"topics": [{"name": name} for name in names], "response_partition_limit": 100, "cursor": place}
    return world.ask("DescribeTopicPartitions", asked)


# --- groups ----------------------------------------------------------------------------------------------------------

LONG = "x" * 4_097  # longer than offset.metadata.max.bytes, 4,096


def by(world, wrong):
    """Send a request of the world's API as a member of a stable group; `wrong` overrides the member's fields."""
    member, generation = world.member()
    asked = {"member": member, "generation": generation, "instance": "seat"} | wrong
    return of_member(world, **asked)


def of_member(world, member, generation, instance, **more):
    static = {"instance": instance if world.version >= STATIC_SINCE[world.name] else None}
    if world.name == "SyncGroup":
        return world.sync(member, generation, **static)
    if world.name == "Heartbeat":
        return world.heartbeat(member, generation, **static)
    if world.name == "LeaveGroup":
        return world.leave(member, **static)
    if world.name == "JoinGroup":
        return world.join(member, **static)
    return world.commit(member, generation, **static)


STATIC_SINCE = {"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "LeaveGroup": 3, "OffsetCommit": 7}
MEMBERS = tuple(STATIC_SINCE)
GENERATIONS = ("SyncGroup", "Heartbeat", "OffsetCommit")


def new(world, **more):
    """Send a newcomer's JoinGroup to a stable group."""
    world.member()
    return world.join(**{"version": None} | more)


def without_group(world):
    world.coordinated()
    if world.name == "SyncGroup":
        return world.sync("m", 1, group_id="")
    if world.name == "Heartbeat":
        return world.heartbeat("m", 1, group="")
    if world.name == "JoinGroup":
        return world.join(group_id="")
    return world.leave("m", group="")


def of_unknown_group(world, generation=1):
    world.coordinated()
    return world.commit("m", generation)


def unstable(world):
    """Fetch an offset of an open transaction with `require_stable`."""
    producer = world.producer()
    world.coordinated()
    world.add_offsets(producer)
    world.commit_in(producer)
    return world.committed(require_stable=True)


def forget(world, topic=None, partition=0, group=None):
    topics = [{"name": topic or world.topic, "partitions": [{"partition_index": partition}]}]
    return world.ask("OffsetDelete", {"group_id": world.group if group is None else group, "topics": topics})


def groups(world, group=None):
    world.coordinated()
    return world.ask("DescribeGroups", {"groups": [world.group if group is None else group]})


def remove_group(world, group=None):
    return world.ask("DeleteGroups", {"groups_names": [world.group if group is None else group]})


def committed_once(world):
    world.coordinated()
    world.commit()


def of_other_kind(world):
    """Create a group whose members are not consumers."""
    world.coordinated()
    world.join(protocol_type="connect", instance="seat", version=9)


def commit_too_large(world):
    """Commit an offset whose record is larger than the offsets topic accepts."""
    world.coordinated()
    alter(World(world.line, "IncrementalAlterConfigs", 1), 2, OFFSETS, "max.message.bytes", "20")
    return world.commit()


def looked_for_in_vain(world):
    """Send a request to a coordinator before any FindCoordinator: its topic does not exist yet."""
    return of_coordinator(world)


def of_coordinator(world):
    asks = {
        "DescribeGroups": lambda: world.ask("DescribeGroups", {"groups": [world.group]}),
        "DeleteGroups": lambda: remove_group(world),
        "OffsetDelete": lambda: forget(world),
        "OffsetFetch": lambda: world.committed(),
        "InitProducerId": lambda: world.init(world.transactional_id),
        "AddPartitionsToTxn": lambda: world.add((1, 0)),
        "AddOffsetsToTxn": lambda: world.add_offsets((1, 0)),
        "EndTxn": lambda: world.end((1, 0)),
        "TxnOffsetCommit": lambda: world.commit_in((1, 0)),
        "DescribeTransactions": lambda: transactions(world, world.transactional_id),
    }
    return asks[world.name]() if world.name in asks else of_member(world, "m", 1, "seat")


def of_offline_coordinator(world):
    world.coordinated()
    world.find(world.transactional_id, 1)
    offline(world, OFFSETS)
    offline(world, TRANSACTIONS)
    return of_coordinator(world)


def transactions(world, *names):
    return world.ask("DescribeTransactions", {"transactional_ids": names})


def listed(world, pattern):
    asked = {"state_filters": [], "producer_id_filters": [], "transactional_id_pattern": pattern}
    return world.ask("ListTransactions", asked)


COORDINATED = (
    *MEMBERS, "OffsetFetch", "DescribeGroups", "DeleteGroups", "OffsetDelete", "InitProducerId", "AddPartitionsToTxn",
    "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit", "DescribeTransactions",
)  # fmt: skip

GROUPS = [
    *(Case(api, E.UNKNOWN_MEMBER_ID, lambda w: by(w, {"member": "nobody", "instance": None})) for api in MEMBERS),
    *(Case(api, E.ILLEGAL_GENERATION, lambda w: by(w, {"generation": 7})) for api in GENERATIONS),
    *(Case(api, E.FENCED_INSTANCE_ID, lambda w: by(w, {"member": "another"}), STATIC_SINCE[api]) for api in MEMBERS),
    *(Case(api, E.REBALANCE_IN_PROGRESS, lambda w: of_member(w, *w.rebalancing(), "seat"))
      for api in ("SyncGroup", "Heartbeat")),
    *(Case(api, E.INVALID_GROUP_ID, without_group) for api in ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup")),
    *(Case(api, E.NOT_COORDINATOR, looked_for_in_vain, inside=True) for api in COORDINATED),
    Case("OffsetCommit", E.UNKNOWN_SERVER_ERROR, commit_too_large, inside=True),
    *(Case(api, E.COORDINATOR_NOT_AVAILABLE, of_offline_coordinator, inside=True) for api in COORDINATED),
    Case("FindCoordinator", E.INVALID_REQUEST, lambda w: find(w, 7), oldest=1),
    Case("FindCoordinator", E.COORDINATOR_NOT_AVAILABLE,
         lambda w: w.coordinated() or offline(w, OFFSETS) and find(w, 0), inside=True),
    Case("JoinGroup", E.MEMBER_ID_REQUIRED, lambda w: w.coordinated() or w.join(), oldest=4),
    Case("JoinGroup", E.INVALID_SESSION_TIMEOUT, lambda w: new(w, session_timeout=10)),
    Case("JoinGroup", E.INVALID_SESSION_TIMEOUT, lambda w: new(w, session_timeout=1 << 30)),
    Case("JoinGroup", E.INCONSISTENT_GROUP_PROTOCOL, lambda w: new(w, protocol_type="connect")),
    Case("JoinGroup", E.INCONSISTENT_GROUP_PROTOCOL, lambda w: new(w, protocols=[{"name": "x", "metadata": b""}])),
    Case("JoinGroup", E.INCONSISTENT_GROUP_PROTOCOL, lambda w: w.coordinated() or w.join(protocols=[])),
    Case("JoinGroup", E.GROUP_MAX_SIZE_REACHED, lambda w: new(w), newest=3, inside=True,
         settings={"group_max_size": 1}),
    Case("JoinGroup", E.GROUP_MAX_SIZE_REACHED, lambda w: new(w, instance="other"), 5, inside=True,
         settings={"group_max_size": 1}),
    Case("SyncGroup", E.INCONSISTENT_GROUP_PROTOCOL, lambda w: w.sync(*w.member(), "seat", protocol_name="x"), 5),
    Case("SyncGroup", E.INCONSISTENT_GROUP_PROTOCOL, lambda w: w.sync(*w.member(), "seat", protocol_name=None), 5),
    Case("OffsetCommit", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.coordinated() or w.commit(topic=NOWHERE), newest=9),
    Case("OffsetCommit", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.coordinated() or w.commit(partition=7)),
    Case("OffsetCommit", E.UNKNOWN_TOPIC_ID, lambda w: w.coordinated() or w.commit(topic=NOWHERE), oldest=10),
    Case("OffsetCommit", E.OFFSET_METADATA_TOO_LARGE, lambda w: w.coordinated() or w.commit(note=LONG)),
    Case("OffsetCommit", E.ILLEGAL_GENERATION, of_unknown_group, newest=8),
    Case("OffsetCommit", E.GROUP_ID_NOT_FOUND, of_unknown_group, oldest=9),
    Case("OffsetCommit", E.REBALANCE_IN_PROGRESS, lambda w: of_member(w, *w.joined(), "seat")),
    Case("OffsetCommit", E.UNKNOWN_MEMBER_ID, lambda w: w.member() and w.commit()),
    Case("OffsetFetch", E.UNKNOWN_TOPIC_ID, lambda w: w.coordinated() or w.committed(NOWHERE), oldest=10),
    Case("OffsetFetch", E.UNSTABLE_OFFSET_COMMIT, unstable, oldest=7),
    Case("DescribeGroups", E.GROUP_ID_NOT_FOUND, groups, oldest=6),
    Case("DeleteGroups", E.GROUP_ID_NOT_FOUND, lambda w: w.coordinated() or remove_group(w)),
    Case("DeleteGroups", E.NON_EMPTY_GROUP, lambda w: w.member() and remove_group(w)),
    Case("OffsetDelete", E.GROUP_ID_NOT_FOUND, lambda w: w.coordinated() or forget(w)),
    Case("OffsetDelete", E.INVALID_GROUP_ID, lambda w: w.coordinated() or forget(w, group="")),
    Case("OffsetDelete", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: committed_once(w) or forget(w, NOWHERE)),
    Case("OffsetDelete", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: committed_once(w) or forget(w, partition=7)),
    Case("OffsetDelete", E.NON_EMPTY_GROUP, lambda w: of_other_kind(w) or forget(w)),
    Case("OffsetDelete", E.GROUP_SUBSCRIBED_TO_TOPIC, lambda w: subscribed(w)),
]  # fmt: skip


def find(world, kind):
    return world.ask("FindCoordinator", {"key": world.group, "key_type": kind, "coordinator_keys": [world.group]})


def subscribed(world):
    """Delete offsets of a topic that a member of the group subscribes to."""
    topic = world.topic.encode()
    metadata = b"\0\0\0\0\0\1" + len(topic).to_bytes(2, "big") + topic + b"\xff\xff\xff\xff"
    world.coordinated()
    answer = world.join(instance="seat", version=9, protocols=[{"name": "range", "metadata": metadata}])
    world.sync(answer.member_id, answer.generation_id, "seat", version=5)
    return forget(world)


# --- transactions ----------------------------------------------------------------------------------------------------


def fenced(world):
    """Return a producer whose transactional id another producer has taken."""
    old = world.producer()
    world.producer()
    return old


def ended(world):
    """Return a producer that has committed a transaction."""
    producer = world.producer()
    world.add(producer, version=3)
    world.write(producer)
    world.end(producer, version=3)
    world.until(lambda: transactions(world, world.transactional_id), lambda each: complete(each))
    return producer


def complete(answer):
    return answer.transaction_states[0].transaction_state.startswith("Complete")


def ongoing(world):
    producer = world.producer()
    world.add(producer, version=3)
    return producer


def stuck(world):
    """Return a producer whose EndTxn waits for a partition that cannot take its marker."""
    producer = ongoing(world)
    offline(world, world.topic)
    world.end(producer, version=3)
    return producer


def without_ids(world):
    """Use up the reserved producer ids, so that the next one needs a commit of the metadata."""
    metadata = world.broker.services.metadata
    while metadata.next_producer_id() % PRODUCER_ID_BLOCK < PRODUCER_ID_BLOCK - 1:
        pass
    return world


def end_in_last_epoch(world):
    """End a transaction in the last epoch, so that the next transaction needs another producer id."""
    producer = ongoing(world)
    core = world.broker.services.transactions.core
    core.apply(replace(core.get(world.transactional_id), producer_epoch=EPOCH_LAST))
    full(without_ids(world))
    return world.end((producer[0], EPOCH_LAST))


def with_offsets(world):
    """Return a producer whose transaction includes the group."""
    producer = world.producer()
    world.coordinated()
    world.add_offsets(producer, version=4)
    return producer


def of_member_in(world, wrong):
    """Send a TxnOffsetCommit on behalf of a group member; `wrong` overrides the member's fields."""
    member, generation = world.member()
    asked = {"member_id": member, "generation_id": generation, "group_instance_id": "seat"} | wrong
    return world.commit_in(with_offsets(world), **asked)


def init_again(world, producer):
    """Send InitProducerId with the producer's previous id and epoch (KIP-360)."""
    return world.init(world.transactional_id, producer=producer)


def init_with_open(world):
    world.producer()
    ongoing(world)
    return world.init(world.transactional_id)


BY_PRODUCER = {
    "AddPartitionsToTxn": lambda w, producer, **more: w.add(producer, **more),
    "AddOffsetsToTxn": lambda w, producer, **more: w.add_offsets(producer, **more),
    "EndTxn": lambda w, producer, **more: w.end(producer, **more),
}

TRANSACTED = [
    *(Case(api, E.PRODUCER_FENCED, lambda w: BY_PRODUCER[w.name](w, fenced(w)), 2) for api in BY_PRODUCER),
    *(Case(api, E.INVALID_PRODUCER_EPOCH, lambda w: BY_PRODUCER[w.name](w, fenced(w)), newest=1)
      for api in BY_PRODUCER),
    *(Case(api, E.INVALID_PRODUCER_ID_MAPPING, lambda w: w.producer() and BY_PRODUCER[w.name](w, (1 << 40, 0)))
      for api in BY_PRODUCER),
    *(Case(api, E.INVALID_PRODUCER_ID_MAPPING,
           lambda w: BY_PRODUCER[w.name](w, w.producer(), transactional_id="nobody")) for api in BY_PRODUCER),
    *(Case(api, E.INVALID_REQUEST, lambda w: BY_PRODUCER[w.name](w, w.producer(), transactional_id=""))
      for api in BY_PRODUCER),
    *(Case(api, E.CONCURRENT_TRANSACTIONS, lambda w: BY_PRODUCER[w.name](w, stuck(w)), newest=4, inside=True)
      for api in BY_PRODUCER),
    Case("AddPartitionsToTxn", E.TOPIC_AUTHORIZATION_FAILED,
         lambda w: w.coordinated() or w.add(w.producer(), (OFFSETS, 0))),
    Case("InitProducerId", E.KAFKA_STORAGE_ERROR, lambda w: full(without_ids(w)).init(), inside=True),
    Case("EndTxn", E.KAFKA_STORAGE_ERROR, end_in_last_epoch, oldest=5, inside=True),
    Case("InitProducerId", E.INVALID_REQUEST, lambda w: w.producer() and w.init("")),
    Case("InitProducerId", E.INVALID_TRANSACTION_TIMEOUT, lambda w: w.producer() and w.init("x", 0)),
    Case("InitProducerId", E.INVALID_TRANSACTION_TIMEOUT, lambda w: w.producer() and w.init("x", 1 << 30)),
    Case("InitProducerId", E.INVALID_REQUEST, lambda w: w.init(producer=(7, -1)), oldest=3),
    Case("InitProducerId", E.CONCURRENT_TRANSACTIONS, init_with_open),
    Case("InitProducerId", E.INVALID_PRODUCER_EPOCH, lambda w: twice_fenced(w), 3, 3),
    Case("InitProducerId", E.PRODUCER_FENCED, lambda w: twice_fenced(w), 4),
    Case("InitProducerId", E.PRODUCER_FENCED, lambda w: w.producer() and init_again(w, (1 << 40, 0)), 4),
    Case("AddPartitionsToTxn", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.add(w.producer(), (NOWHERE, 0))),
    Case("AddPartitionsToTxn", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.add(w.producer(), (w.topic, 7))),
    Case("AddPartitionsToTxn", E.OPERATION_NOT_ATTEMPTED, lambda w: w.add(w.producer(), (w.topic, 0), (NOWHERE, 0))),
    Case("EndTxn", E.INVALID_TXN_STATE, lambda w: w.end(w.producer()), newest=4),
    Case("EndTxn", E.INVALID_TXN_STATE, lambda w: w.end(ended(w), commit=False), newest=4),
    Case("TxnOffsetCommit", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.commit_in(with_offsets(w), NOWHERE)),
    Case("TxnOffsetCommit", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.commit_in(with_offsets(w), partition=7)),
    Case("TxnOffsetCommit", E.OFFSET_METADATA_TOO_LARGE, lambda w: w.commit_in(with_offsets(w), note=LONG)),
    Case("TxnOffsetCommit", E.INVALID_REQUEST,
         lambda w: w.coordinated() or w.commit_in(w.producer(), transactional_id="")),
    Case("TxnOffsetCommit", E.INVALID_GROUP_ID, lambda w: w.commit_in(with_offsets(w), group_id="")),
    Case("TxnOffsetCommit", E.UNKNOWN_MEMBER_ID,
         lambda w: of_member_in(w, {"member_id": "x", "group_instance_id": None}), 3),
    Case("TxnOffsetCommit", E.FENCED_INSTANCE_ID, lambda w: of_member_in(w, {"member_id": "x"}), 3),
    Case("TxnOffsetCommit", E.ILLEGAL_GENERATION, lambda w: of_member_in(w, {"generation_id": 7}), 3),
    Case("TxnOffsetCommit", E.INVALID_PRODUCER_EPOCH, lambda w: w.coordinated() or w.commit_in(fenced(w))),
    Case("TxnOffsetCommit", E.INVALID_PRODUCER_ID_MAPPING, lambda w: with_offsets(w) and w.commit_in((1 << 40, 0))),
    Case("TxnOffsetCommit", E.INVALID_TXN_STATE, lambda w: w.coordinated() or w.commit_in(w.producer()), newest=3),
    Case("TxnOffsetCommit", E.TRANSACTION_ABORTABLE, lambda w: w.coordinated() or w.commit_in(w.producer()), 4, 4),
    # Kafka adds the group automatically from v5 on, as it adds a partition from Produce v12 on.
    Case("TxnOffsetCommit", E.TRANSACTION_ABORTABLE, lambda w: w.coordinated() or w.commit_in(w.producer()), 5,
         kafka=E.NONE),
    Case("WriteTxnMarkers", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.mark((1, 0), NOWHERE)),
    Case("WriteTxnMarkers", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.mark((1, 0), partition=7)),
    Case("WriteTxnMarkers", E.INVALID_PRODUCER_EPOCH, lambda w: mark_late(w)),
    # Kafka accepts any epoch and later refuses earlier ones, so its coordinator could no longer end a transaction
    # there.
    Case("WriteTxnMarkers", E.TRANSACTION_COORDINATOR_FENCED, lambda w: w.mark(ongoing(w), coordinator_epoch=7),
         kafka=E.NONE),
    Case("WriteTxnMarkers", E.TRANSACTION_COORDINATOR_FENCED, lambda w: mark_earlier(w)),
    Case("WriteTxnMarkers", E.BROKER_NOT_AVAILABLE, lambda w: mark_many_twice(w), inside=True,
         settings={"marker_requests_max": 1}),
    Case("WriteTxnMarkers", E.KAFKA_STORAGE_ERROR, lambda w: w.mark((1, 0), offline(w)), inside=True),
    Case("ListTransactions", E.INVALID_REGULAR_EXPRESSION, lambda w: listed(w, "(a"), oldest=2),
    *(Case("ListTransactions", E.INVALID_REGULAR_EXPRESSION, lambda w, pattern=pattern: listed(w, pattern), oldest=2,
           kafka=E.NONE) for pattern in (r"\bpay.*", "(?m)^pay", r"\pL+")),
    Case("ListTransactions", E.INVALID_REGULAR_EXPRESSION, lambda w: w.producer() and listed(w, "(a|pay.*)*x"), 2,
         inside=True, settings={"transactional_id_pattern_steps_max": 5}),
    Case("DescribeTransactions", E.TRANSACTIONAL_ID_NOT_FOUND, lambda w: w.producer() and transactions(w, "nobody")),
    Case("DescribeTransactions", E.INVALID_REQUEST, lambda w: w.producer() and transactions(w, "")),
]  # fmt: skip


def mark_many_twice(world):
    """Send markers for many partitions while the markers of another request are being written."""
    for _ in range(2):
        world.send("WriteTxnMarkers", world.markers((1, 0), partitions=range(100)))
    world.receive("WriteTxnMarkers")
    return world.receive("WriteTxnMarkers")


def mark_late(world):
    """Send a marker of a producer epoch that is over."""
    topic = world.create(1)
    world.produce(topic, of_producer(world, epoch=3), version=9)
    return world.mark((1_000_000 + world.number, 1), topic)


def mark_earlier(world):
    """Send a marker with an earlier coordinator epoch than the partition has seen."""
    topic, producer = world.create(1), (1_000_000 + world.number, 0)
    world.mark(producer, topic, coordinator_epoch=0)
    return world.mark(producer, topic, coordinator_epoch=-1)


def twice_fenced(world):
    """Ask for a producer's next epoch after two other producers have taken its transactional id."""
    old = world.producer()
    world.producer()
    world.producer()
    return init_again(world, old)


# --- the node and its administration ---------------------------------------------------------------------------------


def directory(world):
    """Return the broker's log directory."""
    (found,) = directory_of(world).results
    return found.log_dir


def directory_of(world):
    return world.ask("DescribeLogDirs", {"topics": []})


def lost(world):
    """Make every query of the data directory's space fail."""

    def space():
        raise StorageError("", "Input/output error")

    world.broker.storage.space = space
    return world


def move(world, path=None, topic=None, partition=0):
    topics = [{"name": topic or world.topic, "partitions": [partition]}]
    return world.ask("AlterReplicaLogDirs", {"dirs": [{"path": path or directory(world), "topics": topics}]})


def quorum(world, topic="__cluster_metadata", partition=0):
    asked = {"topic_name": topic, "partitions": [{"partition_index": partition}]}
    return world.ask("DescribeQuorum", {"topics": [asked]})


def elect(world, topic=None, partition=0, kind=0, timeout=10_000):
    asked = {"topic_partitions": [{"topic": topic or world.topic, "partitions": [partition]}], "timeout": timeout}
    return world.ask("ElectLeaders", asked | {"election_type": kind})


def reassign(world, replicas, topic=None, partition=0, **more):
    asked = {"name": topic or world.topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}
    return world.ask("AlterPartitionReassignments", {"timeout": 10_000, "topics": [asked]} | more)


def quota(world, entity, *ops, twice=1, validate_only=True):
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
    asked = [{"key": key, "value": value, "remove": False} for key, value in ops or (("producer_byte_rate", 1000.0),)]
    entries = {"entries": [{"entity": parts, "ops": asked}] * twice, "validate_only": validate_only}
    return world.ask("AlterClientQuotas", entries)


def another_quota(world):
    quota(world, [("user", "a")], validate_only=False)
    return quota(world, [("user", "b")], validate_only=False)


def quotas(world, *components):
    asked = [dict(zip(("entity_type", "match_type", "match"), each, strict=True)) for each in components]
    return world.ask("DescribeClientQuotas", {"components": asked, "strict": False})


def credential(world, name="ann", mechanism=1, iterations=4_096, twice=1):
    given = {"name": name, "mechanism": mechanism, "iterations": iterations, "salt": b"s", "salted_password": b"p"}
    return world.ask("AlterUserScramCredentials", {"deletions": [], "upsertions": [given] * twice})


def no_credential(world, name="nobody", mechanism=1):
    asked = {"deletions": [{"name": name, "mechanism": mechanism}], "upsertions": []}
    return world.ask("AlterUserScramCredentials", asked)


def credentials(world, *names):
    return world.ask("DescribeUserScramCredentials", {"users": [{"name": name} for name in names]})


def feature(world, name, level, kind=1):
    asked = [{"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": False}]
    return world.ask("UpdateFeatures", {"timeout": 10_000, "feature_updates": asked})


ANY_RULE = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
RULE = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip

NODE = [
    Case("ApiVersions", E.INVALID_REQUEST, lambda w: w.ask(w.name, {"client_software_name": "-"}), oldest=3),
    Case("DescribeCluster", E.MISMATCHED_ENDPOINT_TYPE, lambda w: w.ask(w.name, {"endpoint_type": 2}), oldest=1),
    Case("DescribeCluster", E.UNSUPPORTED_ENDPOINT_TYPE, lambda w: w.ask(w.name, {"endpoint_type": 7}), oldest=1),
    Case("AlterReplicaLogDirs", E.LOG_DIR_NOT_FOUND, lambda w: move(w, "/nowhere")),
    Case("AlterReplicaLogDirs", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: move(w, topic=NOWHERE)),
    Case("AlterReplicaLogDirs", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: move(w, partition=7)),
    Case("AlterReplicaLogDirs", E.KAFKA_STORAGE_ERROR, lambda w: move(w, topic=offline(w)), inside=True),
    Case("DescribeQuorum", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: quorum(w, NOWHERE)),
    Case("DescribeQuorum", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: quorum(w, partition=7)),
    Case("ElectLeaders", E.ELECTION_NOT_NEEDED, elect),
    Case("ElectLeaders", E.REQUEST_TIMED_OUT, lambda w: elect(w, timeout=0)),
    Case("AlterPartitionReassignments", E.REQUEST_TIMED_OUT, lambda w: reassign(w, [1], timeout=0)),
    Case("ElectLeaders", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: elect(w, NOWHERE)),
    Case("ElectLeaders", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: elect(w, partition=7)),
    Case("ElectLeaders", E.INVALID_REQUEST, lambda w: elect(w, kind=7), oldest=1),
    Case("AlterPartitionReassignments", E.INVALID_REPLICA_ASSIGNMENT, lambda w: reassign(w, [7])),
    Case("AlterPartitionReassignments", E.INVALID_REPLICA_ASSIGNMENT, lambda w: reassign(w, [])),
    Case("AlterPartitionReassignments", E.INVALID_REPLICA_ASSIGNMENT, lambda w: reassign(w, [1, 1])),
    Case("AlterPartitionReassignments", E.NO_REASSIGNMENT_IN_PROGRESS, lambda w: reassign(w, None)),
    Case("AlterPartitionReassignments", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: reassign(w, [1], NOWHERE)),
    Case("AlterPartitionReassignments", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: reassign(w, [1], partition=7)),
    Case("DescribeAcls", E.SECURITY_DISABLED, lambda w: w.ask(w.name, ANY_RULE)),
    Case("CreateAcls", E.SECURITY_DISABLED, lambda w: w.ask(w.name, {"creations": [RULE]})),
    Case("DeleteAcls", E.SECURITY_DISABLED, lambda w: w.ask(w.name, {"filters": [ANY_RULE]})),
    Case("SaslHandshake", E.ILLEGAL_SASL_STATE, lambda w: w.ask(w.name, {"mechanism": "PLAIN"})),
    Case("SaslAuthenticate", E.ILLEGAL_SASL_STATE, lambda w: w.ask(w.name, {"auth_bytes": b"\0me\0secret"})),
    Case("UnregisterBroker", E.BROKER_ID_NOT_REGISTERED, lambda w: w.ask(w.name, {"broker_id": 7})),
    # Kafka unregisters the broker and leaves its partitions without a leader.
    Case("UnregisterBroker", E.INVALID_REQUEST, lambda w: w.ask(w.name, {"broker_id": 1}), inside=True),
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [])),
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [("planet", "mars")])),
    # Kafka uses the last of the two.
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [("user", "a"), ("user", "b")]), kafka=E.NONE),
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [("ip", "1.2.3.4"), ("user", "b")])),
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [("user", "a")], ("no_such_quota", 1.0))),
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [("user", "a")], ("producer_byte_rate", 0.5))),
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [("user", "a")], ("producer_byte_rate", -1.0))),
    Case("AlterClientQuotas", E.KAFKA_STORAGE_ERROR,
         lambda w: quota(full(w), [("user", "a")], validate_only=False), inside=True),
    Case("AlterClientQuotas", E.POLICY_VIOLATION, another_quota, inside=True, settings={"max_client_quotas": 1}),
    Case("DescribeClientQuotas", E.INVALID_REQUEST, lambda w: quotas(w, ("user", 0, "a"), ("user", 0, "b"))),
    Case("DescribeClientQuotas", E.INVALID_REQUEST, lambda w: quotas(w, ("user", 7, "a"))),
    Case("DescribeClientQuotas", E.INVALID_REQUEST, lambda w: quotas(w, ("user", 0, None))),
    Case("DescribeClientQuotas", E.UNSUPPORTED_VERSION, lambda w: quotas(w, ("planet", 0, "mars"))),
    Case("AlterUserScramCredentials", E.UNACCEPTABLE_CREDENTIAL, lambda w: credential(w, iterations=1)),
    Case("AlterUserScramCredentials", E.UNACCEPTABLE_CREDENTIAL, lambda w: credential(w, iterations=1 << 20)),
    Case("AlterUserScramCredentials", E.UNACCEPTABLE_CREDENTIAL, lambda w: credential(w, "")),
    Case("AlterUserScramCredentials", E.UNSUPPORTED_SASL_MECHANISM, lambda w: credential(w, mechanism=7)),
    Case("AlterUserScramCredentials", E.DUPLICATE_RESOURCE, lambda w: credential(w, twice=2)),
    Case("AlterUserScramCredentials", E.RESOURCE_NOT_FOUND, no_credential),
    Case("AlterUserScramCredentials", E.KAFKA_STORAGE_ERROR, lambda w: credential(full(w)), inside=True),
    Case("AlterUserScramCredentials", E.POLICY_VIOLATION, lambda w: credential(w) and credential(w, "bob"), inside=True,
         settings={"max_scram_credentials": 1}),
    Case("DescribeLogDirs", E.KAFKA_STORAGE_ERROR, lambda w: directory_of(lost(w)), inside=True),
    Case("DescribeUserScramCredentials", E.RESOURCE_NOT_FOUND, lambda w: credentials(w, "nobody")),
    Case("DescribeUserScramCredentials", E.DUPLICATE_RESOURCE, lambda w: credentials(w, "nobody", "nobody")),
    Case("UpdateFeatures", E.INVALID_UPDATE_VERSION, lambda w: feature(w, "metadata.version", 99)),
    Case("UpdateFeatures", E.INVALID_UPDATE_VERSION, lambda w: feature(w, "no.such.feature", 1)),
]  # fmt: skip

CASES = [*PRODUCE, *READS, *TOPICS, *GROUPS, *TRANSACTED, *NODE]
