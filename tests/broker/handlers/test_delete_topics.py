"""DeleteTopics through the wire (https://kafka.apache.org/protocol#The_Messages_DeleteTopics; KIP-516: topic ids)."""

from uuid import UUID

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.any_api import EngineLine, World, answer_of
from tests.broker.engine_client import (
    DELETE_TOPICS,
    FETCH,
    FIND_COORDINATOR,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    EngineBroker,
    fetch_request,
)
from tests.broker.transactional import TransactionalProducer


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights", 2)
    return broker


@pytest.fixture
def client(broker):
    return broker.connect()


def delete(client, version, *names):
    """Send DeleteTopics with names, or ids for UUIDs, as the version has them; return the answer for each topic."""
    if version >= 6:
        fields = {"topics": [{"name": None, "topic_id": None} | _key(name) for name in names]}
    else:
        fields = {"topic_names": names}
    return client.ask(DELETE_TOPICS, version, fields | {"timeout": 1_000}).responses


def _key(name):
    return {"topic_id": name} if isinstance(name, UUID) else {"name": name}


@pytest.mark.parametrize("version", range(1, 7))
def test_a_topic_is_deleted_with_its_files(broker, client, version):
    client.produce("flights", b"old")
    (answer,) = delete(client, version, "flights")
    assert (answer.name, answer.error_code) == ("flights", 0)
    assert not [path for path in broker.storage.files if "flights" in path and path != "metadata.json"]
    again = broker.restarted(clean=False)
    assert again.services.metadata.topic("flights") is None and not again.reported


def test_a_topic_is_deleted_by_its_id(broker, client):
    """The answer has the name too (KIP-516)."""
    topic = broker.services.metadata.topic("flights")
    (answer,) = delete(client, 6, topic.id)
    assert (answer.name, answer.topic_id, answer.error_code) == ("flights", topic.id, 0)


def test_topics_that_are_not_there_are_refused_and_their_neighbours_deleted(client):
    answers = delete(client, 6, "nowhere", UUID(int=7), "flights")
    assert [answer.error_code for answer in answers] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NONE,
    ]
    assert "nowhere" in answers[0].error_message


def test_a_topic_made_anew_begins_empty_and_with_another_id(broker, client):
    client.produce("flights", b"old")
    old = broker.services.metadata.topic("flights").id
    delete(client, 4, "flights")
    client.ask(METADATA, 12, {"topics": [{"name": "flights"}], "allow_auto_topic_creation": True})
    assert client.fetch("flights") == []
    assert broker.services.metadata.topic("flights").id != old


def test_a_fetch_that_waits_for_the_topic_is_answered(broker, client):
    waiting = broker.connect()
    waiting.send(FETCH, 12, fetch_request("flights", max_wait_ms=5_000))
    assert not waiting.replies()
    delete(client, 4, "flights")
    ((_, answer),) = waiting.replies()
    assert answer.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_committed_for_it_mean_nothing_any_more(broker, client):
    """A new topic of the same name would otherwise be read from the old topic's offsets."""
    client.ask(FIND_COORDINATOR, 1, {"key": "g", "key_type": 0})
    partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    client.ask(OFFSET_COMMIT, 8, fields | {"topics": [{"name": "flights", "partitions": [partition]}]})
    delete(client, 4, "flights")
    for reader in (client, broker.restarted(clean=False).connect()):
        topics = [{"name": "flights", "partition_indexes": [0]}]
        answer = reader.ask(OFFSET_FETCH, 7, {"group_id": "g", "topics": topics, "require_stable": False})
        assert answer.topics[0].partitions[0].committed_offset == -1


@pytest.mark.parametrize("ends", [True, False])
def test_neither_do_they_where_the_disk_would_not_take_it_down(broker, client, ends):
    """The removal of the offsets is tried again, also at the next start. It includes the offsets of a transaction that
    ends meanwhile."""
    client.ask(FIND_COORDINATOR, 1, {"key": "g", "key_type": 0})
    producer = TransactionalProducer(broker)
    producer.init()
    assert producer.add_offsets("g") == producer.commit_offset("g", "flights", 7) == 0
    logs = [broker.services.log_of("__consumer_offsets", n) for n in range(50)]
    for log in logs:
        log.offline = "a sync failed"
    delete(client, 4, "flights")
    for log in logs:
        log.offline = None
    assert producer.end(ends) == 0
    broker.create("flights")
    topics = [{"name": "flights", "partition_indexes": [0]}]
    fields = {"group_id": "g", "topics": topics, "require_stable": True}
    assert client.ask(OFFSET_FETCH, 7, fields).topics[0].partitions[0].committed_offset == -1
    broker.at(broker.now_ms + 1_000)
    again = broker.restarted(clean=False)
    assert again.connect().ask(OFFSET_FETCH, 7, fields).topics[0].partitions[0].committed_offset == -1


