"""Changes of the metadata are written by jobs, outside the engine's thread, and visible once they are on the disk."""

import json

import pytest

from broker.log.io_jobs import PutAway, WriteMetadata
from broker.log.storage.port import StorageError
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    ALTER_CONFIGS,
    ALTER_QUOTAS,
    ALTER_SCRAM,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUOTAS,
    DESCRIBE_SCRAM,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    EngineBroker,
    produce_request,
)
from tests.broker.watched_storage import WatchedStorage

EXISTS, FULL, TIMED_OUT = ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT


@pytest.fixture
def broker():
    broker = EngineBroker(WatchedStorage())
    broker.create("flights")
    return broker


def creating(name, partitions=1, timeout=30_000):
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": ()}
    return CREATE_TOPICS, 7, {"topics": [topic], "timeout": timeout, "validate_only": False}


def deleting(name):
    return DELETE_TOPICS, 6, {"topics": [{"name": name, "topic_id": None}], "timeout": 30_000}


def growing(name, count):
    topics = [{"name": name, "count": count, "assignments": None}]
    return CREATE_PARTITIONS, 3, {"topics": topics, "timeout": 30_000, "validate_only": False}


def altering(name, **values):
    configs = [{"name": key.replace("_", "."), "value": str(value)} for key, value in values.items()]
    resource = {"resource_type": 2, "resource_name": name, "configs": configs}
    return ALTER_CONFIGS, 2, {"resources": [resource], "validate_only": False}


def with_quota(value):
    entity = [{"entity_type": "client-id", "entity_name": "app"}]
    ops = [{"key": "producer_byte_rate", "value": value, "remove": False}]
    return ALTER_QUOTAS, 1, {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}


def with_user(name):
    user = {"name": name, "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"p" * 32}
    return ALTER_SCRAM, 0, {"deletions": (), "upsertions": [user]}


def finding(key, kind=0):
    return FIND_COORDINATOR, 3, {"key": key, "key_type": kind}


def beginning():
    fields = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    return INIT_PRODUCER_ID, 4, fields


def asking(*names, create=True):
    topics = [{"name": name} for name in names]
    return METADATA, 12, {"topics": topics, "allow_auto_topic_creation": create}


def code_of(answer):
    """Return the error of the first thing that an answer tells of."""
    for name in ("topics", "responses", "results", "entries"):
        if hasattr(answer, name):
            return getattr(answer, name)[0].error_code
    return answer.error_code


CHANGES = {
    "CreateTopics": creating("trains"),
    "DeleteTopics": deleting("flights"),
    "CreatePartitions": growing("flights", 3),
    "AlterConfigs": altering("flights", segment_bytes=4096),
    "AlterClientQuotas": with_quota(1_000.0),
    "AlterUserScramCredentials": with_user("ann"),
    "FindCoordinator": finding("readers"),
    "InitProducerId": beginning(),
    "Metadata": asking("trains"),
}
EACH_CHANGE = pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))


def seen(broker):
    """Return what clients see of the metadata."""
    client = broker.connect("looks")
    configs = {"resources": [{"resource_type": 2, "resource_name": "flights", "configuration_keys": None}]}
    topics = client.ask(METADATA, 12, {"topics": None, "allow_auto_topic_creation": False}).topics
    return (
        sorted((topic.name, topic.topic_id, len(topic.partitions)) for topic in topics),
        [(config.name, config.value) for config in client.ask(DESCRIBE_CONFIGS, 2, configs).results[0].configs],
        len(client.ask(DESCRIBE_QUOTAS, 1, {"components": (), "strict": False}).entries),
        [result.user for result in client.ask(DESCRIBE_SCRAM, 0, {"users": None}).results],
    )


# --- the order -------------------------------------------------------------------------------------------------------


@EACH_CHANGE
def test_a_change_is_answered_and_visible_once_it_is_on_the_disk(broker, change):
    """Its connection waits, as on Kafka; the others are served meanwhile."""
    client, before = broker.connect(), seen(broker)
    held = broker.hold_syncs()
    client.send(*change)
    after = client.send(PRODUCE, 9, produce_request("flights", b"later"))
    assert [type(job) for job in held] == [WriteMetadata]
    assert (client.answered(), seen(broker)) == ([], before)
    assert broker.connect().produce("flights", b"meanwhile").error_code == 0
    broker.release()
    (_, answer), (last, _) = client.replies()
    assert (code_of(answer), last) == (0, after)
    assert (seen(broker) == before) == (change[0] == INIT_PRODUCER_ID)


