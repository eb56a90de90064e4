"""HTTPS and Thrift over TLS at a real server: what passes, who is refused, and how a certificate is changed."""

import http.client
import json
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
from contextlib import ExitStack, suppress
from urllib.request import Request, urlopen

import pytest
import yaml
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from coordination.free_port import FreePort
from flakelog.testing.authority import Authority
from idgen.wire import Call, FrameDecoder, decode_reply, encode_call
from tests.compat.raw_connection import RawConnection, frame
from tests.compat.server_process import ROOT, DidNotStart, ServerProcess
from tests.compat.tls_files import TlsConnection, TlsFiles
from tests.patience import SECONDS, until

ON = {"flakelog.http.ssl.enable": "true", "flakelog.ids.ssl.enable": "true"}
TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return TlsFiles(tmp_path_factory.mktemp("tls"))


def settings(files):
    own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": files.broker} | ON
    own |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": files.ca}
    return own | {"flakelog.ids.ssl.client.auth": "required"}


@pytest.fixture(scope="module")
def server(files, tmp_path_factory):
    """A server whose HTTP port speaks HTTPS, and whose id service wants certificates of its clients."""
    with ServerProcess(tmp_path_factory.mktemp("data"), settings(files)) as server:
        yield server


def get(server, files, path, context=None, **headers):
    """Return (status, headers, text) of a page."""
    connection = http.client.HTTPSConnection(server.http, context=context or files.context(), timeout=SECONDS)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def ask(connection, *calls):
    """Send calls by Thrift; return the values of their answers."""
    connection.socket.sendall(b"".join(encode_call(call) for call in calls))
    return answers(connection, len(calls))


def answers(connection, count):
    frames, values = FrameDecoder(1 << 24), []
    while len(values) < count:
        data = connection.socket.recv(1 << 16)
        assert data, "it closed the connection"
        values += [decode_reply(frame).value for frame in frames.frames(data)]
    return values


# --- HTTPS -------------------------------------------------------------------------------------------------------


def test_every_part_of_the_http_port_is_there_over_https(server, files):
    assert get(server, files, "/health/live")[2] == '{"live": true}'
    assert json.loads(get(server, files, "/health")[2])["healthy"]
    assert "flakelog_build_info" in get(server, files, "/metrics")[2]
    assert "/ids/{id}" in json.loads(get(server, files, "/openapi.json")[2])["paths"]
    assert "<html" in get(server, files, "/")[2]
    request = Request(f"https://{server.http}/ids?count=20000", method="POST")
    with urlopen(request, context=files.context(), timeout=SECONDS) as answer:
        assert len(set(json.load(answer)["ids"])) == 20_000


def test_the_ready_line_says_https(server):
    assert server.addresses["console"] == f"https://{server.http}/"


def test_requests_of_one_connection_are_answered_in_order_however_they_are_cut(server, files):
    """Plain requests for an id, which need no web server, and others, in one record of TLS and in many."""
    plain = b"POST /id HTTP/1.1\r\nHost: localhost\r\n\r\n"
    other = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with TlsConnection(server.http, files.context()) as connection:
        connection.socket.sendall(plain * 500)
        data = b""
        while data.count(b"id_str") < 500:
            data += connection.socket.recv(1 << 16)
        for byte in (plain + other)[:-1]:
            connection.socket.sendall(bytes([byte]))
        connection.socket.sendall(b"\n" + other)
        data = b""
        while data.count(b'{"live": true}') < 2:
            data += connection.socket.recv(1 << 16)
        assert data.index(b"id_str") < data.index(b"live")


def test_the_console_logs_in_over_https_with_a_cookie_that_never_leaves_it(files, tmp_path):
    with ServerProcess(tmp_path / "data", settings(files) | {"flakelog.console.token": TOKEN}) as server:
        connection = http.client.HTTPSConnection(server.http, context=files.context(), timeout=SECONDS)
        form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"https://{server.http}"}
        connection.request("POST", "/console/login", f"token={TOKEN}", form | {"Origin": f"http://{server.http}"})
        answer = connection.getresponse()
        assert answer.status == 403 and answer.read(), "a page of plain HTTP is another site"
        connection.request("POST", "/console/login", f"token={TOKEN}", form)
        answer = connection.getresponse()
        answer.read()
        cookie, *attributes = answer.headers["Set-Cookie"].split("; ")
        assert cookie.startswith("__Host-flakelog_console_") and {"Secure", "HttpOnly", "Path=/"} <= {*attributes}
        connection.request("GET", "/console/topics", headers={"Cookie": cookie})
        answer = connection.getresponse()
        assert answer.status == 200 and "Strict-Transport-Security" not in answer.headers
        connection.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_slow_reader_of_a_long_answer_gets_all_of_it(server, files, version):
    context = files.context(minimum_version=version, maximum_version=version)
    with TlsConnection(server.http, context, receive_buffer=4_096) as connection:
        head = b"Host: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        connection.socket.sendall(b"POST /ids?count=100000 HTTP/1.1\r\n" + head)
        head, _, body = connection.read_to_end().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and len(json.loads(body)["ids"]) == 100_000


