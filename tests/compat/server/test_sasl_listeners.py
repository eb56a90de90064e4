"""SASL at the listeners of a real server: logins, users that are added at run time, and refused starts."""

import subprocess
import sys
from contextlib import ExitStack
from urllib.request import urlopen

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.scram_client import ScramClient
from tests.compat.console.console_visitor import Visitor
from tests.compat.raw_connection import RawConnection, fetch_frame
from tests.compat.sasl_connection import SaslConnection
from tests.compat.sasl_users import MECHANISMS, PASSWORD, USER, listener_jaas, set_password, settings
from tests.compat.server_process import DidNotStart, ServerProcess
from tests.compat.several_processes import SeveralProcesses, consecutive_ports
from tests.compat.tls_files import TlsFiles
from tests.patience import SECONDS, until

PLAIN_JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(files, tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("data"), settings(files)) as server:
        set_password(server.address)
        yield server


def asking(server):
    return server.addresses["broker.SASL_PLAINTEXT"]


def command(server, *words):
    """Return what a command prints."""
    argv = [sys.executable, "-m", "flakelog", *words, "--servers", server.address]
    return subprocess.run(argv, capture_output=True, check=True, text=True).stdout


def metrics(server):
    with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
        return answer.read().decode()


def is_served(connection):
    connection.socket.sendall(fetch_frame(7, "not-there"))
    return connection.read_frame()[0] == 7


def code_of(server, *login, source=None):
    """Return the error code of a login."""
    with SaslConnection(asking(server), source=source) as connection:
        return connection.log_in(*login).error_code


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_that_logs_in_is_served_and_one_that_fails_is_closed(server, mechanism):
    with SaslConnection(asking(server)) as connection:
        assert connection.log_in(USER, PASSWORD, mechanism).error_code == 0
        assert is_served(connection)
    for user in (USER, "nobody"):
        with SaslConnection(asking(server), source="127.0.3.1") as connection:
            assert connection.log_in(user, "wrong", mechanism).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert connection.read_to_end() == b""


def test_old_clients_send_bare_tokens(server):
    with SaslConnection(asking(server)) as connection:
        connection.shake_hands("SCRAM-SHA-256", version=0)
        scram = ScramClient(USER, PASSWORD)
        assert connection.send_bare_token(scram.final(connection.send_bare_token(scram.first))) == scram.signature
        assert is_served(connection)


def test_the_log_names_the_user_that_failed_and_the_listener_that_takes_passwords_in_plain_text(server):
    assert code_of(server, "eve\n2026-01-01 forged", "wrong", source="127.0.3.2")
    line = server.wait_for_log("connection of 127.0.3.2")
    assert r"closed: unknown user or wrong password: 'eve\n2026-01-01 forged'" in line
    assert "SASL_PLAINTEXT takes passwords in plain text" in server.log
    assert "SASL_SSL takes passwords" not in server.log


def test_a_client_without_tls_is_told_the_protocol_of_the_listener(server):
    with RawConnection(server.addresses["broker.SASL_SSL"], source="127.0.3.3") as plain:
        plain.socket.sendall(fetch_frame(1, "not-there"))
        plain.read_to_end()
    server.wait_for_log("it does not speak TLS, and this listener does: set security.protocol=SASL_SSL at the client")


def test_outcomes_are_metrics(server):
    def count(outcome):
        name = f'flakelog_sasl_authentications_total{{outcome="{outcome}"}} '
        return next(float(line.removeprefix(name)) for line in metrics(server).splitlines() if line.startswith(name))

    before = count("succeeded"), count("failed")
    code_of(server, USER, PASSWORD)
    code_of(server, USER, "wrong")
    assert (count("succeeded"), count("failed")) == (before[0] + 1, before[1] + 1)


def test_a_user_is_added_at_run_time_and_stays_after_a_restart(files, tmp_path):
    with ServerProcess(tmp_path / "data", settings(files)) as server:
        more = listener_jaas([(USER, PASSWORD), ("bob", "bob-secret")])
        assert code_of(server, "bob", "bob-secret") == ErrorCode.SASL_AUTHENTICATION_FAILED
        command(server, "config", "set", "--broker", "1", f"{PLAIN_JAAS}={more}")
        for _ in range(2):
            assert code_of(server, "bob", "bob-secret") == code_of(server, USER, PASSWORD) == 0
            server.restart()
        with pytest.raises(subprocess.CalledProcessError) as refused:
            command(server, "config", "set", "--broker", "1", f"{PLAIN_JAAS}=nonsense marked")
        assert "no control flag" in refused.value.stderr or "must stand one of" in refused.value.stderr
        assert code_of(server, "bob", "bob-secret") == 0
        assert PASSWORD not in server.log + command(server, "config", "get", "--all", "--broker", "1")


