"""Requests about many topics: each makes one commit of the metadata, because a commit delays all clients."""

import pytest

from broker.settings.config import BrokerConfig
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    EngineBroker,
)

LOGS_PER_STEP = BrokerConfig().max_new_logs_at_once
NAMES = [f"flights-{number}" for number in range(100)]
FULL = ErrorCode.KAFKA_STORAGE_ERROR


@pytest.fixture
def broker():
    return EngineBroker()


@pytest.fixture
def client(broker):
    return broker.connect()


def create(client, names=NAMES):
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()} for name in names
    ]
    return codes(client.ask(CREATE_TOPICS, 7, {"topics": topics, "timeout": 1_000, "validate_only": False}).topics)


def grow(client, names=NAMES):
    topics = [{"name": name, "count": 3, "assignments": None} for name in names]
    return codes(client.ask(CREATE_PARTITIONS, 3, {"topics": topics, "timeout": 1_000}).results)


def alter(client, names=NAMES):
    configs = [{"name": "segment.bytes", "config_operation": 0, "value": "4096"}]
    resources = [{"resource_type": 2, "resource_name": name, "configs": configs} for name in names]
    return codes(client.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": False}).responses)


def delete(client, names=NAMES):
    topics = [{"name": name, "topic_id": None} for name in names]
    return codes(client.ask(DELETE_TOPICS, 6, {"topics": topics, "timeout": 1_000}).responses)


def ask_for(client, names=NAMES):
    topics = [{"name": name} for name in names]
    return codes(client.ask(METADATA, 12, {"topics": topics, "allow_auto_topic_creation": True}).topics)


def codes(answers):
    return [answer.error_code for answer in answers]


def fill_disk(broker, monkeypatch):
    monkeypatch.setattr(broker.storage, "free_bytes", 0)


def full_for_directories(broker, monkeypatch):
    broker.storage.failing_opens.add(f"{NAMES[LOGS_PER_STEP - 1]}-0/00000000000000000000.log")


@pytest.mark.parametrize("change", [grow, alter, delete])
def test_what_a_request_changes_of_many_topics_is_one_commit(broker, client, change):
    create(client)
    commits = broker.services.local.commits
    assert change(client) == [0] * len(NAMES)
    assert broker.services.local.commits == commits + 1


@pytest.mark.parametrize("make", [create, ask_for])
def test_a_request_for_many_topics_is_one_commit_and_makes_a_few_logs_in_a_step(broker, client, make):
    """The other logs are made between requests, or as soon as a client uses one."""
    commits, some = broker.services.local.commits, NAMES[:50]
    assert make(client, some) == [0] * len(some)
    assert broker.services.local.commits == commits + 1
    assert (len(broker.services.logs.all()), broker.services.logs.to_make) == (LOGS_PER_STEP, len(some) - LOGS_PER_STEP)
    client.produce(some[-1], b"a")
    assert client.fetch(some[-1]) == [b"a"]
    again = broker.restarted(clean=False)
    assert [topic.name for topic in again.services.metadata.topics()] == sorted(some)
    assert again.connect().fetch(some[-1]) == [b"a"]


def test_a_refused_topic_does_not_keep_its_neighbours_from_being_made(broker, client):
    assert create(client, ["a.b", "a/b", "c"]) == [0, 17, 0]
    assert ask_for(client, ["d.e", "a_b", "d_e"]) == [0, 17, 0]
    assert [topic.name for topic in broker.services.metadata.topics()] == ["a.b", "c", "d.e", "d_e"]


@pytest.mark.parametrize("trouble", [fill_disk, full_for_directories])
def test_where_the_disk_fails_none_of_them_is_made(broker, client, monkeypatch, trouble):
    trouble(broker, monkeypatch)
    assert create(client) == [FULL] * len(NAMES)
    assert (broker.services.metadata.topics(), broker.services.logs.all(), broker.services.logs.to_make) == ([], [], 0)
    monkeypatch.undo()
    broker.storage.failing_opens.clear()
    assert create(client) == [0] * len(NAMES)


@pytest.mark.parametrize("change", [grow, alter])
def test_on_a_full_disk_nothing_of_them_is_changed(broker, client, monkeypatch, change):
    create(client)
    before = broker.services.metadata.topics()
    fill_disk(broker, monkeypatch)
    assert change(client) == [FULL] * len(NAMES)
    assert broker.services.metadata.topics() == before


def test_on_a_full_disk_deleted_topics_stay_and_can_be_deleted_later(broker, client, monkeypatch):
    create(client)
    fill_disk(broker, monkeypatch)
    assert delete(client) == [FULL] * len(NAMES)
    assert len(broker.services.metadata.topics()) == len(NAMES)
    monkeypatch.undo()
    assert delete(client) == [0] * len(NAMES)
    assert broker.services.metadata.topics() == [] and not [n for n in broker.storage.list("") if "flights" in n]


def test_how_many_a_request_makes_is_a_setting():
    """The setting is flakelog.auto.create.topics.max; clients ask again for the other topics."""
    client, later = EngineBroker(auto_create_topics_max=2).connect(), ErrorCode.LEADER_NOT_AVAILABLE
    assert ask_for(client, NAMES[:3]) == [0, 0, later]
    assert ask_for(client, NAMES[:3]) == [0, 0, 0]


def test_how_many_partitions_a_request_makes_is_a_setting():
    """The setting is flakelog.new.partitions.max."""
    client = EngineBroker(new_partitions_max=2).connect()
    assert create(client, NAMES[:3]) == [0, 0, ErrorCode.POLICY_VIOLATION]
    assert grow(client, NAMES[:2]) == [0, ErrorCode.INVALID_PARTITIONS]
