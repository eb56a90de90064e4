"""TLS at the listeners of a real server: what passes, who is refused, and how a certificate is changed."""

import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from urllib.request import urlopen

import pytest

from broker.client.blocking import Client
from flakelog.testing.authority import Authority
from tests.compat.console.console_visitor import Visitor
from tests.compat.raw_connection import RawConnection, fetch_frame, fetched
from tests.compat.served_data import batch_of, fill
from tests.compat.server_process import DidNotStart, ServerProcess
from tests.compat.tls_files import TlsConnection, TlsFiles
from tests.patience import SECONDS, until

TOPIC = "flights"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(files, tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("data"), files.settings()) as server:
        yield server


def tls(server):
    return server.addresses["broker.SSL"]


def command(server, line):
    """Return what a command prints."""
    argv = [sys.executable, "-m", "flakelog", *line.split(), "--servers", server.address]
    return subprocess.run(argv, capture_output=True, check=True, text=True).stdout


def metrics(server):
    with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
        return answer.read().decode()


def fetch(connection, topic, offset=0, max_bytes=64 << 20):
    """Return the bytes of the records from an offset on."""
    connection.socket.sendall(fetch_frame(1, topic, offset, max_bytes))
    _, body = connection.read_frame()
    return bytes(fetched(body).records)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_bytes_of_a_topic_are_the_same_over_tls(server, files, version):
    """40 MB: regions of files larger than all buffers, and a batch larger than a record of TLS."""
    topic = f"large-{version.name}"
    with Client(server.address) as client:
        client.create_topic(topic)
        for number in range(40):
            client.produce(topic, 0, batch_of(bytes([number]) * 1_000_000))
    with RawConnection(server.address) as plain:
        expected = fetch(plain, topic)
    assert len(expected) > 40_000_000
    context = files.context(minimum_version=version, maximum_version=version)
    with TlsConnection(tls(server), context, receive_buffer=8_192) as connection:
        assert fetch(connection, topic) == expected
        assert connection.socket.version() == version.name.replace("_", ".")


def test_requests_of_all_sizes_arrive_whole(server, files):
    """A request ends anywhere in a record of TLS, and many small requests come in one."""
    with TlsConnection(tls(server), files.context()) as connection:
        small = b"".join(fetch_frame(number, "not-there") for number in range(500))
        connection.socket.sendall(small)
        assert [connection.read_frame()[0] for _ in range(500)] == list(range(500))
        padded = fetch_frame(7, "not-there", client_id="x" * 30_000)
        for cut in (1, 16_383, 16_384, 16_385, 30_000):
            connection.socket.sendall(padded[:cut])
            connection.socket.sendall(padded[cut:])
            assert connection.read_frame()[0] == 7


def test_without_client_certificates_everybody_is_anonymous_and_the_start_says_what_that_means(files, tmp_path):
    settings = files.settings() | {"listeners": "SSL://0.0.0.0:0", "advertised.listeners": "SSL://127.0.0.1:0"}
    with ServerProcess(tmp_path / "data", settings) as server:
        assert server.wait_for_log("who reaches SSL may read, write and delete everything")
    required = files.trusting() | settings | {"ssl.client.auth": "required"}
    with ServerProcess(tmp_path / "data", required) as server:
        assert "may read, write and delete everything" not in server.log


def test_a_client_shows_a_certificate_where_that_is_required(files, tmp_path):
    with ServerProcess(tmp_path / "data", files.trusting() | {"ssl.client.auth": "required"}) as server:
        fill(server.address, TOPIC)
        with TlsConnection(tls(server), files.context(files.ada)) as connection:
            assert fetch(connection, TOPIC)
        without = files.context(maximum_version=ssl.TLSVersion.TLSv1_2)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            TlsConnection(tls(server), without, source="127.0.0.2")
        server.wait_for_log("it shows no certificate, and ssl.client.auth=required")
        stranger = Authority().issue("stranger").write_pem(tmp_path / "stranger.pem")
        strange = files.context(stranger, maximum_version=ssl.TLSVersion.TLSv1_2)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            TlsConnection(tls(server), strange, source="127.0.0.3")
        server.wait_for_log("its certificate is refused: self-signed certificate in certificate chain")


