"""A node of Apache Kafka 4.3 that tests kill and restart, with the same port and data."""

import subprocess

import pytest

from benchmarks.apache import SHORT_LIVED, await_answer, kafka_command, start_kafka
from benchmarks.native import Unavailable
from tests.patience import SECONDS


class KafkaNode:
    """A node with the methods of `flakelog.testing.Broker` that its tests call. A context manager.

    Without Apache Kafka it skips the test.
    """

    def __init__(self, directory):
        self._directory = directory
        self._process = None

    def __enter__(self):
        try:
            kafka_command()
        except Unavailable as why:
            pytest.skip(str(why))
        self._directory.mkdir()
        _, self._process = start_kafka(self._directory, jvm_options=SHORT_LIVED)
        await_answer(self.bootstrap_servers, self._process)
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def bootstrap_servers(self):
        return (self._directory / "address").read_text()

    def kill(self):
        self._process.kill()
        self._process.wait(SECONDS)

    def restart(self):
        self.kill()
        argv = [*kafka_command(*SHORT_LIVED), "kafka.Kafka", str(self._directory / "server.properties")]
        with (self._directory / "log").open("a") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, text=True)
        await_answer(self.bootstrap_servers, self._process)
