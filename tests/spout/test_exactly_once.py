"""Topic to topic with `LogSink(exactly_once=True)`: topologies on a log in memory."""

import pytest

from flakelog.testing import MemoryWorld, TopologyDriver
from spout.api import Bolt, Spout
from spout.bolts import BatchBolt
from spout.config import SpoutConfig, TopologyConfig
from spout.log_sink import LogSink
from spout.log_spout import LogSpout
from spout.settlement import CannotSettle
from spout.sink_config import SinkConfig
from spout.topology import Topology, TopologyError

SPOUT = SpoutConfig(spout_max_attempts=3, spout_retry_initial_ms=10)


class Twice(Bolt):
    """Emits two tuples for each message, and fails between them as often as `fails` says for a value."""

    output_fields = ("key", "value")

    def __init__(self, fails):
        self.fails = fails

    def execute(self, tup):
        value = tup["value"]
        self.emit((tup["key"], value + b"-1"))
        if self.fails.get(value, 0) > 0:
            self.fails[value] -= 1
            raise RuntimeError("on purpose")
        self.emit((tup["key"], value + b"-2"))


class Pairs(BatchBolt):
    """Joins two messages in each output."""

    output_fields = ("value",)
    batch_size = 2
    tick_interval_ms = 1_000

    def process_batch(self, batch):
        self.emit((b"+".join(tup["value"] for tup in batch),), anchors=batch)


def world_of(*values, partitions=1):
    world = MemoryWorld()
    for number, value in enumerate(values):
        world.topic("in", partitions=partitions).append(value, number % partitions, key=b"k")
    world.topic("out")
    return world


def copying(fails=None, **sink):
    topology = Topology("copy")
    topology.spout("in", LogSpout("in", store="kafka", config=SPOUT))
    topology.bolt("twice", lambda: Twice({} if fails is None else fails)).shuffle("in")
    topology.bolt("out", LogSink("out", exactly_once=True, **sink)).shuffle("twice")
    return topology


def written(world, topic="out"):
    log = world.topic(topic)
    return [record.value for partition in log.kept for record in log.records(partition)]


def test_outputs_and_progress_are_committed_together():
    world = world_of(b"a", b"b")
    driver = TopologyDriver(copying(), world).advance(150)
    assert written(world) == [b"a-1", b"a-2", b"b-1", b"b-2"]
    assert world.progress("in")[0].offset == 2
    driver.stop()


def test_nothing_is_written_before_the_commit():
    world = world_of(b"a")
    driver = TopologyDriver(copying(config=SinkConfig(sink_commit_interval_ms=1_000)), world).advance(500)
    assert written(world) == []
    driver.advance(500)
    assert written(world) == [b"a-1", b"a-2"]


def test_a_stop_commits_what_is_complete():
    world = world_of(b"a")
    TopologyDriver(copying(config=SinkConfig(sink_commit_interval_ms=60_000)), world).advance(50).stop()
    assert written(world) == [b"a-1", b"a-2"] and world.progress("in")[0].offset == 1


def test_a_run_that_is_killed_before_the_commit_leaves_nothing():
    world = world_of(b"a", b"b")
    TopologyDriver(copying(config=SinkConfig(sink_commit_interval_ms=1_000)), world).advance(500)
    TopologyDriver(copying(), world).advance(500).stop()
    assert written(world) == [b"a-1", b"a-2", b"b-1", b"b-2"]


def test_outputs_of_a_failed_attempt_are_dropped():
    world = world_of(b"a", b"b")
    TopologyDriver(copying({b"a": 2}), world).advance(5_000).stop()
    assert sorted(written(world)) == [b"a-1", b"a-2", b"b-1", b"b-2"]


def test_a_message_given_up_leaves_its_dead_letter_and_no_output():
    world = world_of(b"a", b"b")
    TopologyDriver(copying({b"a": 99}), world).advance(5_000).stop()
    assert written(world) == [b"b-1", b"b-2"]
    assert [letter.record.value for letter in world.letters("in")] == [b"a"] and world.progress("in")[0].offset == 2


def test_an_output_of_several_messages_is_committed_with_all_of_them():
    world = world_of(b"a", b"b", b"c", partitions=3)
    topology = Topology("pairs")
    topology.spout("in", LogSpout("in", store="kafka", config=SPOUT), parallelism=3)
    topology.bolt("pairs", Pairs()).shuffle("in")
    topology.bolt("out", LogSink("out", exactly_once=True)).shuffle("pairs")
    driver = TopologyDriver(topology, world).advance(500)
    (pair,) = written(world)
    first = sorted(progress.offset for progress in world.progress("in").values())
    assert first == [0, 1, 1] or first == [1, 1], "the progress of the third message is not stored yet"
    driver.advance(1_000).stop()
    assert len(written(world)) == 2 and [p.offset for p in world.progress("in").values()] == [1, 1, 1]


