"""Marked secrets of a server and of a read in Spark: no output, setting, process, node or file shows them.

The places that hold them by their purpose are left out: the files that the operator wrote.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kazoo.client import KazooClient

from broker.client.blocking import Client
from broker.client.errors import NotAuthenticated
from tests.compat.identity_provider import OAUTH_MODULE
from tests.compat.sasl_users import SCRAM_MODULE, jaas, listener_jaas
from tests.compat.served_data import batch_of
from tests.compat.server_process import DidNotStart, ServerProgram
from tests.compat.spark.standalone_spark import StandaloneSpark
from tests.compat.tls_files import TlsFiles
from tests.patience import PROGRAM_SECONDS, SECONDS, until

MARK = "marked-"
LISTENERS = {"listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0"}
LISTENER = "listener.name.sasl_ssl"
READ = """
import json, sys
from spark_bridge.session import spark_session
master, events, place, options = sys.argv[1:]
settings = {"spark__executor__memory": "512m", "spark__eventLog__enabled": "true", "spark__eventLog__dir": events}
spark = spark_session("secrets", master=master, spark__local__dir=place, **settings)
rows = spark.read.format("flakelog").options(**json.loads(options)).load()
rows.explain(True)
found = sorted(bytes(row["value"]).decode() for row in rows.collect())
spark.stop()
print()
print(json.dumps(found))
"""


class SecretServer:
    """A broker of a cluster whose settings are all in files, and have a secret of each kind."""

    def __init__(self, directory, zookeeper):
        self.files = TlsFiles(directory / "tls")
        self.zookeeper = zookeeper
        self._secrets = directory / "secrets"
        self._secrets.mkdir()
        scram = self._write("scram", "scram=marked-of-the-broker\n")
        credentials = self._write("zookeeper", "flakelog:marked-of-zookeeper")
        issued = self.files.authority.issue("broker")
        one_line = issued.key_pem("marked-of-the-key").replace("\n", "\\n")
        self.key_lines = [line for line in issued.key_pem().splitlines() if "-" not in line][:3]
        settings = {
            "inter.broker.listener.name": "SASL_SSL",
            "zookeeper.connect": zookeeper,
            "broker.id": "1",
            "zookeeper.set.acl": "true",
            "flakelog.ids.zookeeper.credentials.file": credentials,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": one_line,
            "ssl.keystore.certificate.chain": issued.chain_pem().replace("\n", "\\n"),
            "ssl.key.password": "marked-of-the-key",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.files.ca,
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            f"{LISTENER}.plain.sasl.jaas.config": listener_jaas([("ada", "marked-of-ada")]),
            f"{LISTENER}.scram-sha-512.sasl.jaas.config": (
                f'{SCRAM_MODULE} required username="broker" password="${{file:{scram}:scram}}";'
            ),
            f"{LISTENER}.oauthbearer.sasl.jaas.config": (
                f'{OAUTH_MODULE} required clientId="broker" clientSecret="marked-of-the-client";'
            ),
            "sasl.oauthbearer.client.credentials.client.secret": "marked-of-the-setting",
            "sasl.oauthbearer.assertion.private.key.passphrase": "marked-of-the-key",
            "sasl.oauthbearer.jwks.endpoint.url": "file:///there/are/no/keys",
            "password.encoder.secret": "marked-encoder-secret",
            "flakelog.console.token": "marked-token-of-the-console",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:ANONYMOUS;User:ada;User:broker",
        }
        self.properties = directory / "server.properties"
        self.properties.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        password = self._write("password", "marked-of-the-broker")
        added = "--add-scram", f"SCRAM-SHA-512=[name=broker,password-file={password}]"
        self.arguments = "--config", str(self.properties), *added
        self.process = ServerProgram(directory / "data", LISTENERS, arguments=self.arguments)

    def _write(self, name, text):
        file = self._secrets / name
        file.touch(mode=0o600)
        file.write_text(text)
        return file

    @property
    def address(self):
        return "localhost:" + self.process.addresses["broker.SASL_SSL"].rpartition(":")[2]

    def login(self, password):
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": jaas("ada", password),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.files.ca),
        }

    def alter(self, name, value):
        """Alter a setting of the broker at run time."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.process.address})
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(SECONDS)

    def command(self, *words):
        """Return all that a command prints."""
        argv = [sys.executable, "-m", "flakelog", *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False)
        return done.stdout + done.stderr

    def printed_settings(self):
        """Return what --print-config prints."""
        of_all = [part for name, text in LISTENERS.items() for part in ("--set", f"{name}={text}")]
        return self.command("server", "--data-dir", self.process.data_dir, *self.arguments, *of_all, "--print-config")

    def described(self):
        """Return the settings as DescribeConfigs shows them."""
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        admin = AdminClient({"bootstrap.servers": self.process.address})
        (entries,) = (done.result(SECONDS) for done in admin.describe_configs([resource]).values())
        return "".join(f"{entry.name}={entry.value}\n" for entry in entries.values())


