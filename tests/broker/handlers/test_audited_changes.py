"""The audit log has a line for each change that a client has made, whether it waits for the answer or not."""

import pytest

from broker.log.storage.port import StorageError
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    ALTER_QUOTAS,
    ALTER_SCRAM,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    OFFSET_COMMIT,
    EngineBroker,
)
from tests.broker.handlers.rights_client import client_of, guarded

TOPIC, BROKER = 2, 4
TIMEOUT_MS = 1_000


@pytest.fixture
def broker():
    broker = guarded()
    broker.create("orders", 2)
    return broker


@pytest.fixture
def root(broker):
    return client_of(broker, "root")


def changes(broker):
    """Return the lines about changes, without the principal and the host."""
    lines = [line for line in broker.reported if line.startswith("User:") and " from 10.0.0.7:" in line]
    return [line.partition(" from ")[2].partition(" ")[2] for line in lines]


def topic_of(name):
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}


def create(client, *names):
    fields = {"topics": [topic_of(name) for name in names], "timeout": TIMEOUT_MS, "validate_only": False}
    return [topic.error_code for topic in client.ask(CREATE_TOPICS, 7, fields).topics]


def delete(client, *names):
    fields = {"topics": [{"name": name, "topic_id": None} for name in names], "timeout": TIMEOUT_MS}
    return [response.error_code for response in client.ask(DELETE_TOPICS, 6, fields).responses]


def set_config(client, kind, name, setting, value):
    config = {"name": setting, "config_operation": 0, "value": value}
    resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
    fields = {"resources": [resource], "validate_only": False}
    return client.ask(INCREMENTAL_ALTER_CONFIGS, 1, fields).responses[0].error_code


def commit(client, group):
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    client.ask(FIND_COORDINATOR, 2, {"key": group, "key_type": 0})  # makes the topic of offsets
    fields = {"group_id": group, "topics": [{"name": "orders", "partitions": [partition]}]}
    client.ask(OFFSET_COMMIT, 8, fields | {"generation_id_or_member_epoch": -1, "member_id": ""})


def test_topics_are_created_and_deleted_by_somebody(broker, root):
    assert create(root, "flights", "storms") == delete(root, "flights", "storms") == [0, 0]
    created, deleted = (line for line in broker.reported if "topics" in line)
    assert created.startswith("User:root from 10.0.0.7:") and created.endswith("created topics flights, storms")
    assert deleted.startswith("User:root from 10.0.0.7:") and deleted.endswith("deleted topics flights, storms")


def test_what_was_refused_is_not_in_the_line(broker, root):
    create(root, "orders", "flights")
    delete(root, "nowhere")
    assert changes(broker) == ["created topics flights"]


def test_a_line_names_twenty_topics_and_counts_the_others(broker, root):
    names = [f"topic-{number:02}" for number in range(30)]
    create(root, *names)
    assert changes(broker) == [f"created topics {', '.join(names[:20])} and 10 more"]


def test_partitions_are_added(broker, root):
    topic = {"name": "orders", "count": 3, "assignments": None}
    root.ask(CREATE_PARTITIONS, 3, {"topics": [topic], "timeout": TIMEOUT_MS, "validate_only": False})
    assert changes(broker) == ["added partitions to topics orders"]


def test_settings_of_topics_and_brokers_are_altered(broker, root):
    assert set_config(root, TOPIC, "orders", "retention.ms", "1") == 0
    assert set_config(root, BROKER, "1", "log.retention.ms", "2") == 0
    assert set_config(root, BROKER, "", "log.retention.ms", "3") == 0
    assert set_config(root, TOPIC, "orders", "retention.ms", "x") == ErrorCode.INVALID_CONFIG
    assert changes(broker) == [
        "altered settings of topics orders",
        "altered settings of broker 1",
        "altered settings of all brokers",
    ]


def test_quotas_are_altered_and_a_name_imitates_no_other_part(broker, root):
    parts = {"user": "ann, user root", "client-id": None}
    entity = [{"entity_type": kind, "entity_name": name} for kind, name in parts.items()]
    operation = {"key": "producer_byte_rate", "value": 1.0, "remove": False}
    root.ask(ALTER_QUOTAS, 1, {"entries": [{"entity": entity, "ops": [operation]}], "validate_only": False})
    assert changes(broker) == ['altered quotas of client-id <default> user "ann, user root"']


def test_records_are_deleted(broker, root):
    root.produce("orders", b"a", b"b")
    partitions = [{"partition_index": 0, "offset": 1}, {"partition_index": 1, "offset": 9}]
    root.ask(DELETE_RECORDS, 2, {"topics": [{"name": "orders", "partitions": partitions}], "timeout": TIMEOUT_MS})
    assert changes(broker) == ["deleted the records of orders-0 below offset 1"]


