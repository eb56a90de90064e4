"""The test driver as a user meets it: topologies over LogSpout without a broker (flakelog.testing)."""

import asyncio
import subprocess
import sys

import pytest

from flakelog import Bolt, JsonScheme, LogSpout, SpoutConfig, StringScheme, Topology
from flakelog.testing import MemoryDeadLetters, MemoryLog, TopologyDriver, run_bolt
from partition_manager.ports import (
    Bury,
    EpochEnd,
    Fetch,
    FetchWanted,
    FindEpochEnd,
    LetterRefused,
    ListPartitions,
    Recreated,
)
from spout.api import Spout


class Split(Bolt):
    output_fields = ("word",)

    def execute(self, tup):
        for word in tup["value"].split():
            self.emit((word,))


class Count(Bolt):
    output_fields = ("word", "count")

    def prepare(self):
        self.counts = {}

    def execute(self, tup):
        word = tup["word"]
        if word == "poison":
            raise ValueError("this word cannot be counted")
        self.counts[word] = self.counts.get(word, 0) + 1
        self.emit((word, self.counts[word]))


word_count = Topology("word-count")
word_count.spout("sentences", LogSpout("sentences", scheme=StringScheme()))
word_count.bolt("split", Split()).shuffle("sentences")
word_count.bolt("count", Count()).fields("split", "word")


def test_words_are_counted():
    with TopologyDriver(word_count) as test:
        test.log("sentences").append("a b a")
        test.run()
        assert test.emitted("count") == [("a", 1), ("b", 1), ("a", 2)]


def test_a_message_that_always_fails_is_a_dead_letter_that_the_test_reads():
    with TopologyDriver(word_count) as test:
        test.log("sentences").append("poison", key="k")
        test.advance(10_000)
        (letter,) = test.dead_letters("sentences")
        assert (letter.record.value, letter.reason, letter.attempts) == (b"poison", "attempts", 5)
        (record,) = test.log("sentences.dead-letters").records()
        assert (record.key, record.value) == (b"k", b"poison")
        assert b"ValueError: this word cannot be counted" in dict(record.headers)["flakelog-dead-error"]


def test_progress_is_stored_at_the_end_and_a_second_driver_goes_on_from_there():
    with TopologyDriver(word_count) as first:
        first.log("sentences", partitions=2).append("a", partition=1)
        first.run()
    assert {number: progress.offset for number, progress in first.progress("sentences").items()} == {0: 0, 1: 1}
    first.log("sentences").append("b", partition=1)
    with TopologyDriver(word_count, first.world) as second:
        assert second.run().emitted("count") == [("b", 1)]


def test_the_log_can_be_cut_at_both_ends_and_gives_no_id_twice():
    log = MemoryLog()
    for _ in range(5):
        log.append()
    log.retain_from(0, 2)
    log.truncate(0, 4)
    log.append("new")
    assert [(record.offset, record.id) for record in log.records()] == [(2, 1002), (3, 1003), (4, 1005)]


def test_a_spout_of_a_topic_that_is_not_there_says_which_topics_are():
    driver = TopologyDriver(word_count)
    driver.log("sentence")
    driver.run()
    assert any("there is no topic 'sentences'; there are: sentence" in text for _, text in driver.reports)


def test_a_wrong_partition_is_named_with_the_right_ones():
    with pytest.raises(LookupError, match=r"sentences has no partition 2; it has \[0, 1\]"):
        TopologyDriver(word_count).log("sentences", partitions=2).append("a", partition=2)


def test_a_topic_has_one_number_of_partitions():
    driver = TopologyDriver(word_count)
    driver.log("sentences", partitions=2)
    with pytest.raises(ValueError, match="sentences exists with 2 partitions, not 3"):
        driver.log("sentences", partitions=3)


def test_a_stream_that_is_not_declared_is_named_with_those_that_are():
    with pytest.raises(LookupError, match="'count' emits nothing to 'late'; there are: sentences to 'default', split"):
        TopologyDriver(word_count).emitted("count", "late")


def test_after_a_failed_assertion_the_driver_does_not_stop_the_topology():
    """A stop could raise an error of its own, and hide that of the test."""
    stopped = []

    class Stoppable(Spout):
        def next_tuple(self):
            pass

        def close(self):
            stopped.append(True)

    topology = Topology("t")
    topology.spout("spout", Stoppable())
    with pytest.raises(AssertionError):
        with TopologyDriver(topology):
            raise AssertionError
    assert not stopped


def test_a_spout_without_dead_letters_tries_for_ever():
    topology = Topology("t")
    config = SpoutConfig(spout_dead_letter_topic="", spout_max_attempts=0)
    topology.spout("sentences", LogSpout("sentences", scheme=StringScheme(), config=config))
    topology.bolt("split", Split()).shuffle("sentences")
    topology.bolt("count", Count()).fields("split", "word")
    driver = TopologyDriver(topology)
    driver.log("sentences").append("poison")
    driver.advance(100_000)
    assert len(driver.emitted("sentences")) > 10 and driver.dead_letters("sentences") == []


