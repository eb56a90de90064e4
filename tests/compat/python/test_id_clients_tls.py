"""Our id clients over TLS against real services: what they trust, what they say if not, and the next server."""

import asyncio
import json
import re
import subprocess
import sys
from urllib.request import urlopen

import pytest

from flakelog import AsyncIdClient, IdClient
from flakelog.testing.authority import Authority
from idgen.client.core import IdServiceUnreachable
from idgen.settings import InvalidSetting
from tests.compat.server_process import ROOT, ServerProcess
from tests.compat.tls_files import TlsFiles
from tests.patience import MS, SECONDS, until

TWISTED_PROGRAM = """
import json, sys
from twisted.internet import defer, task
from flakelog import TwistedIdClient

@defer.inlineCallbacks
def main(reactor, security, *servers):
    client = TwistedIdClient(reactor, *servers, timeout_ms=20_000, security=json.loads(security))
    try:
        yield client.get_id()
        ids = yield defer.gatherResults([client.get_id() for _ in range(100)])
        many = yield client.get_ids(50_000)
        print(len(set(ids + many)))
    except ConnectionError as error:
        print(error)
    client.close()

task.react(main, sys.argv[1:])
"""


class Blocking:
    """Clients of all kinds, by one method: it returns the number of different ids, or raises."""

    def ask(self, servers, security):
        with IdClient(*servers, timeout_ms=MS, security=security) as client:
            return len({*(client.get_id() for _ in range(100)), *client.get_ids(50_000)})


class Asyncio:
    def ask(self, servers, security):
        async def ask():
            async with AsyncIdClient(*servers, timeout_ms=MS, security=security) as client:
                ids = await asyncio.gather(*(client.get_id() for _ in range(100)))
                return len({*ids, *(await client.get_ids(50_000))})

        return asyncio.run(ask())


class Twisted:
    def ask(self, servers, security):
        argv = [sys.executable, "-c", TWISTED_PROGRAM, json.dumps(security), *servers]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        if not done.stdout.strip().isdigit():
            raise IdServiceUnreachable([done.stdout])
        return int(done.stdout)


LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "pw"}
CERTIFICATE = "this client's certificate|a certificate of this client"
KINDS = pytest.mark.parametrize("kind", [Blocking(), Asyncio(), Twisted()], ids=lambda kind: type(kind).__name__)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return TlsFiles(tmp_path_factory.mktemp("tls"))


def settings(files, **more):
    return {
        "flakelog.ids.ssl.enable": "true",
        "flakelog.ids.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": files.broker,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": files.ca,
    } | {name.replace("_", "."): value for name, value in more.items()}


def security(files, own=None, **more):
    """Return the properties of a client that trusts this authority; `own` is the file of its certificate."""
    properties = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(files.ca)}
    if own is not None:
        properties |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(own)}
    return properties | {name.replace("_", "."): value for name, value in more.items()}


@pytest.fixture(scope="module")
def server(files, tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("ids") / "data", settings(files), command="idgen") as running:
        yield running


@KINDS
def test_ids_come_over_tls_with_a_certificate(kind, server, files):
    assert kind.ask([server.ids], security(files, files.ada)) == 50_100


@KINDS
def test_the_client_says_why_a_service_is_not_trusted_or_trusts_it_not(kind, server, files, tmp_path):
    other = TlsFiles(tmp_path / "other")
    with ServerProcess(tmp_path / "data", settings(files, flakelog_ids_listener="0.0.0.0:0"), command="idgen") as wide:
        by_name = wide.ids.replace("0.0.0.0", "127.0.0.2")
        cases = [
            (server.ids, security(other, files.ada), "its certificate is of an authority that this client does not"),
            (by_name, security(files, files.ada), "its certificate is not for the name 127.0.0.2"),
            (server.ids, security(files), CERTIFICATE),
            (server.ids, security(files, other.ada), CERTIFICATE),
        ]
        for address, properties, reason in cases:
            with pytest.raises(IdServiceUnreachable) as error:
                kind.ask([address], properties)
            assert re.search(reason, str(error.value))
        unchecked = security(files, files.ada) | {"ssl.endpoint.identification.algorithm": ""}
        assert kind.ask([by_name], unchecked) == 50_100


@KINDS
def test_a_service_of_the_other_kind_is_named(kind, server, files, tmp_path):
    with ServerProcess(tmp_path / "data", command="idgen") as plain:
        with pytest.raises(IdServiceUnreachable, match="does not speak TLS"):
            kind.ask([plain.ids], security(files, files.ada))
    with pytest.raises(IdServiceUnreachable, match="speaks TLS, (so its client needs|set) security.protocol=SSL"):
        kind.ask([server.ids], {"security.protocol": "PLAINTEXT"})


