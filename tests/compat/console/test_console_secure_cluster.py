"""The web console of a cluster whose brokers have no plain listener, or that has an authorizer, sees all brokers.

It goes to other brokers at their own listener, as its broker does. With an authorizer they judge it by its principal.
"""

from contextlib import ExitStack, closing

import pytest

from broker.client.address import parse_addresses
from broker.client.blocking import Client
from coordination.free_port import FreePort
from flakelog import AclBinding, AclBindingFilter, AclOperation, AclPermissionType, Admin, PatternType, ResourceType
from flakelog.produce import send
from tests.compat.console.console_visitor import Visitor
from tests.compat.sasl_users import PLAIN_MODULE, jaas
from tests.compat.server_process import ServerProcess
from tests.compat.several_processes import SeveralProcesses
from tests.compat.tls_files import TlsFiles
from tests.patience import until

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOKEN = "correct horse battery"
BROKER, PASSWORD = "broker", "broker-secret"
PARTITIONS = range(4)
GUARDED = {
    "authorizer.class.name": STANDARD,
    "super.users": f"User:{BROKER}",
    "flakelog.console.principal": "User:console",
}
MESSAGES = "topics/orders/messages?start=oldest"


class Cluster:
    """Two brokers that speak SASL_SSL only, with a topic whose partitions lie on both."""

    def __init__(self, directory, zookeeper, stack, *settings):
        """`settings` are those of each broker."""
        self.files = TlsFiles(directory / "tls")
        self.servers = [
            self._server(number, directory, zookeeper, stack, own) for number, own in enumerate(settings, 1)
        ]
        for server in self.servers:
            server.start()
        self.address = self.servers[0].address
        with self.client() as client:
            until(lambda: len(client.run(client.core.nodes())) == 2, "both brokers")
            fill(client)

    def _server(self, number, directory, zookeeper, stack, settings):
        port = stack.enter_context(closing(FreePort())).number
        own = f'{PLAIN_MODULE} required username="{BROKER}" password="{PASSWORD}" user_{BROKER}="{PASSWORD}";'
        secure = {
            "broker.id": number,
            "listeners": f"SASL_SSL://127.0.0.1:{port}",
            "inter.broker.listener.name": "SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": own,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.files.broker,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.files.ca,
            "offsets.topic.replication.factor": 1,
            "zookeeper.connect": zookeeper,
            "flakelog.console.token": TOKEN,
        }
        return stack.enter_context(NotStarted(directory / str(number), secure | settings))

    @property
    def security(self):
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": jaas(BROKER, PASSWORD),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.files.ca),
        }

    def client(self):
        return Client(self.address, security=self.security)

    def visitors(self):
        return [visitor_of(server) for server in self.servers]


class NotStarted(ServerProcess):
    def __enter__(self):
        return self


def visitor_of(server):
    visitor = Visitor(server.http)
    visitor.headers = {"Authorization": f"Bearer {TOKEN}"}
    return visitor


def fill(client):
    """Create the topic orders, and send a message to each partition."""
    client.create_topic("orders", len(PARTITIONS))
    until(lambda: None not in client.topic("orders").leaders.values(), "a leader of each partition")
    assert len(set(client.topic("orders").leaders.values())) == 2
    for partition in PARTITIONS:
        send(client, "orders", partition, [(b"k", b"message-%d" % partition)], 1_700_000_000_000)


def shown(visitor, page=MESSAGES):
    """Return the status of a page, and the partitions whose message it shows."""
    status, text = visitor.get(f"/console/{page}")
    return status, [partition for partition in PARTITIONS if f"message-{partition}" in text]


def rule(operation, kind, name):
    return AclBinding(kind, PatternType.LITERAL, name, "User:console", "*", operation, AclPermissionType.ALLOW)


# --- brokers that speak SASL_SSL only --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("unguarded"), f"{zookeeper.hosts}/console-unguarded", stack, {}, {})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("guarded"), f"{zookeeper.hosts}/console-guarded", stack, GUARDED, GUARDED)


def test_without_a_plain_listener_each_console_shows_the_messages_of_all_brokers(unguarded):
    """The console could not reach the TLS listeners of other brokers."""
    assert [shown(visitor) for visitor in unguarded.visitors()] == [(200, [*PARTITIONS])] * 2


