"""Commands whose server is dead, full, silent or something else: each says so, in one line, and soon.

A command that were silent would meet the time limit of its process.
"""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from functools import partial

import pytest

from broker.client.producer import Producer
from coordination.free_port import FreePort
from flakelog.admin import Admin
from flakelog.testing.authority import Authority
from tests.compat.faults.small_disk import SmallDisk
from tests.compat.server_process import FREE_PORTS, ROOT, ServerProcess
from tests.patience import SECONDS, until

SOON_SECONDS = 30  # a command waits 5 s at most; a busy machine takes longer to start Python


def command(*arguments, **options):
    """Start a command as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "flakelog", *arguments],
        stdin=options.pop("stdin", subprocess.PIPE),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


def outcome_of(*arguments):
    """Return (exit code, lines on stderr) of a command, which ends soon."""
    process = command(*arguments)
    _, errors = process.communicate("line\n", timeout=SOON_SECONDS)
    return process.returncode, errors.splitlines()


class Port:
    """A port that accepts connections and sends `answer`, if it is not empty, to all that comes.

    With an `ssl.SSLContext` it shakes hands first.
    """

    def __init__(self, answer=b"", context=None):
        self._answer = answer
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._taken = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def accepted(self):
        """The number of connections so far."""
        return len(self._taken)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in (self._listener, *self._taken):
            each.close()

    def _accept(self):
        while True:
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            self._taken.append(taken)
            if self._context is not None:
                self._taken[-1] = self._context.wrap_socket(taken, server_side=True)
            if self._answer and taken.recv(1):
                taken.sendall(self._answer)


@pytest.mark.parametrize(
    "answer, said",
    [
        (b"", "(no answer within 4 s)"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "(it speaks TLS: set security.protocol=SSL"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "(it speaks HTTP, not Kafka's protocol)"),
        (b"-ERR unknown command\r\n", "it sent a frame of"),
    ],
)
def test_a_port_that_is_no_brokers_is_found_out_in_one_line(answer, said):
    with Port(answer) as port:
        code, (*waits, line) = outcome_of("topic", "list", "--servers", port.address)
    assert code == 3 and all(each.startswith(f"waiting for {port.address}") for each in waits)
    assert line.startswith(f"Error: no broker answers at {port.address} (") and said in line


def test_the_http_port_of_a_server_is_found_out(broker):
    """The command gives a server little time for it, so a busy machine may need another attempt."""

    def is_found_out():
        code, (line,) = outcome_of("topic", "list", "--servers", broker.http, "--timeout", "0.5")
        assert code == 3 and f"no broker answers at {broker.http} (" in line
        return "(it speaks HTTP, not Kafka's protocol)" in line

    until(is_found_out, "the line that names HTTP")


def test_a_broker_that_is_late_names_the_command_that_looked_for_http(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        server.send_signal(signal.SIGSTOP)
        try:
            code, (line,) = outcome_of("topic", "list", "--servers", server.address, "--timeout", "0.5")
        finally:
            server.send_signal(signal.SIGCONT)
        assert code == 3 and f"no broker answers at {server.address} (no answer within 0.5 s)" in line
        server.wait_for_log("has not answered the command in time")
        assert "an HTTP request" not in server.log


def test_a_command_over_tls_looks_for_no_http_server(tmp_path):
    """Its log would say of the command that it does not speak TLS."""
    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("broker").write_pem(tmp_path / "broker.pem"))
    trust = authority.write_pem(tmp_path / "authority.pem")
    config = tmp_path / "client.properties"
    config.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={trust}\n")
    with Port(context=context) as port:
        told = ("--servers", port.address, "--command-config", str(config), "--timeout", "0.5")
        code, (line,) = outcome_of("topic", "list", *told)
        assert code == 3 and "no answer within 0.5 s" in line
        assert port.accepted == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "x"), ("consume", "x"), ("group", "list"), ("config", "get", "--all-brokers"), ("id", "find", "7"),
        ("cluster", "describe"), ("quotas", "list"), ("transactions", "list"), ("partitions", "list"), ("user", "list"),
        ("spout", "dead", "list", "x"), ("replay", "x", "--plan"), ("load", "x", "--to", "place"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_command_has_a_time_limit(flakelog, arguments):
    with Port() as port:
        code, _, errors = flakelog(" ".join((*arguments, "--timeout", "0.2", "--servers", port.address)), b"line\n")
    assert code == 3 and errors.count("\n") == 1 and "no answer within 0.2 s" in errors


def test_the_id_service_has_a_time_limit_too(flakelog):
    with Port() as port:
        code, _, errors = flakelog(f"id new --timeout 0.2 --server {port.address}")
        assert code == 3 and errors.count("\n") == 1 and f"no id service answers at {port.address}" in errors


def test_the_http_port_is_found_out_by_a_command_for_ids_too(flakelog, broker):
    code, _, errors = flakelog(f"id new --timeout 0.5 --server {broker.http}")
    assert code == 3 and f"no id service answers at {broker.http}: it speaks HTTP, not" in errors


@pytest.mark.parametrize("arguments", [("id", "new"), ("id", "workers")])
def test_a_zookeeper_that_is_not_there_is_missed_soon(arguments):
    with FreePort() as port:
        address = f"127.0.0.1:{port.number}"
        code, lines = outcome_of(*arguments, "--zookeeper", address, "--timeout", "1")
    assert (code, lines) == (3, [f"Error: no ZooKeeper answered at {address} in 1000 ms"])


def test_a_start_without_its_zookeeper_says_what_it_waits_for_and_fails_after_its_timeout(tmp_path):
    with FreePort() as port:
        address = f"127.0.0.1:{port.number}"
        ports = (f"{name}={value}" for name, value in FREE_PORTS.items())
        more = [word for each in ports for word in ("--set", each)]
        other = str(tmp_path / "other")
        code, lines = outcome_of("server", "--data-dir", other, "--zookeeper", address, "--timeout", "2", *more)
    assert code == 1 and f"waiting for ZooKeeper at {address}, which does not answer" in lines[-2]
    assert lines[-1].endswith(f"no ZooKeeper answered at {address} in 2000 ms")


# --- produce -----------------------------------------------------------------------------------------------------


def test_a_producer_whose_server_dies_says_so_and_ends_at_the_first_ctrl_c_with_counts(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        address = server.address
        producer = command("produce", "orders", "--servers", address)
        producer.stdin.write("one\ntwo\n")
        producer.stdin.flush()
        assert producer.stderr.readline() == "made topic orders: 1 partition\n"
        subprocess.run(
            [sys.executable, "-m", "flakelog", "consume", "orders", "--follow", "--count", "2", "--servers", address],
            timeout=SECONDS, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        server.kill()
        producer.stdin.write("three\n")
        producer.stdin.flush()
        line = producer.stderr.readline()
        assert line.startswith(f"2 messages acknowledged, 1 not: no broker answers at {address}"), line
        producer.send_signal(signal.SIGINT)
        assert producer.wait(SOON_SECONDS) == 130
        assert producer.stderr.read() == "Error: ended by Ctrl-C: 2 messages acknowledged, 1 not\n"


def test_a_producer_whose_server_stays_away_gives_up_after_its_timeout(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        producer = command("produce", "orders", "--servers", server.address, "--timeout", "0.5")
        assert "made topic" in producer.stderr.readline()
        server.kill()
        _, errors = producer.communicate("one\n", timeout=SOON_SECONDS)
    assert producer.returncode == 3
    assert errors.startswith("Error: 0 messages acknowledged, 1 not: no broker answers at")


@pytest.mark.parametrize("more", [(), pytest.param(("--show-ids",), marks=pytest.mark.soak)])
def test_a_producer_on_a_full_disk_says_so(tmp_path, more):
    with SmallDisk(tmp_path / "disk", 3 << 20) as disk:
        with ServerProcess(disk.directory / "data", prefix=disk.prefix) as server:
            subprocess.run(
                [sys.executable, "-m", "flakelog", "topic", "create", "orders", "--servers", server.address],
                check=True, timeout=SECONDS, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            disk.take(1 << 20)
            disk.fill()
            producer = command("produce", "orders", "--servers", server.address, *more)
            producer.stdin.write("x" * 50_000 + "\n")
            producer.stdin.flush()
            line = producer.stderr.readline()
            producer.send_signal(signal.SIGINT)
            _, rest = producer.communicate(timeout=SOON_SECONDS)
    reason = "0 messages acknowledged, 1 not: the disk of the server is full: "
    if more:
        assert line.startswith(f"Error: {reason}"), line
    else:
        assert line.startswith(reason), line
        assert producer.returncode == 130 and rest.startswith("Error: ended by Ctrl-C: 0 messages acknowledged, 1 not")


def test_a_small_input_for_a_full_disk_fails_at_once_and_says_so(tmp_path):
    with SmallDisk(tmp_path / "disk", 3 << 20) as disk:
        with ServerProcess(disk.directory / "data", prefix=disk.prefix) as server:
            assert outcome_of("topic", "create", "orders", "--servers", server.address)[0] == 0
            disk.take(1 << 20)
            disk.fill()
            producer = command("produce", "orders", "--servers", server.address)
            _, errors = producer.communicate("x" * 50_000 + "\n", timeout=SOON_SECONDS)
    assert producer.returncode == 1
    assert errors.startswith("Error: 0 messages acknowledged, 1 not: the disk of the server is full: "), errors


# --- SIGTERM -----------------------------------------------------------------------------------------------------


def test_a_producer_ends_at_sigterm_with_counts(broker):
    producer = command("produce", "ended", "--servers", broker.address)
    assert "made topic" in producer.stderr.readline()
    producer.send_signal(signal.SIGTERM)
    assert producer.communicate(timeout=SOON_SECONDS)[1].startswith("Error: ended by SIGTERM")
    assert producer.returncode == 143


def test_a_consumer_of_a_group_commits_and_leaves_the_group_at_sigterm(flakelog, group_broker):
    flakelog = partial(flakelog, FLAKELOG_SERVERS=group_broker.address)
    flakelog("produce followed", b"one\ntwo\n")
    consumer = command("consume", "followed", "--group", "followers", "--follow", "--servers", group_broker.address)
    assert [consumer.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
    flakelog("produce followed", b"three\n")
    assert consumer.stdout.readline() == "three\n", "the next poll, which notes that the others are printed"
    consumer.send_signal(signal.SIGTERM)
    assert consumer.communicate(timeout=SOON_SECONDS) == ("", "") and consumer.returncode == 0
    described = json.loads(flakelog("group describe followers --json")[1])
    (place,) = described["partitions"]
    assert described["state"] == "Empty" and place["committed"] in (2, 3), "the third may come again"


def test_a_group_whose_offset_is_gone_says_so(flakelog, group_broker):
    flakelog = partial(flakelog, FLAKELOG_SERVERS=group_broker.address)
    flakelog("produce trimmed", b"".join(b"%d\n" % number for number in range(10)))
    with Admin(group_broker.address) as admin:
        admin.reset_offsets("trimmers", {("trimmed", 0): 2})
        admin.delete_records({("trimmed", 0): 7})
    code, out, errors = flakelog("consume trimmed --group trimmers")
    assert (code, out) == (0, "7\n8\n9\n")
    assert errors.startswith("trimmed-0: offset 2, where the group was, is gone: its log does not have that offset")


@pytest.mark.parametrize("group", ("", "--group held"))
def test_messages_that_an_open_transaction_holds_back_are_named(flakelog, group_broker, group):
    flakelog = partial(flakelog, FLAKELOG_SERVERS=group_broker.address)
    topic = f"held-{bool(group)}"
    flakelog(f"produce {topic}", b"before\n")
    with Producer(group_broker.address, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send_and_wait(topic, "open")
            flakelog(f"produce {topic}", b"behind\n")
            code, out, errors = flakelog(f"consume {topic} --committed {group}")
    assert (code, out) == (0, "before\n")
    wanted = f"{topic}-0: an open transaction holds back offsets 1 to 2; `flakelog transactions list --state Ongoing`"
    assert wanted in errors
    code, out, errors = flakelog(f"consume {topic} --committed {group}")
    assert out.endswith("open\nbehind\n") and "holds back" not in errors


def test_a_topic_that_grows_is_followed_in_its_new_partitions(flakelog, broker):
    flakelog("topic create growing")
    flakelog("produce growing", b"one\n")
    consumer = command("consume", "growing", "--follow", "--servers", broker.address)
    assert consumer.stdout.readline() == "one\n"
    flakelog("topic add-partitions growing --to 2 --yes")
    flakelog("produce growing --partition 1", b"two\n")
    assert consumer.stdout.readline() == "two\n"
    consumer.send_signal(signal.SIGTERM)
    assert consumer.communicate(timeout=SOON_SECONDS) == ("", "") and consumer.returncode == 0


def test_a_consumer_of_a_group_misses_a_deleted_topic_and_then_fails(flakelog, group_broker):
    flakelog = partial(flakelog, FLAKELOG_SERVERS=group_broker.address)
    flakelog("produce vanishing", b"one\n")
    arguments = ("vanishing", "--group", "mourners", "--follow", "--timeout", "1", "--servers", group_broker.address)
    consumer = command("consume", *arguments)
    assert consumer.stdout.readline() == "one\n"
    flakelog("topic delete vanishing --yes")
    _, errors = consumer.communicate(timeout=SOON_SECONDS)
    assert "UNKNOWN_TOPIC_OR_PARTITION; trying for 1 s" in errors and consumer.returncode == 1
    assert "vanishing" in errors.splitlines()[-1] and "Traceback" not in errors


# --- pipes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["settings", "compat --json", "consume head --follow"])
def test_a_reader_that_has_read_enough_is_no_failure(flakelog, broker, arguments):
    if "consume" in arguments:
        flakelog("produce head", b"".join(b"%d %s\n" % (n, bytes(50)) for n in range(5_000)))
    line = f"'{sys.executable}' -m flakelog {arguments} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, timeout=SECONDS,
        env={**os.environ, "FLAKELOG_SERVERS": broker.address, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.count(b"\n") == 1