def test_the_user_of_a_certificate_has_its_quotas(files, tmp_path):
    rules = "RULE:^CN=(.*)$/$1/,DEFAULT"
    settings = files.trusting() | {"ssl.client.auth": "requested", "ssl.principal.mapping.rules": rules}
    with ServerProcess(tmp_path / "data", settings) as server:
        fill(server.address, TOPIC)
        command(server, "quotas alter --user ada --set consumer_byte_rate=1")
        with TlsConnection(tls(server), files.context(files.ada)) as ada, ExitStack() as stack:
            anonymous = stack.enter_context(TlsConnection(tls(server), files.context()))
            assert throttled_ms(ada) > 0 and throttled_ms(anonymous) == 0


def throttled_ms(connection):
    connection.socket.sendall(fetch_frame(1, TOPIC))
    return int.from_bytes(connection.read_frame()[1][1:5])


# --- peers that do not get in ------------------------------------------------------------------------------------


def test_a_client_without_tls_is_named(server):
    with RawConnection(tls(server), source="127.0.0.4") as plain:
        plain.socket.sendall(fetch_frame(1, TOPIC))
        plain.read_to_end()
        server.wait_for_log("connection of 127.0.0.4")
        server.wait_for_log("it does not speak TLS, and this listener does: set security.protocol=SSL at the client")


