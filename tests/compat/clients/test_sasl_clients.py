"""Stock clients at listeners that ask who they are: each with its password, and each with a wrong one."""

import asyncio
from urllib.request import urlopen

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from broker.client.blocking import Client
from broker.engine.api_table import APIS
from tests.compat.clients import stock_go, stock_node
from tests.compat.sasl_users import MECHANISMS, PASSWORD, USER, jaas, listener_jaas, set_password, settings
from tests.compat.server_process import ServerProcess
from tests.compat.stock_clients import aiokafka_round_trip, gather
from tests.compat.stock_process import ClientError
from tests.compat.tls_files import TlsFiles
from tests.patience import SECONDS, until

LIST_GROUPS = 16
VALUES = [f"value {number}" for number in range(20)]
INVALID = "Authentication failed: Invalid username or password"
PAIRS = [(mechanism, protocol) for mechanism in MECHANISMS for protocol in ("SASL_PLAINTEXT", "SASL_SSL")]


def with_(*quick):
    """Run a test with these mechanisms and protocols in `make test`, and with all others in `make soak`."""
    pairs = [pair if pair in quick else pytest.param(*pair, marks=pytest.mark.soak) for pair in PAIRS]
    return pytest.mark.parametrize(("mechanism", "protocol"), pairs)


