"""The embedded engine as a process, which counts each message once even if it is killed and started again."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from broker.client.blocking import Client
from tests.compat.server_process import PYTHONPATH
from tests.compat.storm.spout_program import PARTITIONS, message
from tests.patience import SECONDS
from tests.poison import LARGE

ROOT = Path(__file__).resolve().parents[3]
MESSAGES = 6_000
THIRD = MESSAGES // 3


def expected():
    totals = {}
    for n in range(MESSAGES):
        text = message(n).decode()
        carrier, delay = text[13:15], int(text.split(": ")[2][:-1])
        count, total = totals.get(carrier, (0, 0))
        totals[carrier] = (count + 1, total + delay)
    return totals


class Counting:
    """The program's runs and their counts."""

    def __init__(self, tmp_path):
        self.store = tmp_path / "store"
        self.database = tmp_path / "db"
        self.process = None

    def start(self, *source):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.compat.storm.spout_program", self.store, self.database, *source],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self, how):
        """Send the signal `how`, wait, and return the exit code, or None if no program runs."""
        if self.process is None:
            return None
        self.process.send_signal(how)
        code = self.process.wait()
        self.process.stdout.close()
        self.process = None
        return code

    def read_until(self, enough):
        """Return the first line for which `enough` is true. The test's time limit is the deadline."""
        for line in self.process.stdout:
            if enough(line):
                return line
        pytest.fail(f"the program ended early, with exit code {self.process.wait()}")

    def query(self, text):
        with sqlite3.connect(self.database) as db:
            return db.execute(text).fetchall()

    @property
    def counts(self):
        return {carrier: (n, total) for carrier, n, total in self.query("SELECT carrier, n, total FROM delays")}

    @property
    def counted(self):
        return sum(n for n, _ in self.counts.values())


@pytest.fixture
def counting(tmp_path):
    runs = Counting(tmp_path)
    yield runs
    runs.end(signal.SIGKILL)


def applied(line):
    return int(line.split()[1]) if line.startswith("applied") else 0


def kill_twice_and_finish(counting, lives):
    """Run the program once for each entry of `lives`, and kill each run but the last in the middle.

    An entry is the source of one run, whose log has a new third of the messages, so that no kill comes too late.
    """
    for source in lives:
        counting.end(signal.SIGKILL)
        counting.start(*source)
        counting.read_until(lambda line: applied(line) >= THIRD // 2)
    counting.read_until(lambda line: counting.counted == MESSAGES)
    assert counting.end(signal.SIGTERM) == 0


def test_killed_twice_in_the_middle_each_message_is_counted_once(counting):
    """Messages are delivered at least once and counted exactly once by a bolt that keeps their ids.

    The demo promises the same.
    """
    kill_twice_and_finish(counting, [(str(life * THIRD),) for life in (1, 2, 3)])
    assert counting.counts == expected()


def test_after_a_clean_stop_nothing_comes_again(counting):
    counting.start(str(MESSAGES))
    counting.read_until(lambda line: applied(line) >= MESSAGES // 2)
    assert counting.end(signal.SIGTERM) == 0
    counting.start(str(MESSAGES))
    counting.read_until(lambda line: counting.counted == MESSAGES)
    assert counting.end(signal.SIGTERM) == 0
    assert counting.query("SELECT sum(n) FROM seen") == [(MESSAGES,)]
    assert counting.counts == expected()


def test_over_a_real_zookeeper_too(counting, zookeeper):
    """The same store class works over ZooKeeper; only the coordinator differs."""
    counting.store = f"zookeeper://{zookeeper.hosts}/spout-runner"
    kill_twice_and_finish(counting, [(str(life * THIRD),) for life in (1, 2, 3)])
    assert counting.counts == expected()


def test_over_a_real_broker_each_message_is_counted_once_and_the_poison_is_kept(counting, broker):
    """The spout reads a stock client's compressed messages with ids, and a stock client reads the dead letters.

    One is of a message that is not JSON, the other of a batch whose records cannot be decoded. That batch is so large
    that its letter exceeds the default of max.message.bytes.
    """
    topic = "spout-runner"
    with Client(broker.address) as client:
        client.create_topic(topic, PARTITIONS)
        client.produce(topic, 2, LARGE)
    kill_twice_and_finish(counting, lives(broker.address, topic))
    assert counting.counts == expected()
    by_reason = letters_by_reason(broker.address, f"{topic}.dead-letters", 2)
    letter = by_reason[b"undecodable"]
    assert (letter.key(), letter.value()) == (b"k", b"poison")
    assert dict(letter.headers())["flakelog-dead-error"].startswith(b"the value is not JSON")
    letter = by_reason[b"poison"]
    headers = dict(letter.headers())
    assert letter.value()[16:] == LARGE[16:], "offset and leader epoch are the log's, all else is as it came"
    assert [headers[f"flakelog-dead-{name}"] for name in ("partition", "offset", "last-offset")] == [b"2", b"0", b"19"]


@pytest.mark.soak
def test_over_apache_kafka_where_messages_have_no_id_each_is_counted_once(counting, kafka):
    """The place of a message, by its topic's id, stands in for the Snowflake id."""
    topic = "counted-once"
    with Client(kafka) as client:
        client.create_topic(topic, PARTITIONS)
        kill_twice_and_finish(counting, lives(kafka, topic))
        assert counting.counts == expected()
        records, _ = client.fetch(topic, 0, 0)
    assert records[0].id is None
    letter = letters_by_reason(kafka, f"{topic}.dead-letters", 1)[b"undecodable"]
    assert letter.value() == b"poison" and "flakelog-dead-id" not in dict(letter.headers())


def lives(servers, topic):
    """Write a third of the messages before each life of the program, one of them poison; yield the program's source."""
    producer = Producer({"bootstrap.servers": servers, "compression.type": "zstd", "linger.ms": 5})
    for n in range(MESSAGES):
        producer.produce(topic, message(n), partition=n % PARTITIONS)
        if n == 100:
            producer.produce(topic, b"poison", key=b"k", partition=1)
        if (n + 1) % THIRD == 0:
            assert producer.flush(SECONDS) == 0
            yield servers, topic


def letters_by_reason(servers, topic, reasons):
    """Read dead letters until there are so many reasons. A kill may repeat a letter, as it may repeat a message."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    letters = {}
    try:
        while len(letters) < reasons:
            letter = consumer.poll(1.0)
            if letter is not None and letter.error() is None:
                letters[dict(letter.headers())["flakelog-dead-reason"]] = letter
    finally:
        consumer.close()
    return letters
