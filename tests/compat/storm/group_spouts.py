"""A topic that several real processes share as members of a consumer group (group_spout_program.py)."""

import os
import signal
import subprocess
import sys
import threading
from itertools import count

from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient

from broker.client.blocking import Client
from broker.client.errors import BrokerError, Unreachable
from flakelog.operations import groups
from tests.compat.server_process import PYTHONPATH, ROOT
from tests.patience import SECONDS, until

PARTITIONS = 4
NAMES = count()


def group_of(client, name):
    """Return a group, None while no coordinator answers."""
    try:
        return groups.describe_group(client, name)
    except (BrokerError, Unreachable) as error:
        if isinstance(error, BrokerError) and not error.retriable:
            raise
        return None


class Shared:
    """A topic, its producer, and the processes that share it."""

    def __init__(self, address, directory, session_ms=2_000):
        self.address = address
        self.directory = directory
        self.session_ms = session_ms
        self.name = f"shared-{next(NAMES)}"
        self.processes = []
        self.sent = 0
        self.client = Client(address)
        self.client.create_topic(self.name, PARTITIONS)
        self.producer = Producer({"bootstrap.servers": address, "linger.ms": 1})

    def send(self, number):
        for _ in range(number):
            self.producer.produce(self.name, str(self.sent), partition=self.sent % PARTITIONS)
            self.sent += 1
        assert self.producer.flush(SECONDS) == 0

    def start(self, *arguments):
        process = Process(self, self.directory / f"out-{len(self.processes)}", arguments)
        self.processes.append(process)
        return process

    @property
    def processed(self):
        """Return how often each message was processed, by its number."""
        counts = {}
        for process in self.processes:
            for _, number in process.lines:
                counts[number] = counts.get(number, 0) + 1
        return counts

    @property
    def committed(self):
        """Return the committed offset of each partition."""
        return list(groups.committed(self.client, self.name).values())

    def group(self):
        return until(lambda: group_of(self.client, self.name), "a coordinator")

    def lag_of_members(self):
        """Return what librdkafka's admin client shows: (members with partitions, messages that are not committed)."""
        admin = AdminClient({"bootstrap.servers": self.address})
        group = admin.describe_consumer_groups([self.name])[self.name].result(SECONDS)
        query = ConsumerGroupTopicPartitions(self.name)
        offsets = admin.list_consumer_group_offsets([query])[self.name].result(SECONDS).topic_partitions
        return sum(bool(member.assignment.topic_partitions) for member in group.members), self.sent - sum(
            partition.offset for partition in offsets
        )

    def await_members(self, number):
        """Wait until `number` members share the partitions evenly."""

        def shared():
            ended = [process.printed[-5:] for process in self.processes if process.is_broken]
            assert not ended, ended
            sizes = [len(member.partitions) for member in self.group().members]
            return len(sizes) == number and sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1

        until(shared, what=f"{number} members that share the partitions")

    def close(self):
        for process in self.processes:
            process.end(signal.SIGKILL)
        self.client.close()


class Process:
    def __init__(self, shared, path, arguments):
        self.path = path
        self.printed = []
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "tests.compat.storm.group_spout_program",
                shared.address, shared.name, shared.name, path, str(shared.session_ms), *arguments,
            ],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": PYTHONPATH}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            self.printed.append(line.rstrip())

    @property
    def is_broken(self):
        return self._process.poll() not in (None, 0, -signal.SIGKILL)

    @property
    def lines(self):
        """Return (partition, number) of each message processed; a line cut by a kill does not count."""
        whole = self.path.read_text().splitlines(keepends=True) if self.path.exists() else ()
        return [tuple(map(int, line.split())) for line in whole if line.endswith("\n")]

    def await_line(self, text):
        until(lambda: any(text in line for line in list(self.printed)), what=f"{text!r} of {self.printed}")

    def end(self, how):
        if self._process.poll() is None:
            self._process.send_signal(how)
        code = self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        return code
