"""State that counts each message once, in spite of retries, crashes and timeouts."""

import sqlite3

import pytest

from flakelog.testing import MemoryWorld, TopologyDriver
from spout.api import Bolt
from spout.bolts import BatchBolt
from spout.config import SpoutConfig, TopologyConfig
from spout.log_spout import LogSpout
from spout.once import OncePerMessage
from spout.scheme import StringScheme
from spout.topology import Topology

COMMIT_MS = 1_000


class Split(Bolt):
    """A bolt that emits the words of a line."""

    output_fields = ("word",)

    def execute(self, tup):
        for word in tup["value"].split():
            self.emit((word,))


class FailsOnce(BatchBolt):
    """A bolt that fails its first batch, after the words of that batch have been counted."""

    tick_interval_ms = 500
    failed = False

    def process_batch(self, batch):
        if not self.failed:
            self.failed = True
            raise RuntimeError("on purpose")


class CountWords(OncePerMessage):
    schema = "CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, n INTEGER)"
    batch_size = 3

    def apply(self, tup):
        word = tup["word"]
        self.db.execute("INSERT INTO words VALUES (?, 1) ON CONFLICT (word) DO UPDATE SET n = n + 1", (word,))
        if word == "poison":
            raise ValueError("this word cannot be counted")


class Hold(Bolt):
    """A bolt that keeps its tuples unacked while it holds."""

    auto_ack = False
    output_fields = ("word",)
    holds = True

    def __init__(self):
        self.held = []

    def execute(self, tup):
        self.held.append(tup)
        if not self.holds:
            self.release()

    def release(self):
        held, self.held = self.held, []
        for tup in held:
            self.emit((tup["value"],), anchors=[tup])
            self.ack(tup)


def driver_of(world, tmp_path, between=None, tasks=1, count=None, beside=None, attempts=2, **config):
    spout_config = SpoutConfig(spout_commit_interval_ms=COMMIT_MS, spout_max_attempts=attempts)
    topology = Topology("t")
    topology.spout("lines", LogSpout("lines", scheme=StringScheme(), config=spout_config))
    topology.bolt("split", between or Split()).shuffle("lines")
    topology.bolt("count", count or CountWords(tmp_path / "words.db"), parallelism=tasks).shuffle("split")
    if beside is not None:
        topology.bolt("beside", beside).shuffle("split")
    return TopologyDriver(topology, world, config=TopologyConfig(**config))


def ask(tmp_path, query):
    db = sqlite3.connect(tmp_path / "words.db")
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def words(tmp_path):
    return dict(ask(tmp_path, "SELECT word, n FROM words"))


def origins(tmp_path):
    return [position for (position,) in ask(tmp_path, "SELECT position FROM flakelog_origins ORDER BY position, path")]


def errors(driver):
    return [text for task, text in driver.reports if task == "count[0]"]


@pytest.fixture
def world():
    world = MemoryWorld()
    for line in ("a b a", "b c", "d"):
        world.topic("lines").append(line)
    return world


def test_a_message_that_comes_again_is_counted_once_also_in_another_task(world, tmp_path):
    driver = driver_of(world, tmp_path, tasks=2, beside=FailsOnce()).advance(10_000)
    assert driver.executor.counts()["lines"][0].failed == 3
    assert words(tmp_path) == {"a": 2, "b": 2, "c": 1, "d": 1}
    assert driver.executor.metrics()["count"] == {"applied": 6, "repeated": 6}


def test_a_message_is_counted_once_although_the_process_ends_before_it_stores_its_progress(world, tmp_path):
    driver_of(world, tmp_path).advance(900)
    assert world.progress("lines")[0].offset == 0 and len(origins(tmp_path)) == 6
    again = driver_of(world, tmp_path).advance(900)
    assert words(tmp_path) == {"a": 2, "b": 2, "c": 1, "d": 1}
    assert again.executor.metrics()["count"] == {"applied": 0, "repeated": 6}


def test_origins_below_the_stored_watermark_are_forgotten_and_those_above_are_kept(world, tmp_path):
    driver = driver_of(world, tmp_path, Hold())
    (hold,) = driver.run().tasks("split")
    unsettled = hold.held.pop(1)
    hold.release()
    driver.advance(3 * COMMIT_MS)
    assert world.progress("lines")[0].offset == 1 and origins(tmp_path) == [0, 2]
    hold.holds = False
    world.topic("lines").append("e")
    driver.advance(COMMIT_MS)
    assert origins(tmp_path) == [2, 3], "offset 1 is not settled"
    hold.held = [unsettled]
    hold.release()
    driver.advance(2 * COMMIT_MS)
    world.topic("lines").append("f")
    driver.advance(COMMIT_MS)
    assert origins(tmp_path) == [4]


def test_a_tuple_of_an_attempt_that_timed_out_is_not_applied(world, tmp_path):
    driver = driver_of(world, tmp_path, Hold(), topology_message_timeout_secs=5)
    (hold,) = driver.run().tasks("split")
    late = list(hold.held)
    hold.held.clear()
    hold.holds = False
    driver.advance(20_000)
    assert driver.executor.counts()["lines"][0].timed_out == 3
    counted = words(tmp_path)
    assert counted == {"a b a": 1, "b c": 1, "d": 1}
    hold.held = late
    assert not hold.collector.is_open(late[0])
    hold.release()
    world.topic("lines").append("later")
    driver.advance(20_000)
    assert words(tmp_path) == counted | {"later": 1}


def test_a_tuple_that_cannot_be_applied_fails_alone_and_its_change_is_undone(world, tmp_path):
    world.topic("lines").append("x poison y")
    driver = driver_of(world, tmp_path).advance(60_000)
    (letter,) = world.letters("lines")
    assert letter.error == "ValueError: this word cannot be counted, in count"
    assert words(tmp_path) == {"a": 2, "b": 2, "c": 1, "d": 1, "x": 1}, "the attempt has ended when y comes"
    assert driver.executor.counts()["lines"][0].failed == 2


def test_a_database_that_another_process_has_locked_is_unavailable(world, tmp_path, monkeypatch):
    monkeypatch.setattr("spout.once.LOCK_WAIT_SECONDS", 0.001)
    driver = driver_of(world, tmp_path, attempts=100)
    other = sqlite3.connect(tmp_path / "words.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    driver.advance(100)
    assert errors(driver)[0] == f"Unavailable: {tmp_path / 'words.db'}: database is locked"
    other.execute("COMMIT")
    other.close()
    driver.advance(60_000)
    assert words(tmp_path) == {"a": 2, "b": 2, "c": 1, "d": 1}


def test_tuples_of_several_messages_are_refused(world, tmp_path):
    class Batches(BatchBolt):
        output_fields = ("word",)

        def process_batch(self, batch):
            self.emit(("word",))

    driver = driver_of(world, tmp_path, Batches()).advance(300)
    assert "comes from 3 messages: OncePerMessage needs tuples that are anchored to one" in errors(driver)[0]


def test_threads_are_refused(world, tmp_path):
    class Threads(CountWords):
        threads = 1

    with pytest.raises(ValueError, match="count has threads, and a OncePerMessage works without"):
        driver_of(world, tmp_path, count=Threads(tmp_path / "words.db"))
