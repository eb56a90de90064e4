"""Topics with many partitions: their logs are made a few at a time, so that other clients do not wait for the disk."""

import pytest

from broker.log.new_logs import ASKED_FOR, SLICE_EVERY_MS
from broker.log.storage.port import StorageError
from broker.settings.config import BrokerConfig, TopicConfig
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import CREATE_TOPICS, DELETE_TOPICS, METADATA, EngineBroker

PARTITIONS = 300
LOGS_PER_STEP = BrokerConfig().max_new_logs_at_once


@pytest.fixture
def broker():
    return EngineBroker()


@pytest.fixture
def client(broker):
    """Return a client that has just created its topic."""
    client = broker.connect()
    topic = {"name": "flights", "num_partitions": PARTITIONS, "replication_factor": 1}
    assert client.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1_000}).topics[0].error_code == 0
    return client


def made(broker):
    return len(broker.services.logs.all())


def test_the_first_are_made_immediately_and_the_others_in_steps(broker, client):
    counts = []
    for _ in range(4):
        counts.append(made(broker))
        broker.at(broker.now_ms + SLICE_EVERY_MS)
    assert counts == [LOGS_PER_STEP, 3 * LOGS_PER_STEP, 4 * LOGS_PER_STEP, 5 * LOGS_PER_STEP]
    broker.at(broker.now_ms + PARTITIONS * SLICE_EVERY_MS)
    assert (made(broker), broker.services.logs.to_make) == (PARTITIONS, 0)


def test_how_many_are_made_in_a_step_is_a_setting():
    """The setting is flakelog.max.new.logs.at.once; on a slow disk all clients wait while these logs are made."""
    broker = EngineBroker(max_new_logs_at_once=1)
    topic = {"name": "flights", "num_partitions": 3, "replication_factor": 1}
    broker.connect().ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1_000})
    assert made(broker) == 1
    broker.at(broker.now_ms)
    assert made(broker) == 2


def test_clients_see_all_of_them_from_the_start(client):
    (topic,) = client.ask(METADATA, 12, {"topics": [{"name": "flights"}]}).topics
    assert len(topic.partitions) == PARTITIONS


def test_one_that_is_asked_for_is_made_immediately(broker, client):
    assert client.produce("flights", b"a", partition=PARTITIONS - 1).error_code == 0
    assert client.fetch("flights", partition=PARTITIONS - 1) == [b"a"]
    assert made(broker) == LOGS_PER_STEP + 1


def test_a_client_that_asks_for_too_many_is_asked_to_retry(broker, client):
    """A client that receives NOT_LEADER_OR_FOLLOWER fetches the metadata and tries again."""
    errors = [client.produce("flights", b"a", partition=n).error_code for n in range(100, 100 + ASKED_FOR + 1)]
    assert errors == [ErrorCode.NONE] * ASKED_FOR + [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    broker.at(broker.now_ms + SLICE_EVERY_MS)
    assert client.produce("flights", b"a", partition=100 + ASKED_FOR).error_code == 0


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_makes_those_that_are_left(broker, client, clean):
    client.produce("flights", b"a", partition=PARTITIONS - 1)
    again = broker.restarted(clean=clean)
    assert made(again) == PARTITIONS
    if clean:
        assert again.connect().fetch("flights", partition=PARTITIONS - 1) == [b"a"]


def test_a_topic_that_is_deleted_before_it_is_whole_leaves_nothing(broker, client):
    client.ask(DELETE_TOPICS, 6, {"topics": [{"name": "flights"}], "timeout": 1_000})
    broker.at(broker.now_ms + 10_000)
    assert (made(broker), broker.services.logs.to_make) == (0, 0)
    assert not [name for name in broker.storage.list("") if name.startswith("flights")]


def test_settings_that_change_meanwhile_hold_for_all(broker, client):
    broker.services.logs.configure({"flights": TopicConfig(max_message_bytes=77)})
    broker.at(broker.now_ms + PARTITIONS * SLICE_EVERY_MS)
    assert {log.config.max_message_bytes for log in broker.services.logs.all()} == {77}


def test_on_a_full_disk_they_wait_for_room(broker, client, monkeypatch):
    make_directory = broker.storage.make_directory

    def full(*paths):
        raise StorageError(paths[0], "No space left on device", full=True)

    monkeypatch.setattr(broker.storage, "make_directory", full)
    broker.at(broker.now_ms + 5 * SLICE_EVERY_MS)
    assert made(broker) == LOGS_PER_STEP
    assert client.produce("flights", b"a", partition=200).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert client.produce("flights", b"a", partition=0).error_code == 0
    assert f"{PARTITIONS - LOGS_PER_STEP} partitions of new topics cannot be made yet" in broker.reported[0]
    monkeypatch.setattr(broker.storage, "make_directory", make_directory)
    broker.at(broker.now_ms + 10_000)
    assert made(broker) == PARTITIONS and len(broker.reported) == 1
