"""Consumers of a group of the registry, each in a process, a load of messages, and what must hold of both.

- Each message is delivered.
- A consumer begins a partition no earlier than where the group has committed it, so only uncommitted messages come
  twice.
- A consumer delivers nothing of a partition once another has begun to deliver it.
- A committed offset never goes back.
"""

import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from broker.client.blocking import Client
from broker.client.errors import ClientError
from broker.client.registry.nodes import consumer_path, offset_path
from broker.cluster.documents import TopicPartition
from broker.record.records import BatchRecord, encode_batch
from tests.compat.python import connector_program
from tests.compat.server_process import PYTHONPATH
from tests.patience import SECONDS, until

PARTITIONS = range(4)
GROUP = "g"


class Delivery(NamedTuple):
    partition: int
    offset: int
    at_ns: int


class Load(threading.Thread):
    """Sends numbered messages to all partitions until `end`, also while the broker is away for a moment.

    It sends `batch` messages to each partition, and pauses for `pause_s` before it sends more.
    """

    def __init__(self, address, topic, batch, pause_s=0.01):
        super().__init__()
        self.sent = 0
        self._client = Client(address)
        self._client.create_topic(topic, len(PARTITIONS))
        self._topic = topic
        self._batch = batch
        self._pause_s = pause_s
        self._ends = threading.Event()
        self.start()

    def run(self):
        while not self._ends.wait(self._pause_s):
            for partition in PARTITIONS:
                records = [BatchRecord(at, 0, None, b"%d" % (self.sent + at)) for at in range(self._batch)]
                now_ms = time.time_ns() // 1_000_000  # Kafka deletes records that are older than its retention
                try:
                    self._client.produce(self._topic, partition, encode_batch(records, base_timestamp_ms=now_ms))
                    self.sent += self._batch
                except ClientError:
                    break

    def end(self):
        """Return the end of each partition's log."""
        self._ends.set()
        self.join(SECONDS)
        with self._client as client:
            return {partition: client.find_offset(self._topic, partition, -1) for partition in PARTITIONS}


class Member:
    """A process with a ConsumerConnector. `deliveries` has what it got."""

    def __init__(self, arguments):
        self.deliveries = []
        self._runs = {partition: [] for partition in PARTITIONS}
        self.furthest = dict.fromkeys(PARTITIONS, -1)
        self.was_paused = False
        self.name = None
        self.log = ""
        self._process = subprocess.Popen(
            [sys.executable, connector_program.__file__, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": PYTHONPATH},
        )
        self._readers = [threading.Thread(target=reader) for reader in (self._read, self._read_log)]
        for reader in self._readers:
            reader.start()
        until(lambda: self.name, "the consumer's name")

    def _read(self):
        for line in self._process.stdout:
            word, *rest = line.split()
            if word == "consumer":
                (self.name,) = rest
            elif word == "claimed":
                self._runs[int(rest[0])].append([])
            elif len(rest) == 3 and line.endswith("\n"):
                delivery = Delivery(*map(int, rest))
                self.deliveries.append(delivery)
                self._runs[delivery.partition][-1].append(delivery)
                self.furthest[delivery.partition] = max(self.furthest[delivery.partition], delivery.offset)

    def _read_log(self):
        for line in self._process.stderr:
            self.log += line

    @property
    def is_alive(self):
        return self._process.poll() is None

    def kill(self):
        self._process.kill()
        self._end()

    def leave(self):
        self._process.terminate()
        self._end()
        assert self._process.returncode == 0, self.log

    def _end(self):
        self._process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)

    def pause(self):
        self.was_paused = True
        self._process.send_signal(signal.SIGSTOP)

    def resume(self):
        self._process.send_signal(signal.SIGCONT)

    def runs(self, partition):
        """Return its deliveries of a partition by the claims of it."""
        return [run for run in self._runs[partition] if run]


class ConnectorGroup:
    """The consumers of a topic. `servers` are for those that do not find the brokers in ZooKeeper."""

    def __init__(self, registry, topic, servers=None):
        self.members = []
        self._arguments = [registry, topic, *([servers] if servers else [])]
        self._commits = defaultdict(list)
        self._kazoo = KazooClient(registry, connection_retry={"max_tries": -1, "max_delay": 1})
        self._kazoo.start(timeout=SECONDS)
        self._topic = topic
        for partition in PARTITIONS:
            self._watch(partition)

    def _watch(self, partition):
        path = offset_path(GROUP, TopicPartition(self._topic, partition))

        @self._kazoo.DataWatch(path)
        def changed(data, stat):
            if data:
                self._commits[partition].append((time.monotonic_ns(), int(data)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for member in self.members:
            if member.is_alive:
                member.kill()
        self._kazoo.stop()
        self._kazoo.close()

    @property
    def living(self):
        return [member for member in self.members if member.is_alive]

    def start(self):
        self.members.append(Member(self._arguments))
        return self.members[-1]

    def await_registered(self, member, *, gone=False):
        path = consumer_path(GROUP, member.name)

        def there():
            try:
                return (self._kazoo.exists(path) is None) == gone
            except KazooException:  # ZooKeeper was away
                return False

        until(there, f"{path} {'gone' if gone else 'there'}")

    def await_more(self):
        """Wait until each partition has been delivered further."""
        before = self._furthest()
        until(lambda: all(self._furthest()[partition] > before[partition] for partition in PARTITIONS), "more messages")

    def _furthest(self):
        return {partition: max(member.furthest[partition] for member in self.members) for partition in PARTITIONS}

    def check(self, ends):
        """Wait until all messages are delivered, up to these ends of the logs; then check what must hold."""
        until(lambda: all(offset == ends[partition] - 1 for partition, offset in self._furthest().items()), "the rest")
        for member in self.living:
            member.leave()
        for partition in PARTITIONS:
            delivered = {
                delivery.offset
                for member in self.members
                for delivery in member.deliveries
                if delivery.partition == partition
            }
            lost = set(range(ends[partition])) - delivered
            assert not lost, f"lost of {partition}: {sorted(lost)[:10]}"
            self._check_commits(partition)
            self._check_turns(partition)

    def _check_commits(self, partition):
        commits = self._commits[partition]
        offsets = [offset for _, offset in commits if offset >= 0]
        assert offsets == sorted(offsets), f"the offset of {partition} goes back: {offsets}"
        for member in self.members:
            for run in member.runs(partition):
                assert [delivery.offset for delivery in run] == list(range(run[0].offset, run[-1].offset + 1))
                before = [offset for at_ns, offset in commits if at_ns < run[0].at_ns]
                assert max(before, default=0) <= run[0].offset, f"{member.name} begins at {run[0]}, after {max(before)}"

    def _check_turns(self, partition):
        runs = [(member, run) for member in self.members for run in member.runs(partition)]
        runs.sort(key=lambda turn: turn[1][0].at_ns)
        for (member, run), (after, later) in zip(runs, runs[1:], strict=False):
            late = [delivery for delivery in run if delivery.at_ns > later[0].at_ns]
            allowed = 1 if member.was_paused else 0  # the record that a paused process has in its hand
            assert len(late) <= allowed, f"{member.name} delivers {late[:3]} after {after.name} has begun at {later[0]}"
