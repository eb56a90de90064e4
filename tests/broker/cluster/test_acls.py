"""Access rules in the coordinator: the documents of Kafka 3.9's AclAuthorizer, and a broker that follows them."""

import pytest

from broker.cluster.acl_documents import (
    ACL_CHANGES,
    AclResource,
    decode_acl_change,
    decode_acls,
    encode_acl_change,
    encode_acls,
    resource_of,
)
from broker.cluster.acl_watch import AclWatch
from broker.cluster.acl_writes import write_acls
from broker.cluster.change_watch import CHANGE_EXPIRATION_MS
from broker.cluster.documents import DamagedDocument
from broker.now import Now
from broker.security.authorization.acl import AclBinding, Operation, PatternType, Permission, ResourceType
from broker.waiting.pending import Pending
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import Children, CoordinationError, Get, Set
from tests.broker.cluster.procedures import run

TOPIC, LITERAL, PREFIXED = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED
ORDERS = AclBinding(TOPIC, LITERAL, "orders", "User:ada", "*", Operation.READ, Permission.ALLOW)
PREFIX = ORDERS._replace(pattern_type=PREFIXED, name="ord", permission=Permission.DENY)
TRANSACTION = ORDERS._replace(
    resource_type=ResourceType.TRANSACTIONAL_ID, operation=Operation.IDEMPOTENT_WRITE, name="t"
)


class Watcher:
    """A broker: its session and its watch."""

    def __init__(self, ensemble):
        self.coordinator = MemoryCoordinator(ensemble)
        self.watch = AclWatch(Pending())
        self.acls = None
        self.now_ms = 0

    def follow(self):
        """Let the watch do all that it can do now; return the rules that it has read."""
        now = Now(self.now_ms, 0)
        for event in self.coordinator.take_events():
            self.watch.notified(event, now)
        if not self.watch.has_read_all:
            self.watch.begin(now)
        while operations := self.watch.take_operations():
            for operation in operations:
                try:
                    outcome = self.coordinator.execute(operation)
                except CoordinationError as error:
                    outcome = error
                self.watch.completed(operation, outcome, now)
            for event in self.coordinator.take_events():
                self.watch.notified(event, now)
        acls = self.watch.take_acls()
        self.acls = self.acls if acls is None else acls
        return self.acls


@pytest.fixture
def ensemble():
    return Ensemble()


@pytest.fixture
def watcher(ensemble):
    return Watcher(ensemble)


@pytest.fixture
def other(ensemble, watcher):
    watcher.follow()
    return MemoryCoordinator(ensemble)


def write(coordinator, *added, removed=()):
    for resource in {resource_of(binding) for binding in (*added, *removed)}:
        of_resource = [[b for b in bindings if resource_of(b) == resource] for bindings in (added, removed)]
        run(coordinator, write_acls(resource, *of_resource))


# --- documents -------------------------------------------------------------------------------------------------------


def test_the_paths_and_documents_are_those_of_kafka_3_9():
    assert resource_of(ORDERS).path == "/kafka-acl/Topic/orders"
    assert resource_of(PREFIX).path == "/kafka-acl-extended/prefixed/Topic/ord"
    assert resource_of(TRANSACTION).path == "/kafka-acl/TransactionalId/t"
    document = b'{"acls":[{"principal":"User:ada","permissionType":"Allow","host":"*","operation":"Read"}],"version":1}'
    assert encode_acls([ORDERS]) == document
    assert b'"operation":"IdempotentWrite"' in encode_acls([TRANSACTION])
    assert encode_acl_change(resource_of(ORDERS)) == b"TOPIC:orders"
    change = b'{"version":1,"resourceType":"TOPIC","name":"ord","patternType":"PREFIXED"}'
    assert encode_acl_change(resource_of(PREFIX)) == change


@pytest.mark.parametrize("binding", [ORDERS, PREFIX, TRANSACTION])
def test_what_is_written_can_be_read(binding):
    resource = resource_of(binding)
    assert decode_acls(resource, encode_acls([binding])) == {binding}
    path = resource.change_path + "0000000001"
    assert decode_acl_change(path, encode_acl_change(resource)) == resource


def test_a_change_node_of_an_older_kafka_can_be_read():
    assert decode_acl_change(f"{ACL_CHANGES}/acl_changes_1", b"Topic:a:b") == AclResource(TOPIC, LITERAL, "a:b")


@pytest.mark.parametrize("data", [b"[]", b"x", b'{"version":7,"acls":[]}', b'{"version":1,"acls":[{"host":"*"}]}'])
def test_a_damaged_document_is_named(data):
    with pytest.raises(DamagedDocument, match="/kafka-acl/Topic/orders"):
        decode_acls(resource_of(ORDERS), data)


# --- a broker that follows -------------------------------------------------------------------------------------------


def test_the_nodes_above_the_rules_are_made_at_the_start(watcher):
    assert watcher.follow() == frozenset()
    kinds = {"Topic", "Group", "Cluster", "TransactionalId", "DelegationToken", "User"}
    for path in ("/kafka-acl", "/kafka-acl-extended/prefixed"):
        assert set(watcher.coordinator.execute(Children(path))) == kinds


def test_a_broker_follows_rules_that_others_add_and_remove(watcher, other):
    write(other, ORDERS, PREFIX)
    assert watcher.follow() == {ORDERS, PREFIX}
    write(other, ORDERS._replace(host="10.0.0.1"), removed=[PREFIX])
    assert watcher.follow() == {ORDERS, ORDERS._replace(host="10.0.0.1")}


def test_the_node_of_a_resource_goes_with_its_last_rule(watcher, other):
    write(other, ORDERS)
    write(other, removed=[ORDERS])
    assert other.execute(Children("/kafka-acl/Topic")) == ()
    assert watcher.follow() == frozenset()


def test_rules_that_two_brokers_write_at_the_same_time_are_both_kept(watcher, other):
    resource = resource_of(ORDERS)
    write(other, ORDERS)
    procedure = write_acls(resource, [ORDERS._replace(host="10.0.0.1")], [])
    batch = next(procedure)  # it has read the node, and is about to write
    outcomes = [other.execute(operation) for operation in batch]
    write(other, ORDERS._replace(host="10.0.0.2"))
    try:
        while True:
            batch = procedure.send(outcomes)
            outcomes = []
            for operation in batch:
                try:
                    outcomes.append(other.execute(operation))
                except CoordinationError as error:
                    outcomes.append(error)
    except StopIteration:
        pass
    assert {binding.host for binding in watcher.follow()} == {"*", "10.0.0.1", "10.0.0.2"}


def test_a_damaged_node_keeps_the_rules_that_were_read_last_and_is_a_problem(watcher, other):
    write(other, ORDERS)
    watcher.follow()
    node = other.execute(Get("/kafka-acl/Topic/orders"))
    other.execute(Set("/kafka-acl/Topic/orders", b"nonsense", node.version))
    write(other, PREFIX)
    watcher.watch.begin(Now(0, 0))
    assert watcher.follow() == {ORDERS, PREFIX}
    assert list(watcher.watch.problems) == ["/kafka-acl/Topic/orders"]


def test_old_change_nodes_are_deleted(watcher, other):
    write(other, ORDERS)
    watcher.follow()
    watcher.now_ms = CHANGE_EXPIRATION_MS
    write(other, PREFIX)
    watcher.follow()
    assert other.execute(Children(ACL_CHANGES)) == ()


def test_a_name_with_a_slash_is_refused(other):
    with pytest.raises(ValueError, match="slash"):
        write(other, ORDERS._replace(resource_type=ResourceType.GROUP, name="a/b"))