@EACH_CHANGE
def test_a_change_that_was_answered_outlives_a_power_cut(broker, change):
    client = broker.connect()
    client.send(*change)
    assert code_of(client.replies()[0][1]) == 0
    seen_before = seen(broker)
    broker.storage = broker.storage.power_cut(lambda n: 0)
    again = broker.restarted(clean=False)
    assert seen(again) == seen_before and not again.reported
    if change[0] == INIT_PRODUCER_ID:
        assert again.connect().ask(*beginning()).producer_id >= 1_000


@EACH_CHANGE
def test_a_write_that_fails_changes_nothing_and_is_answered_so(broker, change):
    client, before = broker.connect(), seen(broker)
    broker.storage.free_bytes = 0
    client.send(*change)
    ((_, answer),) = client.replies()
    expected = ErrorCode.COORDINATOR_NOT_AVAILABLE if change[0] == FIND_COORDINATOR else FULL
    assert (code_of(answer), seen(broker)) == (expected, before)
    broker.storage.free_bytes = None
    assert broker.connect().produce("flights", b"a").error_code == 0, "the old state serves on"
    client.send(*change)
    assert code_of(client.replies()[0][1]) == 0


def test_a_fault_in_the_write_is_reported_and_answered(broker):
    client = broker.connect()
    broker.storage.faults["metadata.json"] = ZeroDivisionError()
    client.send(*creating("trains"))
    assert code_of(client.replies()[0][1]) == FULL
    assert "ZeroDivisionError" in broker.reported[-1]
    del broker.storage.faults["metadata.json"]
    client.send(*creating("trains"))
    assert code_of(client.replies()[0][1]) == 0


# --- many at once ----------------------------------------------------------------------------------------------------


def test_changes_that_come_while_a_write_runs_share_the_next_one(broker):
    clients = [broker.connect() for _ in range(20)]
    before, held = broker.services.local.commits, broker.hold_syncs()
    for number, client in enumerate(clients):
        client.send(*creating(f"topic-{number}"))
    assert len(held) == 1
    broker.release()
    assert [code_of(client.replies()[0][1]) for client in clients] == [0] * 20
    assert broker.services.local.commits == before + 2


def test_changes_of_one_turn_share_a_write(broker):
    clients = [broker.connect() for _ in range(3)]
    before = broker.services.local.commits
    with broker.turn():
        for client, change in zip(clients, (creating("a"), creating("b"), with_quota(1.0)), strict=True):
            client.send(*change)
    assert [code_of(client.replies()[0][1]) for client in clients] == [0] * 3
    assert broker.services.local.commits == before + 1


def test_of_two_creations_of_one_name_the_second_is_refused(broker):
    """It is checked after the write of the first, so it is refused for a topic that exists."""
    first, second, dotted = (broker.connect() for _ in range(3))
    with broker.turn():
        first.send(*creating("trains_1"))
        second.send(*creating("trains_1"))
        dotted.send(*creating("trains.1"))
    assert [code_of(client.replies()[0][1]) for client in (first, second, dotted)] == [0, EXISTS, 17]


def test_a_creation_behind_one_that_fails_is_made(broker):
    first, second = broker.connect(), broker.connect()
    held = broker.hold_syncs()
    first.send(*creating("trains"))
    second.send(*creating("trains"))
    broker.storage.free_bytes = 0
    broker.run(held.pop())
    broker.storage.free_bytes = None
    broker.pump()
    broker.release()
    assert [code_of(client.replies()[0][1]) for client in (first, second)] == [FULL, 0]


def test_quotas_that_are_set_at_once_are_all_kept(broker):
    clients = [broker.connect() for _ in range(3)]
    with broker.turn():
        for client, name in zip(clients, "abc", strict=True):
            change = with_quota(1.0)
            change[2]["entries"][0]["entity"][0]["entity_name"] = name
            client.send(*change)
    assert len(broker.services.metadata.quotas) == 3


