"""ZooKeeper as production runs it: several hosts, a chroot, digest credentials, ACLs, TLS with client certificates.

The server is a real one. See ZooKeeper Administrator's Guide, "Encryption, Authentication, Authorization Options".
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import asdict, replace

import pytest
from click.testing import CliRunner

from broker.cluster.protected_nodes import cluster_access
from coordination.access import Access
from coordination.embedded_zookeeper import EmbeddedZooKeeper
from coordination.free_port import FreePort
from coordination.port import Children, CoordinatorUnavailable, Create, Get, Multi, Set
from coordination.zookeeper import ZooKeeperCoordinator
from flakelog.cli import main
from idgen.claim_state import ClaimState
from tests.compat.server_process import PYTHONPATH, ROOT
from tests.idgen.driving import NOW, claim, settle
from tests.patience import MS, SECONDS


@pytest.fixture
def nobody():
    """Yield an address on which no process listens."""
    with FreePort() as port:
        yield port.address


@pytest.fixture
def credentials(tmp_path):
    def file(text):
        path = tmp_path / f"credentials{text.count(':')}{len(text)}"
        path.write_text(text)
        return str(path)

    return file


@pytest.fixture
def session():
    """Yield a function that opens sessions, which are closed afterwards."""
    made = []

    def connect(hosts, *access):
        made.append(ZooKeeperCoordinator(hosts, *access, connect_timeout_ms=MS, request_timeout_ms=MS))
        return made[-1]

    yield connect
    for each in made:
        each.close()


def run_command(*arguments):
    """Run a command of `flakelog`, and return what it printed."""
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_of_several_hosts_one_that_answers_is_enough_and_the_chroot_is_made(zookeeper, session, nobody):
    one = session(f"{nobody},{zookeeper.hosts}/of/several")
    one.execute(Create("/a", b"x"))
    assert session(f"{zookeeper.hosts}/of").execute(Get("/several/a")).data == b"x"


def test_nodes_made_with_an_acl_are_changed_by_their_maker_alone_and_read_by_all(zookeeper, session, credentials):
    """The digest scheme gives CREATOR_ALL, and READ to anyone, as Kafka's zookeeper.set.acl did."""
    ours = Access(credentials_file=credentials("flakelog:secret\n"), set_acl=True)
    hosts = f"{zookeeper.hosts}/with-acl"
    one = session(hosts, ours)
    held = settle(claim("a"), one, NOW)
    assert held.state is ClaimState.HELD
    stranger = session(hosts)
    mark = stranger.execute(Get("/snowflake-servers-marks/0"))
    for forbidden in (Set("/snowflake-servers-marks/0", b"{}", mark.version), Create("/snowflake-servers/7")):
        with pytest.raises(CoordinatorUnavailable, match="snowflake-servers"):
            stranger.execute(forbidden)
    refused = settle(claim("b"), stranger, NOW)
    assert refused.state is ClaimState.CLOSED and isinstance(refused.failure, CoordinatorUnavailable)
    colleague = session(hosts, ours)
    assert settle(claim("c"), colleague, NOW).number == 1
    settle(held, one, NOW + 10_000)
    assert held.worker.limit_ms == NOW + 40_000


def test_other_credentials_do_not_open_it_either(zookeeper, session, credentials):
    hosts = f"{zookeeper.hosts}/of-flakelog"
    session(hosts, Access(credentials_file=credentials("flakelog:secret"), set_acl=True)).execute(Create("/a"))
    other = session(hosts, Access(credentials_file=credentials("flakelog:guessed")))
    with pytest.raises(CoordinatorUnavailable, match="Set /a: .*flakelog.ids.zookeeper.credentials.file"):
        other.execute(Set("/a", b"x", 0))


@pytest.mark.parametrize("text", ["", "flakelog", ":secret", "flakelog:", "a:b\nc:d"])
def test_a_file_of_credentials_that_holds_none_is_named(text, credentials, nobody):
    with pytest.raises(CoordinatorUnavailable, match="must be one line, user:password"):
        ZooKeeperCoordinator(nobody, Access(credentials_file=credentials(text)))
    with pytest.raises(CoordinatorUnavailable, match="No such file"):
        ZooKeeperCoordinator(nobody, Access(credentials_file="/nowhere/at/all"))