each_mechanism = with_(("PLAIN", "SASL_SSL"), ("SCRAM-SHA-256", "SASL_PLAINTEXT"), ("SCRAM-SHA-512", "SASL_SSL"))
one_pair = with_(("SCRAM-SHA-512", "SASL_SSL"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(files, tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("data"), settings(files)) as server:
        set_password(server.address)
        yield server


@pytest.fixture
def address(server, protocol):
    return "localhost:" + server.addresses[f"broker.{protocol}"].rpartition(":")[2]


@each_mechanism
def test_librdkafka(address, files, protocol, mechanism, name):
    config = {"bootstrap.servers": address, "security.protocol": protocol, "sasl.mechanism": mechanism}
    config |= {"ssl.ca.location": str(files.ca)} if protocol == "SASL_SSL" else {}
    config |= {"sasl.username": USER, "sasl.password": PASSWORD}
    producer = confluent_kafka.Producer(config)
    for value in VALUES:
        producer.produce(name, value)
    assert producer.flush(SECONDS) == 0
    consumer = confluent_kafka.Consumer(config | {"group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    records = gather(lambda: consumer.consume(100, 0.2), len(VALUES))
    consumer.close()
    assert sorted(record.value().decode() for record in records) == sorted(VALUES)
    errors = []
    wrong = confluent_kafka.Producer(config | {"sasl.password": "wrong", "error_cb": errors.append, "log_level": 0})
    until(lambda: [wrong.poll(0.05)] and errors)
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
    reason = INVALID if mechanism == "PLAIN" else f"invalid credentials with SASL mechanism {mechanism}"
    assert reason in errors[0].str()


@one_pair
def test_kafka_python(address, files, protocol, mechanism, name, caplog):
    config = {"bootstrap_servers": address, "security_protocol": protocol, "sasl_mechanism": mechanism}
    config |= {"ssl_cafile": str(files.ca)} if protocol == "SASL_SSL" else {}
    config |= {"sasl_plain_username": USER}
    producer = kafka.KafkaProducer(**config, sasl_plain_password=PASSWORD)
    for value in VALUES:
        producer.send(name, value.encode())
    producer.flush(SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer(auto_offset_reset="earliest", **config, sasl_plain_password=PASSWORD)
    consumer.assign([kafka.TopicPartition(name, 0)])
    records = gather(lambda: [record for some in consumer.poll(200).values() for record in some], len(VALUES))
    consumer.close()
    assert [record.value.decode() for record in records] == VALUES

    def is_refused():
        with pytest.raises(kafka.errors.KafkaError):
            kafka.KafkaProducer(**config, sasl_plain_password="wrong", bootstrap_timeout_ms=500).close()
        return "SaslAuthenticationFailedError" in caplog.text

    until(is_refused, what="the error of the wrong password")


@one_pair
def test_aiokafka(address, files, protocol, mechanism, name):
    config = {"bootstrap_servers": address, "security_protocol": protocol, "sasl_mechanism": mechanism}
    if protocol == "SASL_SSL":
        config["ssl_context"] = files.context()
    config |= {"sasl_plain_username": USER}
    asyncio.run(aiokafka_round_trip(name, VALUES, sasl_plain_password=PASSWORD, **config))
    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(aiokafka_round_trip(name, VALUES, sasl_plain_password="wrong", **config))


@one_pair
def test_java(java, address, files, protocol, mechanism, name):
    """Java's clients, and its tools by a properties file."""
    config = {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.ca),
    }
    right = config | {"sasl.jaas.config": jaas(mechanism=mechanism)}
    java.ask("produce", address=address, topic=name, values=VALUES, config=right)
    records = java.ask("read", address=address, topic=name, count=len(VALUES), config=right)
    assert sorted(record["value"] for record in records) == sorted(VALUES)
    properties = files.directory / "client.properties"
    for password, shown in ((PASSWORD, name), ("wrong", "SaslAuthenticationException: Authentication failed")):
        given = config | {"sasl.jaas.config": jaas(password=password, mechanism=mechanism)}
        lines = [f"{key}={value}\n" for key, value in given.items()]
        properties.write_text("".join(line.replace("\\", "\\\\") for line in lines))
        tool = "org.apache.kafka.tools.TopicCommand"
        done = java.tool(tool, "--list", "--bootstrap-server", address, "--command-config", properties)
        assert shown in done.stdout + done.stderr


@pytest.mark.skipif(bool(stock_go.missing()), reason=stock_go.missing() or "")
@one_pair
def test_franz_go(address, files, protocol, mechanism, name, server):
    with Client(server.address) as client:
        client.create_topic(name)
    versions = {key: api.newest for key, api in APIS.items()}
    common = {"address": address, "versions": versions, "topic": name, "mechanism": mechanism, "user": USER}
    if protocol == "SASL_SSL":
        common["ca"] = files.ca.read_text()
    with stock_go.stock_go() as go:
        go.ask("produce", values=VALUES, password=PASSWORD, **common)
        read = go.ask("read", group=name, count=len(VALUES), heartbeat=100, password=PASSWORD, **common)
        assert sorted(read) == sorted(VALUES)
        with pytest.raises(ClientError) as error:
            go.ask("ask", key=LIST_GROUPS, fields={}, password="wrong", **common)
        assert "SASL_AUTHENTICATION_FAILED" in str(error.value)


@pytest.mark.skipif(bool(stock_node.missing()), reason=stock_node.missing() or "")
@one_pair
def test_kafkajs(address, files, protocol, mechanism, name):
    common = {"address": address, "topic": name}
    if protocol == "SASL_SSL":
        common["tls"] = {"ca": [files.ca.read_text()]}
    sasl = {"mechanism": mechanism.lower(), "username": USER}
    with stock_node.stock_node() as node:
        right = sasl | {"password": PASSWORD}
        node.ask("kafkajs.createTopic", partitions=1, sasl=right, **common)
        node.ask("kafkajs.produce", values=VALUES, sasl=right, **common)
        records = node.ask("kafkajs.read", group=name, count=len(VALUES), sasl=right, **common)
        assert [record[3] for record in records] == VALUES
        with pytest.raises(ClientError) as error:
            node.ask("kafkajs.produce", values=VALUES, sasl=sasl | {"password": "wrong"}, **common)
        assert "SASL" in str(error.value)


# --- rights ------------------------------------------------------------------------------------------------------


def test_access_rules_apply_to_the_user_that_logged_in(files, tmp_path, name):
    users = [(USER, PASSWORD), ("bob", "bob-secret")]
    own = settings(files) | {
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": listener_jaas(users),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # the clients of the plain listener
    }
    with ServerProcess(tmp_path / "data", own) as server:
        with Client(server.address) as client:
            client.create_topic(name)
        rule = AclBinding(
            ResourceType.TOPIC, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        admin = AdminClient({"bootstrap.servers": server.address})
        admin.create_acls([rule])[rule].result(SECONDS)
        outcomes = [produced(server, name, *user) for user in users]
    assert outcomes == [None, confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED]


def produced(server, topic, user, password):
    """Return the error code of a message that a user produces, None if it is taken."""
    config = {"bootstrap.servers": server.addresses["broker.SASL_PLAINTEXT"], "sasl.mechanism": "PLAIN"}
    config |= {"security.protocol": "SASL_PLAINTEXT", "sasl.username": user, "sasl.password": password, "log_level": 0}
    errors = []
    producer = confluent_kafka.Producer(config | {"error_cb": lambda _: None})
    producer.produce(topic, "value", on_delivery=lambda error, _: errors.append(error and error.code()))
    producer.flush(SECONDS)
    return errors[0]


# --- sessions ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short_sessions(files, tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("data"), settings(files, connections_max_reauth_ms=5_000)) as server:
        set_password(server.address)
        yield server


def sessions(server):
    """Return the numbers of logins, and of connections whose session has expired."""
    with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    names = 'flakelog_sasl_authentications_total{outcome="succeeded"}', "flakelog_sasl_expired_connections_total"
    return [float(line.split()[1]) for name in names for line in lines if line.startswith(f"{name} ")]


def works_through_sessions(server, work):
    """Call `work` until its client has logged in again twice. No connection may be closed for its session."""
    work()
    before, _ = sessions(server)
    until(lambda: [work()] and sessions(server)[0] >= before + 2, what="logins on open connections")
    assert sessions(server)[1] == 0


@pytest.mark.soak
def test_librdkafka_logs_in_again_while_it_works(short_sessions, name):
    config = {"bootstrap.servers": short_sessions.addresses["broker.SASL_PLAINTEXT"], "sasl.mechanism": "SCRAM-SHA-256"}
    config |= {"security.protocol": "SASL_PLAINTEXT", "sasl.username": USER, "sasl.password": PASSWORD}
    errors = []
    producer = confluent_kafka.Producer(config | {"error_cb": errors.append})

    def produce():
        producer.produce(name, "value")
        assert producer.flush(SECONDS) == 0

    works_through_sessions(short_sessions, produce)
    assert errors == []


@pytest.mark.soak
def test_java_logs_in_again_while_it_works(java, short_sessions, name):
    address = short_sessions.addresses["broker.SASL_PLAINTEXT"]
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas()}
    java.ask("join", address=address, topic=name, name=name, config=config | {"group.id": name})
    works_through_sessions(short_sessions, lambda: java.ask("assigned", name=name))
