"""CreateTopics through the wire (https://kafka.apache.org/protocol#The_Messages_CreateTopics)."""

import pytest

from broker.log.storage.port import StorageError
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import CREATE_TOPICS, EngineBroker


@pytest.fixture
def client():
    return EngineBroker().connect()


def create(client, version, **configs):
    topic = {
        "name": "flights",
        "num_partitions": 2,
        "replication_factor": 1,
        "assignments": (),
        "configs": [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()],
    }
    (answer,) = client.ask(CREATE_TOPICS, version, {"topics": [topic], "timeout": 1_000}).topics
    return answer


@pytest.mark.parametrize("version", [2, 7])
def test_a_topic_is_made_with_its_own_settings(client, version):
    assert create(client, version, segment_bytes="1048576").error_code == 0


@pytest.mark.parametrize("version", [2, 7])
def test_an_unknown_setting_is_refused_with_the_nearest_known_one(client, version):
    """A setting that is accepted and silently ignored is worse than an error; Kafka answers INVALID_CONFIG too."""
    answer = create(client, version, segment_byte="1048576")
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "segment.byte" in answer.error_message and "did you mean segment.bytes?" in answer.error_message


@pytest.mark.parametrize("version", [2, 7])
def test_an_impossible_setting_is_refused_by_name(client, version):
    answer = create(client, version, segment_bytes="1")
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "Invalid value 1 for configuration segment.bytes: Value must be" in answer.error_message


def new_topic(name, partitions=-1, assignments=()):
    replication = -1 if assignments else 1
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication,
        "assignments": [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(assignments)],
        "configs": (),
    }


def codes(client, *topics, validate_only=False):
    fields = {"topics": topics, "timeout": 1_000, "validate_only": validate_only}
    return [topic.error_code for topic in client.ask(CREATE_TOPICS, 7, fields).topics]


def test_a_topic_that_is_named_twice_is_answered_once_after_the_others(client):
    topics = [new_topic(name, 1) for name in ("twice", "once", "twice")]
    answers = client.ask(CREATE_TOPICS, 7, {"topics": topics, "timeout": 1_000, "validate_only": False}).topics
    codes_by_name = [(answer.name, answer.error_code) for answer in answers]
    assert codes_by_name == [("once", 0), ("twice", ErrorCode.INVALID_REQUEST)]


@pytest.mark.parametrize("validate_only", [True, False])
def test_names_that_differ_in_a_dot_are_no_twins_while_both_are_new(client, validate_only):
    """Kafka, too, compares a new name with existing topics only."""
    both = new_topic("a.b", 1), new_topic("a_b", 1)
    assert codes(client, *both, validate_only=validate_only) == [0, 0]
    if not validate_only:
        assert codes(client, *both) == [ErrorCode.TOPIC_ALREADY_EXISTS] * 2


def test_a_new_topic_whose_name_differs_in_a_dot_from_an_old_one_is_refused(client):
    assert codes(client, new_topic("a.b.c", 1), new_topic("a_b.c", 1)) == [0, 0]
    assert codes(client, new_topic("a_b_c", 1)) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    client.broker.delete("a.b.c")
    assert codes(client, new_topic("a_b_c", 1)) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    client.broker.delete("a_b.c")
    assert codes(client, new_topic("a_b_c", 1)) == [0]


def test_settings_that_exclude_each_other_are_refused(client):
    """No record may have to wait longer than the maximum lag (Kafka's LogConfig)."""
    lags = {"min.compaction.lag.ms": "11", "max.compaction.lag.ms": "10"}
    answer = create(client, 7, **lags)
    assert answer.error_code == ErrorCode.INVALID_CONFIG and "max.compaction.lag.ms" in answer.error_message


@pytest.mark.parametrize("validate_only", [True, False])
def test_one_request_makes_ten_thousand_partitions_at_most_over_all_its_topics(client, validate_only):
    """Kafka's controller has the same limit; each partition takes four files, and no client is served meanwhile."""
    topics = [new_topic("a", 3), new_topic("b", 9_998), new_topic("c", assignments=[[1]] * 9_998), new_topic("d", 2)]
    error_codes = codes(client, *topics, validate_only=validate_only)
    assert error_codes == [0, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION, 0]
    made = [] if validate_only else ["a", "d"]
    assert [topic.name for topic in client.broker.services.metadata.topics()] == made


