"""Attacks on the logins of a server, while polite clients go on: no fault, no growth, and the log is theirs alone.

    export FLAKELOG_SEED=123 FLAKELOG_ATTACKS=1000000 FLAKELOG_STOPPED=10000
    .venv/bin/python -m pytest tests/compat/faults/test_attacks.py -m soak -s

Each soak prints the polite clients' rate in the storm, as a share of their rate before it.
"""

import os
import subprocess
import sys
import threading
import time

import pytest

from broker.client.blocking import Client
from tests.compat.faults.test_fuzz_by_wire import resident_bytes, sockets
from tests.compat.sasl_users import PASSWORD, USER, jaas, set_password, settings
from tests.compat.served_data import batch_of
from tests.compat.server_process import PYTHONPATH, ServerProcess
from tests.compat.tls_files import TlsFiles
from tests.patience import SECONDS, until

SEED = int(os.environ.get("FLAKELOG_SEED", "0"))
ATTACKS = int(os.environ.get("FLAKELOG_ATTACKS", "1000000"))
STOPPED = int(os.environ.get("FLAKELOG_STOPPED", "10000"))
FEW = {"records": 300, "logins": 300, "stopped": 200, "half-open": 100, "slow": 20, "handshakes": 100}
MANY = {
    "records": ATTACKS // 10,
    "logins": ATTACKS,
    "stopped": STOPPED,
    "half-open": STOPPED // 10,
    "slow": STOPPED // 10,
    "handshakes": ATTACKS // 100,
}
POLITE, FEW_POLITE = 49, 5
PAUSE_S = 0.2
"""The time from one request of a polite client to its next."""
CORES = 4
"""One each for the server, the storm and the polite clients: with fewer the storm takes the polite clients' time."""
GROWTH_BYTES = 64 << 20
TOPIC = "polite"
MECHANISM = "SCRAM-SHA-256"


class PoliteClients:
    """Clients that log in over TLS, and each produces a record every PAUSE_S. They stop at `close`."""

    def __init__(self, server, files, number):
        self.counts = [0] * number
        self.errors = []
        self._is_over = threading.Event()
        address = "localhost:" + server.addresses["broker.SASL_SSL"].rpartition(":")[2]
        security = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": jaas(USER, PASSWORD, MECHANISM),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(files.ca),
        }
        arguments = [(index, address, security) for index in range(number)]
        self._threads = [threading.Thread(target=self._work, args=given) for given in arguments]
        for thread in self._threads:
            thread.start()

    def _work(self, index, address, security):
        try:
            with Client(address, timeout_ms=SECONDS * 1_000, security=security) as client:
                due = time.monotonic()
                while not self._is_over.is_set():
                    client.produce(TOPIC, 0, batch_of(b"hello"))
                    self.counts[index] += 1
                    due = max(due + PAUSE_S, time.monotonic())
                    self._is_over.wait(due - time.monotonic())
        except Exception as error:
            self.errors.append(error)

    def await_each(self, more):
        """Wait until each client has sent some more records."""
        wanted = [count + more for count in self.counts]
        until(lambda: self.errors or all(map(int.__ge__, self.counts, wanted)), f"{more} more records of each client")
        assert not self.errors, self.errors

    def close(self):
        self._is_over.set()
        for thread in self._threads:
            thread.join(SECONDS)
        assert not self.errors, self.errors


class Attack:
    """A storm in another process."""

    def __init__(self, server, kind, count):
        addresses = [server.addresses[f"broker.{protocol}"] for protocol in ("SASL_PLAINTEXT", "SASL_SSL")]
        argv = [sys.executable, "-m", "tests.compat.faults.login_storm", kind, str(count), str(SEED), *addresses]
        self._process = subprocess.Popen(
            argv, env=os.environ | {"PYTHONPATH": PYTHONPATH}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def is_over(self):
        return self._process.poll() is not None

    def end(self, timeout_s=None):
        """Wait for the end; return the number of connections."""
        stdout, stderr = self._process.communicate(timeout=timeout_s)
        assert self._process.returncode == 0 and not stderr, stderr
        return int(stdout)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server(files, tmp_path):
    own = {
        "flakelog.authentication.timeout.ms": 2_000,
        "flakelog.tls.handshake.timeout.ms": 2_000,
        "connections.max.reauth.ms": 20_000,
    }
    with ServerProcess(tmp_path / "data", settings(files) | own) as server:
        set_password(server.address)
        with Client(server.address) as client:
            client.create_topic(TOPIC, 1)
        yield server


def check(server, sockets_before, acknowledged):
    """Raise AssertionError unless the server has no fault, no connection of others, and the polite clients' log."""
    assert "Traceback" not in server.log and "fault of the broker's own" not in server.log
    until(lambda: sockets(server) <= sockets_before, "the sockets of the others are closed")
    read = 0
    with Client(server.address) as client:
        assert [topic.name for topic in client.topics()] == [TOPIC]
        while records := client.fetch(TOPIC, 0, read, max_wait_ms=0)[0]:
            assert {record.value for record in records} == {b"hello"}
            read = records[-1].offset + 1
    assert read == acknowledged


@pytest.mark.parametrize("kind", FEW)
def test_polite_clients_go_on_in_a_storm_of_logins(server, files, kind):
    before = sockets(server)
    polite = PoliteClients(server, files, FEW_POLITE)
    polite.await_each(1)
    attack = Attack(server, kind, FEW[kind])
    polite.await_each(3)
    assert attack.end(SECONDS) == FEW[kind]
    polite.close()
    check(server, before, sum(polite.counts))


@pytest.mark.soak
@pytest.mark.parametrize("kind", MANY)
def test_many_attacks_leave_nothing_behind_and_hold_up_nobody(server, files, kind):
    before = sockets(server)
    polite = PoliteClients(server, files, POLITE)
    polite.await_each(2)
    Attack(server, kind, MANY[kind] // 10 + 1).end()  # until all caches are as large as they become
    size = resident_bytes(server)
    polite.await_each(2)
    calm = rate(polite, lambda elapsed_s: elapsed_s >= 10)
    attack = Attack(server, kind, MANY[kind])
    stormy = rate(polite, lambda _: attack.is_over)
    made = attack.end()
    polite.close()
    share = stormy / calm
    print(f"\n{kind}: {made} connections; {POLITE} polite clients kept {share:.0%} of {calm:.0f} requests a second")
    check(server, before, sum(polite.counts))
    assert resident_bytes(server) < size + GROWTH_BYTES
    if os.cpu_count() >= CORES:
        assert share > 0.9


def rate(polite, is_over):
    """Return the polite clients' requests a second until `is_over` says so."""
    began_s, count = time.monotonic(), sum(polite.counts)
    while not is_over(time.monotonic() - began_s):
        threading.Event().wait(0.05)
    return (sum(polite.counts) - count) / (time.monotonic() - began_s)
