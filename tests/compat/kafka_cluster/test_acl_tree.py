"""Access rules in ZooKeeper beside Apache Kafka 3.9.1 with its AclAuthorizer: equal nodes, and each obeys the other's.

The four trees are /kafka-acl, /kafka-acl-extended, /kafka-acl-changes and /kafka-acl-extended-changes.
"""

import json
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from broker.wire.errors import ErrorCode
from coordination.free_port import FreePort
from tests.compat.kafka_cluster.admin_acts import ask, create
from tests.compat.kafka_cluster.kafka_broker import KafkaBroker, need_kafka
from tests.compat.kafka_cluster.own_broker import own_broker
from tests.compat.kafka_cluster.zookeeper_tree import ZooKeeperTree, create_chroots, differences
from tests.compat.sasl_users import listener_jaas
from tests.patience import SECONDS, until

pytestmark = pytest.mark.soak
need_kafka()

TREES = "/kafka-acl"  # begins all four
AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
ANY, TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, TOKEN, USER = 1, 2, 3, 4, 5, 6, 7
MATCH, LITERAL, PREFIXED = 2, 3, 4
DENY, ALLOW = 2, 3
ALL, READ, WRITE, DESCRIBE, CLUSTER_ACTION = 2, 3, 4, 8, 9
FIELDS = "resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation", "permission_type"


def rule(kind, name, pattern=LITERAL, principal="User:ada", host="*", operation=READ, permission=ALLOW):
    return dict(zip(FIELDS, (kind, name, pattern, principal, host, operation, permission), strict=True))


def add(*rules):
    return "CreateAcls", 3, {"creations": list(rules)}


def remove(kind=ANY, name=None, pattern=ANY, principal=None, host=None, operation=ANY, permission=ANY):
    """Remove the rules of a filter."""
    values = kind, name, pattern, principal, host, operation, permission
    names = [f"{field}_filter" if field in ("resource_name", "principal", "host") else field for field in FIELDS]
    names[0], names[2] = "resource_type_filter", "pattern_type_filter"
    return "DeleteAcls", 3, {"filters": [dict(zip(names, values, strict=True))]}


WRONG_PRINCIPAL = "a wrong principal"
ACTS = {
    "a rule": add(rule(TOPIC, "flights")),
    "another of the same resource": add(rule(TOPIC, "flights", principal="User:bob", host="10.0.0.1", operation=WRITE)),
    "one that denies": add(rule(TOPIC, "flights", principal="User:*", operation=DESCRIBE, permission=DENY)),
    "a begin of names": add(rule(TOPIC, "fl", PREFIXED)),
    "any name": add(rule(GROUP, "*", operation=ALL)),
    "two resources at once": add(rule(GROUP, "readers"), rule(TOPIC, "orders")),
    "two of one resource at once": add(*(rule(TOPIC, "orders", principal=f"User:{name}") for name in "bc")),
    "the cluster": add(rule(CLUSTER, "kafka-cluster", operation=CLUSTER_ACTION)),
    "a transactional id": add(rule(TRANSACTIONAL_ID, "payer", PREFIXED, operation=WRITE)),
    "a token": add(rule(TOKEN, "t", operation=DESCRIBE)),
    "a user": add(rule(USER, "User:ada", operation=13)),
    "a certificate's subject": add(rule(TOPIC, "flights", principal="User:CN=ada, O=Ex\\, ample,L=\"Zürich\"")),
    "each operation": add(*(rule(TOPIC, "each", operation=operation) for operation in range(2, 13))),
    "a name of each kind of character": add(rule(GROUP, "a b%2F:ü=,;\"'\\", PREFIXED)),
    "a wrong operation": add(rule(GROUP, "readers", operation=WRITE)),
    WRONG_PRINCIPAL: add(rule(TOPIC, "flights", principal="ada")),
    "one rule removed": remove(TOPIC, "flights", LITERAL, "User:bob"),
    "one that is not there": remove(TOPIC, "nothing", LITERAL),
    "the rules that match a name": remove(TOPIC, "flights", MATCH, permission=ALLOW),
    "the last rule of a resource": remove(TOPIC, "flights", LITERAL),
    "the rules of a begin of names": remove(ANY, "payer", PREFIXED),
    "a rule after the last was removed": add(rule(TOPIC, "flights", operation=WRITE)),
    "all rules": remove(),
}
AGAIN = {
    "a rule": add(rule(TOPIC, "flights")),
    "the same again": add(rule(TOPIC, "flights")),
    "one of another resource": add(rule(GROUP, "readers", principal="User:bob")),
    "the rules of a user": remove(principal="User:bob"),
    "all rules": remove(),
}
"""Acts that leave nodes as they are. Kafka writes such a node again, so that its version rises."""
NAMED = {WRONG_PRINCIPAL: ({ErrorCode.INVALID_REQUEST}, {ErrorCode.UNKNOWN_SERVER_ERROR})}
"""Answers that differ: ours, and Kafka's."""