def test_curl_trusts_the_authority_and_no_other(server, files, tmp_path):
    stranger = Authority().write_pem(tmp_path / "other.pem")

    def curl(*options):
        return subprocess.run(["curl", "-sS", *options], capture_output=True, text=True)

    assert curl("--cacert", files.ca, f"https://{server.http}/health/live").stdout == '{"live": true}'
    refused = curl("--cacert", stranger, "--interface", "127.0.0.1", f"https://{server.http}/health/live")
    assert refused.returncode == 60 and "certificate" in refused.stderr
    server.wait_for_log("to http closed: it does not trust this listener's certificate")


# --- health and metrics ------------------------------------------------------------------------------------------


def test_health_and_metrics_need_the_token_where_they_are_not_open(files, tmp_path):
    closed = {"flakelog.http.health.open": "false", "flakelog.http.metrics.open": "false"}
    own = settings(files) | closed | {"flakelog.console.token": TOKEN}
    with ServerProcess(tmp_path / "data", own) as server:
        for path in ("/health", "/metrics"):
            status, headers, text = get(server, files, path)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer") and "flakelog.console.token" in text
            assert get(server, files, path, Authorization="Bearer wrong")[0] == 401
            assert get(server, files, path, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert get(server, files, "/health/live")[::2] == (200, '{"live": true}')
        assert get(server, files, "/health/ready")[::2] == (200, '{"ready": true}')
        assert "partitions_offline" in get(server, files, "/health/ready", Authorization=f"Bearer {TOKEN}")[2]


def test_prometheus_scrapes_over_https_with_the_token_as_the_comment_of_its_file_says(files, tmp_path):
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus on this machine")
    scrapes = ROOT / "deploy" / "prometheus" / "prometheus.yml"
    lines = re.findall(r"^  #   (\w+: .*)$", scrapes.read_text(), re.M)
    assert [line.partition(":")[0] for line in lines] == ["scheme", "tls_config", "authorization"]
    (tmp_path / "token").write_text(TOKEN)
    own = settings(files) | {"flakelog.console.token": TOKEN, "flakelog.http.metrics.open": "false"}
    with ServerProcess(tmp_path / "data", own) as server, FreePort() as port:
        job = {"job_name": "flakelog", "static_configs": [{"targets": [server.http]}]}
        job |= yaml.safe_load("\n".join(lines))
        text = yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]})
        text = text.replace("/etc/prometheus/flakelog-ca.pem", str(files.ca))
        (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/flakelog-token", f"{tmp_path}/token"))
        options = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb"]
        address = f"127.0.0.1:{port.number}"
        with open(tmp_path / "prometheus.log", "w") as log:
            process = subprocess.Popen(["prometheus", *options, f"--web.listen-address={address}"], stderr=log)
        try:
            until(lambda: target(address)["health"] == "up", what="Prometheus scrapes the server")
        finally:
            process.kill()
            process.wait(SECONDS)


def target(address):
    """Return what Prometheus says of its only target; its health is unknown before it answers."""
    try:
        with urlopen(f"http://{address}/api/v1/targets", timeout=SECONDS) as answer:
            (active,) = json.load(answer)["data"]["activeTargets"]
            return active
    except (OSError, ValueError):
        return {"health": "unknown"}


# --- Thrift over TLS ---------------------------------------------------------------------------------------------


def test_ids_come_over_tls_to_a_client_with_a_certificate(server, files):
    with TlsConnection(server.ids, files.context(files.ada)) as connection:
        ids = ask(connection, *(Call("get_id", n, "agent") for n in range(1_000)))
        assert ids == sorted(set(ids)) and len(ids) == 1_000
        (many,) = ask(connection, Call("get_ids", 1, "agent", 100_000))
        assert len(set(many)) == 100_000


def test_a_client_of_the_id_service_that_reads_late_holds_up_nobody(server, files):
    with ExitStack() as stack:
        slow = stack.enter_context(TlsConnection(server.ids, files.context(files.ada), receive_buffer=4_096))
        slow.socket.sendall(b"".join(encode_call(Call("get_ids", n, "slow", 50_000)) for n in range(8)))
        polite = stack.enter_context(TlsConnection(server.ids, files.context(files.ada)))
        assert ask(polite, Call("get_id", 1, "polite"))
        assert sum(len(ids) for ids in answers(slow, 8)) == 400_000


def test_a_client_without_a_certificate_or_with_a_strange_one_is_named(server, files, tmp_path):
    strange = Authority().issue("stranger").write_pem(tmp_path / "stranger.pem")
    expired = files.authority.issue("late", begins_days=-9, ends_days=-2).write_pem(tmp_path / "expired.pem")
    cases = [
        ("127.0.0.2", None, "it shows no certificate, and ssl.client.auth=required"),
        ("127.0.0.3", strange, "its certificate is refused: self-signed certificate in certificate chain"),
        ("127.0.0.4", expired, "its certificate is refused: certificate has expired"),
    ]
    for source, certificate, reason in cases:
        context = files.context(certificate, maximum_version=ssl.TLSVersion.TLSv1_2)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            TlsConnection(server.ids, context, source=source)
        assert f"connection of {source}:" in server.wait_for_log(f"to ids closed: {reason}")


def test_the_log_names_the_user_of_a_client_whose_calls_are_refused(server, files):
    with TlsConnection(server.ids, files.context(files.ada), source="127.0.0.7") as connection:
        connection.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert connection.read_to_end() == b""
    line = server.wait_for_log("an HTTP request; ids over HTTP are at flakelog.http.listener")
    assert "127.0.0.7" in line and "'CN=ada', closed" in line


def test_a_peer_of_the_other_kind_is_named_at_each_port(server, files, tmp_path):
    for port, source, hint in (("http", "127.0.0.5", "use https://"), ("ids", "127.0.0.6", "use a Thrift client with")):
        with RawConnection(server.addresses[port], source=source) as plain:
            plain.socket.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            plain.read_to_end()
        line = server.wait_for_log(f"to {port} closed: it does not speak TLS, and this listener does: {hint}")
        assert f"connection of {source}:" in line
    with ServerProcess(tmp_path / "data", command="idgen") as plain_server:
        for port, reason in (("http", "this port is plain HTTP"), ("ids", "this port speaks plain framed Thrift")):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                TlsConnection(plain_server.addresses[port], files.context())
            plain_server.wait_for_log(f"a TLS handshake; {reason}")


def stop_handshakes(stack, address, count, source):
    """Begin this many handshakes, and return their connections."""
    stopped = [stack.enter_context(RawConnection(address, source=source)) for _ in range(count)]
    for connection in stopped:
        connection.socket.sendall(b"\x16\x03\x01\x02\x00\x01")  # the first bytes of a ClientHello
    return stopped


def test_handshakes_that_stop_delay_no_request_of_others(files, tmp_path):
    """They are all open while others are answered: no answer waits for the end of one."""
    limits = {"flakelog.tls.handshakes.max": 8, "flakelog.tls.handshakes.max.per.address": 4}
    limits |= {"flakelog.tls.handshake.timeout.ms": 3_600_000}
    with ServerProcess(tmp_path / "data", settings(files) | limits) as server, ExitStack() as stack:
        stopped = stop_handshakes(stack, server.http, 10, "127.0.0.8")
        stopped += stop_handshakes(stack, server.ids, 10, "127.0.0.8")
        until(lambda: "\nflakelog_tls_handshakes 20.0\n" in get(server, files, "/metrics")[2], what="all have begun")
        with TlsConnection(server.ids, files.context(files.ada)) as connection:
            assert ask(connection, Call("get_id", 1, "agent"))
        for connection in stopped:
            connection.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.socket.recv(1)


def test_handshakes_that_stop_at_a_port_leave_the_listeners_free(files, tmp_path):
    """Two addresses take all places of the HTTP port and the id service."""
    limits = {"flakelog.tls.handshakes.max": 8, "flakelog.tls.handshakes.max.per.address": 4}
    limits |= {"flakelog.tls.handshake.timeout.ms": 3_600_000}
    with ServerProcess(tmp_path / "data", files.settings() | settings(files) | limits) as server, ExitStack() as stack:
        early = http.client.HTTPSConnection(server.http, context=files.context(), timeout=SECONDS)
        stack.callback(early.close)

        def figures():
            early.request("GET", "/metrics")
            return early.getresponse().read().decode()

        assert "\nflakelog_tls_handshakes 0.0\n" in figures()
        for source in ("127.0.0.8", "127.0.0.9"):
            stop_handshakes(stack, server.http, 10, source)
        until(lambda: "\nflakelog_tls_handshakes 20.0\n" in figures(), what="all have begun or wait")
        with TlsConnection(server.addresses["broker.SSL"], files.context()) as client:
            client.socket.sendall(frame(18, 3, 1, b"\x02a\x022\x00"))
            assert client.read_frame()[0] == 1


def test_handshakes_that_stop_are_closed_and_counted(files, tmp_path):
    limits = {"flakelog.tls.handshakes.max": 8, "flakelog.tls.handshakes.max.per.address": 4}
    limits |= {"flakelog.tls.handshake.timeout.ms": 500}
    with ServerProcess(tmp_path / "data", settings(files) | limits) as server, ExitStack() as stack:
        stopped = stop_handshakes(stack, server.http, 10, "127.0.0.8")
        stopped += stop_handshakes(stack, server.ids, 10, "127.0.0.8")
        assert all(connection.read_to_end() == b"" for connection in stopped)
        server.wait_for_log("no handshake within 500 ms (flakelog.tls.handshake.timeout.ms)")
        assert 'flakelog_tls_handshakes_total{outcome="failed"} 20.0' in get(server, files, "/metrics")[2]


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        ("127.0.0.9", b"\x0c\x04odd!", b"\x13\x04\xff\xfe\xfd\xfc"),  # a PrintableString with other characters
        ("127.0.0.10", b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"),  # a version that does not exist
    ],
)
def test_a_trusted_certificate_that_cannot_be_read_is_named(server, files, tmp_path, source, old, new):
    """OpenSSL takes it, because it reads less of it."""
    issued = files.authority.issue("odd!")
    certificate = signed_again(issued.certificate, files.authority.key, old, new)
    (tmp_path / "odd.pem").write_text(issued.key_pem() + certificate)
    context = files.context(tmp_path / "odd.pem")
    mark = server.mark()
    with suppress(ssl.SSLError, ConnectionError), TlsConnection(server.ids, context, source=source) as connection:
        connection.socket.sendall(encode_call(Call("get_id", 1, "agent")))
        connection.read_to_end()
    line = server.wait_for_log("to ids closed: the handshake failed: its certificate cannot be read: ", since=mark)
    assert f"connection of {source}:" in line and "Traceback" not in server.log_since(mark)