def test_a_session_is_begun_without_waiting_and_waited_for_in_a_thread(tmp_path):
    """A session starts without waiting, so that a reactor keeps running while its ZooKeeper is away."""
    server = EmbeddedZooKeeper(tmp_path)
    one = ZooKeeperCoordinator(f"{server.hosts}/late", wait=False)
    waiting = threading.Thread(target=one.wait_until_connected, args=(MS,))
    waiting.start()
    with server:
        waiting.join()
        one.execute(Create("/a"))
        one.close()


def test_closing_ends_the_wait_for_a_zookeeper_that_is_away(nobody):
    one = ZooKeeperCoordinator(nobody, wait=False)
    outcome = []

    def wait():
        try:
            one.wait_until_connected(10 * MS)
        except CoordinatorUnavailable as error:
            outcome.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    one.close()
    waiting.join(SECONDS)
    assert "was closed while it was opened" in outcome[0]


# --- TLS -------------------------------------------------------------------------------------------------------------

EXTENSIONS = "subjectAltName=DNS:localhost"


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    """Make an authority, and for a server and a client a key and a certificate signed by it, in one PEM file each."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("pems")

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl("req", "-x509", *new, "-keyout", "authority.key", "-out", "authority.pem", "-subj", "/CN=authority")
    (folder / "extensions").write_text(EXTENSIONS)
    for name in ("server", "client"):
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        by = ("-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-extfile", "extensions")
        openssl("x509", "-req", "-days", "2", "-in", f"{name}.csr", "-out", f"{name}.crt", *by)
        (folder / f"{name}.pem").write_text((folder / f"{name}.key").read_text() + (folder / f"{name}.crt").read_text())
    return folder


@pytest.fixture(scope="module")
def secure(pems, tmp_path_factory):
    tls = {
        "ssl.keyStore.location": f"{pems / 'server.pem'}",
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": f"{pems / 'authority.pem'}",
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
    }
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("secure"), tls=tls) as server:
        yield server


@pytest.fixture
def trusted(pems):
    return Access(tls=True, truststore=str(pems / "authority.pem"), keystore=str(pems / "client.pem"))


def test_by_tls_with_certificates_on_both_sides_numbers_are_claimed_and_kept(secure, session, trusted):
    one = session(f"{secure.tls_hosts.replace('127.0.0.1', 'localhost')}/ids", trusted)
    held = settle(claim("a"), one, NOW)
    settle(held, one, NOW + 10_000)
    assert (held.number, held.worker.limit_ms) == (0, NOW + 40_000)


def test_without_a_certificate_a_server_that_asks_for_one_lets_nobody_in(secure, pems):
    with pytest.raises(CoordinatorUnavailable, match="no ZooKeeper answered"):
        ZooKeeperCoordinator(
            secure.tls_hosts.replace("127.0.0.1", "localhost"),
            Access(tls=True, truststore=str(pems / "authority.pem")),
            connect_timeout_ms=1_500,
        )


def test_a_server_nobody_vouches_for_is_not_spoken_to(secure, pems):
    with pytest.raises(CoordinatorUnavailable):
        ZooKeeperCoordinator(
            secure.tls_hosts.replace("127.0.0.1", "localhost"),
            Access(tls=True, keystore=str(pems / "client.pem")),
            connect_timeout_ms=1_500,
        )


def test_a_certificate_of_another_host_is_not_taken_unless_that_is_allowed(secure, session, trusted):
    with pytest.raises(CoordinatorUnavailable):
        ZooKeeperCoordinator(secure.tls_hosts, trusted, connect_timeout_ms=1_000)
    session(secure.tls_hosts, replace(trusted, verify_hostname=False)).execute(Create("/unverified"))


# --- spouts ----------------------------------------------------------------------------------------------------------


def test_a_spouts_progress_is_kept_with_credentials_acls_and_tls(secure, session, trusted, credentials, tmp_path):
    """A spout's progress has the same access control as the id service, so that no other user rewinds a topology."""
    ours = replace(trusted, credentials_file=credentials("spouts:secret"), set_acl=True)
    hosts = f"{secure.tls_hosts.replace('127.0.0.1', 'localhost')}/team/spouts"
    module = "tests.compat.storm.spout_program"
    program = [sys.executable, "-m", module, f"zookeeper://{hosts}", str(tmp_path / "db"), "300"]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "ACCESS": json.dumps(asdict(ours))}
    with subprocess.Popen(program, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as spout:
        next(line for line in spout.stdout if line.startswith("applied") and int(line.split()[1]) >= 300)
        spout.terminate()
        spout.communicate(timeout=SECONDS)
    assert spout.returncode == 0
    stranger = session(f"{secure.hosts}/team/spouts")
    (topology,) = stranger.execute(Children("/flakelog-spouts"))
    (first, *_) = partitions = stranger.execute(Children(f"/flakelog-spouts/{topology}"))
    assert len(partitions) == 4
    path = f"/flakelog-spouts/{topology}/{first}"
    with pytest.raises(CoordinatorUnavailable):
        stranger.execute(Set(path, b"{}", stranger.execute(Get(path)).version))


@pytest.mark.parametrize("given", [{"set_acl": True}, {"truststore": "a.pem"}, {"keystore": "a.pem"}])
def test_an_access_that_would_protect_nothing_is_refused(given):
    with pytest.raises(ValueError, match="needs"):
        Access(**given)


def test_existing_nodes_of_a_cluster_become_the_brokers_own_by_one_command(zookeeper, session, credentials):
    """Secret nodes are closed, /consumers stays open, and `unsecure` opens all again."""
    hosts = f"{zookeeper.hosts}/grown"
    stranger = session(hosts)
    for path in ("/config/users/ada", "/config/topics/orders", "/consumers/billing", "/snowflake-servers-marks/0"):
        stranger.execute(Create(path, b"{}"))
    file = credentials("flakelog:secret")
    arguments = ["--zookeeper", hosts, "--set", f"flakelog.ids.zookeeper.credentials.file={file}"]
    assert run_command("cluster", "zookeeper-acl", "secure", *arguments).startswith("secure: ")
    for forbidden in (
        Set("/config/topics/orders", b"x", 0), Get("/config/users/ada"), Children("/config/users"), Create("/other"),
        Set("/snowflake-servers-marks/0", b"x", 0),
    ):  # fmt: skip
        with pytest.raises(CoordinatorUnavailable):
            stranger.execute(forbidden)
    assert stranger.execute(Get("/config/topics/orders")).data == b"{}"
    stranger.execute(Create("/consumers/billing/ids"))
    broker = session(hosts, cluster_access(Access(credentials_file=file), set_acl=True))
    assert broker.execute(Get("/config/users/ada")).data == b"{}"
    answer = json.loads(run_command("cluster", "zookeeper-acl", "unsecure", *arguments, "--json"))
    assert answer == {"acl": "unsecure", "nodes": 8}
    assert stranger.execute(Children("/config/users")) == ("ada",)


def test_nodes_of_users_are_unreadable_from_the_start_and_their_parents_are_not(zookeeper, session, credentials):
    hosts = f"{zookeeper.hosts}/from-the-start"
    broker = session(hosts, cluster_access(Access(credentials_file=credentials("a:b")), set_acl=True))
    broker.execute(Create("/config/users/ada", b"hash"))
    broker.execute(Multi((Create("/config/users/bob", b"hash"), Create("/config/changes"))))
    broker.execute(Create("/consumers"))
    stranger = session(hosts)
    assert stranger.execute(Children("/config")) == ("changes", "users")
    stranger.execute(Create("/consumers/billing"))
    for forbidden in (Get("/config/users/ada"), Get("/config/users/bob"), Create("/config/users/eve")):
        with pytest.raises(CoordinatorUnavailable):
            stranger.execute(forbidden)


def test_the_command_needs_the_credentials_of_the_brokers(zookeeper):
    with pytest.raises(AssertionError, match="needs the credentials of the brokers"):
        run_command("cluster", "zookeeper-acl", "secure", "--zookeeper", zookeeper.hosts)
