"""LogSink from topic to topic on real brokers: processes are killed, and a reader sees each output once."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest

from broker.client.blocking import Client
from broker.client.core import EARLIEST, LATEST
from broker.client.offset_lookup import find_offset
from broker.record.records import BatchRecord, encode_batch
from flakelog.operations import groups
from tests.compat.server_process import PYTHONPATH
from tests.patience import SECONDS, until

ROOT = Path(__file__).resolve().parents[3]
PARTITIONS = 3
MESSAGES = 900
LIMIT = 20_000  # max.message.bytes of the sink's topic: a batch of all outputs of a transaction is larger


@pytest.fixture(params=["flakelog", pytest.param("kafka", marks=pytest.mark.soak)])
def cluster(request):
    """Return an address, and the shortest session that a group member may have there, in ms."""
    if request.param == "kafka":
        return request.getfixturevalue("kafka"), 6_000
    return request.getfixturevalue("group_broker").address, 2_000


class Copying:
    """The processes that copy `source` to `sink`."""

    def __init__(self, address, session_ms):
        self.session_ms = str(session_ms)
        name = uuid4().hex[:8]
        self.address, self.source, self.sink = address, f"in-{name}", f"out-{name}"
        self.client = Client(address)
        self.client.create_topic(self.source, PARTITIONS)
        self.client.create_topic(self.sink, 2, configs={"max.message.bytes": str(LIMIT)})
        for partition in range(PARTITIONS):  # a new topic has its leaders a moment later
            self.client.retry(lambda: find_offset(self.client.core, self.source, partition, LATEST))  # noqa: B023
        self.written = 0
        self.processes = {}

    def start(self, instance):
        self.processes[instance] = subprocess.Popen(
            [
                sys.executable, "-m", "tests.compat.storm.sink_program",
                self.address, self.source, self.sink, instance, self.session_ms,
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def end(self, instance, how):
        process = self.processes.pop(instance)
        process.send_signal(how)
        code = process.wait()
        process.stdout.close()
        return code

    def write(self, count):
        for partition in range(PARTITIONS):
            numbers = range(self.written + partition, self.written + count, PARTITIONS)
            records = [BatchRecord(at, 0, b"%d" % (n % 7), b"%d" % n) for at, n in enumerate(numbers)]
            batch = encode_batch(records, base_timestamp_ms=time.time_ns() // 1_000_000)  # Kafka deletes old ones
            self.client.produce(self.source, partition, batch)
        self.written += count

    def wait_until_read(self, instance, count):
        """Wait until a process has read `count` messages. The test's time limit is the deadline."""
        for line in self.processes[instance].stdout:
            if line.startswith("read") and int(line.split()[1]) >= count:
                return
        pytest.fail(f"{instance} ended early, with exit code {self.processes[instance].wait()}")

    def seen(self):
        """Return the outputs that a read_committed reader sees, in order for each partition."""
        return [record.value.decode() for partition in (0, 1) for record in self.committed(self.sink, partition)]

    def committed(self, topic, partition):
        """Return the records that a read_committed reader sees."""
        visible = []
        offset = self.client.find_offset(topic, partition, EARLIEST)
        end = self.client.find_offset(topic, partition, LATEST, committed=True)
        while offset < end:
            records, offset = self.client.fetch(topic, partition, offset, max_wait_ms=100, committed=True)
            visible += records
        return visible

    def wait_for_all(self):
        until(lambda: len(self.seen()) >= 2 * self.written, "the last output")

    def is_shared(self):
        """Return True if two processes have partitions."""
        group = groups.describe_group(self.client, f"copy-{self.source}.in")
        return [bool(member.partitions) for member in group.members] == [True, True]

    def close(self):
        for instance in list(self.processes):
            self.end(instance, signal.SIGKILL)
        self.client.close()


@pytest.fixture
def copying(cluster):
    copying = Copying(*cluster)
    yield copying
    copying.close()


def test_killed_twice_each_output_is_seen_once(copying):
    """A process of the same name ends the open transaction of the killed one at once."""
    for life in range(3):
        copying.write(MESSAGES // 3)
        copying.start("a")
        copying.wait_until_read("a", MESSAGES // 6)
        if life < 2:
            copying.end("a", signal.SIGKILL)
    copying.wait_for_all()
    assert copying.end("a", signal.SIGTERM) == 0
    wanted = Counter(f"{n}.{half}" for n in range(MESSAGES) for half in (1, 2))
    assert Counter(copying.seen()) == wanted


def test_one_of_two_processes_is_killed_and_each_output_is_seen_once(copying):
    """The group gives its partitions to the other, which waits until the open transaction is aborted (KIP-447)."""
    copying.write(MESSAGES // 2)
    copying.start("a")
    copying.wait_until_read("a", 100)
    copying.start("b")
    until(copying.is_shared, "a share of the partitions for each process")
    copying.write(MESSAGES // 2)
    copying.wait_until_read("b", 10)
    copying.end("a", signal.SIGKILL)
    copying.wait_for_all()
    assert copying.end("b", signal.SIGTERM) == 0
    wanted = Counter(f"{n}.{half}" for n in range(MESSAGES) for half in (1, 2))
    assert Counter(copying.seen()) == wanted


def test_a_record_that_the_topic_never_takes_is_a_dead_letter_of_the_same_transaction(copying):
    """The others are divided into batches that the topic takes."""
    copying.write(MESSAGES)
    record = BatchRecord(0, 0, b"1", b"large" * LIMIT)
    copying.client.produce(copying.source, 1, encode_batch([record], base_timestamp_ms=time.time_ns() // 1_000_000))
    copying.write(MESSAGES)
    copying.start("a")
    copying.wait_for_all()
    assert copying.end("a", signal.SIGTERM) == 0
    wanted = Counter(f"{n}.{half}" for n in range(2 * MESSAGES) for half in (1, 2))
    assert Counter(copying.seen()) == wanted
    (letter,) = copying.committed(f"{copying.source}.dead-letters", 0)
    headers = dict(letter.headers)
    assert letter.value == record.value and headers["flakelog-dead-reason"] == b"refused"
    error = headers["flakelog-dead-error"].decode()
    assert error.startswith(f"{copying.sink}-") and error.endswith(f"its max.message.bytes is {LIMIT:,}")
    assert f"a record of {len(record.value) + 2:,}"[:14] in error


def test_a_sink_on_another_cluster_than_its_source_is_refused_by_name(copying, broker):
    copying.write(3)
    program = "tests.compat.storm.sink_program"
    argv = [sys.executable, "-m", program, copying.address, copying.source, copying.sink, "a"]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    with Client(broker.address) as client:
        client.create_topic(copying.sink, 2)
    argv += [copying.session_ms, broker.address]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1
    reason = f"exactly_once needs one cluster: the sink writes cluster .* at {broker.address}, a spout reads cluster .*"
    assert re.search(reason + f" at {copying.address}", done.stderr), done.stderr
