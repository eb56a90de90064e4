"""Figures of a topology: its graph, its counts, lag and latency, and rates between two snapshots."""

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from twisted.internet.task import Clock

from flakelog.testing import MemoryWorld, TopologyDriver
from flakelog.topology_figures import registry_of
from spout.api import Bolt
from spout.figures.collect import snapshot
from spout.figures.document import as_document
from spout.figures.model import Input, Rates, add_lags, latency_ms
from spout.log_spout import LogSpout
from spout.runner import Runner
from spout.task import LATENCY_BUCKETS, TaskCounts
from spout.topology import Topology
from tests.poison import LARGE
from tests.spout.worlds import SpoutWorld


class Hold(Bolt):
    """A bolt that acks the first tuple and holds the others."""

    output_fields = ("n",)
    auto_ack = False

    def prepare(self):
        self.seen = []
        self.total = self.context.counter("seen")

    def execute(self, tup):
        self.seen.append(tup)
        self.total.add()
        if len(self.seen) == 1:
            self.ack(tup)


def runner_of(world):
    topology = Topology("t", id="t-1")
    topology.spout("log", LogSpout("t"))
    topology.bolt("hold", Hold()).fields("log", "key")
    runner = Runner(topology, world=world, reactor=Clock())
    runner.start()
    for _ in range(20):
        runner._reactor.advance(0)
    return runner


def taken(runner, at_ms=10_000):
    return snapshot(runner.executor, state="running", started_ms=0, at_ms=at_ms, now_ms=runner.executor.now_ms)


def test_a_snapshot_has_the_graph_the_counts_and_the_dead_letter_topic():
    world = SpoutWorld()
    for value in (b"a", b"bcd", b"ef"):
        world.log.append(value)
    figures = taken(runner_of(world))
    log, hold = figures.components
    assert (log.kind, hold.kind, figures.topology_id) == ("spout", "bolt", "t-1")
    assert hold.inputs == (Input("log", "default", "fields", ("key",)),) and hold.streams == {"default": ("n",)}
    assert (log.total("emitted"), hold.total("executed"), log.total("acked")) == (3, 3, 1)
    assert log.messages["fetched"] == 3 and hold.metrics == {"seen": 3}
    assert figures.dead_letter_topics == ("t.dead-letters",) and figures.in_flight == 2


def test_lag_counts_from_the_first_message_that_is_not_settled():
    world = SpoutWorld()
    for value in (b"a", b"bcd", b"e"):
        world.log.append(value)
    figures = taken(runner_of(world), at_ms=10_000)
    (partition,) = figures.partitions
    timestamp_ms = world.log.partitions[0][1].timestamp_ms if hasattr(world.log, "partitions") else None
    assert (partition.watermark, partition.high_watermark, partition.lag) == (1, 3, 2)
    assert partition.lag_bytes == 4, "two messages of two bytes on average"
    assert partition.lag_ms is not None and timestamp_ms in (None, 10_000 - partition.lag_ms)
    assert [figures.lag(name) for name in ("lag", "lag_bytes", "lag_ms")] == [2, 4, partition.lag_ms]


def test_lag_is_zero_when_all_is_settled_and_unknown_before_the_partition_is_opened():
    (settled,) = taken(runner_of(SpoutWorld())).partitions
    assert (settled.lag, settled.lag_bytes, settled.lag_ms) == (0, 0, 0)
    opening = replace(settled, watermark=None, lag=None)
    figures = replace(taken(runner_of(SpoutWorld())), partitions=(settled, opening))
    assert figures.lag("lag") is None


def test_a_partition_with_an_error_is_a_problem():
    figures = taken(runner_of(SpoutWorld()))
    fenced = replace(figures.partitions[0], phase="fenced", error="another owner wrote")
    assert replace(figures, partitions=(fenced,)).problems == ["t-0 (log[0], fenced): another owner wrote"]
    assert figures.problems == []


def test_rates_are_changes_per_second():
    world = SpoutWorld()
    world.log.append(b"a")
    runner = runner_of(world)
    before = taken(runner, at_ms=10_000)
    assert Rates(None, before).rate("log", "emitted") == 0.1, "since the start, ten seconds ago"
    for _ in range(6):
        world.log.append(b"b")
    for _ in range(20):
        runner._reactor.advance(0)
    after = taken(runner, at_ms=12_000)
    rates = Rates(before, after)
    assert (rates.rate("log", "emitted"), rates.rate("hold", "acked")) == (3.0, 0.0)
    assert rates.latency_ms("log", 0.5) is None, "no tree was complete in between"


def test_latency_is_rounded_up_to_the_end_of_its_bucket():
    counts = TaskCounts()
    for ms in (0, 1, 2, 3, 100):
        counts.completed_after(ms)
    assert [latency_ms(counts.latencies, share) for share in (0.2, 0.4, 0.5, 0.8, 1.0)] == [0, 1, 3, 3, 127]
    assert latency_ms([0] * LATENCY_BUCKETS, 0.5) is None
    counts.completed_after(1 << 40)
    assert counts.latencies[-1] == 1


@pytest.mark.parametrize(
    "name, values, total",
    [("lag", [2, 0, 3], 5), ("lag_bytes", [2, 3], 5), ("lag_ms", [2, 3], 3), ("lag", [2, None], None)]
    + [("lag_ms", [None, 3], 3), ("lag_ms", [None], None), ("lag", [], None), ("lag_ms", [0], 0)],
)
def test_lags_add_up_if_all_are_known_and_the_longest_known_time_counts(name, values, total):
    assert add_lags(name, values) == total


def test_a_document_is_data_for_json():
    document = as_document(taken(runner_of(SpoutWorld())))
    assert document["components"][1]["inputs"][0]["grouping"] == "fields"
    assert document["partitions"][0]["phase"] == "running"


def test_what_a_spout_skips_is_in_the_figures_and_in_the_metrics():
    """Poison batches, messages that retention took, and recreated topics."""
    topology = Topology("t")
    topology.spout("log", LogSpout("t"))
    topology.bolt("hold", Bolt()).shuffle("log")
    world = MemoryWorld()
    log = world.topic("t")
    log.append(b"a")
    TopologyDriver(topology, world).advance(3_000).stop()
    for _ in range(5):
        log.append(b"b")
    log.retain_from(0, 4)
    log.append_poison(LARGE)
    with TopologyDriver(topology, world) as test:
        test.advance(3_000)
        log.recreate()
        log.append(b"c")
        test.advance(3_000)
        figures = snapshot(test.executor, state="running", started_ms=0, at_ms=test.now_ms, now_ms=test.now_ms)
    metrics = generate_latest(registry_of(lambda: figures)).decode()
    for outcome, number in (("lost", 3), ("poison_batches", 1), ("recreated", 1), ("truncations", 0)):
        assert figures.component("log").messages[outcome] == number
        assert f'flakelog_topology_messages_total{{component="log",outcome="{outcome}"}} {number}.0' in metrics