def test_settings_of_the_broker_hold_for_topics_that_are_made_beside(broker):
    """They are the topics' defaults, so they share their write with no other change."""
    admin, client = broker.connect(), broker.connect()
    configs = [{"name": "log.retention.ms", "value": "5000"}]
    resource = {"resource_type": 4, "resource_name": "", "configs": configs}
    with broker.turn():
        client.send(*creating("before"))
        admin.send(ALTER_CONFIGS, 2, {"resources": [resource], "validate_only": False})
        broker.connect().send(*creating("after"))
    assert [broker.services.log_of(name, 0).config.retention_ms for name in ("before", "after")] == [5_000] * 2


def test_topics_that_many_ask_for_at_once_are_made_once(broker):
    clients = [broker.connect() for _ in range(5)]
    with broker.turn():
        for client in clients:
            client.send(*asking("trains"))
    topic_ids = {client.replies()[0][1].topics[0].topic_id for client in clients}
    assert topic_ids == {broker.services.metadata.topic("trains").id}


def test_an_answer_comes_at_the_time_limit_of_its_request_though_the_disk_goes_on(broker):
    client, behind = broker.connect(), broker.connect()
    broker.hold_syncs()
    client.send(*creating("trains", timeout=1_000))
    behind.send(*creating("trains", timeout=2_000))
    broker.at(broker.now_ms + 2_000)
    assert [code_of(waiting.replies()[0][1]) for waiting in (client, behind)] == [TIMED_OUT] * 2
    broker.release()
    assert code_of(client.ask(*creating("trains"))) == EXISTS


def test_a_closed_connection_does_not_hold_its_change_back(broker):
    client = broker.connect()
    broker.hold_syncs()
    client.send(*creating("trains"))
    broker.engine.closed(client.conn)
    broker.release()
    assert broker.services.metadata.topic("trains") is not None and len(broker.services.purgatory) == 0


# --- producer ids ----------------------------------------------------------------------------------------------------


def test_the_next_producer_ids_are_reserved_before_the_last_are_gone(broker):
    """So only the first InitProducerId after a start waits for the disk."""
    client = broker.connect()
    ids = [client.ask(*beginning()).producer_id for _ in range(905)]
    assert broker.services.local.producer_ids.left > 1_000
    broker.hold_syncs()
    ids += [client.ask(*beginning()).producer_id for _ in range(100)]
    assert ids == list(range(1_005))


# --- deletion --------------------------------------------------------------------------------------------------------


def test_a_topic_made_again_while_its_old_logs_are_put_away_waits_and_begins_empty(broker):
    admin, maker = broker.connect(), broker.connect()
    admin.produce("flights", b"old")
    held = broker.hold_syncs()
    admin.send(*deleting("flights"))
    maker.send(*creating("flights"))
    broker.run(held.pop(0))
    broker.pump()
    assert [code_of(answer) for _, answer in admin.replies()] == [0]
    assert PutAway in [type(job) for job in held] and maker.replies() == []
    broker.release()
    assert code_of(maker.replies()[0][1]) == 0 and maker.fetch("flights") == []