def test_an_unknown_user_has_the_same_salt_after_a_restart_and_its_secret_is_the_owners(files, tmp_path):
    with ServerProcess(tmp_path / "data", settings(files)) as server:
        before = salt_of(asking(server), "nobody")
        assert (tmp_path / "data" / "sasl.secret").stat().st_mode & 0o077 == 0
        server.restart()
        assert salt_of(asking(server), "nobody") == before != salt_of(asking(server), "somebody")


def test_clients_that_stop_in_the_middle_are_closed_and_delay_nobody(files, tmp_path):
    own = {
        "flakelog.authentications.max": 8,
        "flakelog.authentications.max.per.address": 4,
        "flakelog.authentication.timeout.ms": 2_000,
    }
    with ServerProcess(tmp_path / "data", settings(files) | own) as server, ExitStack() as stack:
        stopped = [stack.enter_context(SaslConnection(asking(server), source="127.0.3.3")) for _ in range(40)]
        for connection in stopped:
            connection.socket.sendall(b"\0\0\1\0")  # the length of a frame that does not come
        assert code_of(server, USER, PASSWORD) == 0
        assert all(connection.read_to_end() == b"" for connection in stopped)
        server.wait_for_log("it did not authenticate within 2000 ms (flakelog.authentication.timeout.ms)")
        assert code_of(server, USER, PASSWORD, source="127.0.3.3") == 0
        until(lambda: "\nflakelog_sasl_authentications 0.0\n" in metrics(server), what="none is under way")


def test_a_session_ends_unless_its_client_logs_in_again(files, tmp_path):
    with ServerProcess(tmp_path / "data", settings(files, connections_max_reauth_ms=2_000)) as server:
        with SaslConnection(asking(server)) as polite, SaslConnection(asking(server)) as idle:
            assert polite.log_in(USER, PASSWORD).session_lifetime.total_seconds() == 2
            idle.log_in(USER, PASSWORD)
            until(lambda: is_closed_after_another_login(idle, polite), what="the session of the first has ended")
            assert is_served(polite)
        server.wait_for_log("its session has expired")


def is_closed_after_another_login(idle, polite):
    """Log in again on the second connection. Return True if the broker has closed the first."""
    polite.log_in(USER, PASSWORD)
    try:
        idle.socket.sendall(fetch_frame(7, "not-there"))
        return not idle.socket.recv(1 << 16)
    except OSError:
        return True


def test_the_console_works_where_all_listeners_ask(files, tmp_path):
    """It reaches the broker over a socket of the data directory, which only the owner may open."""
    own = settings(files) | {"listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0"}
    with ServerProcess(tmp_path / "data", own) as server:
        status, text = Visitor(server.http).get("/console/topics/unknown/messages?partition=0")
        assert status == 404, text


class AddingServer(ServerProcess):
    """A server that is started with --add-scram."""

    added = ""

    @property
    def argv(self):
        return [*super().argv, "--add-scram", self.added]


def test_a_user_logs_in_from_the_first_start_on_and_keeps_an_altered_password(files, tmp_path):
    password_file = tmp_path / "ada.txt"
    password_file.write_text("first\n")
    server = AddingServer(tmp_path / "data", settings(files))
    server.added = f"SCRAM-SHA-512=[name=bob,password-file={password_file}]"
    with server:
        assert code_of(server, "bob", "first", "SCRAM-SHA-512") == 0
        assert "a list of processes shows" not in server.log
        server.restart()
        assert code_of(server, "bob", "first", "SCRAM-SHA-512") == 0
        set_password(server.address, "bob", "second")
        server.restart()
        assert code_of(server, "bob", "first", "SCRAM-SHA-512") == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert code_of(server, "bob", "second", "SCRAM-SHA-512") == 0