def test_without_a_plain_listener_an_action_reaches_the_controller(unguarded):
    for number, visitor in enumerate(unguarded.visitors()):
        assert visitor.confirm("create-topic", name=f"made-{number}", partitions="2")[0] == 200
    with unguarded.client() as client:
        assert {"made-0", "made-1"} < {topic.name for topic in client.topics()}


def test_with_an_authorizer_other_brokers_judge_the_console_by_its_principal(guarded):
    with Admin(guarded.address, security=guarded.security) as admin:
        for visitor in guarded.visitors():
            assert shown(visitor) == (403, [])
        admin.create_acls([rule(AclOperation.DESCRIBE, ResourceType.TOPIC, "orders")])
        until(lambda: all(v.get("/console/topics/orders")[0] == 200 for v in guarded.visitors()), "the rule")
        for visitor in guarded.visitors():
            for partition in PARTITIONS:  # half of them are led by the other broker
                status, text = visitor.get(f"/console/{MESSAGES}&partition={partition}")
                assert status == 403 and "--operation read --topic orders" in text and "message-" not in text
        admin.create_acls([rule(AclOperation.READ, ResourceType.TOPIC, "orders")])
        until(lambda: all(v.get(f"/console/{MESSAGES}")[0] == 200 for v in guarded.visitors()), "the rule")
        assert [shown(visitor) for visitor in guarded.visitors()] == [(200, [*PARTITIONS])] * 2
        admin.delete_acls([AclBindingFilter(principal="User:console")])


def test_with_an_authorizer_the_controller_judges_an_action_by_the_principal(guarded):
    """One console's broker is the controller, and the other's is not."""
    for visitor in guarded.visitors():
        status, text = visitor.confirm("create-topic", name="made")
        assert status == 403 and "lacks the right create on topic made" in text
    denied = "Principal = User:console is Denied operation = CREATE from host = local on resource = Topic:LITERAL:made"
    assert any(denied in server.log for server in guarded.servers)
    with Admin(guarded.address, security=guarded.security) as admin:
        admin.create_acls([rule(AclOperation.CREATE, ResourceType.CLUSTER, "kafka-cluster")])
        for number, visitor in enumerate(guarded.visitors()):
            until(lambda: visitor.confirm("create-topic", name=f"by-{number}")[0] == 200, "the rule")  # noqa: B023
        assert {"by-0", "by-1"} < {topic.name for topic in admin.topics()}
        admin.delete_acls([AclBindingFilter(principal="User:console")])


def test_a_broker_without_an_authorizer_lends_its_console_no_rights_at_a_broker_that_has_one(tmp_path, zookeeper):
    """An operator turns the authorizer on by restarting one broker after the other."""
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, f"{zookeeper.hosts}/console-half", stack, GUARDED, {})
        with cluster.client() as client:
            leaders = client.topic("orders").leaders
        addresses = [parse_addresses(server.address)[0] for server in cluster.servers]
        visitor = cluster.visitors()[1]
        shows = {leaders[number]: shown(visitor, f"{MESSAGES}&partition={number}")[1] != [] for number in PARTITIONS}
        assert shows == {addresses[0]: False, addresses[1]: True}


# --- the processes of one server -------------------------------------------------------------------------------------


def test_with_processes_the_console_has_not_the_rights_of_brokers(tmp_path):
    """Brokers of one machine trust each other at their sockets, by which the console came too."""
    settings = GUARDED | {"super.users": "User:ANONYMOUS", "flakelog.console.token": TOKEN}
    with SeveralProcesses(tmp_path / "data", 2, settings) as server, Admin(server.address) as admin:
        with Client(server.address) as client:
            fill(client)
        visitor = visitor_of(server)
        assert shown(visitor) == (403, [])
        assert visitor.confirm("create-topic", name="made")[0] == 403
        admin.create_acls([rule(AclOperation.READ, ResourceType.TOPIC, "orders")])
        until(lambda: visitor.get(f"/console/{MESSAGES}")[0] == 200, "the rule")
        assert shown(visitor) == (200, [*PARTITIONS])