class EvenAndOdd(Bolt):
    """A bolt with two streams that reports its sum once a second."""

    output_fields = ("even",)
    tick_interval_ms = 1_000

    def __init__(self):
        self.sum = 0

    def declare_output_fields(self, declarer):
        super().declare_output_fields(declarer)
        declarer.declare_stream("odd", "odd")
        declarer.declare_stream("sums", "sum")

    def execute(self, tup):
        self.sum += tup["n"]
        self.emit((tup["n"],), stream="odd" if tup["n"] % 2 else "default")

    def tick(self):
        self.emit((self.sum,), stream="sums")


def test_run_bolt_returns_every_stream_and_calls_tick():
    result = run_bolt(EvenAndOdd(), [(1,), (2,), (3,)], fields=("n",), advance_ms=2_500)
    assert result.emitted == result.streams["default"] == [(2,)]
    assert result.streams == {"default": [(2,)], "odd": [(1,), (3,)], "sums": [(6,), (6,)]}


def test_importing_the_package_loads_neither_twisted_nor_the_engine():
    code = "import sys, flakelog.testing; print([m for m in ('twisted', 'spout', 'broker') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# --- the memory log's answers, as a broker's


def answer_of(log, request):
    answers = []
    log.ask(request, answers.append)
    return answers[0] if answers else None


def test_a_truncated_log_tells_where_an_epoch_ended_though_it_has_grown_again():
    """KIP-101: a reader that has read to 5 in epoch 0 learns that epoch 0 ends at 3."""
    log = MemoryLog()
    for _ in range(5):
        log.append()
    log.truncate(0, 3)
    for _ in range(5):
        log.append()
    assert answer_of(log, FindEpochEnd("flights", 0, 0)) == EpochEnd(0, 3)
    assert answer_of(log, FindEpochEnd("flights", 0, 1)) == EpochEnd(1, 8)
    assert answer_of(log, FindEpochEnd("flights", 0, 2)) == EpochEnd(-1, -1)
    assert answer_of(log, Fetch("flights", 0, FetchWanted(0, 3, 1))).leader_epoch == 0
    assert answer_of(log, Fetch("flights", 0, FetchWanted(0, 9, 1))).leader_epoch == 1


def test_a_recreated_topic_has_another_id_and_a_fetch_of_the_old_one_learns_it():
    log = MemoryLog(2)
    log.append()
    old = log.topic_id
    held = []
    log.ask(Fetch("flights", 0, FetchWanted(1, 9, 1), old), held.append)
    log.recreate(partitions=3)
    assert held == [Recreated(log.topic_id)] and log.topic_id != old
    assert answer_of(log, ListPartitions("flights")).numbers == (0, 1, 2)
    log.append()
    assert [(record.offset, record.id) for record in log.records()] == [(0, 1001)], "an id is never given again"


def test_a_dead_letter_topic_can_refuse_for_good():
    dead = MemoryDeadLetters()
    dead.refuses = "too large"
    assert answer_of(dead, Bury("letter")) == LetterRefused("too large")
    assert dead.letters == [] and dead.refused == ["letter"]


# --- asynchronous and blocking bolts


class Remote(Bolt):
    """An async bolt that waits as long as its tuple says, and gives up after a second."""

    output_fields = ("ms",)

    async def execute(self, tup):
        await asyncio.wait_for(asyncio.sleep(tup["ms"] / 1_000), timeout=1)
        self.emit((tup["ms"],))


def test_asyncio_in_a_bolt_follows_the_simulated_clock():
    result = run_bolt(Remote(), [(300,), (20,), (5_000,), (100,)], fields=("ms",), advance_ms=2_000)
    assert result.emitted == result.acked == [(20,), (100,), (300,)]
    assert result.failed == [(5_000,)] and result.errors == ["TimeoutError: "]


def test_a_coroutine_is_at_work_until_its_time_has_come():
    topology = Topology("t")
    topology.spout("sentences", LogSpout("sentences", scheme=JsonScheme("ms")))
    topology.bolt("remote", Remote()).shuffle("sentences")
    with TopologyDriver(topology) as test:
        test.log("sentences").append('{"ms": 50}')
        assert test.run().emitted("remote") == []
        assert test.advance(49).emitted("remote") == []
        assert test.advance(1).emitted("remote") == [(50,)]


def test_a_coroutine_that_never_ends_is_cancelled_at_the_end():
    ended = []

    class Hangs(Bolt):
        async def execute(self, tup):
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(tup["n"])

    run_bolt(Hangs(), [(1,)], fields=("n",))
    assert ended == [1]


def test_calls_of_threads_are_made_at_once():
    class Blocking(Bolt):
        output_fields = ("n",)
        threads = 2

        def execute(self, tup):
            self.emit((tup["n"] + 1,))

    class ToThread(Bolt):
        output_fields = ("n",)

        async def execute(self, tup):
            self.emit((await asyncio.to_thread(abs, tup["n"]),))

    assert run_bolt(Blocking(), [(1,), (2,)], fields=("n",)).emitted == [(2,), (3,)]
    assert run_bolt(ToThread(), [(-1,)], fields=("n",)).emitted == [(1,)]
