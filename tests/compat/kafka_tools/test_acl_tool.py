"""Kafka's kafka-acls, unchanged, and stock clients that have the rights it grants and no others.

Administrators come over the plain listener, where User:ANONYMOUS is a super user here; ada comes with a certificate.
"""

import json

import confluent_kafka
import pytest
from click.testing import CliRunner

from broker.client.blocking import Client
from flakelog.cli import main
from tests.compat.server_process import ServerProcess
from tests.compat.stock_java import need_java
from tests.compat.tls_files import TlsFiles
from tests.patience import SECONDS, until

ACLS = "org.apache.kafka.tools.AclCommand"
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOPIC, GROUP = "orders", "readers"

need_java()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(files, tmp_path_factory):
    settings = files.trusting() | {
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
        "authorizer.class.name": STANDARD,
        "super.users": "User:ANONYMOUS",
        "group.initial.rebalance.delay.ms": 0,
    }
    with ServerProcess(tmp_path_factory.mktemp("data"), settings) as server:
        with Client(server.address) as client:
            client.create_topic(TOPIC, 1)
        yield server


@pytest.fixture
def acls(java, server):
    """Return acls("--list"), which returns the tool's stdout, and succeeds without a word on stderr."""

    def run(*arguments):
        address = server.address
        done = java.tool(ACLS, "--bootstrap-server", address, *arguments)
        assert (done.exit, done.stderr) == (0, ""), done
        return done.stdout

    return run


@pytest.fixture
def ada(server, files):
    """Return the configuration of a client of librdkafka with ada's certificate."""
    return {
        "bootstrap.servers": "localhost:" + server.addresses["broker.SSL"].rpartition(":")[2],
        "security.protocol": "SSL",
        "ssl.ca.location": str(files.ca),
        "ssl.certificate.location": str(files.ada),
        "ssl.key.location": str(files.ada),
    }


def produced(config):
    """Send one message; return the error of its delivery, None if it was delivered."""
    errors = []
    producer = confluent_kafka.Producer(config | {"message.timeout.ms": SECONDS * 1_000})
    producer.produce(TOPIC, "a", on_delivery=lambda error, _: errors.append(error))
    producer.flush(SECONDS)
    return errors[0] if errors[0] is None else errors[0].name()


def consumed(config):
    """Return the first message of the topic, or the name of the error."""
    consumer = confluent_kafka.Consumer(config | {"group.id": GROUP, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    try:
        message = until(lambda: consumer.poll(0.2))
        return message.error().name() if message.error() else message.value()
    except confluent_kafka.KafkaException as error:
        return error.args[0].name()
    finally:
        consumer.close()


def test_rules_are_added_listed_and_removed(acls):
    principal = ("--allow-principal", "User:bob", "--allow-host", "10.0.0.1")
    added = acls("--add", *principal, "--operation", "Read", "--topic", "bob-", "--resource-pattern-type", "prefixed")
    entry = "(principal=User:bob, host=10.0.0.1, operation=READ, permissionType=ALLOW)"
    pattern = "ResourcePattern(resourceType=TOPIC, name=bob-, patternType=PREFIXED)"
    assert pattern in added and entry in added
    assert pattern in acls("--list", "--topic", "bob-1", "--resource-pattern-type", "match")
    assert entry in acls("--list", "--principal", "User:bob")
    acls("--add", "--deny-principal", "User:bob", "--operation", "All", "--cluster")
    assert "permissionType=DENY" in acls("--list", "--cluster")
    acls("--remove", "--force", "--topic", "bob-", "--resource-pattern-type", "prefixed")
    acls("--remove", "--force", "--cluster")
    assert "bob" not in acls("--list")


def test_a_client_may_do_what_the_tool_grants_it_and_no_more(acls, ada, server):
    assert produced(ada) == "TOPIC_AUTHORIZATION_FAILED"
    acls("--add", "--allow-principal", "User:ada", "--producer", "--topic", TOPIC)
    assert produced(ada) is None
    assert consumed(ada) == "GROUP_AUTHORIZATION_FAILED"
    acls("--add", "--allow-principal", "User:ada", "--consumer", "--topic", TOPIC, "--group", GROUP)
    assert consumed(ada) == b"a"
    acls("--add", "--deny-principal", "User:ada", "--operation", "Write", "--topic", TOPIC)
    assert produced(ada) == "TOPIC_AUTHORIZATION_FAILED"
    server.wait_for_log("Principal = User:ada is Denied operation = WRITE")
    server.wait_for_log("added an access rule: User:ada is denied to WRITE Topic orders")


@pytest.fixture
def flakelog(server):
    """Return flakelog("list"), which returns the objects that `flakelog acl` prints."""

    def run(arguments):
        words = ["acl", *arguments.split(), "--servers", server.address, "--json"]
        done = CliRunner().invoke(main, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def test_our_command_shows_and_changes_the_same_rules(acls, flakelog):
    acls("--add", "--allow-principal", "User:eve", "--operation", "Read", "--group", "g")
    (rule,) = flakelog("list --principal User:eve")
    assert (rule["resource_type"], rule["name"], rule["operation"]) == ("GROUP", "g", "READ")
    added = flakelog("add --deny User:eve --operation write --operation alter-configs --topic e --prefix")
    assert [rule["operation"] for rule in added] == ["WRITE", "ALTER_CONFIGS"]
    listed = acls("--list", "--topic", "e", "--resource-pattern-type", "prefixed")
    assert "operation=ALTER_CONFIGS, permissionType=DENY" in listed
    assert len(flakelog("remove --principal User:eve --yes")) == 3
    assert flakelog("list --principal User:eve") == []