@pytest.mark.parametrize("ids", [[], [1, 1], [2], [1, 2]])
def test_a_partition_is_assigned_to_nodes_that_there_are_each_once(client, ids):
    assert codes(client, new_topic("flights", assignments=[[1], ids])) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]


@pytest.mark.parametrize("partitions", [0, -2])
def test_an_impossible_number_of_partitions_is_refused(client, partitions):
    assert codes(client, new_topic("flights", partitions)) == [ErrorCode.INVALID_PARTITIONS]


@pytest.mark.parametrize("partitions", [10_001, 2**31 - 1])
def test_more_partitions_than_one_request_may_make_are_refused(client, partitions):
    assert codes(client, new_topic("flights", partitions)) == [ErrorCode.POLICY_VIOLATION]


def test_a_topic_whose_logs_cannot_all_be_opened_is_refused_and_leaves_nothing(client, monkeypatch):
    """With too many open files, for example, a topic that is only half made would be noticed by its producers only."""
    storage = client.broker.storage
    open_file, opened = storage.open, []

    def open_some(path, create=False):
        opened.append(path)
        if len(opened) > 10:
            raise StorageError(path, "Too many open files")
        return open_file(path, create)

    monkeypatch.setattr(storage, "open", open_some)
    assert codes(client, new_topic("flights", 5)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    monkeypatch.undo()
    assert client.broker.services.metadata.topics() == [] and client.broker.services.logs.offline == {}
    assert codes(client, new_topic("flights", 5)) == [0]


def test_the_answer_has_partitions_and_settings_with_their_sources(client):
    """KIP-525 added them. Refusals have an empty list, because Java's admin client 4.3 fails on null settings."""
    configs = [{"name": "retention.ms", "value": "60000"}]
    topics = [new_topic("flights", 2) | {"configs": configs}, new_topic("a/b")]
    made, refused = client.ask(CREATE_TOPICS, 5, {"topics": topics, "timeout": 1_000, "validate_only": False}).topics
    settings = {config.name: (config.value, config.config_source) for config in made.configs}
    assert (made.num_partitions, made.replication_factor) == (2, 1)
    assert settings["retention.ms"] == ("60000", 1) and settings["segment.bytes"] == ("1073741824", 5)
    assert refused.configs == ()


@pytest.mark.parametrize("version", [2, 7])
def test_a_setting_without_a_value_is_refused(client, version):
    """Kafka answers INVALID_CONFIG too: the client may mean the default or may have lost the value."""
    answer = create(client, version, segment_bytes=None)
    assert answer.error_code == ErrorCode.INVALID_CONFIG and "segment.bytes" in answer.error_message


def test_the_name_of_kafkas_own_log_is_refused(client):
    assert codes(client, new_topic("__cluster_metadata")) == [ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_a_topic_of_the_brokers_own_can_be_made_before_it_needs_it(client, name):
    """Kafka allows it too. Omitted settings get the broker's values, so that commits are not deleted by age."""
    configs = [{"name": "segment.bytes", "value": "1048576"}]
    assert codes(client, new_topic(name, 3) | {"configs": configs}) == [0]
    topic = client.broker.services.metadata.topic(name)
    assert len(topic.partitions) == 3
    assert topic.properties["cleanup.policy"] == "compact" and topic.properties["segment.bytes"] == "1048576"
    assert codes(client, new_topic(name)) == [ErrorCode.TOPIC_ALREADY_EXISTS]


def test_validating_answers_as_if_it_were_made_and_makes_nothing(client):
    assert codes(client, new_topic("flights", 2), new_topic("a/b"), validate_only=True) == [0, 17]
    assert client.broker.services.metadata.topics() == []


def test_more_replicas_than_nodes_are_refused(client):
    assert codes(client, new_topic("flights") | {"replication_factor": 3}) == [ErrorCode.INVALID_REPLICATION_FACTOR]


def test_more_replicas_than_nodes_are_lowered_where_that_is_set_and_the_log_says_so():
    broker = EngineBroker(lower_replication=True)
    topic = new_topic("flights") | {
        "replication_factor": 3,
        "configs": [{"name": "min.insync.replicas", "value": "2"}],
    }
    assert codes(broker.connect(), topic) == [0]
    assert broker.services.metadata.topic("flights").properties == {"min.insync.replicas": "1"}
    assert broker.reported == [
        "topic flights: replication factor 3 lowered to 1",
        "topic flights: min.insync.replicas 2 lowered to 1",
    ]
