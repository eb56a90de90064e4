"""The authorizer: the rules of Kafka's StandardAuthorizer, and a model of them that tries every rule in turn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.authorization.acl import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from broker.security.authorization.authorizer import DECISIONS_MAX, LISTINGS_MAX, Authorizer
from tests.partition_manager.managers import calls_of

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
HOST = "10.0.0.1"


def rule(name="orders", operation=READ, permission=ALLOW, **more):
    begin = AclBinding(TOPIC, LITERAL, name, "User:ada", "*", operation, permission)
    return begin._replace(**more)


def authorizer(*rules, **more):
    return Authorizer(acls=frozenset(rules), **more)


def may(rules, operation=READ, name="orders", principal="User:ada", host=HOST):
    return authorizer(*rules).allows(principal, host, operation, TOPIC, name)


def test_nobody_may_anything_without_a_rule():
    assert not may([])


def test_a_rule_allows_its_operation_on_its_resource_to_its_principal_only():
    assert may([rule()])
    assert not may([rule()], WRITE)
    assert not may([rule()], name="order")
    assert not may([rule()], principal="User:bob")
    assert not may([rule(resource_type=GROUP)])


def test_a_rule_that_denies_comes_before_rules_that_allow():
    assert not may([rule("*", ALL), rule("ord", READ, DENY, pattern_type=PREFIXED)])
    assert not may([rule(), rule(operation=ALL, permission=DENY, principal="User:*")])


def test_a_rule_of_a_host_holds_for_that_host():
    assert may([rule(host=HOST)])
    assert not may([rule(host="10.0.0.2")])
    assert may([rule(), rule(permission=DENY, host="10.0.0.2")])


@pytest.mark.parametrize("operation", [READ, WRITE, Operation.DELETE, Operation.ALTER])
def test_who_may_do_something_may_describe(operation):
    assert may([rule(operation=operation)], DESCRIBE)
    assert may([rule(operation=DESCRIBE), rule(operation=operation, permission=DENY)], DESCRIBE)


def test_who_may_alter_settings_may_describe_them():
    assert may([rule(operation=Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS)
    assert not may([rule(operation=Operation.ALTER_CONFIGS)], DESCRIBE)
    assert not may([rule(operation=DESCRIBE)], READ)


def test_a_prefix_holds_for_all_names_that_begin_so():
    rules = [rule("ord", pattern_type=PREFIXED)]
    assert may(rules) and may(rules, name="ord")
    assert not may(rules, name="or") and not may(rules, name="xord")


def test_a_super_user_may_do_what_a_rule_denies():
    rules = authorizer(rule("*", ALL, DENY, principal="User:*"), super_users=["User:root"])
    assert rules.allows("User:root", HOST, READ, TOPIC, "orders")
    assert rules.allows_on_any("User:root", HOST, WRITE, TOPIC)
    assert not rules.allows("User:ada", HOST, READ, TOPIC, "orders")


def test_without_rules_for_a_resource_it_is_open_if_the_setting_says_so():
    rules = authorizer(rule("orders", principal="User:bob"), allows_without_rules=True)
    assert rules.allows("User:ada", HOST, READ, TOPIC, "other")
    assert not rules.allows("User:ada", HOST, READ, TOPIC, "orders")
    assert rules.allows_on_any("User:ada", HOST, WRITE, TOPIC)


def test_a_decision_lasts_until_the_rules_change():
    rules = authorizer(rule())
    assert rules.allows("User:ada", HOST, READ, TOPIC, "orders")
    generation = rules.generation
    rules.use(frozenset())
    assert not rules.allows("User:ada", HOST, READ, TOPIC, "orders")
    assert rules.generation != generation


def test_names_that_a_client_invents_do_not_fill_the_memory():
    rules = authorizer(rule())
    for number in range(DECISIONS_MAX + 10):
        rules.allows("User:ada", HOST, READ, TOPIC, f"invented-{number}")
    assert len(rules._decisions) <= DECISIONS_MAX


def test_a_listing_of_more_names_than_are_kept_leaves_the_decisions_of_others():
    rules = authorizer(rule(), rule("t", pattern_type=PREFIXED), rule("t7", permission=DENY))
    assert rules.allows("User:bob", HOST, READ, TOPIC, "orders") is False
    before = dict(rules._decisions)
    names = [f"t{number}" for number in range(DECISIONS_MAX + 10)]
    assert rules.allowed("User:ada", HOST, READ, TOPIC, [*names, "orders", "pay"]) == {*names, "orders"} - {"t7"}
    assert rules._decisions == before


def test_a_listing_does_not_look_at_name_after_name_whatever_the_rules():
    lengths = [rule(f"t{'0' * length}", pattern_type=PREFIXED) for length in range(20)]
    rules = authorizer(*lengths, *(rule(f"t{number}", permission=DENY) for number in range(100)))
    names = [f"t{number}" for number in range(5_000)]
    assert calls_of(lambda: rules.allowed("User:ada", HOST, READ, TOPIC, names)) < 1_000
    assert calls_of(lambda: rules.allowed("User:ada", HOST, READ, TOPIC, names)) < 20
    assert rules.allowed("User:ada", HOST, READ, TOPIC, names) == set(names[100:])


def test_clients_that_list_from_everywhere_do_not_fill_the_memory():
    rules = authorizer(rule())
    for number in range(LISTINGS_MAX * 2 + 1):
        assert rules.allowed("User:ada", f"10.0.0.{number}", READ, TOPIC, ["orders", "pay"]) == {"orders"}
    assert len(rules._listings) <= LISTINGS_MAX


def test_a_change_of_the_rules_holds_for_the_next_listing():
    rules = authorizer(rule())
    assert rules.allowed("User:ada", HOST, READ, TOPIC, ["orders"]) == {"orders"}
    rules.use(frozenset())
    assert rules.allowed("User:ada", HOST, READ, TOPIC, ["orders"]) == set()


def test_the_operations_on_a_resource_are_a_bit_each():
    assert authorizer(rule()).operations("User:ada", HOST, TOPIC, "orders") == 1 << READ | 1 << DESCRIBE
    everything = authorizer(super_users=["User:ada"])
    assert everything.operations("User:ada", HOST, TOPIC, "orders") == 3576
    assert everything.operations("User:ada", HOST, GROUP, "g") == 3400
    assert everything.operations("User:ada", HOST, CLUSTER, CLUSTER_NAME) == 8096


# --- the model -------------------------------------------------------------------------------------------------------

SOME_NAMES = "a", "ab", "abc", "b", "*", "hardcode"
NAMES = st.sampled_from(SOME_NAMES)
PRINCIPALS = st.sampled_from(["User:ada", "User:bob", "User:*"])
RULES = st.frozensets(
    st.builds(
        AclBinding,
        st.sampled_from([TOPIC, GROUP]),
        st.sampled_from([LITERAL, PREFIXED]),
        NAMES,
        PRINCIPALS,
        st.sampled_from(["*", HOST, "10.0.0.2"]),
        st.sampled_from([ALL, READ, WRITE, DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS]),
        st.sampled_from([ALLOW, DENY]),
    ),
    max_size=12,
)
OPERATION = st.sampled_from([READ, WRITE, DESCRIBE, Operation.DESCRIBE_CONFIGS])
INCLUDES_DESCRIBE = (DESCRIBE, READ, WRITE, Operation.DELETE, Operation.ALTER)
INCLUDES_DESCRIBE_CONFIGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)


def is_about(rule, resource_type, name):
    if rule.resource_type is not resource_type:
        return False
    if rule.pattern_type is PREFIXED:
        return name.startswith(rule.name)
    return rule.name in ("*", name)


def holds(rule, principal, host, operation):
    """Return True if a rule about the resource holds for a request: StandardAuthorizerData.findResult."""
    granted = (rule.operation,)
    if rule.permission is ALLOW and operation is DESCRIBE and rule.operation in INCLUDES_DESCRIBE:
        granted = (DESCRIBE,)
    if rule.permission is ALLOW and operation is Operation.DESCRIBE_CONFIGS:
        granted = (operation,) if rule.operation in INCLUDES_DESCRIBE_CONFIGS else granted
    is_of_principal = rule.principal in (principal, "User:*") and rule.host in (host, "*")
    return is_of_principal and (rule.operation is ALL or operation in granted)


def as_kafka_decides(rules, principal, host, operation, resource_type, name, default):
    about = [rule for rule in rules if is_about(rule, resource_type, name)]
    if not about:
        return default
    permissions = {rule.permission for rule in about if holds(rule, principal, host, operation)}
    return DENY not in permissions and ALLOW in permissions


@given(RULES, OPERATION, st.sampled_from([TOPIC, GROUP]), st.booleans())
def test_the_index_decides_and_lists_as_a_walk_over_all_rules(rules, operation, resource_type, default):
    index = Authorizer(acls=rules, allows_without_rules=default)
    for principal in ("User:ada", "User:cleo", "User:*"):
        asked = principal, HOST, operation, resource_type
        allowed = {name for name in SOME_NAMES if as_kafka_decides(rules, *asked, name, default)}
        assert {name for name in SOME_NAMES if index.allows(*asked, name)} == allowed
        assert index.allowed(*asked, SOME_NAMES) == allowed


def as_kafka_decides_on_any(rules, principal, host, operation):
    """Walk over the rules as Authorizer.authorizeByResourceType does."""
    if as_kafka_decides(rules, principal, host, operation, TOPIC, "hardcode", False):
        return True
    of_client = [
        rule
        for rule in rules
        if rule.resource_type is TOPIC
        and rule.principal in (principal, "User:*")
        and rule.host in (host, "*")
        and rule.operation in (operation, ALL)
    ]
    patterns = {(rule.permission, rule.pattern_type, rule.name) for rule in of_client}
    if (DENY, LITERAL, "*") in patterns:
        return False
    if (ALLOW, LITERAL, "*") in patterns:
        return True
    for permission, pattern_type, name in patterns:
        if permission is DENY or (pattern_type is LITERAL and (DENY, LITERAL, name) in patterns):
            continue
        begins = [name[: length + 1] for length in range(len(name))]
        if not any((DENY, PREFIXED, begin) in patterns for begin in begins):
            return True
    return False


@given(RULES, st.sampled_from([READ, WRITE]))
def test_any_topic_is_decided_as_by_kafka(rules, operation):
    index = Authorizer(acls=rules)
    for principal in ("User:ada", "User:cleo"):
        expected = as_kafka_decides_on_any(rules, principal, HOST, operation)
        assert index.allows_on_any(principal, HOST, operation, TOPIC) == expected