def sorted_rules(nodes):
    """Return the nodes of access rules, without the order in which Kafka's sets have the rules of one node, and the
    changes of one act.
    """
    rules, changes = {}, {}
    for path, (text, is_ephemeral, version) in nodes.items():
        if not path.startswith(TREES):
            continue
        document = json.loads(text) if text.startswith("{") else {}
        if "acls" in document:
            document["acls"].sort(key=lambda entry: list(entry.items()))
            text = json.dumps(document, ensure_ascii=False)  # the order of the keys stays
        if "/acl_changes_" in path:
            parent = path.rpartition("/")[0]
            changes.setdefault(parent, []).append(text)
            text = ""
        rules[path] = text, is_ephemeral, version
    return rules | {parent: (sorted(texts), *rules[parent][1:]) for parent, texts in changes.items()}


def without_versions(nodes):
    return {path: node[:2] for path, node in sorted_rules(nodes).items()}


def settings(**more):
    return {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:admin",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.fixture(scope="module")
def brokers(tmp_path_factory, zookeeper):
    """Return a broker of ours and one of Kafka's, each alone, with the readers of their trees."""
    directory = tmp_path_factory.mktemp("acls")
    create_chroots(zookeeper.hosts, "acls-ours", "acls-kafka")
    with ExitStack() as stack:
        trees = [stack.enter_context(ZooKeeperTree(f"{zookeeper.hosts}/acls-{whose}")) for whose in ("ours", "kafka")]
        own = own_broker(directory / "ours", 1, f"{zookeeper.hosts}/acls-ours", settings())
        kafkas = KafkaBroker(directory / "kafka", 1, f"{zookeeper.hosts}/acls-kafka", settings())
        yield [stack.enter_context(own).address, stack.enter_context(kafkas).address], trees


@pytest.mark.parametrize(
    ("acts", "read"), [(ACTS, sorted_rules), (AGAIN, without_versions)], ids=["acts", "acts that change nothing"]
)
def test_the_four_trees_are_alike_after_each_act(brokers, acts, read):
    addresses, trees = brokers
    for act, request in acts.items():
        ours, kafkas = (ask(address, *request) for address in addresses)
        assert ours == kafkas or (ours, kafkas) == NAMED.get(act), act
        remaining = []

        def are_alike():
            remaining[:] = differences(*(read(tree.read()) for tree in trees))  # noqa: B023
            return not remaining  # noqa: B023

        try:
            until(are_alike, f"trees that are alike after {act!r}")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *remaining])) from None


# --- one cluster of both ---------------------------------------------------------------------------------------------


