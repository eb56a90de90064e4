"""Producers and connectors that find brokers in ZooKeeper, where these ask for TLS and a login."""

import asyncio
from urllib.request import urlopen

import pytest
from twisted.internet.defer import inlineCallbacks, maybeDeferred
from twisted.internet.epollreactor import EPollReactor
from twisted.python.failure import Failure

from broker.client.connector.async_connector import AsyncConsumerConnector
from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.consumer_connector import ConsumerConnector
from broker.client.connector.twisted_connector import TwistedConsumerConnector
from broker.client.errors import ClientError, ProduceError
from flakelog import AsyncProducer, Producer
from flakelog.testing.authority import Authority
from tests.compat import numbers_topic
from tests.compat.sasl_users import PASSWORD, USER, jaas, set_password, settings
from tests.compat.server_process import ServerProcess
from tests.compat.tls_files import TlsFiles
from tests.patience import SECONDS, until

MECHANISM = "SCRAM-SHA-256"
SESSION_MS = 3_000
CONFIG = ConnectorConfig(
    zookeeper_session_timeout_ms=10_000,
    rebalance_goes_on=True,
    auto_commit_interval_ms=None,
    fetch_max_wait_ms=50,
)


@pytest.fixture(scope="module")
def registry(zookeeper):
    return f"{zookeeper.hosts}/registry-security"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(files, tmp_path_factory, registry):
    cluster = {"zookeeper.connect": registry, "broker.id": "1", "password.encoder.secret": "secret"}
    sessions = {"connections.max.reauth.ms": SESSION_MS, "inter.broker.listener.name": "PLAINTEXT"}
    with ServerProcess(tmp_path_factory.mktemp("data"), settings(files) | cluster | sessions) as server:
        set_password(server.address)
        yield server


@pytest.fixture
def topic(server, name):
    return numbers_topic.fill(server.address, name[:60])


@pytest.fixture
def login(files):
    """Return the properties of a client that checks the broker's name, and logs in."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": jaas(mechanism=MECHANISM),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.ca),
    }


@pytest.fixture
def stranger(login):
    """Return the properties of a client that does not know the broker's authority."""
    others = {name: value for name, value in login.items() if name != "ssl.truststore.location"}
    return others | {"ssl.truststore.certificates": Authority().pem()}


def on_reactor(body):
    """Run a test's body, a generator of Deferreds, on a new reactor; return what it returns."""
    reactor, ends = EPollReactor(), []

    def end(outcome):
        ends.append(outcome)
        reactor.stop()

    reactor.callWhenRunning(lambda: maybeDeferred(inlineCallbacks(body), reactor).addBoth(end))
    reactor.run(installSignalHandlers=False)
    if isinstance(ends[0], Failure):
        ends[0].raiseException()
    return ends[0]


def succeeded(server):
    """Return the number of logins."""
    with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    name = 'flakelog_sasl_authentications_total{outcome="succeeded"} '
    return next(float(line.split()[1]) for line in lines if line.startswith(name))


def test_a_producer_checks_the_name_of_each_broker_that_zookeeper_names(server, registry, login, topic):
    with Producer(registry=registry, security=login) as producer:
        assert producer.send_and_wait(topic, "10", partition=0).offset == 5


def test_an_asynchronous_producer_does_too(server, registry, login, topic):
    async def produce():
        async with AsyncProducer(registry=registry, security=login) as producer:
            return await producer.send_and_wait(topic, "10", partition=1)

    assert asyncio.run(produce()).offset == 5


def test_a_producer_refuses_a_broker_whose_certificate_has_another_name(zookeeper, files, login, tmp_path, caplog):
    """The broker is registered as 127.0.0.2, which its certificate does not name."""
    registry = f"{zookeeper.hosts}/another-name"
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.2:0"}
    cluster = {"zookeeper.connect": registry, "broker.id": "1", "password.encoder.secret": "secret"}
    with ServerProcess(tmp_path / "data", settings(files) | cluster | listeners):
        producer = Producer(registry=registry, timeout_ms=1_000, security=login)
        with pytest.raises(ProduceError, match="not acknowledged within 1000 ms"):
            producer.send_and_wait("flights", "10")
        producer.close()
    assert "its certificate is not for the name 127.0.0.2" in caplog.text


