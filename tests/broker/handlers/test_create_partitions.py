"""CreatePartitions through the wire (KIP-195)."""

from dataclasses import replace

import pytest

from broker.log.storage.port import StorageError
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import CREATE_PARTITIONS, METADATA, EngineBroker


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights", 2)
    return broker


@pytest.fixture
def client(broker):
    return broker.connect()


def growth(name, count, assignments=None):
    return {
        "name": name,
        "count": count,
        "assignments": None if assignments is None else [{"broker_ids": ids} for ids in assignments],
    }


def grow(client, *topics, version=3, validate_only=False):
    fields = {"topics": topics, "timeout": 1_000, "validate_only": validate_only}
    return [(result.name, result.error_code) for result in client.ask(CREATE_PARTITIONS, version, fields).results]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_topic_gets_more_partitions_and_stays_what_it_is(broker, client, version):
    before = broker.services.metadata.topic("flights")
    client.produce("flights", b"old", partition=1)
    assert grow(client, growth("flights", 4), version=version) == [("flights", 0)]
    client.produce("flights", b"new", partition=3)
    for reader in (client, broker.restarted(clean=False).connect()):
        (topic,) = reader.ask(METADATA, 12, {"topics": [{"name": "flights"}]}).topics
        assert (topic.topic_id, [p.partition_index for p in topic.partitions]) == (before.id, [0, 1, 2, 3])
        assert [reader.fetch("flights", partition=n) for n in range(4)] == [[], [b"old"], [], [b"new"]]


def test_new_partitions_have_the_topics_settings(broker, client):
    broker.create("small", segment_bytes=4096)
    assert grow(client, growth("small", 2)) == [("small", 0)]
    assert broker.services.logs.get("small", 1).config.segment_bytes == 4096


@pytest.mark.parametrize("count", [-1, 0, 1, 2])
def test_a_topic_never_gets_fewer_partitions_or_as_many_as_it_has(client, count):
    assert grow(client, growth("flights", count)) == [("flights", ErrorCode.INVALID_PARTITIONS)]


def test_validating_makes_nothing(broker, client):
    assert grow(client, growth("flights", 4), validate_only=True) == [("flights", 0)]
    assert grow(client, growth("flights", 1), validate_only=True) == [("flights", ErrorCode.INVALID_PARTITIONS)]
    assert len(broker.services.metadata.topic("flights").partitions) == 2


def test_each_topic_is_grown_or_refused_by_itself(broker, client):
    broker.create("trains")
    topics = [growth("nowhere", 2), growth("trains", 2), growth("flights", 3), growth("flights", 4)]
    assert grow(client, *topics) == [
        ("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("trains", ErrorCode.NONE),
        ("flights", ErrorCode.INVALID_REQUEST),
    ]
    assert len(broker.services.metadata.topic("flights").partitions) == 2


@pytest.mark.parametrize("assignments", [[], [[1]], [[1], []], [[1], [2]], [[1], [1, 1]], [[1]] * 3])
def test_an_assignment_must_fit_the_new_partitions_and_the_nodes(client, assignments):
    assert grow(client, growth("flights", 4, assignments)) == [("flights", ErrorCode.INVALID_REPLICA_ASSIGNMENT)]


def test_new_partitions_can_be_assigned(broker, client):
    assert grow(client, growth("flights", 4, [[1], [1]])) == [("flights", 0)]
    assert len(broker.services.metadata.topic("flights").partitions) == 4


def test_one_request_makes_ten_thousand_partitions_at_most(client):
    """CreateTopics has the same limit, because the broker serves no client while it makes the partitions."""
    assert grow(client, growth("flights", 10_003)) == [("flights", ErrorCode.INVALID_PARTITIONS)]


def test_partitions_whose_logs_cannot_be_made_are_taken_back(broker, client, monkeypatch):
    open_file, opened = broker.storage.open, []

    def open_some(path, create=False):
        opened.append(path)
        if len(opened) > 6:
            raise StorageError(path, "Too many open files")
        return open_file(path, create)

    monkeypatch.setattr(broker.storage, "open", open_some)
    assert grow(client, growth("flights", 5)) == [("flights", ErrorCode.KAFKA_STORAGE_ERROR)]
    monkeypatch.undo()
    assert len(broker.services.metadata.topic("flights").partitions) == 2
    assert grow(client, growth("flights", 5)) == [("flights", 0)]
    assert broker.services.logs.offline == {}


def test_a_disk_that_takes_no_metadata_is_answered(broker, client, monkeypatch):
    def full(path, data):
        raise StorageError(path, "No space left on device")

    monkeypatch.setattr(broker.storage, "replace", full)
    assert grow(client, growth("flights", 5)) == [("flights", ErrorCode.KAFKA_STORAGE_ERROR)]
    assert len(broker.services.metadata.topic("flights").partitions) == 2


def test_partitions_past_the_limit_of_all_topics_are_refused(broker, client):
    broker.services.config = replace(broker.services.config, max_partitions=40)
    assert grow(client, growth("flights", 50)) == [("flights", ErrorCode.INVALID_PARTITIONS)]


@pytest.mark.parametrize("validate_only", [False, True])
def test_the_topic_of_a_coordinator_keeps_its_partitions(broker, client, validate_only):
    """A group is kept in the partition that its id and their number select, so it would not be found any more."""
    broker.create("__consumer_offsets", 2)
    topics = [growth("__consumer_offsets", 3), growth("flights", 3)]
    assert grow(client, *topics, validate_only=validate_only) == [
        ("__consumer_offsets", ErrorCode.INVALID_REQUEST),
        ("flights", 0),
    ]
    assert len(broker.services.metadata.topic("__consumer_offsets").partitions) == 2