@KINDS
def test_the_next_server_answers_where_the_first_is_not_trusted(kind, server, files, tmp_path):
    strange = TlsFiles(tmp_path / "strange")
    with ServerProcess(tmp_path / "data", settings(strange), command="idgen") as stranger:
        assert kind.ask([stranger.ids, server.ids], security(files, files.ada)) == 50_100


def test_a_client_that_is_connected_lives_on_while_the_certificate_of_the_service_changes(tmp_path):
    own = TlsFiles(tmp_path / "tls")
    with ServerProcess(tmp_path / "data", settings(own, ssl_allow_dn_changes="true"), command="idgen") as server:
        with IdClient(server.ids, timeout_ms=MS, security=security(own, own.ada)) as client:
            first = client.get_id()
            own.authority.issue("second").write_pem(own.broker)
            server.wait_for_log("listener ids has a new certificate: CN=second")
            assert client.get_id() > first
            client.close()
            assert client.get_id() > first


def test_a_client_takes_its_changed_certificate_with_the_next_connection(server, files, tmp_path):
    own = Authority().issue("stranger").write_pem(tmp_path / "ada.pem")
    with IdClient(server.ids, timeout_ms=MS, security=security(files, own)) as client:
        with pytest.raises(IdServiceUnreachable):
            client.get_id()
        files.authority.issue("ada").write_pem(own)
        assert client.get_id()


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (LOGIN, "security.protocol=SASL_SSL: the id service asks for no login: set SSL"),
        ({"ssl.truststore.location": "/ca.pem"}, "is not used by security.protocol=PLAINTEXT"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/gone.pem"}, "/gone.pem: cannot be read"),
        ({"security.protocol": "SSL", "ssl.ca.location": "ca.pem"}, "is librdkafka's; give ssl.truststore.location"),
    ],
)
def test_properties_that_cannot_work_are_refused_by_name_when_the_client_is_made(properties, reason):
    for made in (IdClient, AsyncIdClient):
        with pytest.raises(InvalidSetting) as error:
            made("127.0.0.1:7609", security=properties)
        assert reason in str(error.value) and "pw" not in str(error.value)


# --- commands and peers ------------------------------------------------------------------------------------------


def test_the_commands_of_ids_take_client_properties(server, files, tmp_path):
    config = tmp_path / "client.properties"
    config.write_text("\n".join(f"{name}={value}" for name, value in security(files, files.ada).items()))

    def run(*words):
        argv = [sys.executable, "-m", "flakelog", *words]
        return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)

    options = "--servers", server.ids, "--command-config", str(config)
    assert len(run("id", "new", "--count", "3", *options).stdout.split()) == 3
    measured = run("bench", "ids", "--count", "100", "--server", server.ids, "--command-config", str(config))
    assert measured.returncode == 0, measured.stderr
    config.write_text("security.protocol=SSL\n")
    refused = run("id", "new", *options)
    assert refused.returncode != 0 and "an authority that this client does not know" in refused.stderr
    config.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=b\n")
    assert "the id service asks for no login" in run("id", "new", *options).stderr


def test_services_of_one_registry_ask_each_other_by_tls(files, tmp_path, zookeeper):
    """They show their own certificates. A peer that is not trusted counts for nothing, and is named once."""
    hosts = {"command": "idgen", "zookeeper": f"{zookeeper.hosts}/{tmp_path.name}"}
    with ServerProcess(
        tmp_path / "one", settings(files) | {"flakelog.ids.sanity.interval.ms": 1_000}, **hosts
    ) as first:
        with ServerProcess(tmp_path / "two", settings(files), **hosts) as second:
            assert "flakelog_ids_peers 1.0" in metrics(second)
            until(lambda: "flakelog_ids_peers 1.0" in metrics(first), what="the first asks the second")
        strange = TlsFiles(tmp_path / "strange")
        with ServerProcess(tmp_path / "three", settings(strange), **hosts) as third:
            third.wait_for_log(f"{first.ids} is not asked for its number and clock: its certificate is of an authority")
            assert "flakelog_ids_peers 0.0" in metrics(third)


def metrics(server):
    with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
        return answer.read().decode()


def test_a_client_without_tls_loads_nothing_of_it():
    code = "import sys, flakelog; flakelog.IdClient('127.0.0.1:7609'); print([m for m in sys.modules if 'tls' in m])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert loaded.strip() == "['idgen.client.tls']"
