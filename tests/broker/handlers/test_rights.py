"""What a client without rights sees and does: names that are left out, requests that wait, and fetch sessions."""

import pytest

from broker.wire import produce
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchPartition, FetchRequest
from tests.broker.any_api import batch_of
from tests.broker.engine_client import (
    ALTER_SCRAM,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_GROUPS,
    DESCRIBE_TOPIC_PARTITIONS,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LIST_GROUPS,
    METADATA,
    OFFSET_COMMIT,
    PRODUCE,
)
from tests.broker.handlers.rights_client import client_of, grant, guarded

TOPIC_FAILED, GROUP_FAILED = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_FAILED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
WAIT_MS = 500


@pytest.fixture
def broker():
    broker = guarded()
    broker.create("orders")
    broker.create("payments")
    return broker


@pytest.fixture
def ada(broker):
    return client_of(broker, "ada")


@pytest.fixture
def root(broker):
    return client_of(broker, "root")


def produced(client, *topics, acks=-1):
    partitions = [(topic, 0, memoryview(bytes(batch_of()))) for topic in topics]
    return [
        result.error_code
        for result in client.ask(PRODUCE, 9, produce.ProduceRequest(None, acks, 1_000, partitions, False))
    ]


def fetching(*topics, offset=0, session=(0, -1), wait_ms=0):
    partitions = [FetchPartition(topic, 0, offset, 1 << 20) for topic in topics]
    return FetchRequest(wait_ms, 1, 1 << 20, partitions, 0, *session)


def codes(response):
    return {part.topic: part.error_code for part in response.partitions}


def metadata(client, *topics, create=False):
    names = [{"name": name} for name in topics] if topics else None
    fields = {"topics": names, "allow_auto_topic_creation": create, "include_topic_authorized_operations": True}
    return {topic.name: topic for topic in client.ask(METADATA, 12, fields).topics}


# --- names -----------------------------------------------------------------------------------------------------------


def test_topics_that_a_client_may_not_see_are_left_out_or_refused_by_name(broker, ada):
    grant(broker, "read topic orders")
    shown = metadata(ada)
    assert list(shown) == ["orders"]
    assert shown["orders"].topic_authorized_operations == 1 << 3 | 1 << 8
    named = metadata(ada, "orders", "payments", "nowhere")
    assert [named[name].error_code for name in ("orders", "payments", "nowhere")] == [0, TOPIC_FAILED, TOPIC_FAILED]
    assert not named["payments"].topic_id and not named["payments"].partitions


def test_a_topic_that_a_client_names_by_its_id_keeps_its_name(broker, ada, root):
    topic_id = metadata(root)["payments"].topic_id
    fields = {"topics": [{"name": None, "topic_id": topic_id}], "allow_auto_topic_creation": False}
    (topic,) = ada.ask(METADATA, 12, fields).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (TOPIC_FAILED, None, topic_id)


def test_asking_for_a_topic_makes_it_for_who_may_create_it_only(broker, ada):
    grant(broker, "describe topic *")
    assert metadata(ada, "mine", create=True)["mine"].error_code == TOPIC_FAILED
    grant(broker, "describe topic *", "create topic mi...")
    assert metadata(ada, "mine", create=True)["mine"].error_code == ErrorCode.NONE
    grant(broker, "describe topic *", "create cluster")
    assert metadata(ada, "other", create=True)["other"].error_code == ErrorCode.NONE


def test_describe_topic_partitions_leaves_out_and_refuses_in_the_same_way(broker, ada):
    grant(broker, "describe topic orders")
    fields = {"topics": [], "response_partition_limit": 100, "cursor": None}
    assert [topic.name for topic in ada.ask(DESCRIBE_TOPIC_PARTITIONS, 0, fields).topics] == ["orders"]
    named = fields | {"topics": [{"name": "orders"}, {"name": "payments"}]}
    answer = ada.ask(DESCRIBE_TOPIC_PARTITIONS, 0, named).topics
    assert [(topic.name, topic.error_code) for topic in answer] == [("orders", 0), ("payments", TOPIC_FAILED)]


def test_groups_that_a_client_may_not_see_are_left_out_or_refused(broker, ada, root):
    for group in ("readers", "writers"):
        root.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]})
        broker.at(broker.now_ms + 1_000)
        fields = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        partition = {
            "partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": "",
        }  # fmt: skip
        root.ask(OFFSET_COMMIT, 8, fields | {"topics": [{"name": "orders", "partitions": [partition]}]})
    grant(broker, "describe group readers")
    listed = {"states_filter": [], "types_filter": []}
    assert [group.group_id for group in ada.ask(LIST_GROUPS, 5, listed).groups] == ["readers"]
    grant(broker, "describe cluster")
    assert len(ada.ask(LIST_GROUPS, 5, listed).groups) == 2
    fields = {"groups": ["readers"], "include_authorized_operations": True}
    assert ada.ask(DESCRIBE_GROUPS, 5, fields).groups[0].error_code == GROUP_FAILED
    grant(broker, "read group readers")
    assert ada.ask(DESCRIBE_GROUPS, 5, fields).groups[0].authorized_operations == 1 << 3 | 1 << 8


