"""How a server is configured: environment, Kafka's files, modes for developers, several listeners."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker.client.blocking import Client
from tests.compat.server_process import FREE_PORTS, PYTHONPATH, ROOT, DidNotStart, ServerProcess
from tests.patience import SECONDS

TWO_LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
}


def flakelog(*arguments, env=None):
    """Run a command that ends without a signal."""
    return subprocess.run(
        [sys.executable, "-m", "flakelog", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **(env or {})},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


class DevServer(ServerProcess):
    """`flakelog server --dev` with more options and without --data-dir."""

    def __init__(self, *options, tmp_path, settings=None):
        super().__init__("/nowhere", settings, env={"TMPDIR": str(tmp_path)})  # a killed server removes nothing
        self._options = options

    @property
    def argv(self):
        argv = super().argv
        at = argv.index("--data-dir")
        return argv[:at] + ["--dev", *self._options] + argv[at + 2 :]


def brokers_of(address):
    metadata = AdminClient({"bootstrap.servers": address}).list_topics(timeout=SECONDS)
    return {f"{each.host}:{each.port}" for each in metadata.brokers.values()}


# --- listeners -------------------------------------------------------------------------------------------------------


def test_each_listener_tells_its_own_address_and_serves(tmp_path):
    """Metadata names the listener on which the client connected, so that a stock client stays on that listener."""
    with ServerProcess(tmp_path / "data", TWO_LISTENERS) as server:
        outside, inside = server.address, server.addresses["broker.INSIDE"]
        assert outside != inside
        assert brokers_of(outside) == {outside}
        assert brokers_of(inside) == {inside}
        for address in (outside, inside):
            producer = Producer({"bootstrap.servers": address})
            producer.produce("both", address)
            assert producer.flush(SECONDS) == 0
        consumer = Consumer({"bootstrap.servers": inside, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["both"])
        values = [consumer.poll(SECONDS).value().decode() for _ in range(2)]
        consumer.close()
        assert values == [outside, inside]


def test_a_listener_is_advertised_under_another_name(tmp_path):
    settings = TWO_LISTENERS | {"advertised.listeners": "INSIDE://broker.inside:19094"}
    with ServerProcess(tmp_path / "data", settings) as server:
        assert brokers_of(server.addresses["broker.INSIDE"]) == {"broker.inside:19094"}
        assert brokers_of(server.address) == {server.address}


def test_a_listener_of_ipv6_is_served(tmp_path):
    try:
        server = ServerProcess(tmp_path / "data", {"listeners": "PLAINTEXT://[::1]:0"}).start()
    except DidNotStart as error:
        pytest.skip(f"no IPv6 here: {error.stderr}")
    with server:
        assert server.address.startswith("[::1]:")
        assert brokers_of(server.address) == {server.address.replace("[", "").replace("]", "")}


def test_a_listener_for_everybody_is_warned_of_once(tmp_path):
    settings = {"listeners": "PLAINTEXT://:0", "advertised.listeners": "PLAINTEXT://localhost:0"}
    with ServerProcess(tmp_path / "data", settings) as server:
        port = server.address.rpartition(":")[2]
        assert brokers_of(f"127.0.0.1:{port}") == {f"localhost:{port}"}
        assert server.log.count("no listener asks who it is") == 1


def test_a_second_listener_whose_port_is_taken_stops_the_start(tmp_path):
    with ServerProcess(tmp_path / "one") as first:
        taken = TWO_LISTENERS | {"listeners": f"PLAINTEXT://127.0.0.1:0,INSIDE://{first.address}"}
        with pytest.raises(DidNotStart, match=f"cannot listen on {first.address}"):
            ServerProcess(tmp_path / "two", taken).start()


# --- where settings come from ----------------------------------------------------------------------------------------


def test_a_server_is_configured_by_its_environment(tmp_path):
    env = {"FLAKELOG_NUM_PARTITIONS": "7", "FLAKELOG_LOG_RETENTION_HOURS": "1", "FLAKELOG_NUM_PARTITION": "1"}
    with ServerProcess(tmp_path / "data", env=env) as server:
        with Client(server.address) as client:
            client.create_topic("seven", -1)
            assert client.topic("seven").partitions == 7
        assert "FLAKELOG_NUM_PARTITION is no setting" in server.log


def test_kafkas_own_file_starts_a_server_in_its_directory(tmp_path):
    file = tmp_path / "server.properties"
    lines = ("num.network.threads=3", f"log.dirs={tmp_path}/kafka", "zookeeper.sync.time.ms=9", "log.retention.hours=1")
    file.write_text("\n".join(lines))
    with FileServer(file) as server:
        assert (tmp_path / "kafka" / "metadata.json").exists()
        line = server.wait_for_log("settings without effect here")
        assert line.endswith("num.network.threads, zookeeper.sync.time.ms")


class FileServer(ServerProcess):
    def __init__(self, file):
        super().__init__("/nowhere")
        self._file = file

    @property
    def argv(self):
        argv = super().argv
        at = argv.index("--data-dir")
        return argv[:at] + ["--config", str(self._file)] + argv[at + 2 :]


def test_a_directory_of_apache_kafka_is_left_alone(tmp_path):
    directory = tmp_path / "kafka"
    directory.mkdir()
    (directory / "meta.properties").write_text("version=1\n")
    with pytest.raises(DidNotStart, match="has Apache Kafka's data"):
        ServerProcess(directory).start()
    assert [each.name for each in directory.iterdir()] == ["meta.properties"]


def test_the_configuration_is_printed_with_where_each_value_comes_from(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("# mine\nnum.partitions=4\n")
    arguments = ["server", "--dev", "--config", str(file), "--set", "node.id=3", "--print-config"]
    done = flakelog(*arguments, env={"FLAKELOG_MAX_CONNECTIONS": "9"})
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert f"num.partitions=4  # {file}:2" in lines
    assert "node.id=3  # --set" in lines
    assert "max.connections=9  # FLAKELOG_MAX_CONNECTIONS" in lines
    assert "group.initial.rebalance.delay.ms=0  # --dev" in lines
    assert "log.segment.bytes=1073741824  # default" in lines


def test_a_file_is_checked_without_starting(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=4\nnum.io.threads=8\nlog.retention.hours=1\n")
    done = flakelog("server", "--check-config", str(file))
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "honoured  num.partitions=4",
        "ignored   num.io.threads=8  (one thread serves all connections, and its queues have limits of their own)",
        "honoured  log.retention.hours=1  (it is log.retention.ms)",
    ]
    file.write_text("num.partitions=none\nhost.name=me\nnum.partition=4\n")
    done = flakelog("server", "--check-config", str(file))
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["refused", "refused", "unknown"]
    assert "did you mean num.partitions?" in done.stdout
    assert [line.rpartition("  ")[2] for line in done.stdout.splitlines()] == [f"({file}:{n})" for n in (1, 2, 3)]


def test_a_start_that_is_refused_names_the_line_of_the_file_also_for_a_store_that_cannot_be_read(tmp_path):
    file = tmp_path / "server.properties"
    for text, wanted in (
        ("broker.id=nine", "broker.id=nine: must be a whole number"),
        (f"ssl.keystore.location={tmp_path}/none.pem", f"ssl.keystore.location={tmp_path}/none.pem: cannot be read"),
    ):
        file.write_text(f"listeners=SSL://127.0.0.1:0\nssl.keystore.type=PEM\n{text}\n")
        done = flakelog("server", "--config", str(file), "--data-dir", str(tmp_path / "data"))
        last = done.stderr.splitlines()[-1]
        assert done.returncode != 0 and last.startswith(f"Error: {wanted}") and last.endswith(f" ({file}:3)")


def test_what_is_wrong_with_values_together_is_told_beside_all_else_that_is_wrong(tmp_path):
    """An invalid combination of values is reported together with all other errors.

    Formerly it was shown as honoured, and was found only after the other errors had been fixed.
    """
    file = tmp_path / "server.properties"
    file.write_text("listeners=SSSL://:9093\nnum.partition=4\n")
    done = flakelog("server", "--check-config", str(file))
    assert done.returncode == 1
    first, second = done.stdout.splitlines()
    assert first.startswith("refused   listeners=SSSL://:9093  (listener.security.protocol.map does not say what SSSL ")
    assert second.startswith("unknown   num.partition=4")


def test_every_error_of_a_file_is_told_at_once_and_a_refused_listener_is_not_called_honoured(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text(
        "listeners=SSSL://:9093\nadvertised.listeners=SSSL://me:9093\nnum.partitions=none\n"
        "super.users=User:ada\n"
        "flakelog.ids.raise.interval.ms=20000\nssl.keystore.password=hunter2\nsasl.jaas.config=hunter2;\n"
    )
    done = flakelog("server", "--check-config", str(file), "--json")
    assert done.returncode == 1 and "hunter2" not in done.stdout + done.stderr
    rows = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    refused = {name: row["reason"] for name, row in rows.items() if row["standing"] == "refused"}
    assert "does not say what SSSL speaks" in refused.pop("listeners")
    assert "must be a whole number" in refused.pop("num.partitions")
    assert "give it as listener.name.NAME.MECHANISM.sasl.jaas.config" in refused.pop("sasl.jaas.config")
    assert "at most half of flakelog.ids.lead.ms" in refused.pop("flakelog.ids.raise.interval.ms")
    assert not refused and rows["super.users"]["standing"] == "honoured"
    assert rows["ssl.keystore.password"]["value"] == "(hidden)"


def test_a_setting_that_is_missing_beside_others_is_told_too(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("listeners=PLAINTEXT://0.0.0.0:9092\n")
    done = flakelog("server", "--check-config", str(file))
    assert done.returncode == 1
    assert "refused   advertised.listeners=PLAINTEXT://0.0.0.0:9092: clients are told" in done.stdout


def test_no_password_is_shown_where_it_is_refused(tmp_path):
    done = flakelog("server", "--set", "delegation.token.secret.key=hunter2", "--print-config")
    assert "hunter2" not in done.stdout + done.stderr


def test_a_file_that_is_no_text_is_refused_by_its_name(tmp_path):
    file = tmp_path / "server.properties"
    file.write_bytes(b"\x1f\x8b\x08\xff")
    for option in ("--check-config", "--config"):
        done = flakelog("server", option, str(file))
        assert (done.returncode, done.stderr) == (2, f"Error: {file} is no properties file: byte 2 of it is no UTF-8\n")


def test_a_data_directory_that_cannot_be_is_refused_by_its_name(tmp_path):
    file = tmp_path / "data"
    file.write_text("")
    with pytest.raises(DidNotStart, match=f"{file}/logs cannot be made a directory for data: Not a directory"):
        ServerProcess(file / "logs").start()


# --- for developers --------------------------------------------------------------------------------------------------


def test_a_server_for_development_makes_topics_and_leaves_nothing_behind(tmp_path):
    topics = ["orders:3", "users:2:cleanup.policy=compact,delete,retention.ms=-1", "one"]
    with DevServer(*(word for topic in topics for word in ("--topic", topic)), tmp_path=tmp_path) as server:
        with Client(server.address) as client:
            assert {each.name: each.partitions for each in client.topics()} == {"orders": 3, "users": 2, "one": 1}
        directory = _directory_of(server)
        assert directory.exists()
        assert server.stop(signal.SIGTERM) == 0
        assert not directory.exists()


def _directory_of(server):
    """Return the data directory from the ready: line, which names the id registry in this directory."""
    line = next(line for line in server.log.splitlines() if line.startswith("ready: "))
    return Path(line.partition(" in directory ")[2]).parent


def test_replication_of_a_cluster_is_lowered_for_a_developer(tmp_path):
    with DevServer("--set", "min.insync.replicas=3", tmp_path=tmp_path) as server:
        server.wait_for_log("min.insync.replicas 3 lowered to 1")
        admin = AdminClient({"bootstrap.servers": server.address})
        topic = NewTopic("three", 1, replication_factor=3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["three"].result(SECONDS)
        producer = Producer({"bootstrap.servers": server.address, "acks": "all"})
        producer.produce("three", b"x")
        assert producer.flush(SECONDS) == 0
        server.wait_for_log("topic three: replication factor 3 lowered to 1")
        server.wait_for_log("topic three: min.insync.replicas 2 lowered to 1")


@pytest.mark.parametrize("topic, wanted", [("a:0", "is no topic"), ("a:1:retention.m=1", "did you mean retention.ms")])
def test_a_topic_that_cannot_be_is_refused_at_the_start(tmp_path, topic, wanted):
    with pytest.raises(DidNotStart, match=wanted) as caught:
        DevServer("--topic", topic, tmp_path=tmp_path).start()
    assert caught.value.exit_code == 2


def test_a_log_for_programs_is_one_object_a_line(tmp_path):
    with DevServer("--log-format", "json", tmp_path=tmp_path, settings=FREE_PORTS | {"num.io.threads": "8"}) as server:
        line = server.wait_for_log("settings without effect here")
        found = json.loads(line)
        assert (found["level"], found["logger"]) == ("warn", "flakelog")
        assert found["message"].endswith("num.io.threads")


def test_an_impossible_value_is_refused_with_where_it_stands(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("\nnum.partitions=0\n")
    done = flakelog("server", "--config", str(file))
    assert done.returncode == 2
    assert done.stderr.strip().endswith(f"must be between 1 and 100000 ({file}:2)")
