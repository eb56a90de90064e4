"""CreateAcls, DescribeAcls and DeleteAcls through the wire (KIP-140, KIP-290), and how the rules are stored."""

import pytest

from broker.log.storage.port import StorageError
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS, EngineBroker

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOPIC, GROUP, CLUSTER = 2, 3, 4
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
READ, WRITE, DESCRIBE = 3, 4, 8
DENY, ALLOW = 2, 3
VERSIONS = [1, 2, 3]


@pytest.fixture
def broker():
    return EngineBroker(authorizer_class_name=STANDARD, super_users="User:ANONYMOUS", max_acls=3)


@pytest.fixture
def client(broker):
    return broker.connect()


def rule(name="orders", **more):
    return {
        "resource_type": TOPIC, "resource_name": name, "resource_pattern_type": LITERAL, "principal": "User:ada",
        "host": "*", "operation": READ, "permission_type": ALLOW,
    } | more  # fmt: skip


def wanted(**more):
    return {
        "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY,
        "principal_filter": None, "host_filter": None, "operation": ANY, "permission_type": ANY,
    } | more  # fmt: skip


def create(client, *rules, version=3):
    return [result.error_code for result in client.ask(CREATE_ACLS, version, {"creations": rules}).results]


def described(client, version=3, **more):
    answer = client.ask(DESCRIBE_ACLS, version, wanted(**more))
    assert answer.error_code == ErrorCode.NONE
    return [
        (resource.resource_name, resource.pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type)
        for resource in answer.resources
        for acl in resource.acls
    ]


ORDERS = ("orders", LITERAL, "User:ada", "*", READ, ALLOW)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_rule_is_shown_once_it_was_added(client, version):
    assert create(client, rule(), rule("ord", resource_pattern_type=PREFIXED), version=version) == [0, 0]
    assert described(client, version) == [ORDERS, ("ord", PREFIXED, "User:ada", "*", READ, ALLOW)]
    rules = described(client, version, pattern_type_filter=MATCH, resource_name_filter="ordinal")
    assert rules == [("ord", PREFIXED, "User:ada", "*", READ, ALLOW)]


def test_a_rule_that_is_there_already_is_no_error_and_stands_once(client):
    assert create(client, rule(), rule()) == [0, 0]
    assert create(client, rule()) == [0]
    assert described(client) == [ORDERS]


def test_rules_outlive_a_restart(broker, client):
    create(client, rule(), rule("g", resource_type=GROUP, permission_type=DENY))
    assert described(broker.restarted().connect()) == [ORDERS, ("g", LITERAL, "User:ada", "*", READ, DENY)]


def test_a_rule_that_cannot_be_is_refused_and_the_others_are_added(client):
    answer = client.ask(CREATE_ACLS, 3, {"creations": [rule("x", resource_type=CLUSTER), rule(""), rule()]})
    assert [result.error_code for result in answer.results] == [ErrorCode.INVALID_REQUEST] * 2 + [0]
    assert answer.results[0].error_message == "The only valid name for the CLUSTER resource is kafka-cluster"
    assert described(client) == [ORDERS]


def test_more_rules_than_the_limit_are_refused(client):
    results = create(client, *(rule(f"topic-{number}") for number in range(5)))
    assert results == [0, 0, 0] + [ErrorCode.POLICY_VIOLATION] * 2
    assert create(client, rule("topic-0")) == [0]


@pytest.mark.parametrize("version", VERSIONS)
def test_filters_remove_rules_and_the_answer_tells_which(client, version):
    create(client, rule(), rule("ord", resource_pattern_type=PREFIXED), rule("other"))
    fields = {"filters": [wanted(resource_name_filter="orders"), wanted(resource_name_filter="none")]}
    first, second = client.ask(DELETE_ACLS, version, fields).filter_results
    assert [acl.resource_name for acl in first.matching_acls] == ["orders"] and not first.error_code
    assert not second.matching_acls and not second.error_code
    assert [name for name, *_ in described(client, version)] == ["other", "ord"]


def test_a_filter_without_a_meaning_is_refused_and_the_others_are_done(client):
    create(client, rule())
    refused, done = client.ask(DELETE_ACLS, 3, {"filters": [wanted(operation=77), wanted()]}).filter_results
    assert (refused.error_code, refused.error_message) == (ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")
    assert [acl.resource_name for acl in done.matching_acls] == ["orders"]
    answer = client.ask(DESCRIBE_ACLS, 3, wanted(pattern_type_filter=0))
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, "Unknown patternFilter.")


def test_a_rule_holds_only_once_it_is_on_the_disk(broker, client, monkeypatch):
    def full(path, data):
        raise StorageError(path, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(broker.storage, "replace", full)
        assert create(client, rule()) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert described(client) == []
    create(client, rule())
    with monkeypatch.context() as patch:
        patch.setattr(broker.storage, "replace", full)
        (result,) = client.ask(DELETE_ACLS, 3, {"filters": [wanted()]}).filter_results
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR and not result.matching_acls
    assert described(client) == [ORDERS]


def test_changes_of_rules_are_lines_of_the_audit_log(broker, client):
    create(client, rule("x\nPrincipal = User:root"))
    client.ask(DELETE_ACLS, 3, {"filters": [wanted()]})
    added, removed = (line for line in broker.reported if "access rule" in line)
    assert added.startswith("User:ANONYMOUS from") and "added an access rule: User:ada is allowed to READ" in added
    assert "removed an access rule" in removed
    assert all(line.isprintable() for line in (added, removed))


def test_only_who_may_alter_the_cluster_changes_rules_and_who_may_describe_it_sees_them():
    client = EngineBroker(authorizer_class_name=STANDARD).connect()
    failed = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert create(client, rule(), rule("x")) == [failed, failed]
    assert client.ask(DESCRIBE_ACLS, 3, wanted()).error_code == failed
    (result,) = client.ask(DELETE_ACLS, 3, {"filters": [wanted()]}).filter_results
    assert result.error_code == failed


def test_an_authorizer_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="authorizer.class.name"):
        EngineBroker(authorizer_class_name="com.example.Mine")