def test_a_producer_sends_nothing_to_a_broker_of_another_authority(server, registry, stranger, topic, caplog):
    producer = Producer(registry=registry, timeout_ms=1_000, security=stranger)
    with pytest.raises(ProduceError, match="not acknowledged within 1000 ms"):
        producer.send_and_wait(topic, "10")
    producer.close()
    assert "its certificate is of an authority that this client does not know" in caplog.text


def test_a_producer_with_a_wrong_password_says_so(server, registry, login, topic):
    wrong = login | {"sasl.jaas.config": jaas(password="wrong", mechanism=MECHANISM)}
    producer = Producer(registry=registry, timeout_ms=1_000, security=wrong)
    with pytest.raises(ProduceError, match="not acknowledged within 1000 ms.*Authentication failed"):
        producer.send_and_wait(topic, "10")
    producer.close()


def test_a_producer_needs_the_authorities_of_the_registrys_brokers(registry, login):
    """librdkafka takes the machine's authorities or a text, and the certificate of its own port has to be in it."""
    machine = {name: value for name, value in login.items() if not name.startswith("ssl.truststore")}
    with pytest.raises(ValueError, match="give the authorities of the brokers by ssl.truststore.location"):
        Producer(registry=registry, security=machine)


def test_a_connector_reads_and_commits(server, registry, login, topic):
    with ConsumerConnector(registry, "g", config=CONFIG, security=login) as connector:
        (stream,) = connector.streams({topic: 1}, decoder=int)[topic]
        assert sorted(next(stream).value for _ in range(10)) == list(range(10))
        connector.commit_offsets()


def test_a_connector_of_asyncio_reads_and_commits(server, registry, login, topic):
    async def body():
        async with AsyncConsumerConnector(registry, "g", config=CONFIG, security=login) as connector:
            (stream,) = (await connector.streams({topic: 1}, decoder=int))[topic]
            values = [(await anext(stream)).value for _ in range(10)]
            await connector.commit_offsets()
            return sorted(values)

    assert asyncio.run(body()) == list(range(10))


def test_a_connector_of_twisted_reads_and_commits(server, registry, login, topic):
    def body(reactor):
        connector = TwistedConsumerConnector(registry, "g", reactor=reactor, config=CONFIG, security=login)
        (stream,) = (yield connector.streams({topic: 1}, decoder=int))[topic]
        values = []
        for _ in range(10):
            values.append((yield stream.next()).value)
        yield connector.commit_offsets()
        yield connector.shutdown()
        return sorted(values)

    assert on_reactor(body) == list(range(10))


def test_a_connector_goes_on_through_its_sessions(server, registry, login, topic):
    """KIP-368: the broker would close each connection at the first request after the end of its session."""
    begin = server.mark()
    with ConsumerConnector(registry, "sessions", config=CONFIG, security=login) as connector:
        (stream,) = connector.streams({topic: 1}, decoder=int)[topic]
        values = [next(stream).value for _ in range(10)]
        with Producer(registry=registry, security=login) as producer:
            for number in range(10, 14):
                producer.send_and_wait(topic, str(number), partition=0)
                values.append(next(stream).value)
                connector.commit_offsets()
                logins = succeeded(server)
                until(lambda: succeeded(server) > logins, "another login")
    assert sorted(values) == list(range(14))
    assert "session has expired" not in server.log_since(begin)


@pytest.mark.parametrize("wrong", ["password", "authority"])
def test_a_connector_that_is_refused_says_why(server, registry, login, stranger, topic, wrong, caplog):
    password = login | {"sasl.jaas.config": jaas(USER, "wrong", MECHANISM)}
    given, reason = (password, "check user and password") if wrong == "password" else (stranger, "does not know")
    with pytest.raises(ClientError, match=reason):
        with ConsumerConnector(registry, "refused", config=CONFIG, security=given) as connector:
            (stream,) = connector.streams({topic: 1})[topic]
            next(stream)
    assert PASSWORD not in caplog.text
