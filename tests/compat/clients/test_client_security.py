"""Our own clients at listeners of TLS that ask who they are: each with its login, and with all that can be wrong.

Sessions are short, so that clients renew their logins while they work.
"""

import asyncio
import os
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from twisted.internet import reactor
from twisted.internet.threads import blockingCallFromThread

from broker.client.asyncio import AsyncClient
from broker.client.blocking import Client
from broker.client.errors import NotAuthenticated, ProduceError, Unreachable
from broker.client.twisted import TwistedClient
from flakelog import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer
from flakelog.testing.authority import Authority
from spout.reactor_thread import ensure_running
from tests.compat.sasl_users import MECHANISMS, PASSWORD, SCRAM_MODULE, USER, jaas, set_password, settings
from tests.compat.served_data import batch_of
from tests.compat.server_process import PYTHONPATH, ServerProcess
from tests.compat.tls_files import TlsFiles
from tests.patience import SECONDS

SESSION_MS = 3_000


class Interrupted(BaseException):
    """A signal in the middle of a login."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(files, tmp_path_factory):
    own = settings(files, connections_max_reauth_ms=SESSION_MS)
    own["listeners"] += ",SSL://127.0.0.1:0,MUTUAL://127.0.0.1:0"
    names = *("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL"), "MUTUAL"
    own |= {
        "listener.security.protocol.map": ",".join(f"{name}:{'SSL' if name == 'MUTUAL' else name}" for name in names),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.location": files.ca,
    }
    with ServerProcess(tmp_path_factory.mktemp("data"), own) as server:
        set_password(server.address)
        with Client(server.address) as client:
            client.create_topic("greetings", 1)
            client.create_topic("written", 1)
            client.produce("greetings", 0, batch_of(b"hello"))
        yield server


@pytest.fixture
def at(server):
    """Return a function that gives the address of a listener, by a name that its certificate has."""
    return lambda listener, host="localhost": f"{host}:{server.addresses[f'broker.{listener}'].rpartition(':')[2]}"


@pytest.fixture
def login(files):
    """Return a function that gives the properties of a client."""

    def properties(mechanism="SCRAM-SHA-512", **more):
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": jaas(USER, PASSWORD, mechanism),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(files.ca),
        } | {name.replace("_", "."): value for name, value in more.items()}

    return properties


def by_blocking(servers, security, repeat_s=0.0):
    """Read the topic, again and again for some time; return the values."""
    with Client(servers, timeout_ms=SECONDS * 1_000, security=security) as client:
        end = time.monotonic() + repeat_s
        while True:
            records, _ = client.fetch("greetings", 0, 0)
            if time.monotonic() >= end:
                return [record.value for record in records]


def by_asyncio(servers, security, repeat_s=0.0):
    async def read():
        async with AsyncClient(servers, timeout_ms=SECONDS * 1_000, security=security) as client:
            end = time.monotonic() + repeat_s
            while True:
                answers = await asyncio.gather(*(client.fetch("greetings", 0, 0) for _ in range(5)))
                if time.monotonic() >= end:
                    return [record.value for record in answers[-1][0]]

    return asyncio.run(read())


def by_twisted(servers, security, repeat_s=0.0):
    ensure_running(reactor)
    client = blockingCallFromThread(reactor, lambda: TwistedClient(servers, reactor, security=security))
    try:
        end = time.monotonic() + repeat_s
        while True:
            records, _ = blockingCallFromThread(reactor, client.fetch, "greetings", 0, 0)
            if time.monotonic() >= end:
                return [record.value for record in records]
    finally:
        blockingCallFromThread(reactor, client.close)


FACES = by_blocking, by_asyncio, by_twisted
each_face = pytest.mark.parametrize("face", FACES)


def refusal(face, *arguments):
    with pytest.raises((NotAuthenticated, Unreachable)) as error:
        face(*arguments)
    assert PASSWORD not in str(error.value)
    return str(error.value)


def test_a_client_renews_its_login_before_the_session_ends(server, at, login):
    begin = server.mark()
    with ThreadPoolExecutor() as pool:
        reads = [pool.submit(face, at("SASL_SSL"), login(), 1.2 * SESSION_MS / 1_000) for face in FACES]
        assert [read.result(SECONDS) for read in reads] == [[b"hello"]] * len(FACES)
    assert "its session has expired" not in server.log_since(begin)


@each_face
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_mechanism_logs_in(at, files, login, face, mechanism):
    assert face(at("SASL_SSL"), login(mechanism)) == [b"hello"]
    plain = {"security.protocol": "SASL_PLAINTEXT"} | {
        name: value for name, value in login(mechanism).items() if name.startswith("sasl.")
    }
    assert face(at("SASL_PLAINTEXT"), plain) == [b"hello"]


@each_face
def test_a_wrong_password_is_not_tried_again(at, login, face):
    wrong = login(sasl_jaas_config=jaas(USER, "wrong", "SCRAM-SHA-512"))
    reason = refusal(face, at("SASL_SSL"), wrong)
    assert "the broker refuses the login by SCRAM-SHA-512 ('Authentication failed" in reason
    assert reason.endswith("check user and password in sasl.jaas.config")


@each_face
def test_a_certificate_of_another_name_is_refused(at, login, face):
    host = "127.1"  # an address to the resolver, and a name to TLS
    reason = refusal(face, at("SASL_SSL", host), login())
    assert f"its certificate is not for the name {host}" in reason


@each_face
def test_a_certificate_of_an_unknown_authority_is_refused(at, login, face):
    other = login(ssl_truststore_certificates=Authority().pem())
    del other["ssl.truststore.location"]
    assert "of an authority that this client does not know" in refusal(face, at("SASL_SSL"), other)


@each_face
def test_a_plain_port_at_a_client_of_tls_is_named(server, login, face):
    assert "if it does not speak TLS, set security.protocol=PLAINTEXT" in refusal(face, server.address, login())


@each_face
def test_a_port_of_tls_at_a_plain_client_is_named(at, face):
    assert "; if it speaks TLS, set security.protocol=SSL or SASL_SSL" in refusal(face, at("SSL"), None)


@each_face
def test_a_port_that_asks_for_a_login_is_named(at, files, face):
    reason = refusal(face, at("SASL_PLAINTEXT"), None)
    assert "; if it asks for a login, set security.protocol=SASL_PLAINTEXT and sasl.mechanism" in reason
    tls = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(files.ca)}
    assert "set security.protocol=SASL_SSL and sasl.mechanism" in refusal(face, at("SASL_SSL"), tls)


@each_face
def test_a_port_that_asks_for_no_login_is_named(at, login, face):
    assert "asks for no login: set security.protocol=PLAINTEXT, or SSL" in refusal(face, at("SSL"), login())


def test_a_connection_ends_without_a_warning_of_the_server(server, at, login):
    with Client(at("SASL_SSL"), security=login()) as client:
        assert client.topics()
        client.close()
        assert client.topics()  # it connects again
    assert "Traceback" not in server.log


def test_versions_and_suites_are_the_users_choice(at, login):
    chosen = login(ssl_enabled_protocols="TLSv1.2", ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
    with Client(at("SASL_SSL"), security=chosen) as client:
        assert client.topics()
        (connection,) = client._connections.values()
        assert isinstance(connection.socket, ssl.SSLSocket)
        assert connection.socket.cipher()[0] == "ECDHE-ECDSA-AES128-GCM-SHA256"


@each_face
def test_a_client_shows_its_certificate_where_that_is_required(at, files, face):
    tls = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(files.ca)}
    own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(files.ada)}
    assert face(at("MUTUAL"), tls | own) == [b"hello"]
    assert "it asks for a certificate of this client" in refusal(face, at("MUTUAL"), tls)


# --- the faces above the clients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_messages_go_from_a_producer_to_the_consumer_of_a_group(at, login, mechanism):
    servers, security, topic = at("SASL_SSL"), login(mechanism), f"sent-{mechanism}"
    with Admin(servers, security=security) as admin:
        admin.create_topic(topic, 1)
    with Producer(servers, security=security) as producer:
        producer.send_and_wait(topic, "hello")
    with Consumer(servers, topic, group=topic, timeout_ms=SECONDS * 1_000, security=security) as consumer:
        assert next(consumer).value == b"hello"


def test_the_twins_under_asyncio_take_security_too(at, login):
    servers, security = at("SASL_SSL"), login()

    async def trip():
        async with AsyncProducer(servers, security=security) as producer:
            await producer.send_and_wait("twins", "hello")
        async with AsyncConsumer(servers, "twins", group="twins", security=security) as consumer:
            return (await anext(consumer)).value

    with Admin(servers, security=security) as admin:
        admin.create_topic("twins", 1)
    assert asyncio.run(trip()) == b"hello"


def test_a_consumer_with_a_wrong_password_says_so_at_its_first_record(at, login):
    wrong = login(sasl_jaas_config=jaas(USER, "wrong", "SCRAM-SHA-512"))
    with Consumer(at("SASL_SSL"), "greetings", group="wrong", security=wrong) as consumer:
        with pytest.raises(NotAuthenticated, match="check user and password"):
            next(consumer)


def test_a_producer_with_a_wrong_password_says_so_when_its_messages_fail(at, login):
    wrong = login(sasl_jaas_config=jaas(USER, "wrong", "SCRAM-SHA-512"))
    producer = Producer(at("SASL_SSL"), timeout_ms=500, security=wrong)
    with pytest.raises(ProduceError, match="not acknowledged within 500 ms.*Authentication failed"):
        producer.send_and_wait("greetings", "hello")
    producer.close()


def test_a_producer_checks_the_certificate(at, login):
    other = login(ssl_truststore_certificates=Authority().pem())
    del other["ssl.truststore.location"]
    for servers, security in ((at("SASL_SSL"), other), (at("SASL_SSL", "127.1"), login())):
        producer = Producer(servers, timeout_ms=500, security=security)
        with pytest.raises(ProduceError, match="certificate verify failed"):
            producer.send_and_wait("greetings", "hello")
        producer.close()


def test_a_producer_shows_its_certificate(at, files, tmp_path):
    store = files.authority.issue("bob").write_pkcs12(tmp_path / "bob.p12", "secret")
    tls = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(files.ca)}
    own = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(store), "ssl.keystore.password": "secret"}
    with Producer(at("MUTUAL"), security=tls | own) as producer:
        assert producer.send_and_wait("written", "hello", partition=0)


def test_settings_that_librdkafka_does_not_have_are_refused(at, login):
    with pytest.raises(ValueError, match="librdkafka cannot choose the versions of TLS"):
        Producer(at("SASL_SSL"), security=login(ssl_enabled_protocols="TLSv1.3"))


# --- the command line --------------------------------------------------------------------------------------------


@pytest.fixture
def client_properties(login, tmp_path):
    """Return a file as Kafka's tools take it; the password is in another file."""
    secrets = tmp_path / "secrets.properties"
    secrets.write_text(f"password = {PASSWORD}\n")
    text = f'{SCRAM_MODULE} required username="{USER}" password=\'${{file:{secrets}:password}}\';'
    file = tmp_path / "client.properties"
    properties = login() | {"sasl.jaas.config": text, "request.timeout.ms": "5000"}
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return file