def test_operations_on_the_cluster_are_told_to_who_may_describe_it(broker, ada):
    fields = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
    assert ada.ask(DESCRIBE_CLUSTER, 1, fields).cluster_authorized_operations == 0
    grant(broker, "describe cluster", "alter cluster")
    assert ada.ask(DESCRIBE_CLUSTER, 1, fields).cluster_authorized_operations == 1 << 7 | 1 << 8


# --- topics that are made and deleted --------------------------------------------------------------------------------


def creation(*names):
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for name in names
    ]
    return {"topics": topics, "timeout": 5_000, "validate_only": False}


def test_a_client_makes_the_topics_that_it_may_and_sees_settings_if_it_may(broker, ada):
    grant(broker, "create topic mi...")
    mine, other = ada.ask(CREATE_TOPICS, 7, creation("mine", "other")).topics
    assert (mine.error_code, other.error_code) == (ErrorCode.NONE, TOPIC_FAILED)
    assert (mine.topic_config_error_code, mine.num_partitions, mine.configs) == (TOPIC_FAILED, -1, ())
    grant(broker, "create cluster", "describe_configs topic *")
    (third,) = ada.ask(CREATE_TOPICS, 7, creation("third")).topics
    assert third.num_partitions == 1 and third.configs


def test_a_client_that_deletes_by_id_sees_the_name_if_it_may_describe_the_topic(broker, ada, root):
    topic_id = metadata(root)["orders"].topic_id

    def deleted():
        fields = {"topics": [{"name": None, "topic_id": topic_id}], "timeout": 5_000}
        (answer,) = ada.ask(DELETE_TOPICS, 6, fields).responses
        return answer.error_code, answer.name

    assert deleted() == (TOPIC_FAILED, None)
    grant(broker, "describe topic orders")
    assert deleted() == (TOPIC_FAILED, "orders")
    grant(broker, "delete topic orders")
    assert deleted() == (ErrorCode.NONE, "orders")


# --- producing -------------------------------------------------------------------------------------------------------


def test_of_one_request_the_partitions_that_a_client_may_write_to_are_written(broker, ada):
    grant(broker, "write topic orders")
    assert produced(ada, "orders", "payments", "nowhere") == [0, TOPIC_FAILED, TOPIC_FAILED]
    assert broker.services.logs.get("orders", 0).log_end_offset == 1
    assert broker.services.logs.get("payments", 0).log_end_offset == 0


def test_a_request_that_a_template_recognises_is_checked_each_time(broker, ada):
    grant(broker, "write topic orders")
    for _ in range(5):
        assert produced(ada, "orders") == [0]
    grant(broker)
    assert produced(ada, "orders") == [TOPIC_FAILED]
    grant(broker, "write topic orders")
    assert produced(ada, "orders") == [0]


def test_a_repeated_request_of_another_user_is_checked_by_that_users_rights(broker, ada):
    grant(broker, "write topic orders")
    for _ in range(5):
        assert produced(ada, "orders") == [0]
    assert produced(client_of(broker, "eve"), "orders") == [TOPIC_FAILED]
    ada.conn.user = "eve"
    assert produced(ada, "orders") == [TOPIC_FAILED]
    ada.conn.user = "ada"
    assert produced(ada, "orders") == [0]


def test_a_topic_that_is_named_by_its_id_is_checked_each_time(broker, ada, root):
    topic_id = metadata(root)["orders"].topic_id
    grant(broker, "write topic orders", "read topic orders")
    for _ in range(3):
        assert produced_by_id(ada, topic_id) == 0
        assert codes(ada.ask(FETCH, 13, fetching(topic_id))) == {topic_id: 0}
    grant(broker)
    assert produced_by_id(ada, topic_id) == TOPIC_FAILED
    assert codes(ada.ask(FETCH, 13, fetching(topic_id))) == {topic_id: TOPIC_FAILED}


def produced_by_id(client, topic_id):
    partitions = [(topic_id, 0, memoryview(bytes(batch_of())))]
    (result,) = client.ask(PRODUCE, 13, produce.ProduceRequest(None, -1, 1_000, partitions, False))
    return result.error_code


def test_a_producer_without_a_transactional_id_needs_a_right_to_some_topic(broker, ada):
    fields = {
        "transactional_id": None, "transaction_timeout": 1_000, "producer_id": -1, "producer_epoch": -1,
    }  # fmt: skip
    assert ada.ask(INIT_PRODUCER_ID, 4, fields).error_code == CLUSTER_FAILED
    grant(broker, "write topic anything...")
    assert ada.ask(INIT_PRODUCER_ID, 4, fields).error_code == ErrorCode.NONE
    grant(broker, "idempotent_write cluster")
    assert ada.ask(INIT_PRODUCER_ID, 4, fields).error_code == ErrorCode.NONE
    transactional = fields | {"transactional_id": "t"}
    assert ada.ask(INIT_PRODUCER_ID, 4, transactional).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


# --- fetching --------------------------------------------------------------------------------------------------------