def signed_again(certificate, key, old, new):
    """Return a certificate as PEM in which bytes are replaced by as many others, signed anew."""
    signed = certificate.tbs_certificate_bytes
    assert signed.count(old) == 1 and len(old) == len(new)
    signed = signed.replace(old, new)
    signature = key.sign(signed, ec.ECDSA(hashes.SHA256()))
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")  # ecdsa-with-SHA256
    parts = signed + algorithm + b"\x03" + der_length(len(signature) + 1) + b"\x00" + signature
    return ssl.DER_cert_to_PEM_cert(b"\x30" + der_length(len(parts)) + parts)


def der_length(length):
    return bytes([length]) if length < 0x80 else b"\x82" + length.to_bytes(2)


def test_a_peer_that_ends_in_any_step_leaves_no_connection_behind(files, tmp_path):
    one = {"flakelog.http.max.connections": 1, "flakelog.ids.max.connections": 1}
    with ServerProcess(tmp_path / "data", settings(files) | one) as server:
        hello = b"\x16\x03\x01\x02\x00\x01"
        for address in (server.http, server.ids):
            for cut in (0, 1, 5, 6):
                with RawConnection(address) as connection:
                    connection.socket.sendall(hello[:cut])
                    connection.socket.shutdown(socket.SHUT_WR)
                    connection.read_to_end()
        assert get(server, files, "/health/live")[0] == 200
        with TlsConnection(server.ids, files.context(files.ada)) as connection:
            assert ask(connection, Call("get_id", 1, "agent"))