def command(at, *words, stdin="", **environment):
    argv = [sys.executable, "-m", "flakelog", *map(str, words), "--servers", at("SASL_SSL")]
    env = os.environ | {"PYTHONPATH": PYTHONPATH} | environment
    done = subprocess.run(argv, input=stdin, env=env, capture_output=True, text=True, timeout=SECONDS)
    assert PASSWORD not in done.stdout + done.stderr
    return done


def test_commands_take_the_file_of_kafkas_tools(at, client_properties):
    option = "--command-config", client_properties
    made = command(at, "topic", "create", "by-command", *option)
    assert made.returncode == 0, made.stderr
    assert "client.properties: only security.*, ssl.* and sasl.* are used, not request.timeout.ms" in made.stderr
    assert command(at, "produce", "by-command", *option, stdin="hello\n").returncode == 0
    by_variable = {"FLAKELOG_COMMAND_CONFIG": str(client_properties)}
    read = command(at, "consume", "by-command", "--group", "commands", "--count", 1, **by_variable)
    assert read.stdout == "hello\n", read.stderr


def test_a_wrong_file_of_properties_is_wrong_usage(at, client_properties):
    text = client_properties.read_text()
    client_properties.write_text(text.replace(":password}", ":gone}"))
    done = command(at, "topic", "list", "--command-config", client_properties)
    assert done.returncode == 2 and "secrets.properties has no property gone" in done.stderr
    client_properties.write_text(text.replace("SCRAM-SHA-512", "GSSAPI"))
    done = command(at, "topic", "list", "--command-config", client_properties)
    assert done.returncode == 2 and "GSSAPI (Kerberos) is not served" in done.stderr