def test_a_password_on_the_command_line_is_warned_of_and_not_shown(files, tmp_path):
    server = AddingServer(tmp_path / "data", settings(files))
    server.added = "SCRAM-SHA-256=[name=bob,password=marked]"
    with server:
        assert code_of(server, "bob", "marked", "SCRAM-SHA-256") == 0
        assert "a list of processes shows the password of bob: give --add-scram a password-file" in server.log
        assert "marked" not in server.log
    server.added = "SCRAM-SHA-256=[name=bob]"
    with pytest.raises(DidNotStart) as error:
        server.start()
    assert "must have one of password-file, password and saltedpassword" in error.value.stderr


class AddingBrokers(SeveralProcesses):
    """Several brokers that are started with --add-scram."""

    added = ""

    @property
    def argv(self):
        return [*super().argv, "--add-scram", self.added]


def test_users_are_the_same_at_all_brokers_of_a_machine_also_those_that_do_not_exist(tmp_path):
    with ExitStack() as stack:
        port = consecutive_ports(2, stack)
        own = {"listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}", "sasl.enabled.mechanisms": "SCRAM-SHA-512"}
        brokers = AddingBrokers(tmp_path / "data", 2, own)
        brokers.added = "SCRAM-SHA-512=[name=bob,password=first]"
        stack.enter_context(brokers)
        salts = []
        for address in brokers.address.split(","):
            until(lambda: logs_in(address, "bob", "first"), what="the credential is there")
            salts.append([salt_of(address, user) for user in ("bob", "nobody")])
        assert salts[0] == salts[1]


def test_users_are_the_same_at_all_brokers_of_a_cluster_also_those_that_do_not_exist(tmp_path, zookeeper):
    with ExitStack() as stack:
        salts = []
        for number in (1, 2):
            own = {
                "node.id": number,
                "zookeeper.connect": f"{zookeeper.hosts}/sasl",
                "listeners": "BROKERS://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
                "listener.security.protocol.map": "BROKERS:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
                "inter.broker.listener.name": "BROKERS",
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            }
            server = AddingServer(tmp_path / str(number), own)
            server.added = "SCRAM-SHA-512=[name=bob,password=first]"
            stack.enter_context(server)
            until(lambda: logs_in(asking(server), "bob", "first"), what="the credential is there")
            salts.append([salt_of(asking(server), user) for user in ("bob", "nobody")])
        assert salts[0] == salts[1]


def logs_in(address, *login):
    with SaslConnection(address) as connection:
        return connection.log_in(*login, "SCRAM-SHA-512").error_code == 0


def salt_of(address, user):
    """Return the salt that a user is asked with."""
    with SaslConnection(address) as connection:
        connection.shake_hands("SCRAM-SHA-512")
        return connection.send_token(ScramClient(user, "x").first).auth_bytes.split(b",")[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI (Kerberos) is not served: give SCRAM-SHA-512"),
        ({"sasl.enabled.mechanisms": "scram"}, "scram is not served: give any of PLAIN, SCRAM-SHA-256"),
        ({"sasl.enabled.mechanisms": ""}, "the listener SASL_PLAINTEXT needs a mechanism"),
        ({PLAIN_JAAS: ""}, "must have one login module, and has 0"),
        ({PLAIN_JAAS: "a.ScramLoginModule required;"}, f"{PLAIN_JAAS}=(hidden): PLAIN has org.apache.kafka"),
        ({PLAIN_JAAS: listener_jaas(())}, "it has no user, so that none can log in"),
        ({"listener.name.other.plain.sasl.jaas.config": listener_jaas()}, "there is no such listener"),
        ({"sasl.jaas.config": "a.B required;"}, "give it as listener.name.NAME.MECHANISM.sasl.jaas.config"),
        ({"delegation.token.secret.key": "marked"}, "delegation tokens are not served"),
        ({"sasl.server.callback.handler.class": "a.B"}, "it would check no password"),
        ({"listener.name.sasl_ssl.plain.connections.max.reauth.ms": "-1"}, "must be at least 0"),
        ({"connection.failed.authentication.delay.ms": "600000"}, "must be below connections.max.idle.ms"),
        (
            {"zookeeper.connect": "127.0.0.1:1", "inter.broker.listener.name": "SASL_SSL"},
            "sasl.mechanism.inter.broker.protocol=GSSAPI: must be one of sasl.enabled.mechanisms",
        ),
    ],
)
def test_a_start_that_cannot_work_is_refused_by_name(files, tmp_path, change, reason):
    with pytest.raises(DidNotStart) as error:
        ServerProcess(tmp_path / "data", settings(files) | change).start()
    assert reason in error.value.stderr
    assert "marked" not in error.value.stderr