def test_a_peer_that_is_gone_before_it_is_accepted_is_counted_and_named(files, tmp_path):
    """It resets its connection while the server does not run, with and without bytes of its own."""
    own = files.settings(listeners="SSL://127.0.0.1:0") | settings(files)
    with ServerProcess(tmp_path / "data", own) as server:
        ports = {"SSL": server.address, "http": server.http, "ids": server.ids}
        server.send_signal(signal.SIGSTOP)
        for source, address in zip(("127.0.0.2", "127.0.0.3", "127.0.0.4"), ports.values(), strict=True):
            for data in (b"", b"hello", b"\x16\x03\x01\x02\x00\x01"):
                with RawConnection(address, source=source) as connection:
                    connection.socket.sendall(data)
                    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.send_signal(signal.SIGCONT)
        for source, name in zip(("127.0.0.2", "127.0.0.3", "127.0.0.4"), ports, strict=True):
            assert f"connection of {source}:" in server.wait_for_log(f"to {name} closed: it ended in the middle of")
        failed = 'flakelog_tls_handshakes_total{outcome="failed"} 9.0'
        until(lambda: failed in get(server, files, "/metrics")[2], what="all nine are counted")
        assert "\nflakelog_tls_handshakes 0.0\n" in get(server, files, "/metrics")[2]
        assert "Traceback" not in server.log