def test_a_command_with_a_wrong_password_fails_in_one_line(at, client_properties):
    client_properties.write_text(client_properties.read_text().replace(f'username="{USER}"', 'username="eve"'))
    for words in (("topic", "list"), ("produce", "greetings"), ("consume", "greetings", "--group", "eve")):
        done = command(at, *words, "--command-config", client_properties, stdin="x\n")
        assert done.returncode == 1
        assert "check user and password in sasl.jaas.config" in done.stderr.splitlines()[-1]


def test_a_load_and_a_replay_read_with_the_file_too(at, login, client_properties, tmp_path):
    with Admin(at("SASL_SSL"), security=login()) as admin:
        admin.create_topic("loaded", 1)
    with Producer(at("SASL_SSL"), security=login()) as producer:
        producer.send("loaded", "hello")
    option = "--command-config", client_properties
    loaded = command(at, "load", "loaded", "--to", tmp_path / "loaded", *option)
    assert loaded.returncode == 0 and "1 message" in loaded.stdout + loaded.stderr, loaded.stderr
    replayed = command(at, "replay", "loaded", "--out", tmp_path / "replayed", *option)
    assert replayed.returncode == 0 and "1 message" in replayed.stdout, replayed.stderr
    (manifest,) = tmp_path.glob("replayed*.json")
    assert PASSWORD not in manifest.read_text() and "published" not in replayed.stderr + loaded.stderr