def test_of_one_request_the_partitions_that_a_client_may_read_are_read(broker, ada, root):
    produced(root, "orders", "payments")
    grant(broker, "read topic orders")
    response = ada.ask(FETCH, 12, fetching("orders", "payments", "nowhere"))
    assert codes(response) == {"orders": 0, "payments": TOPIC_FAILED, "nowhere": TOPIC_FAILED}
    assert [bool(part.size) for part in response.partitions] == [True, False, False]


def test_a_fetch_that_waits_is_judged_again_when_records_come(broker, ada, root):
    grant(broker, "read topic orders")
    ada.send(FETCH, 12, fetching("orders", wait_ms=WAIT_MS))
    assert not ada.answered()
    grant(broker)
    produced(root, "orders")
    ((_, response),) = ada.replies()
    assert codes(response) == {"orders": TOPIC_FAILED} and not response.partitions[0].size


def test_a_fetch_that_waits_is_judged_again_at_its_deadline(broker, ada):
    grant(broker, "read topic orders")
    ada.send(FETCH, 12, fetching("orders", wait_ms=WAIT_MS))
    grant(broker)
    broker.at(broker.now_ms + WAIT_MS)
    ((_, response),) = ada.replies()
    assert codes(response) == {"orders": TOPIC_FAILED}


def test_each_request_of_a_fetch_session_is_checked(broker, ada, root):
    grant(broker, "read topic *")
    session = ada.ask(FETCH, 12, fetching("orders", "payments", session=(0, 0))).session_id
    assert session
    grant(broker, "read topic payments")
    assert codes(ada.ask(FETCH, 12, fetching(session=(session, 1)))) == {"orders": TOPIC_FAILED}
    produced(root, "orders", "payments")
    response = ada.ask(FETCH, 12, fetching(session=(session, 2)))
    assert codes(response) == {"orders": TOPIC_FAILED, "payments": 0}
    grant(broker, "read topic *")
    assert codes(ada.ask(FETCH, 12, fetching(session=(session, 3))))["orders"] == ErrorCode.NONE


def test_a_stranger_that_fetches_as_a_replica_is_refused_and_opens_no_session(broker, ada):
    grant(broker, "all topic *")
    request = fetching("orders", session=(0, 0))._replace(replica_id=2)
    response = ada.ask(FETCH, 12, request)
    assert codes(response) == {"orders": TOPIC_FAILED} and not response.session_id
    assert not len(broker.services.fetch_sessions)


# --- requests that wait ----------------------------------------------------------------------------------------------


def test_a_member_that_waits_for_others_is_judged_again_before_it_joins(broker):
    grant(broker, "read group readers", "describe group readers")
    first, second = client_of(broker, "ada"), client_of(broker, "ada")
    first.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["readers"]})
    broker.at(broker.now_ms + 1_000)
    fields = {
        "group_id": "readers", "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "",
        "group_instance_id": None, "protocol_type": "consumer", "reason": None,
        "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip
    first.send(JOIN_GROUP, 3, fields)
    broker.at(broker.now_ms + 1_000)
    assert [answer.error_code for _, answer in first.replies()] == [ErrorCode.NONE]
    second.send(JOIN_GROUP, 3, fields)  # it waits until the first one joins again
    assert not second.answered()
    grant(broker)
    broker.at(broker.now_ms + 20_000)
    ((_, answer),) = second.replies()
    assert answer.error_code == GROUP_FAILED


# --- the audit log ---------------------------------------------------------------------------------------------------


def test_what_was_not_asked_for_is_no_line_and_what_was_refused_is_one(broker, ada):
    metadata(ada)
    assert not [line for line in broker.reported if "Denied" in line]
    produced(ada, "orders")
    (line,) = [line for line in broker.reported if "Denied" in line]
    assert line == (
        "Principal = User:ada is Denied operation = WRITE from host = 10.0.0.7 on resource = Topic:LITERAL:orders "
        "for request = Produce"
    )


def test_a_change_of_credentials_is_a_line(broker, root):
    upsertion = {"name": "bob\nUser:root", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p"}
    root.ask(ALTER_SCRAM, 0, {"deletions": [], "upsertions": [upsertion]})
    (line,) = [line for line in broker.reported if "password" in line]
    assert line.startswith("User:root from 10.0.0.7:") and line.isprintable()
    assert line.endswith('set the SCRAM-SHA-256 password of user "bob\\u{a}User:root"')


def test_a_deleted_password_is_another_line_than_a_new_one(broker, root):
    upsertion = {"name": "bob", "mechanism": 2, "iterations": 4096, "salt": b"s", "salted_password": b"p"}
    root.ask(ALTER_SCRAM, 0, {"deletions": [], "upsertions": [upsertion]})
    root.ask(ALTER_SCRAM, 0, {"deletions": [{"name": "bob", "mechanism": 2}], "upsertions": []})
    lines = [line.partition(" from ")[2].partition(" ")[2] for line in broker.reported if "password" in line]
    assert lines == ["set the SCRAM-SHA-512 password of user bob", "deleted the SCRAM-SHA-512 password of user bob"]
