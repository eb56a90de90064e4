"""A spout's fetches over one connection for each broker, at a real Flakelog and a real Apache Kafka."""

import json
import os
import subprocess
import sys
from pathlib import Path
from queue import Queue
from threading import Thread

import confluent_kafka
import pytest

from broker.client.blocking import Client
from broker.client.epoch_ends import find_epoch_ends
from broker.client.topic_admin import create_topic
from broker.record.records import BatchRecord, encode_batch
from flakelog.operations.topics import delete_records
from tests.compat.server_process import PYTHONPATH, ROOT, ServerProcess
from tests.patience import MS, SECONDS

PROGRAM = Path(__file__).with_name("fetch_program.py")
PARTITIONS = 60
CONNECTIONS = 2  # to one broker: the fetches, and all other requests


class Reader:
    """A process that reads all partitions of a topic. `values` has what it read so far: {partition: [value]}."""

    def __init__(self, address, topic, *settings):
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
        argv = [sys.executable, PROGRAM, address, topic, *settings]
        self._process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._port = int(address.rpartition(":")[2])
        self._lines = Queue()
        Thread(target=self._read_lines, daemon=True).start()
        self.values = {}
        self.kinds = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()  # the program ends with it
        assert self._process.wait(timeout=SECONDS) == 0

    def _read_lines(self):
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def next(self):
        """Return the next answer: partition, kind, and its values or text."""
        line = self._lines.get(timeout=SECONDS)
        assert line, "the program has ended"
        partition, kind, content = json.loads(line)
        self.kinds.append(kind)
        if kind == "Fetched":
            self.values.setdefault(partition, []).extend(content)
        return partition, kind, content

    def read_until(self, values):
        """Read until each partition has given exactly these values; fail at a value too many, or if none comes."""
        while self.values != values:
            self.next()
            for partition, actual in self.values.items():
                expected = values.get(partition, [])
                assert actual == expected[: len(actual)], f"partition {partition} gave {actual} in place of {expected}"

    @property
    def connections(self):
        """Number of connections from the process to the broker (/proc/PID/fd, /proc/net/tcp)."""
        held = {os.readlink(descriptor) for descriptor in Path(f"/proc/{self._process.pid}/fd").iterdir()}
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(int(row[2].rpartition(":")[2], 16) == self._port and f"socket:[{row[9]}]" in held for row in rows)


def batch(value):
    return encode_batch([BatchRecord(0, 0, None, value.encode())], base_timestamp_ms=1)


def produce(client, topic, value, partition=0):
    """Write a message; wait for a leader that is elected just now."""
    client.retry(lambda: client.core.produce(topic, partition, batch(value)), timeout_ms=MS)


def fill(client, topic, partitions, name="message"):
    """Write one message to each partition; return {partition: [value]}."""
    for partition in range(partitions):
        produce(client, topic, f"{name} {partition}", partition)
    return {partition: [f"{name} {partition}"] for partition in range(partitions)}


def add(first, second):
    return {partition: first[partition] + second[partition] for partition in first}


def abort(address, topic, value):
    """Write a message in a transaction that is aborted."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": f"of-{topic}"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.flush(SECONDS)
    producer.abort_transaction(SECONDS)


@pytest.fixture(params=["flakelog", pytest.param("kafka", marks=pytest.mark.soak)])
def address(request):
    server = request.getfixturevalue("broker" if request.param == "flakelog" else "kafka")
    return getattr(server, "address", server)


@pytest.mark.parametrize("address", ["flakelog", "kafka"], indirect=True)
def test_many_partitions_are_read_over_one_connection(address):
    with Client(address) as client:
        client.create_topic("many", PARTITIONS)
        wanted = fill(client, "many", PARTITIONS)
        with Reader(address, "many") as reader:
            reader.read_until(wanted)
            wanted = add(wanted, fill(client, "many", PARTITIONS, "later"))
            reader.read_until(wanted)
            assert reader.connections == CONNECTIONS
            produce(client, "many", "last", 7)
            wanted[7].append("last")
            reader.read_until(wanted)


def test_an_offset_that_the_log_has_no_longer_is_answered_with_the_bounds(address):
    with Client(address) as client:
        client.create_topic("deleted")
        for value in "abc":
            produce(client, "deleted", value)
        delete_records(client, {("deleted", 0): 2})
        with Reader(address, "deleted") as reader:
            assert reader.next() == (0, "OutOfRange", [2, 3])
            reader.read_until({0: ["c"]})


def test_a_topic_that_was_made_again_is_found_by_its_id(address):
    with Client(address) as client:
        client.create_topic("again")
        produce(client, "again", "old")
        with Reader(address, "again") as reader:
            reader.read_until({0: ["old"]})
            client.delete_topic("again")
            client.retry(lambda: create_topic(client.core, "again", 1), timeout_ms=MS)
            produce(client, "again", "new")
            reader.read_until({0: ["old", "new"]})
            assert "Recreated" in reader.kinds


def test_the_end_of_the_newest_leader_epoch_is_the_end_of_the_log(address):
    with Client(address) as client:
        client.create_topic("epochs")
        fill(client, "epochs", 1)
        key = "epochs", 0
        for epoch, end in ((0, (0, 1)), (90, (-1, -1))):
            assert client.run(find_epoch_ends(client.core, {key: epoch}, {})) == {key: end}


def test_aborted_messages_are_left_out_at_read_committed(address):
    with Client(address) as client:
        client.create_topic("committed")
        produce(client, "committed", "plain")
        abort(address, "committed", b"never")
        produce(client, "committed", "after")
        with Reader(address, "committed", "isolation_level=read_committed") as reader:
            reader.read_until({0: ["plain", "after"]})
        with Reader(address, "committed") as reader:
            reader.read_until({0: ["plain", "never", "after"]})


def test_reading_goes_on_after_the_broker_was_started_again(tmp_path):
    with ServerProcess(tmp_path / "data").keep_ports() as server, Client(server.address) as client:
        client.create_topic("restart", PARTITIONS)
        wanted = fill(client, "restart", PARTITIONS)
        with Reader(server.address, "restart") as reader:
            reader.read_until(wanted)
            server.kill()
            while reader.next()[1] != "Failed":
                pass
            server.launch()
            client.retry(client.core.metadata, timeout_ms=MS)
            wanted = add(wanted, fill(client, "restart", PARTITIONS, "after"))
            reader.read_until(wanted)
            assert reader.connections == CONNECTIONS
