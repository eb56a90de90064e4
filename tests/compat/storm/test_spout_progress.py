"""A spout's stored progress at real brokers: recreated topics, truncated logs, patterns, and two owners of one id."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from socket import gethostname

import pytest

from broker.client.blocking import Client
from broker.client.topic_admin import create_topic
from broker.record.records import BatchRecord, encode_batch
from tests.compat.server_process import PYTHONPATH, ROOT
from tests.patience import MS, SECONDS

PROGRAM = Path(__file__).with_name("lines_program.py")


class Lines:
    """A process that prints messages of topics; with `errors`, its log is read in place of the messages.

    `log_file` is where the log goes, if both are read.
    """

    def __init__(self, address, store, *topics, errors=False, log_file=None):
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
        output = {"stderr" if errors else "stdout": subprocess.PIPE}
        if log_file is not None:
            output["stderr"] = log_file
        argv = [sys.executable, PROGRAM, address, store, *topics]
        self.process = subprocess.Popen(argv, env=environment, text=True, cwd=ROOT, **output)
        self._lines = self.process.stderr if errors else self.process.stdout

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)

    def next(self):
        """Return the topic and the value of the next message."""
        line = self._lines.readline()
        assert line, "the program has ended"
        return tuple(json.loads(line))

    def log(self, text):
        """Return the first line of the log that has `text`."""
        for line in self._lines:
            if text in line:
                return line
        raise AssertionError(f"the program ended and never said: {text}")

    def stop(self, how=signal.SIGTERM):
        """End the process; return the messages that it printed and that were not read."""
        self.process.send_signal(how)
        printed, _ = self.process.communicate(timeout=SECONDS)
        return [tuple(json.loads(line)) for line in (printed or "").splitlines()]


@pytest.fixture(params=["flakelog", pytest.param("kafka", marks=pytest.mark.soak)])
def address(request):
    server = request.getfixturevalue("broker" if request.param == "flakelog" else "kafka")
    return getattr(server, "address", server)


@pytest.fixture
def client(address):
    with Client(address) as client:
        yield client


def produce(client, topic, *values):
    """Write messages; wait for a leader that is elected just now."""
    for value in values:
        batch = encode_batch([BatchRecord(0, 0, None, value.encode())], base_timestamp_ms=1)
        client.retry(lambda: client.core.produce(topic, 0, batch), timeout_ms=MS)


def recreate(client, topic):
    client.delete_topic(topic)
    client.retry(lambda: create_topic(client.core, topic, 1), timeout_ms=MS)


def test_a_topic_recreated_under_a_running_spout_is_read_from_its_start(address, client, tmp_path):
    client.create_topic("running")
    produce(client, "running", *"abcde")
    with Lines(address, tmp_path / "store", "running") as lines:
        assert [lines.next()[1] for _ in range(5)] == list("abcde")
        recreate(client, "running")
        produce(client, "running", *"vwxyz")
        assert [lines.next()[1] for _ in range(5)] == list("vwxyz")


def test_a_topic_recreated_between_two_runs_is_read_from_its_start(address, client, tmp_path):
    client.create_topic("between")
    produce(client, "between", *"abc")
    with Lines(address, tmp_path / "store", "between") as lines:
        assert [lines.next()[1] for _ in range(3)] == list("abc")
        lines.stop()
    recreate(client, "between")
    produce(client, "between", *"uvwxyz")
    with Lines(address, tmp_path / "store", "between") as lines:
        assert [lines.next()[1] for _ in range(6)] == list("uvwxyz")
        lines.stop()
    produce(client, "between", "last")
    with Lines(address, tmp_path / "store", "between") as lines:
        assert lines.next()[1] == "last", "the third run continues the progress of the second"


def test_topics_that_match_a_pattern_are_read_also_those_created_later(address, client, tmp_path):
    for topic in ("matched-a", "matched-b", "returns"):
        client.create_topic(topic)
        produce(client, topic, topic)
    with Lines(address, tmp_path / "store", "/matched-.*") as lines:
        assert {lines.next() for _ in range(2)} == {("matched-a", "matched-a"), ("matched-b", "matched-b")}
        client.create_topic("matched-c")
        produce(client, "matched-c", "later")
        assert lines.next() == ("matched-c", "later")


def test_a_second_process_of_one_id_takes_over_and_both_say_so(broker, tmp_path):
    with Client(broker.address) as client:
        client.create_topic("owners")
        with Lines(broker.address, tmp_path / "store", "owners", errors=True) as first:
            first.log("begins at offset 0: nothing stored")
            with Lines(broker.address, tmp_path / "store", "owners", errors=True) as second:
                notice = second.log(f"continues the progress of process {first.process.pid} on {gethostname()} in ")
                assert "/flakelog-spouts/lines.log, which stops reading if it is alive" in notice
                produce(client, "owners", "a")
                taken = first.log("another process took over owners-0")
                assert f"written by process {second.process.pid} on {gethostname()}" in taken and "stop one" in taken
                first.log("still not read, another process took them over: owners-0")


def test_torn_progress_is_an_error_that_names_what_to_delete(broker, tmp_path):
    with Client(broker.address) as client:
        client.create_topic("torn")
    with Lines(broker.address, tmp_path / "store", "torn", errors=True) as lines:
        lines.log("begins at offset 0")
        lines.stop()
    (node,) = (tmp_path / "store").glob("nodes/**/partition_0/.node")
    node.write_bytes(node.read_bytes()[:40])
    with Lines(broker.address, tmp_path / "store", "torn", errors=True) as lines:
        shutil.rmtree(lines.log("torn-0 is not read").split(" delete ")[1].strip())
    with Lines(broker.address, tmp_path / "store", "torn", errors=True) as lines:
        lines.log("begins at offset 0: nothing stored")