def test_what_was_left_of_it_at_a_crash_is_taken_away_by_the_next_start(broker, client):
    client.ask(FIND_COORDINATOR, 1, {"key": "g", "key_type": 0})
    partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    client.ask(OFFSET_COMMIT, 8, fields | {"topics": [{"name": "flights", "partitions": [partition]}]})
    for n in range(50):
        broker.services.log_of("__consumer_offsets", n).offline = "a sync failed"
    delete(client, 4, "flights")
    again = broker.restarted(clean=False)
    again.create("flights")
    for node in (again, again.restarted(clean=False)):
        request = {"group_id": "g", "topics": [{"name": "flights", "partition_indexes": [0]}], "require_stable": False}
        assert node.connect().ask(OFFSET_FETCH, 7, request).topics[0].partitions[0].committed_offset == -1


def test_a_topic_needs_a_name_or_an_id_not_both(client):
    both, neither = {"name": "flights", "topic_id": UUID(int=7)}, {"name": None, "topic_id": None}
    fields = {"topics": [both, neither] * 2, "timeout": 1}
    answers = client.ask(DELETE_TOPICS, 6, fields).responses
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 4, "each time"


@pytest.mark.parametrize("version", [1, 5, 6])
def test_a_topic_that_is_named_twice_is_answered_once_and_stays(broker, client, version):
    """Kafka refuses it too, because such a client probably means something else."""
    (answer,) = delete(client, version, "flights", "flights")
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert broker.services.metadata.topic("flights") is not None


def test_one_that_is_named_by_its_name_and_by_its_id_stays_and_is_answered_for_both(broker, client):
    """The order does not matter, and the id may also occur twice (Kafka's ControllerApis)."""
    broker.create("trains")
    topic = broker.services.metadata.topic("flights").id
    for names in (("flights", topic, "nowhere"), (topic, "flights", "nowhere")):
        answers = delete(client, 6, *names)
        error_codes = {(answer.name, answer.topic_id): answer.error_code for answer in answers}
        assert error_codes == {("flights", topic): ErrorCode.INVALID_REQUEST, ("nowhere", None): 3}
        assert len(answers) == 2
    answers = delete(client, 6, topic, "trains", "flights", topic)
    assert [(answer.name, answer.topic_id is None, answer.error_code) for answer in answers] == [
        (None, False, ErrorCode.INVALID_REQUEST),
        ("trains", False, 0),
        ("flights", False, ErrorCode.INVALID_REQUEST),
    ]
    assert [remaining.name for remaining in broker.services.metadata.topics()] == ["flights"]


def test_a_name_that_stands_there_twice_says_nothing_of_the_id(broker, client):
    """Kafka, too, deletes a topic that is named by its id."""
    topic = broker.services.metadata.topic("flights").id
    answers = delete(client, 6, "flights", topic, "flights")
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST, 0]
    assert broker.services.metadata.topic("flights") is None


@pytest.mark.parametrize(
    "version, code", [(1, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED), (6, 73)]
)
def test_no_topic_is_deleted_where_that_is_not_enabled(version, code):
    """Before v3 there was no separate code for it (Kafka's ControllerApis)."""
    broker = EngineBroker(delete_topic_enable=False)
    broker.create("flights")
    assert [answer.error_code for answer in delete(broker.connect(), version, "flights")] == [code]
    assert broker.services.metadata.topic("flights") is not None


def test_nothing_of_it_stays_open_for_who_remembers_it(broker, client):
    """A fetch session, which outlives its consumer, and an idle producer release the files, and so their disk space."""
    producer = broker.connect()
    producer.produce("flights", b"a")
    session = fetch_request("flights")._replace(session_epoch=0)
    assert broker.connect().ask(FETCH, 12, session).session_id
    delete(client, 6, "flights")
    assert not [file.path for file in broker.storage.open_files if "flights" in file.path]
    assert len(broker.services.fetch_sessions) == 1 and producer.closed is None


def test_with_the_topic_of_committed_offsets_go_all_groups(broker, client):
    """The coordinator resigns, as in Kafka: waiting members look for a coordinator, and the topic is created again."""
    world = World(EngineLine(broker))
    world.member()
    world.group = "readers"
    world.commit(topic="flights")
    waiting = EngineLine(broker)
    world.group = f"readers-{world.number}"
    world.join(instance="another seat", version=9, line=waiting, waits=True)
    assert delete(client, 6, "__consumer_offsets")[0].error_code == 0
    assert answer_of(11, 9, waiting.receive())[1].error_code == ErrorCode.NOT_COORDINATOR
    assert world.heartbeat("seat", 1, version=4).error_code == ErrorCode.NOT_COORDINATOR
    assert world.member()[1] == 1, "a group of that name begins anew"
    for node in (broker, broker.restarted(clean=False)):
        fields = {"group_id": "readers", "topics": [{"name": "flights", "partition_indexes": [0]}]}
        answer = node.connect().ask(OFFSET_FETCH, 7, fields | {"require_stable": False})
        assert answer.topics[0].partitions[0].committed_offset == -1
