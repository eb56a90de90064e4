"""Rows of the table of errors: topics and their settings."""

from broker.wire.errors import ErrorCode as E
from tests.broker.any_api import create_topic
from tests.broker.every_error.case import ELSEWHERE, NOWHERE, OFFSETS, Case, full
from tests.broker.every_error.node import quota

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
ALTER = ("AlterConfigs", "IncrementalAlterConfigs")


def metadata(world, *names, create=False):
    topics = [{"name": name, "topic_id": None} for name in names]
    return world.ask("Metadata", {"topics": topics, "allow_auto_topic_creation": create})


def too_many_created(world):
    return metadata(world, *(f"new-{world.number}-{n}" for n in range(3)), create=True)


def metadata_by_id(world, topic_id):
    fields = {"topics": [{"name": None, "topic_id": topic_id}], "allow_auto_topic_creation": False}
    return world.ask("Metadata", fields)


def make(world, name=None, twice=1, configs=(), timeout=30_000, **more):
    name = name or f"new-{world.number}-{world.version}"
    named = [{"name": key, "value": value} for key, value in configs]
    fields = create_topic(name, configs=named, **more)
    return world.ask("CreateTopics", fields | {"topics": fields["topics"] * twice, "timeout": timeout})


def assigned(*replicas):
    given = [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(replicas)]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": given}


def remove(world, *names, ids=(), timeout=30_000):
    by_name = [{"name": name, "topic_id": None} for name in names]
    topics = by_name + [{"name": None, "topic_id": topic_id} for topic_id in ids]
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


def configs_of(world, kind, name):
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    return world.ask("DescribeConfigs", {"resources": [resource]})


def alter(world, kind, name, key, value, operation=0, twice=1):
    """Send AlterConfigs or IncrementalAlterConfigs."""
    config = {"name": key, "value": value}
    config |= {"config_operation": operation} if world.name == "IncrementalAlterConfigs" else {}
    resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
    return world.ask(world.name, {"resources": [resource] * twice, "validate_only": False})


def retention(world, value, topic=None, **more):
    return alter(world, TOPIC, topic or world.topic, "retention.ms", value, **more)


TOPICS = [
    Case("CreateTopics", E.NOT_CONTROLLER, make, **ELSEWHERE),
    Case("DeleteTopics", E.NOT_CONTROLLER, lambda w: remove(w, NOWHERE), **ELSEWHERE),
    Case("CreatePartitions", E.NOT_CONTROLLER, lambda w: grow(w, NOWHERE), **ELSEWHERE),
    Case("Metadata", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: metadata(w, NOWHERE), oldest=4),
    Case("Metadata", E.INVALID_TOPIC_EXCEPTION, lambda w: metadata(w, "a/b")),
    Case("Metadata", E.UNKNOWN_TOPIC_ID, lambda w: metadata_by_id(w, w.id_of(NOWHERE)), oldest=12),
    Case("Metadata", E.INVALID_REQUEST, lambda w: metadata_by_id(w, w.id_of(NOWHERE)), oldest=10, newest=11),
    Case("Metadata", E.LEADER_NOT_AVAILABLE, too_many_created, inside=True, settings={"auto_create_topics_max": 2}),
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
    cursor_fields = None if cursor is None else dict(zip(("topic_name", "partition_index"), cursor, strict=True))
    fields = {"topics": [{"name": name} for name in names], "response_partition_limit": 100, "cursor": cursor_fields}
    return world.ask("DescribeTopicPartitions", fields)