# --- connections that are given up -----------------------------------------------------------------------------------


def interrupting(login, calls):
    """Return properties whose login is interrupted each time, and noted in `calls`."""

    def token(_):
        calls.append("login")
        raise Interrupted

    properties = {name: text for name, text in login("OAUTHBEARER").items() if name != "sasl.jaas.config"}
    return properties | {"oauth_cb": token}


def test_a_connection_whose_login_was_interrupted_is_not_used_again(at, login):
    calls = []
    with Client(at("SASL_SSL"), security=interrupting(login, calls)) as client:
        for _ in range(2):
            with pytest.raises(Interrupted):
                client.topics()
    assert calls == ["login", "login"]


@pytest.mark.parametrize("host", ["a..b", "x" * 64], ids=["empty label", "long label"])
def test_a_name_that_cannot_be_a_hosts_fails_each_call_in_each_client(login, host):
    servers, security = f"{host}:9092", login()
    with Client(servers, security=security) as client:
        for _ in range(2):
            with pytest.raises(Unreachable):
                client.topics()

    async def ask():
        async with AsyncClient(servers, security=security) as client:
            for _ in range(2):
                with pytest.raises(Unreachable):
                    await client.topics()

    asyncio.run(ask())
    ensure_running(reactor)
    client = blockingCallFromThread(reactor, TwistedClient, servers, reactor, security=security)
    for _ in range(2):
        with pytest.raises(Unreachable):
            blockingCallFromThread(reactor, client.topics)
