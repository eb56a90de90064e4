"""The topics that a connection's rights keep for Produce and Fetch: until the rules change, and only some."""

from types import SimpleNamespace

import pytest

from broker.engine.api_table import APIS
from broker.security.authorization.acl import AclBinding, Operation, PatternType, Permission, ResourceType
from broker.security.authorization.audit_log import AuditLog
from broker.security.authorization.authorizer import Authorizer
from broker.security.authorization.rights import GRANTED_MAX, ConnectionRights

PRODUCE = APIS[0]
ALL = AclBinding(
    ResourceType.TOPIC, PatternType.LITERAL, "*", "User:ada", "*", Operation.WRITE, Permission.ALLOW
)


@pytest.fixture
def world():
    """Return an authorizer that lets ada write to all topics, her connection, its rights, and the audit log."""
    authorizer, peer, lines = Authorizer(acls=frozenset({ALL})), SimpleNamespace(address="::1"), []
    audit = AuditLog(lines.append, lambda: 1_000, 10)
    return SimpleNamespace(
        authorizer=authorizer, peer=peer, rights=ConnectionRights(authorizer, audit, peer), lines=lines
    )


def is_granted(rights, topic):
    """Return what Produce and Fetch ask for before they ask `may_on_topic`."""
    return topic in rights.granted and rights.granted_generation == rights.authorizer.generation


def test_a_topic_is_kept_until_the_rules_change(world):
    rights = world.rights[PRODUCE, "ada"]
    assert not is_granted(rights, "orders")
    assert rights.may_on_topic(Operation.WRITE, "orders", "orders") and is_granted(rights, "orders")
    world.authorizer.use(frozenset())
    assert not is_granted(rights, "orders")
    assert not rights.may_on_topic(Operation.WRITE, "orders", "orders") and not is_granted(rights, "orders")
    (line,) = world.lines
    assert "Topic:LITERAL:orders for request = Produce" in line
    world.authorizer.use(frozenset({ALL}))
    assert rights.may_on_topic(Operation.WRITE, "payments", "payments")
    assert not is_granted(rights, "orders"), "it was kept under other rules"


def test_another_user_of_the_connection_has_rights_of_its_own(world):
    rights = world.rights[PRODUCE, "ada"]
    rights.may_on_topic(Operation.WRITE, "orders", "orders")
    assert world.rights[PRODUCE, "ada"] is rights
    others = world.rights[PRODUCE, "eve"]
    assert others.principal == "User:eve" and not is_granted(others, "orders")


def test_names_that_a_client_invents_do_not_fill_the_memory(world):
    rights = world.rights[PRODUCE, "ada"]
    for number in range(3 * GRANTED_MAX):
        assert rights.may_on_topic(Operation.WRITE, f"topic-{number}", f"topic-{number}")
        assert len(rights.granted) <= GRANTED_MAX
    assert is_granted(rights, f"topic-{3 * GRANTED_MAX - 1}")
    assert rights.may_on_topic(Operation.WRITE, "x" * 250, "x" * 250) and not is_granted(rights, "x" * 250)
