"""Rules and filters: Kafka's ResourcePatternFilter, AccessControlEntryFilter and AclControlManager (KIP-290)."""

import pytest

from broker.security.authorization.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclBindingFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_binding,
)

LITERAL, PREFIXED, MATCH = PatternType.LITERAL, PatternType.PREFIXED, PatternType.MATCH
ORDERS = AclBinding(ResourceType.TOPIC, LITERAL, "orders", "User:ada", "*", Operation.READ, Permission.ALLOW)
ALL_TOPICS = ORDERS._replace(name="*")
PREFIX = ORDERS._replace(pattern_type=PREFIXED, name="ord")


@pytest.mark.parametrize(
    ("acl_filter", "rules"),
    [
        (AclBindingFilter(), [ORDERS, ALL_TOPICS, PREFIX]),
        (AclBindingFilter(name="orders"), [ORDERS]),
        (AclBindingFilter(name="ord"), [PREFIX]),
        (AclBindingFilter(pattern_type=LITERAL), [ORDERS, ALL_TOPICS]),
        (AclBindingFilter(pattern_type=PREFIXED, name="orders"), []),
        (AclBindingFilter(pattern_type=MATCH, name="orders"), [ORDERS, ALL_TOPICS, PREFIX]),
        (AclBindingFilter(pattern_type=MATCH, name="ordinals"), [ALL_TOPICS, PREFIX]),
        (AclBindingFilter(pattern_type=MATCH, name="*"), [ALL_TOPICS]),
        (AclBindingFilter(pattern_type=MATCH), [ORDERS, ALL_TOPICS, PREFIX]),
        (AclBindingFilter(resource_type=ResourceType.GROUP), []),
        (AclBindingFilter(principal="User:ada", operation=Operation.READ), [ORDERS, ALL_TOPICS, PREFIX]),
        (AclBindingFilter(principal="User:*"), []),
        (AclBindingFilter(host="10.0.0.1"), []),
        (AclBindingFilter(operation=Operation.ALL), []),
        (AclBindingFilter(permission=Permission.DENY), []),
    ],
)
def test_a_filter_selects_rules_as_kafkas_does(acl_filter, rules):
    assert [rule for rule in (ORDERS, ALL_TOPICS, PREFIX) if acl_filter.matches(rule)] == rules


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": ""}, "Invalid empty resource name"),
        ({"resource_type": ResourceType.CLUSTER}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"resource_type": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"pattern_type": MATCH}, "Invalid patternType MATCH"),
        ({"operation": Operation.ANY}, "Invalid operation ANY"),
        ({"permission": Permission.ANY}, "Invalid permissionType ANY"),
        ({"principal": "ada"}, "expected a string in format principalType:principalName but got ada"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_in_kafkas_words(change, reason):
    assert check_binding(ORDERS._replace(**change)) == reason


def test_a_rule_about_the_cluster_and_one_about_a_prefix_can_be():
    assert check_binding(ORDERS._replace(resource_type=ResourceType.CLUSTER, name=CLUSTER_NAME)) is None
    assert check_binding(PREFIX) is None