def test_groups_are_deleted_and_a_name_imitates_no_other_line(broker, root):
    name = "readers\nUser:ada from 10.0.0.7:1 deleted topics orders"
    commit(root, name)
    assert root.ask(DELETE_GROUPS, 2, {"groups_names": [name, "unknown"]}).results[0].error_code == 0
    assert changes(broker) == [r'deleted the group "readers\u{a}User:ada from 10.0.0.7:1 deleted topics orders"']


# --- clients that do not wait, and changes that fail ------------------------------------------------------------------


CREATION = {"topics": [topic_of("storms")], "timeout": 100, "validate_only": False}
DELETION = {"topics": [{"name": "orders", "topic_id": None}], "timeout": 100}
GROWTH = {"topics": [{"name": "orders", "count": 3, "assignments": None}], "timeout": 100, "validate_only": False}
SETTING = {"name": "retention.ms", "config_operation": 0, "value": "1"}
SETTINGS = {
    "resources": [{"resource_type": TOPIC, "resource_name": "orders", "configs": [SETTING]}], "validate_only": False
}  # fmt: skip
QUOTA = {"key": "producer_byte_rate", "value": 1.0, "remove": False}
QUOTAS = {
    "entries": [{"entity": [{"entity_type": "user", "entity_name": "ann"}], "ops": [QUOTA]}], "validate_only": False
}  # fmt: skip
RULE = {
    "resource_type": TOPIC, "resource_name": "orders", "resource_pattern_type": 3, "principal": "User:ada", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
RULES = {"creations": [RULE]}
PASSWORD = {"name": "ann", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p"}
PASSWORDS = {"deletions": [], "upsertions": [PASSWORD]}
AUTO_CREATION = {"topics": [{"name": "storms", "topic_id": None}], "allow_auto_topic_creation": True}
CHANGES = [
    (CREATE_TOPICS, 7, CREATION, "created topics storms"),
    (METADATA, 12, AUTO_CREATION, "created topics storms"),
    (DELETE_TOPICS, 6, DELETION, "deleted topics orders"),
    (CREATE_PARTITIONS, 3, GROWTH, "added partitions to topics orders"),
    (INCREMENTAL_ALTER_CONFIGS, 1, SETTINGS, "altered settings of topics orders"),
    (ALTER_QUOTAS, 1, QUOTAS, "altered quotas of user ann"),
    (CREATE_ACLS, 3, RULES, "added an access rule: User:ada is allowed to READ Topic orders from host *"),
    (ALTER_SCRAM, 0, PASSWORDS, "set the SCRAM-SHA-256 password of user ann"),
]


@pytest.mark.parametrize("api, version, fields, line", CHANGES)
def test_a_client_that_leaves_before_the_change_is_stored_is_named(broker, root, api, version, fields, line):
    broker.hold_syncs()
    root.send(api, version, fields)
    broker.engine.closed(root.conn)
    assert changes(broker) == []
    broker.release()
    assert changes(broker) == [line]


@pytest.mark.parametrize("api, version, fields, line", CHANGES[:1] + CHANGES[2:4])
def test_a_client_that_gives_a_change_little_time_is_named_once_it_is_stored(broker, root, api, version, fields, line):
    broker.hold_syncs()
    root.send(api, version, fields)
    broker.at(broker.now_ms + 1_000)
    assert root.answered() and changes(broker) == []
    broker.release()
    assert changes(broker) == [line]


@pytest.mark.parametrize("api, version, fields, line", CHANGES)
def test_a_change_that_fails_is_named_as_such(broker, root, monkeypatch, api, version, fields, line):
    def full(path, data):
        raise StorageError(path, "No space left on device")

    monkeypatch.setattr(broker.storage, "replace", full)
    root.send(api, version, fields)
    (failed,) = changes(broker)
    assert failed.startswith(f"{line}; this failed, at least in part: ") and failed.endswith("No space left on device")


def test_a_request_that_changes_nothing_is_no_line(broker, root):
    set_config(root, TOPIC, "orders", "retention.ms", "1")
    set_config(root, BROKER, "1", "log.retention.ms", "2")
    root.ask(ALTER_QUOTAS, 1, QUOTAS)
    lines = changes(broker)
    assert len(lines) == 3
    set_config(root, TOPIC, "orders", "retention.ms", "1")
    set_config(root, BROKER, "1", "log.retention.ms", "2")
    root.ask(ALTER_QUOTAS, 1, QUOTAS)
    partitions = [{"partition_index": 0, "offset": 0}]
    root.ask(DELETE_RECORDS, 2, {"topics": [{"name": "orders", "partitions": partitions}], "timeout": TIMEOUT_MS})
    assert changes(broker) == lines


def test_a_broker_without_an_authorizer_knows_no_principal_and_writes_no_line():
    broker = EngineBroker()
    assert create(broker.connect(), "flights") == [0]
    assert not [line for line in broker.reported if "topics" in line]
