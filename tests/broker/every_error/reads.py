"""Rows of the table of errors: Fetch, and other APIs that read, find or delete records."""

from broker.settings.config import LONG_MAX
from broker.wire.errors import ErrorCode as E
from tests.broker.any_api import batch_of, offsets_of
from tests.broker.every_error.case import FAR_AHEAD_MS, NOWHERE, OFFSETS, Case, offline


def damaged(world):
    """Return a topic with a batch that the disk has changed; its timestamp is later than all others."""
    topic = world.create(1, message_timestamp_after_max_ms=LONG_MAX)
    world.produce(topic, batch_of(time_ms=FAR_AHEAD_MS), version=9)
    world.broker.storage.files[f"{topic}-0/{0:020d}.log"].data[-1] ^= 1
    return topic


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


def offsets(world, topic=None, partition=0, twice=1, **fields):
    wanted = offsets_of(topic or world.topic, [partition] * twice, **fields)
    return world.ask("ListOffsets", {"replica_id": -1, "isolation_level": 0, "topics": [wanted], "timeout": 1_000})


def epoch_end(world, topic=None, partition=0, current=-1):
    partition_fields = {"partition": partition, "current_leader_epoch": current, "leader_epoch": 0}
    topics = [{"topic": topic or world.topic, "partitions": [partition_fields]}]
    return world.ask("OffsetForLeaderEpoch", {"replica_id": -1, "topics": topics})


def delete_records(world, topic=None, partition=0, offset=0):
    topic_fields = {"name": topic or world.topic, "partitions": [{"partition_index": partition, "offset": offset}]}
    return world.ask("DeleteRecords", {"topics": [topic_fields], "timeout": 10_000})


def producers(world, topic=None, partition=0):
    topic_fields = {"name": topic or world.topic, "partition_indexes": [partition]}
    return world.ask("DescribeProducers", {"topics": [topic_fields]})


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
    Case("ListOffsets", E.CORRUPT_MESSAGE, lambda w: offsets(w, damaged(w), timestamp=FAR_AHEAD_MS), inside=True),
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