class BothBrokers:
    """A cluster of one broker of Kafka and one of ours. Users log in at a second listener of each."""

    def __init__(self, directory, hosts, stack):
        self.plain, self.logins = {}, {}
        jaas = listener_jaas([(user, f"{user}-secret") for user in ("admin", "ada", "bob")])
        for number, start in ((1, KafkaBroker), (2, own_broker)):
            ports = [stack.enter_context(closing(FreePort())) for _ in range(2)]
            plain, login = (port.address for port in ports)
            own = {
                "listeners": f"PLAINTEXT://{plain},SASL_PLAINTEXT://{login}",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas.replace("\\", "\\\\"),
                "inter.broker.listener.name": "PLAINTEXT",
            }
            stack.enter_context(start(directory / str(number), number, hosts, settings() | own))
            self.plain[number], self.logins[number] = plain, login
        admin = AdminClient({"bootstrap.servers": ",".join(self.plain.values())})
        until(lambda: len(admin.list_topics(timeout=SECONDS).brokers) == 2, "both brokers")

    def produced(self, user, topic, partition):
        """Return the code of the error with which a user's record is refused, None if it is taken."""
        config = {"bootstrap.servers": ",".join(self.logins.values()), "security.protocol": "SASL_PLAINTEXT"}
        config |= {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": f"{user}-secret", "log_level": 0}
        errors = []
        producer = Producer(config | {"error_cb": lambda _: None})
        report = {"on_delivery": lambda error, _: errors.append(error and error.code())}
        producer.produce(topic, "value", partition=partition, **report)
        producer.flush(SECONDS)
        return errors[0]


@pytest.fixture(scope="module")
def both(tmp_path_factory, zookeeper):
    create_chroots(zookeeper.hosts, "acls-both")
    with ExitStack() as stack:
        yield BothBrokers(tmp_path_factory.mktemp("both"), f"{zookeeper.hosts}/acls-both", stack)


@pytest.mark.parametrize(("writer", "whose"), [(1, "Kafka's"), (2, "ours")])
def test_a_rule_that_one_broker_writes_is_obeyed_by_both(both, writer, whose):
    """Kafka's broker leads partition 0, and ours partition 1. Rules are literal, prefixed, and bound to a host."""
    topic = f"flights-{writer}"
    assert ask(both.plain[1], *create(topic, 1, 2)) == set()
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED

    def await_outcomes(*outcomes):
        for partition in (0, 1):
            for user, outcome in zip(("ada", "bob"), outcomes, strict=True):
                description = f"{outcome} for {user} at partition {partition}, after a rule of {whose}"
                until(lambda user=user, at=partition, code=outcome: both.produced(user, topic, at) == code, description)

    def act(request):
        assert ask(both.plain[writer], *request) == set()

    await_outcomes(denied, denied)
    act(add(rule(TOPIC, topic, operation=WRITE)))
    await_outcomes(None, denied)
    act(add(rule(TOPIC, "flights-", PREFIXED, principal="User:bob", operation=WRITE, host="127.0.0.1")))
    await_outcomes(None, None)
    act(add(rule(TOPIC, topic, principal="User:ada", operation=WRITE, permission=DENY)))
    await_outcomes(denied, None)
    act(remove(TOPIC, topic, LITERAL))
    act(remove(TOPIC, "flights-", PREFIXED))
    await_outcomes(denied, denied)


def test_both_brokers_describe_the_same_rules(both):
    rules = [rule(TOPIC, "orders"), rule(GROUP, "re", PREFIXED, "User:bob", "10.0.0.1", DESCRIBE, DENY)]
    assert ask(both.plain[1], *add(*rules)) == set()
    assert ask(both.plain[2], *add(rule(TOPIC, "orders", operation=ALL))) == set()

    def described():
        return [_described(both.plain[number]) for number in (1, 2)]

    until(lambda: len(described()[0]) == 3 and described()[0] == described()[1], "equal descriptions")


def _described(address):
    any_rule = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    admin = AdminClient({"bootstrap.servers": address})
    return sorted(map(str, admin.describe_acls(any_rule).result(SECONDS)))