def test_a_peer_that_breaks_off_its_own_tls_is_not_told_to_speak_it(server, files):
    with RawConnection(tls(server), source="127.0.0.9") as broken:
        hello = files.context().wrap_bio(ssl.MemoryBIO(), outgoing := ssl.MemoryBIO(), server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            hello.do_handshake()
        broken.socket.sendall(outgoing.read())
        broken.socket.recv(1)
        broken.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
        broken.read_to_end()
    line = server.wait_for_log("connection of 127.0.0.9")
    assert line.endswith("closed: the handshake failed: wrong version number")


def test_a_client_with_tls_at_a_plain_listener_is_named(server, files):
    with pytest.raises((ssl.SSLError, ConnectionError)):
        TlsConnection(server.address, files.context(), source="127.0.0.5")
    server.wait_for_log("a TLS handshake; this listener is plain (security.protocol=PLAINTEXT)")


def test_old_versions_of_tls_are_refused(server, files):
    context = files.context(verify_mode=ssl.CERT_REQUIRED)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        TlsConnection(tls(server), context, source="127.0.0.6")
    server.wait_for_log("the handshake failed: unsupported protocol")


def test_a_client_that_does_not_trust_the_certificate_is_named(server, tmp_path):
    context = ssl.create_default_context(cafile=Authority().write_pem(tmp_path / "other.pem"))
    with pytest.raises(ssl.SSLError):
        TlsConnection(tls(server), context, source="127.0.0.7")
    server.wait_for_log("it does not trust this listener's certificate (tlsv1 alert unknown ca)")


def test_handshakes_that_stop_are_closed_and_delay_nobody(files, tmp_path):
    settings = files.settings() | {
        "flakelog.tls.handshakes.max": 8,
        "flakelog.tls.handshakes.max.per.address": 4,
        "flakelog.tls.handshake.timeout.ms": 2_000,
    }
    with ServerProcess(tmp_path / "data", settings) as server, ExitStack() as stack:
        fill(server.address, TOPIC)
        stopped = [stack.enter_context(RawConnection(tls(server), source="127.0.0.8")) for _ in range(40)]
        for connection in stopped:
            connection.socket.sendall(b"\x16\x03\x01\x02\x00\x01")  # the first bytes of a ClientHello
        with TlsConnection(tls(server), files.context()) as polite:
            assert fetch(polite, TOPIC)
        assert all(connection.read_to_end() == b"" for connection in stopped)
        server.wait_for_log("no handshake within 2000 ms (flakelog.tls.handshake.timeout.ms)")
        assert 'flakelog_tls_handshakes_total{outcome="failed"} 40.0' in metrics(server)
        with TlsConnection(tls(server), files.context(), source="127.0.0.8") as later:
            assert fetch(later, TOPIC)


def test_a_peer_that_goes_away_in_any_step_leaves_nothing_behind(server, files):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = files.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    data = outgoing.read()
    for cut in (0, 1, 5, len(data) // 2, len(data)):
        with RawConnection(tls(server)) as connection:
            connection.socket.sendall(data[:cut])
            if cut == len(data):
                connection.socket.recv(1)
            connection.socket.shutdown(socket.SHUT_WR)
    until(lambda: "\nflakelog_connections 0.0\n" in metrics(server), what="all connections are closed")


# --- certificates ------------------------------------------------------------------------------------------------


def test_a_changed_file_is_a_new_certificate_for_new_connections(files, tmp_path):
    own = TlsFiles(tmp_path / "tls")
    with ServerProcess(tmp_path / "data", own.settings() | {"ssl.allow.dn.changes": "true"}) as server:
        fill(server.address, TOPIC)
        with TlsConnection(tls(server), own.context()) as old:
            own.authority.issue("second").write_pem(own.broker)
            server.wait_for_log("listener SSL has a new certificate: CN=second, until ")
            with TlsConnection(tls(server), own.context()) as new:
                assert (old.subject, new.subject) == ("broker", "second")
                assert fetch(old, TOPIC) == fetch(new, TOPIC)
            own.broker.write_text(own.authority.issue("third").chain_pem())
            server.wait_for_log("listener SSL keeps its certificate and authorities: ssl.keystore.location=")
            with TlsConnection(tls(server), own.context()) as new:
                assert new.subject == "second"


def test_a_certificate_of_another_name_needs_a_setting(tmp_path):
    own = TlsFiles(tmp_path / "tls")
    with ServerProcess(tmp_path / "data", own.settings()) as server:
        own.authority.issue("second").write_pem(own.broker)
        server.wait_for_log("its distinguished name changes from CN=broker to CN=second, which needs ssl.allow.dn")
        with TlsConnection(tls(server), own.context()) as new:
            assert new.subject == "broker"


def test_a_certificate_is_altered_at_run_time_and_stays_so(files, tmp_path):
    store = "listener.name.ssl.ssl.keystore.location"
    issued = files.authority.issue("broker", hosts=("localhost", "127.0.0.1", "second"))
    second = issued.write_pem(tmp_path / "second.pem")
    with ServerProcess(tmp_path / "data", files.settings()) as server:
        with pytest.raises(subprocess.CalledProcessError) as refused:
            command(server, f"config set --broker 1 {store}=/not/there")
        assert f"{store}: cannot be read" in refused.value.stderr
        command(server, f"config set --broker 1 {store}={second}")
        for _ in range(2):
            with TlsConnection(tls(server), files.context()) as connection:
                assert ("DNS", "second") in connection.socket.getpeercert()["subjectAltName"]
            server.restart()
        with pytest.raises(subprocess.CalledProcessError) as refused:
            command(server, f"config delete --broker 1 {store}")
        assert "it lacks the alternative names second" in refused.value.stderr


def test_a_broker_of_a_cluster_starts_with_the_authority_to_which_it_was_altered(tmp_path, zookeeper):
    """The old one comes first at the start, from the file of settings; then its certificate has expired."""
    old, new = TlsFiles(tmp_path / "old"), TlsFiles(tmp_path / "new", authority="The new authority")
    both = tmp_path / "both.pem"
    both.write_text(old.authority.pem() + new.authority.pem())
    settings = old.trusting() | {
        "zookeeper.connect": f"{zookeeper.hosts}/altered-authority",
        "inter.broker.listener.name": "SSL",
    }
    keystore, truststore = (f"listener.name.ssl.ssl.{name}.location" for name in ("keystore", "truststore"))
    with ServerProcess(tmp_path / "data", settings) as server:
        for name, file in ((truststore, both), (keystore, new.broker), (truststore, new.ca)):
            command(server, f"config set --broker 1 {name}={file}")
        for days in ({}, {"begins_days": -9, "ends_days": -2}):
            old.authority.issue("broker", **days).write_pem(old.broker)
            mark = server.mark()
            assert server.stop() == 0
            server.start()
            with TlsConnection(tls(server), new.context()) as connection:
                assert connection.subject == "broker"
            assert "keeps its TLS settings" not in server.log_since(mark)
            assert "clients will refuse" not in server.log_since(mark)


def test_the_console_works_where_all_listeners_speak_tls(files, tmp_path):
    """It reaches the broker over a socket of the data directory, which only the owner may open."""
    settings = files.trusting() | {"listeners": "SSL://127.0.0.1:0", "ssl.client.auth": "required"}
    with ServerProcess(tmp_path / "data", settings) as server:
        with TlsConnection(server.address, files.context(files.ada)) as connection:
            connection.socket.sendall(fetch_frame(1, "unknown"))
            connection.read_frame()
        status, text = Visitor(server.http).get("/console/topics/unknown/messages?partition=0")
        assert status == 404, text
        (sockets,) = (tmp_path / "data").glob("sockets")
        assert sockets.stat().st_mode & 0o077 == 0


def test_each_listener_may_have_a_certificate_of_its_own(files, tmp_path):
    other = TlsFiles(tmp_path / "other")
    settings = files.settings() | {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:SSL,OUTSIDE:SSL",
        "listener.name.outside.ssl.keystore.location": other.broker,
    }
    with ServerProcess(tmp_path / "data", settings) as server:
        with TlsConnection(server.address, files.context()), pytest.raises(ssl.SSLError):
            TlsConnection(server.addresses["broker.OUTSIDE"], files.context())
        TlsConnection(server.addresses["broker.OUTSIDE"], other.context()).socket.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ssl.keystore.location": "/not/there.pem"}, "ssl.keystore.location=/not/there.pem: cannot be read"),
        ({"ssl.keystore.type": "JKS"}, "set ssl.keystore.type=PEM"),
        ({"ssl.client.auth": "required"}, "needs the authorities of clients: set ssl.truststore.location"),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "Python cannot choose among the suites of TLSv1.3"),
        ({"ssl.enabled.protocols": "TLSv1"}, "TLSv1 is not served: give TLSv1.2, TLSv1.3 or both"),
        ({"listener.name.ssl.ssl.keystore.location": "/gone"}, "listener.name.ssl.ssl.keystore.location=/gone"),
        ({"listeners": "SASL_SSL://127.0.0.1:0"}, "GSSAPI (Kerberos) is not served"),
    ],
)
def test_a_start_that_cannot_work_is_refused_by_name(files, tmp_path, change, told):
    with pytest.raises(DidNotStart) as error:
        ServerProcess(tmp_path / "data", files.settings() | change).start()
    assert told in error.value.stderr
    assert not (tmp_path / "data").exists() or not any((tmp_path / "data").glob("*.log"))


