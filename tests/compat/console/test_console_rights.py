"""The web console of a server with an authorizer: it acts as its principal, and never as a super user by accident."""

import shlex

import pytest
from click.testing import CliRunner

from broker.client.blocking import Client
from flakelog import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    Admin,
    PatternType,
    ResourceType,
)
from flakelog.cli import main
from flakelog.produce import send
from tests.compat.console.console_visitor import Visitor
from tests.compat.server_process import ROOT, DidNotStart, ServerProcess

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOKEN = "correct horse battery"
GUARDED = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}
OPEN = GUARDED | {"flakelog.console.token": TOKEN, "flakelog.console.principal": "User:console"}


def visitor_of(server):
    visitor = Visitor(server.http)
    visitor.headers = {"Authorization": f"Bearer {TOKEN}"}
    return visitor


def rule(operation, kind, name, user="User:console"):
    return AclBinding(kind, PatternType.LITERAL, name, user, "*", operation, AclPermissionType.ALLOW)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("data"), OPEN) as server:
        with Client(server.address) as client:
            client.create_topic("orders", 1)
            client.create_topic("payments", 1)
            send(client, "orders", 0, [(b"k", b"a message of orders")], 1_700_000_000_000)
        yield server


@pytest.fixture
def admin(server):
    with Admin(server.address) as admin:
        yield admin
        admin.delete_acls([AclBindingFilter(principal="User:console")])


def test_without_rights_its_pages_say_which_right_is_missing_and_the_command_that_grants_it(server, admin):
    """Clients at the plain listener are a super user here, and the console is not one of them."""
    visitor = visitor_of(server)
    status, text = visitor.get("/")
    assert status == 403 and "the console acts as User:console, which lacks the right describe on the cluster" in text
    assert "flakelog acl add --allow User:console --operation describe --cluster" in text
    status, text = visitor.get("/console/topics")
    assert status == 200 and "orders" not in text
    assert visitor.get("/console/topics/orders/messages?start=oldest")[0] == 403
    for page, needed in (
        ("mirrors", "--operation describe --topic __flakelog_mirrors"),
        ("rules", "--operation describe --cluster"),
        ("users", "--operation describe --cluster"),
        ("quotas", "--operation describe-configs --cluster"),
    ):
        status, text = visitor.get(f"/console/{page}")
        assert (status, needed in text) == (403, True), text
    line = server.wait_for_log("for request = Console")
    assert "Principal = User:console is Denied operation = DESCRIBE from host = local on resource = Cluster" in line


def test_a_rule_opens_its_pages_at_once_and_each_request_is_checked(server, admin):
    visitor = visitor_of(server)
    orders = rule(AclOperation.READ, ResourceType.TOPIC, "orders")
    admin.create_acls([orders])
    status, text = visitor.get("/console/topics/orders/messages?start=oldest")
    assert status == 200 and "a message of orders" in text
    assert visitor.get("/console/topics/payments")[0] == 403
    assert "payments" not in visitor.get("/console/topics")[1]
    admin.delete_acls([AclBindingFilter(name="orders")])
    status, text = visitor.get("/console/topics/orders/messages?start=oldest")
    assert status == 403 and "a message of orders" not in text


PAGES = ("/", "topics", "topics/orders", "topics/orders/messages", "groups", "transactions", "quotas", "ids")
PAGES += ("rules", "users", "topologies", "mirrors", "replays")


def test_the_rules_of_the_documentation_open_all_pages(server, admin):
    visitor, words = visitor_of(server), (ROOT / "docs" / "console.md").read_text()
    commands = [shlex.split(line)[1:] for line in words.splitlines() if line.startswith("    flakelog acl add")]
    assert len(commands) == 3
    for command in commands:
        done = CliRunner().invoke(main, [*command, "--servers", server.address], catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
    paths = [page if page == "/" else f"/console/{page}" for page in PAGES]
    assert {path: visitor.get(path)[0] for path in paths} == dict.fromkeys(paths, 200)
    assert visitor.confirm("delete-topic", topic="orders", typed="orders")[0] in (400, 403)


def test_an_action_is_judged_with_the_principal_and_its_form_says_what_is_missing(server, admin):
    visitor = visitor_of(server)
    status, text = visitor.confirm("create-topic", name="made")
    assert status == 403 and "flakelog acl add --allow User:console --operation create --topic made" in text
    assert 'name="name" value="made"' in text, "the form keeps what was given"
    server.wait_for_log("Principal = User:console is Denied operation = CREATE from host = local")
    admin.create_acls([rule(AclOperation.CREATE, ResourceType.TOPIC, "made")])
    assert visitor.confirm("create-topic", name="made")[0] == 200
    assert "made" in {topic.name for topic in admin.topics()}


@pytest.mark.parametrize("left_out", ["flakelog.console.principal", "flakelog.console.token"])
def test_without_a_principal_or_a_token_it_is_closed_and_the_start_says_what_to_set(tmp_path, left_out):
    settings = {name: value for name, value in OPEN.items() if name != left_out}
    with ServerProcess(tmp_path / "data", settings) as server:
        assert "so the console is closed; to open it, set " + left_out in server.log
        assert "console" not in server.addresses
        status, text = visitor_of(server).get("/")
        assert status == 403 and "authorizer.class.name is set, so the console is closed" in text


def test_the_start_says_aloud_that_the_console_may_do_everything(tmp_path):
    settings = OPEN | {"flakelog.console.principal": "User:ANONYMOUS"}
    with ServerProcess(tmp_path / "data", settings) as server:
        assert "who opens the console may do everything, because User:ANONYMOUS is one of super.users" in server.log
        assert visitor_of(server).get("/")[0] == 200


def test_no_listener_of_clients_has_the_name_of_the_consoles(tmp_path):
    settings = OPEN | {
        "listeners": "CONSOLE://127.0.0.1:0",
        "listener.security.protocol.map": "CONSOLE:PLAINTEXT",
    }
    with pytest.raises(DidNotStart) as refused:
        ServerProcess(tmp_path / "data", settings).start()
    assert "CONSOLE is the listener of the web console; give another name" in refused.value.stderr