@pytest.mark.parametrize("lost", range(12))
def test_a_crash_at_any_moment_of_a_deletion_leaves_the_topic_whole_or_gone(broker, lost):
    """The directories that still have their names are listed in the metadata, and no later topic adopts them."""
    client = broker.connect()
    client.produce("flights", b"old")
    broker.services.logs.syncs.start_round()
    broker.pump()
    held = broker.hold_syncs()
    client.send(*deleting("flights"))
    for _ in range(lost // 3):
        if held:
            broker.run(held.pop(0))
            broker.pump()
    broker.storage = broker.storage.power_cut(lambda n: lost % n)
    again = broker.restarted(clean=False)
    if again.services.metadata.topic("flights") is not None:
        assert again.connect().fetch("flights") == [b"old"] and lost < 3
        return
    assert not [line for line in again.reported if "offline" in line]
    again.create("flights")
    assert again.connect().fetch("flights") == []
    once_more = again.restarted(clean=False)
    assert once_more.connect().fetch("flights") == [] and not once_more.services.logs.offline


def test_directories_of_deleted_topics_are_listed_until_the_next_write(broker):
    client = broker.connect()
    client.ask(*deleting("flights"))
    document = json.loads(bytes(broker.storage.files["metadata.json"].data))
    assert document["deleting"] == ["flights-0"]
    client.ask(*creating("trains"))
    assert "deleting" not in json.loads(bytes(broker.storage.files["metadata.json"].data))


@pytest.mark.parametrize("change", [creating("trains"), asking("trains"), growing("flights", 2)])
def test_a_directory_that_belongs_to_no_topic_is_never_adopted(broker, change):
    (old,) = [path for path in broker.storage.files if path.startswith("flights-0/") and path.endswith(".log")]
    broker.connect().produce("flights", b"old")
    for name in ("trains-0", "flights-1"):
        broker.storage.make_directory(name)
        broker.storage.replace(f"{name}/{old.partition('/')[2]}", bytes(broker.storage.files[old].data))
    again = broker.restarted(clean=False)
    before, client = seen(again), again.connect()
    client.send(*change)
    assert (code_of(client.replies()[0][1]), seen(again)) == (FULL, before)


def test_a_log_that_cannot_be_put_away_blocks_its_name_until_the_next_start(broker, monkeypatch):
    client = broker.connect()
    client.produce("flights", b"old")

    def fails(source, target):
        raise StorageError(source, "Input/output error")

    monkeypatch.setattr(broker.storage, "rename", fails)
    assert code_of(client.ask(*deleting("flights"))) == 0, "the topic is deleted"
    assert "keep their names until the next start" in broker.reported[-1]
    assert code_of(client.ask(*creating("flights"))) == FULL
    monkeypatch.undo()
    again = broker.restarted(clean=False).connect()
    assert code_of(again.ask(*creating("flights"))) == 0 and again.fetch("flights") == []


# --- new logs --------------------------------------------------------------------------------------------------------


def test_a_topic_whose_log_cannot_be_made_is_taken_back_and_its_neighbours_stay(broker):
    clients = [broker.connect() for _ in range(3)]
    broker.storage.failing_opens.add("bad-0/00000000000000000000.log")
    with broker.turn():
        for client, name in zip(clients, ("good", "bad", "better"), strict=True):
            client.send(*creating(name))
    assert [code_of(client.replies()[0][1]) for client in clients] == [0, FULL, 0]
    broker.storage.failing_opens.clear()
    for node in (broker, broker.restarted(clean=False)):
        assert {topic.name for topic in node.services.metadata.topics()} == {"flights", "good", "better"}
        assert node.connect().produce("good", b"a").error_code == 0
    assert "bad-0" not in broker.storage.list("")


@pytest.mark.parametrize("change", [creating("trains", 3), growing("flights", 3)], ids=["create", "grow"])
@pytest.mark.parametrize("choice", range(6))
def test_a_crash_after_the_write_of_new_partitions_leaves_the_old_or_the_new_state(broker, change, choice):
    client = broker.connect()
    client.produce("flights", b"a")
    broker.services.logs.syncs.start_round()
    broker.pump()
    held, before = broker.hold_syncs(), seen(broker)[0]
    client.send(*change)
    if choice:
        broker.run(held.pop(0))
    after = seen(broker)[0]
    broker.storage = broker.storage.power_cut(lambda n: choice % n)
    again = broker.restarted(clean=False)
    assert seen(again)[0] in (before, after) and (not choice or seen(again)[0] == after)
    assert again.connect().fetch("flights") == [b"a"] and not again.services.logs.offline
    for name, _, partitions in seen(again)[0]:
        for partition in range(partitions):
            assert again.connect().produce(name, b"b", partition=partition).error_code == 0


def test_a_clean_stop_keeps_what_the_last_write_stored(broker):
    client = broker.connect()
    client.ask(*creating("trains"))
    client.ask(*deleting("flights"))
    again = broker.restarted()
    assert [topic.name for topic in again.services.metadata.topics()] == ["trains"] and not again.reported
