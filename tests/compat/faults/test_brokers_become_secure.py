"""A running cluster of three goes from PLAINTEXT to SASL_SSL between its brokers, in Kafka's steps, under load.

https://kafka.apache.org/39/documentation.html#security_rolling_upgrade: open the new listener, change to it, close the
old one; each step restarts one broker after the other.
"""

from contextlib import ExitStack, closing

import pytest

from coordination.free_port import FreePort
from tests.compat.faults.replicated_brokers import NUMBERS, ReplicatedServers
from tests.compat.faults.replicated_loads import replicated_loads
from tests.compat.faults.secure_brokers import BROKER, SCRAM, password_of
from tests.compat.sasl_users import jaas, set_password
from tests.compat.tls_files import TlsFiles

PROTOCOLS = "PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT,SECURE:SASL_SSL"
MORE = "flakelog.inter.broker.listeners.more"


@pytest.fixture
def cluster(tmp_path, zookeeper):
    with ExitStack() as stack:
        cluster = ReplicatedServers(tmp_path, f"{zookeeper.hosts}/becoming-secure", stack)
        cluster.secure_ports = {number: stack.enter_context(closing(FreePort())).number for number in NUMBERS}
        yield cluster


def opened(listeners, port, files):
    """Return the settings of a broker that listens at a secure port too."""
    return {
        "listeners": f"{listeners},SECURE://127.0.0.1:{port}",
        "listener.security.protocol.map": PROTOCOLS,
        MORE: "SECURE",
        "sasl.enabled.mechanisms": SCRAM,
        "sasl.mechanism.inter.broker.protocol": SCRAM,
        "listener.name.secure.scram-sha-512.sasl.jaas.config": jaas(BROKER, password_of(BROKER), SCRAM),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.ca),
    }


def changed(listeners, port, files):
    """Return the settings of a broker that reaches others securely, and is still reached in plain text."""
    return {"inter.broker.listener.name": "SECURE", MORE: "BROKERS"}


def closed(listeners, port, files):
    """Return the settings of a broker that is reached securely only."""
    kept = [address for address in listeners.split(",") if not address.startswith("BROKERS")]
    return {"listeners": ",".join(kept), MORE: ""}


def server_listeners(server):
    return {name for name in server.addresses if name.startswith("broker")}


@pytest.mark.soak
def test_a_cluster_goes_from_plaintext_to_sasl_ssl_by_rolling_restarts(cluster, processes, tmp_path):
    files = TlsFiles(tmp_path / "tls")
    set_password(cluster.bootstrap, BROKER, password_of(BROKER))
    cluster.place_evenly()
    with replicated_loads(cluster, processes) as loads:
        for step in (opened, changed, closed):
            for number in NUMBERS:
                server = cluster[number]
                assert server.stop() == 0
                server.settings |= step(server.settings["listeners"], cluster.secure_ports[number], files)
                server.start()
                cluster.await_in_sync()
                loads.await_more()
    for number in NUMBERS:
        assert server_listeners(cluster[number]) == {"broker", "broker.SECURE"}