# --- certificates ------------------------------------------------------------------------------------------------


def test_a_changed_file_is_a_new_certificate_for_new_connections(tmp_path):
    own = TlsFiles(tmp_path / "tls")
    http_file = own.authority.issue("http").write_pem(tmp_path / "http.pem")
    given = settings(own) | {"flakelog.http.ssl.keystore.location": http_file, "ssl.allow.dn.changes": "true"}
    with ServerProcess(tmp_path / "data", given, command="idgen") as server:
        with TlsConnection(server.http, own.context()) as old, TlsConnection(
            server.ids, own.context(own.ada)
        ) as of_ids:
            own.authority.issue("second").write_pem(http_file)
            server.wait_for_log("listener http has a new certificate: CN=second, until ")
            with TlsConnection(server.http, own.context()) as new:
                assert (old.subject, new.subject, of_ids.subject) == ("http", "second", "broker")
            old.socket.sendall(b"POST /id HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"id_str" in old.socket.recv(1 << 16)
            http_file.write_text(own.authority.issue("third").chain_pem())
            server.wait_for_log("listener http keeps its certificate and authorities: ssl.keystore.location=")
            with TlsConnection(server.http, own.context()) as new:
                assert new.subject == "second"
        text = get(server, own, "/metrics")[2]
        assert all(f'flakelog_tls_certificate_expiry_seconds{{listener="{port}"}}' in text for port in ("http", "ids"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ssl.keystore.location": ""}, "flakelog.http.ssl.enable=true: needs a private key: flakelog.http.ssl.key"),
        ({"flakelog.http.ssl.keystore.location": "/gone.pem"}, "flakelog.http.ssl.keystore.location=/gone.pem: cannot"),
        ({"ssl.truststore.location": ""}, "flakelog.ids.ssl.client.auth=required: needs the authorities of clients"),
        ({"flakelog.ids.ssl.enable": "false"}, "needs flakelog.ids.ssl.enable=true, else nothing would be encrypted"),
        ({"flakelog.http.metrics.open": "false"}, "flakelog.http.metrics.open=false: needs flakelog.console.token"),
    ],
)
def test_a_start_that_cannot_work_is_refused_by_name(files, tmp_path, change, told):
    with pytest.raises(DidNotStart) as error:
        ServerProcess(tmp_path / "data", settings(files) | change, command="idgen").start()
    assert told in error.value.stderr


def test_several_processes_share_the_tls_of_their_ports(files, tmp_path):
    """The console of the first process answers whichever process has accepted the connection."""
    own = settings(files) | {"flakelog.processes": 2, "flakelog.console.token": TOKEN}
    own |= {"flakelog.http.metrics.open": "false", "flakelog.http.health.open": "false"}
    with ServerProcess(tmp_path / "data", own) as server:
        for _ in range(8):
            assert get(server, files, "/metrics")[0] == 401
            status, _, text = get(server, files, "/metrics", Authorization=f"Bearer {TOKEN}")
            assert status == 200 and 'flakelog_broker_up{broker="2"} 1' in text
            assert get(server, files, "/health/ready")[2] == '{"ready": true}'
            assert get(server, files, "/console/login")[0] == 200
            with TlsConnection(server.ids, files.context(files.ada)) as connection:
                assert ask(connection, Call("get_id", 1, "agent"))