def test_while_the_output_topic_is_missing_transactions_wait_and_say_so():
    world = world_of(b"a")
    del world.topics["out"]
    driver = TopologyDriver(copying(), world).advance(3_000)
    report = "a transaction was aborted: topic out: UNKNOWN_TOPIC_OR_PARTITION; it is made again"
    assert ("in[0]", report) in driver.reports and world.progress("in")[0].offset == 0
    world.topic("out")
    driver.advance(6_000)
    assert written(world) == [b"a-1", b"a-2"]


def test_a_full_sink_holds_up_the_spouts_and_loses_nothing():
    values = [b"%02d" % number for number in range(50)]
    world = world_of(*values)
    config = TopologyConfig(topology_max_spout_pending=10)
    TopologyDriver(copying(config=SinkConfig(sink_held_bytes=200)), world, config=config).advance(5_000).stop()
    assert written(world) == [value + end for value in values for end in (b"-1", b"-2")]


def test_a_tuple_without_a_message_is_refused_by_name():
    class Ticks(Bolt):
        output_fields = ("value",)
        tick_interval_ms = 100

        def execute(self, tup):
            pass

        def tick(self):
            self.emit((b"tick",), anchors=())

    world = world_of(b"a")
    topology = Topology("ticks")
    topology.spout("in", LogSpout("in", store="kafka"))
    topology.bolt("ticks", Ticks()).shuffle("in")
    topology.bolt("out", LogSink("out", exactly_once=True)).shuffle("ticks")
    driver = TopologyDriver(topology, world).advance(150)
    reason = "comes from no message: exactly_once needs tuples that are anchored to their messages"
    assert any(reason in text for _, text in driver.reports) and not written(world)


# --- refused at the start


def test_a_spout_that_stores_its_progress_elsewhere_is_refused_by_name():
    topology = Topology("copy")
    topology.spout("in", LogSpout("in", store="progress"))
    topology.bolt("twice", Twice({})).shuffle("in")
    topology.bolt("out", LogSink("out", exactly_once=True)).shuffle("twice")
    reason = "bolt 'out' is a sink with exactly_once, fed by spout 'in': its progress lies in progress"
    with pytest.raises(TopologyError, match=f'{reason}; give it store="kafka"'):
        TopologyDriver(topology, world_of(b"a"))


def test_another_spout_is_refused_by_name():
    class Clock(Spout):
        output_fields = ("value",)

    topology = Topology("copy")
    topology.spout("clock", Clock())
    topology.bolt("out", LogSink("out", exactly_once=True)).shuffle("clock")
    with pytest.raises(TopologyError, match="fed by spout 'clock': a Clock stores no progress in transactions"):
        TopologyDriver(topology, world_of(b"a"))


def test_a_spout_that_feeds_no_such_sink_may_store_its_progress_anywhere():
    topology = copying()
    topology.spout("other", LogSpout("in", store="progress", id="other"))
    topology.bolt("plain", LogSink("out")).shuffle("other")
    TopologyDriver(topology, world_of(b"a")).advance(150).stop()


def test_sinks_of_one_process_share_servers_and_settings():
    topology = copying()
    topology.bolt("more", LogSink("out", servers="127.0.0.1:9999", exactly_once=True)).shuffle("twice")
    with pytest.raises(TopologyError, match="'out' and 'more' are sinks with exactly_once and differ in their servers"):
        TopologyDriver(topology, world_of(b"a"))


# --- a record that the topic will never take


def test_a_message_whose_output_is_too_large_is_a_dead_letter_and_the_others_are_committed_once():
    world = world_of(b"a", b"large" * 10, b"b")
    world.topic("out").record_bytes_max = 40
    with TopologyDriver(copying(), world) as driver:
        driver.advance(5_000)
        counts = driver.tasks("in")[0].counts
    assert written(world) == [b"a-1", b"a-2", b"b-1", b"b-2"]
    (letter,) = world.letters("in")
    assert (letter.reason, letter.record.offset) == ("refused", 1)
    assert letter.error == "out-0 refuses a record of 53 bytes: its limit is 40"
    assert (counts.fetched, counts.acked, counts.dead_lettered) == (3, 2, 1)
    assert world.progress("in")[0].offset == 3


def test_without_dead_letters_an_output_that_is_too_large_ends_the_topology_by_name():
    world = world_of(b"large" * 10)
    world.topic("out").record_bytes_max = 40
    topology = Topology("copy")
    config = SpoutConfig(spout_dead_letter_topic="")
    topology.spout("in", LogSpout("in", store="kafka", config=config))
    topology.bolt("out", LogSink("out", exactly_once=True)).shuffle("in")
    with pytest.raises(CannotSettle, match="out-0 refuses a record of 51 bytes: its limit is 40"):
        TopologyDriver(topology, world).advance(5_000)
    assert written(world) == [] and world.progress("in")[0].offset == 0
