"""The audit log: its lines, their number, and clients' texts that imitate lines."""

import pytest

from broker.security.authorization.acl import AclBinding, Operation, PatternType, Permission, ResourceType
from broker.security.authorization.audit_log import AuditLog, described, shown

READ, TOPIC = Operation.READ, ResourceType.TOPIC
BINDING = AclBinding(TOPIC, PatternType.PREFIXED, "ord", "User:ada", "*", READ, Permission.ALLOW)


class Clock:
    def __init__(self):
        self.ms = 0


@pytest.fixture
def lines():
    return []


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(lines, clock):
    return AuditLog(lines.append, lambda: clock.ms, lines_max=2)


def deny(log, name="orders", principal="User:ada"):
    log.denied(principal, "10.0.0.1", READ, TOPIC, name, "Fetch")


def test_a_denied_request_is_a_line_in_kafkas_words(log, lines):
    deny(log)
    assert lines == [
        "Principal = User:ada is Denied operation = READ from host = 10.0.0.1 on resource = Topic:LITERAL:orders "
        "for request = Fetch"
    ]


def test_a_second_has_a_few_lines_and_the_next_one_says_how_many_were_left_out(log, lines, clock):
    for _ in range(5):
        deny(log)
    assert len(lines) == 2
    clock.ms = 1_000
    deny(log)
    assert lines[2] == "3 more operations were denied, without a line for each"
    assert len(lines) == 4
    assert log.denied_total == 6


def test_a_change_of_a_rule_is_a_line(log, lines):
    rules = [BINDING, BINDING._replace(permission=Permission.DENY)]
    log.changed("User:root", "10.0.0.1:999", "added an access rule: ", map(described, rules[:1]))
    log.changed("User:root", "10.0.0.1:999", "removed an access rule: ", map(described, rules[1:]), "no session")
    assert lines == [
        "User:root from 10.0.0.1:999 added an access rule: "
        "User:ada is allowed to READ Topics that begin with ord from host *",
        "User:root from 10.0.0.1:999 removed an access rule: "
        "User:ada is denied to READ Topics that begin with ord from host *; this failed, at least in part: no session",
    ]


def test_each_change_is_a_line_however_many_there_are_in_a_second(log, lines):
    for number in range(5):
        log.changed("User:ada", "10.0.0.1:999", "deleted topics ", [f"orders-{number}"])
    assert len(lines) == 5


@pytest.mark.parametrize(
    "text",
    [
        "orders\nPrincipal = User:ada is Allowed",
        "orders\r\n",
        "orders for request = Metadata",
        'orders" for request = "Metadata',
        "orders\x1b[2K",
        "orders\u2028line",
        "orders\u202etxet",
    ],
)
def test_no_text_of_a_client_passes_for_another_line_or_part(log, lines, text):
    deny(log, name=text)
    deny(log, principal=f"User:{text}")
    for line in lines:
        assert line.isprintable()
        assert line.count('"') == 2, "the text stands in quotes, and has none"


def test_a_long_text_is_cut():
    assert len(shown("x" * 10_000)) < 300
    assert shown("CN=ada,O=b") == "CN=ada,O=b"
    assert "orders" in described(BINDING._replace(name="orders"))
