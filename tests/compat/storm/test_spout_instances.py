"""`flakelog spout run --instance` as processes: kills and restarts, a second process of a name, waits for the group."""

import os
import signal
import subprocess
import sys
import time

import pytest

from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.record.records import BatchRecord, encode_batch
from tests.compat.server_process import PYTHONPATH
from tests.compat.storm.group_spouts import group_of
from tests.patience import SECONDS, until

PARTITIONS = 4
TOPOLOGY = """
from broker.client.group_config import GroupMemberConfig
from flakelog import Bolt, LogSink, LogSpout, SinkConfig, SpoutConfig, Topology

GROUP = GroupMemberConfig(session_timeout_ms={session_ms}, heartbeat_interval_ms=200)


class Copy(Bolt):
    output_fields = ("key", "value")

    def execute(self, tup):
        self.emit((tup["value"], tup["value"]))


def make():
    made = Topology({topic!r})
    config = SpoutConfig(spout_commit_interval_ms=100)
    made.spout("in", LogSpout({topic!r}, servers={servers!r}, store="kafka", id={topic!r}, group=GROUP, config=config))
    made.bolt("copy", Copy()).shuffle("in")
    fast = SinkConfig(sink_commit_interval_ms=20)
    sink = LogSink({topic!r} + "-out", servers={servers!r}, exactly_once=True, config=fast)
    made.bolt("out", sink).shuffle("copy")
    return made
"""


class Site:
    """A topic, its copy, and the processes that copy it exactly once."""

    def __init__(self, address, name, directory):
        self.address, self.name, self.directory = address, name, directory
        self.processes = []
        self.sent = 0
        self.client = Client(address)
        self.client.create_topic(name, PARTITIONS)
        self.client.create_topic(f"{name}-out", 1)

    def start(self, instance, *options, session_ms=30_000):
        program = self.directory / f"copies_{session_ms}.py"
        text = TOPOLOGY.replace("{topic!r}", repr(self.name)).replace("{servers!r}", repr(self.address))
        program.write_text(text.replace("{session_ms}", str(session_ms)))
        process = Process(program, instance, self.directory / f"log-{len(self.processes)}", options)
        self.processes.append(process)
        return process

    def send(self, number):
        for _ in range(number):
            record = BatchRecord(0, 0, None, b"%d" % self.sent, ())
            self.client.produce(self.name, self.sent % PARTITIONS, encode_batch([record], base_timestamp_ms=1_000))
            self.sent += 1

    def await_copies(self):
        """Wait until each message has a copy that a read_committed consumer sees."""
        copies = []

        def are_there():
            offset = 0
            copies.clear()
            while True:
                records, after = self.client.fetch(f"{self.name}-out", 0, offset, max_wait_ms=10, committed=True)
                copies.extend(int(record.value) for record in records)
                if after == offset:
                    return len(copies) >= self.sent
                offset = after

        until(are_there, what=f"{self.sent} copies")
        assert sorted(copies) == list(range(self.sent))

    def group(self):
        return until(lambda: group_of(self.client, self.name), "a coordinator")

    def shares(self):
        """Return the partitions of each member, by its id's beginning: the name of a static member."""
        return {member.member_id[:-37]: sorted(member.partitions) for member in self.group().members}

    def await_shares(self, *names):
        def are_even():
            assert not any(process.poll() not in (None, -signal.SIGKILL) for process in self.processes)
            shares = self.shares()
            sizes = [len(partitions) for partitions in shares.values()]
            return sorted(shares) == sorted(names) and sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1

        until(are_even, what=f"shares of {names} ({self.shares()})")
        return self.shares()


class Process(subprocess.Popen):
    """A `flakelog spout run --instance`; `log` is its standard error."""

    def __init__(self, program, instance, log, options):
        self._log = log
        words = ["spout", "run", f"{program}:make", "--instance", instance, *options]
        command = [sys.executable, "-m", "flakelog", *words]
        with open(log, "w") as stderr:
            super().__init__(command, env={**os.environ, "PYTHONPATH": PYTHONPATH}, stderr=stderr)

    @property
    def log(self):
        return self._log.read_text()


@pytest.fixture
def site(group_broker, name, tmp_path):
    site = Site(group_broker.address, name, tmp_path)
    yield site
    for process in site.processes:
        process.kill()
        process.wait()
    site.client.close()


def test_a_killed_process_gets_its_partitions_back_and_no_partition_of_another_moves(site):
    first, second = site.start("a"), site.start("b")
    shares = site.await_shares("a-in", "b-in")
    site.send(20)
    site.await_copies()
    first.kill()
    first.wait()
    again = site.start("a")
    site.send(20)
    site.await_copies()
    assert site.shares() == shares
    assert "this process gets" in again.log and second.log.count("this process gets") <= 2
    again.send_signal(signal.SIGTERM)
    assert again.wait(SECONDS) == 0
    assert site.shares() == shares, "a stopped process keeps its partitions until its session ends"
    site.start("a")
    site.send(20)
    site.await_copies()
    assert site.shares() == shares and "lost" not in second.log and "hands over" not in again.log


def test_a_second_process_of_the_name_ends_the_first_with_one_line_and_goes_on_exactly_once(site):
    first = site.start("a")
    site.await_shares("a-in")
    site.send(20)
    site.await_copies()
    second = site.start("a")
    site.send(20)
    assert first.wait(SECONDS) == 9
    site.send(20)
    site.await_copies()
    (line,) = [line for line in first.log.splitlines() if "FENCED_INSTANCE_ID" in line]
    assert f"another process has joined group {site.name} as 'a-in'" in line and "exit code 9" in line
    assert "Traceback" not in first.log and "lost" not in first.log
    assert second.poll() is None and "FENCED" not in second.log


def test_a_process_that_waits_for_its_group_says_so_and_a_stop_ends_it_in_time(site):
    other = site.start("b")
    site.await_shares("b-in")
    other.send_signal(signal.SIGSTOP)  # the group waits for it until its session ends, which is in 30 s
    process = site.start("a", "--every", "0.5")
    until(lambda: "spout in waits for its group for 6 s; lag -" in process.log, "the figures line")
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    assert time.monotonic() - begun < 10, "sooner than the group answers"
    assert "no broker answers" not in process.log


def test_a_consumer_that_waits_for_its_group_says_so(site, flakelog):
    site.send(1)
    other = site.start("b")
    site.await_shares("b-in")
    other.send_signal(signal.SIGSTOP)
    with Consumer(site.address, site.name, group=site.name) as consumer:
        consumer.poll(timeout_ms=10)
        command = f"consume {site.name} --group {site.name} --servers {site.address} --timeout 6"
        code, out, errors = flakelog(command)
        assert (code, out) == (1, "")
        assert f"waiting for group {site.name}, whose other members have not joined, " in errors
        assert f"group {site.name} gave no partition; other members have not joined within 6 s" in errors
        assert consumer.figures().group_wait_ms >= 5_000