def processes(pids=None):
    """Return the arguments of processes, by default of all."""
    texts = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (pids is None or int(entry.name) in pids):
            try:
                texts.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                pass  # it has ended
    return texts


def nodes(hosts, credentials):
    """Return the data of all nodes below a chroot, as a broker reads them."""
    client = KazooClient(hosts, auth_data=[("digest", credentials)])
    client.start(SECONDS)
    try:
        found, paths = {}, ["/"]
        while paths:
            path = paths.pop()
            found[path] = client.get(path)[0].decode(errors="replace")
            paths += [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
        return found
    finally:
        client.stop()
        client.close()


def shows(texts, secrets=(MARK,)):
    """Return the lines that show a secret."""
    return [line for text in texts for line in str(text).splitlines() if any(secret in line for secret in secrets)]


@pytest.fixture(scope="module")
def secret_server(tmp_path_factory, zookeeper):
    server = SecretServer(tmp_path_factory.mktemp("secret"), f"{zookeeper.hosts}/secrets")
    with server.process:
        with Client(server.process.address) as client:
            client.create_topic("flights", 1)
            client.produce("flights", 0, batch_of(b"hello"))
        yield server


def test_no_output_setting_process_or_node_shows_a_secret_also_after_a_crash(secret_server):
    server, process = secret_server, secret_server.process
    errors = []
    for password in ("marked-of-ada", "marked-wrong"):
        try:
            with Client(server.address, security=server.login(password)) as client:
                client.topics()
        except NotAuthenticated as error:
            errors.append(error)
    assert len(errors) == 1
    server.alter(f"{LISTENER}.plain.sasl.jaas.config", listener_jaas([("ada", "marked-of-ada"), ("bob", "marked-new")]))
    secrets = MARK, *server.key_lines
    listed = processes()
    assert any(str(server.properties) in text for text in listed) and not shows(listed, secrets)
    shown = {
        "DescribeConfigs": server.described(),
        "config get": server.command("config", "get", "--all", "--broker", "1", "--servers", process.address),
        "--print-config": server.printed_settings(),
        "an error": repr(errors[0]),
    }
    assert f"{LISTENER}.plain.sasl.jaas.config" in shown["DescribeConfigs"]
    assert "password.encoder.secret" in shown["--print-config"]
    for what, text in shown.items():
        assert not shows([text], secrets), what
    found = nodes(server.zookeeper, "flakelog:marked-of-zookeeper")
    assert "salt" in found["/config/users/broker"] and "jaas" in found["/config/brokers/1"]
    assert not shows(found.values(), secrets)
    process.send_signal(signal.SIGABRT)
    until(lambda: not process.running, "the end of the server")
    process.start()
    assert process.log and not shows([process.log], secrets)


def test_a_start_that_is_refused_shows_no_secret(secret_server, tmp_path):
    text = secret_server.properties.read_text()
    changes = {
        "a wrong JAAS text": ('clientSecret="marked-of-the-client";', 'clientSecret="marked-of-the-client"'),
        "a wrong password of the key": ("ssl.key.password=marked-of-the-key", "ssl.key.password=marked-other"),
        "a wrong name": ("flakelog.console.token=", "flakelog.console.tokem="),
        "a missing secret": (":scram}", ":missing}"),
    }
    for what, change in changes.items():
        properties = tmp_path / "server.properties"
        properties.write_text(text.replace(*change))
        with pytest.raises(DidNotStart) as error:
            ServerProgram(tmp_path / "data", LISTENERS, arguments=("--config", str(properties))).start()
        assert error.value.stderr and not shows([error.value.stderr], (MARK, *secret_server.key_lines)), what


@pytest.mark.soak
@pytest.mark.parametrize("how", ["reference", "text"])
def test_executors_of_spark_hold_no_secret_in_logs_events_or_files(secret_server, tmp_path, how):
    """A password is in a file to which the options refer, or stands in the options."""
    import json

    server = secret_server
    secrets = tmp_path / "client-secrets"
    secrets.write_text("password=marked-of-ada\n")
    password = f"${{file:{secrets}:password}}" if how == "reference" else "marked-of-ada"
    options = {f"kafka.{name}": text for name, text in server.login(password).items()}
    options |= {"kafka.bootstrap.servers": server.address, "subscribe": "flights"}
    place = tmp_path / "spark"
    events, local = place / "events", place / "local"
    for directory in (place, events, local):
        directory.mkdir()
    argv = []
    with StandaloneSpark(place) as spark:
        done = spark.finish(READ, sys.executable, events.as_uri(), local, json.dumps(options))
        argv += processes()
        assert done.returncode == 0, done.stderr[-3_000:]
        assert json.loads(done.stdout.splitlines()[-1]) == ["hello"]
    assert not shows([done.stdout, done.stderr, *argv])
    held = [path for path in place.rglob("*") if path.is_file() and MARK.encode() in path.read_bytes()]
    assert any(path.stat().st_size for path in events.rglob("*") if path.is_file()), "there is an event log"
    assert not held


@pytest.fixture(autouse=True)
def no_secret_in_the_environment():
    assert not [name for name, text in os.environ.items() if MARK in text]