def test_a_key_that_others_can_read_is_named_at_the_start(tmp_path):
    own = TlsFiles(tmp_path / "tls")
    own.broker.chmod(0o644)
    with ServerProcess(tmp_path / "data", own.settings()) as server:
        server.wait_for_log(f"other users of this machine can read {own.broker}, which has the private key of SSL")


@pytest.mark.parametrize(
    "days, flaw",
    [
        ({"begins_days": -9, "ends_days": -2}, "the certificate CN=broker expired on "),
        ({"begins_days": 2}, "the certificate CN=broker is not valid before "),
    ],
)
def test_a_certificate_that_clients_will_refuse_is_named_at_the_start(tmp_path, days, flaw):
    own = TlsFiles(tmp_path / "tls")
    own.authority.issue("broker", **days).write_pem(own.broker)
    with ServerProcess(tmp_path / "data", own.settings()) as server:
        server.wait_for_log(f"clients will refuse SSL: {flaw}")


def test_an_inline_key_is_shown_nowhere(files, tmp_path):
    issued = files.authority.issue("inline")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": issued.key_pem("marked-secret"),
        "ssl.keystore.certificate.chain": issued.chain_pem(),
        "ssl.key.password": "marked-secret",
    }
    with ServerProcess(tmp_path / "data", settings) as server:
        with TlsConnection(tls(server), files.context()) as connection:
            assert connection.subject == "inline"
        shown = server.log + command(server, "config get --all --broker 1")
        assert "ssl.keystore.key" in shown
        assert "marked-secret" not in shown and "PRIVATE KEY" not in shown
