"""A topology that stands still is seen by /health, metrics, figures and the published document, however it froze."""

import json

from prometheus_client import generate_latest

from flakelog.console.topologies import topology_page
from flakelog.testing import MemoryWorld, TopologyDriver
from flakelog.topology_figures import registry_of
from flakelog.topology_site import health
from flakelog.topology_view import facts_of, line_of
from spout.api import Bolt
from spout.config import TopologyConfig
from spout.figures.collect import snapshot
from spout.figures.document import document_of
from spout.log_sink import LogSink
from spout.log_spout import LogSpout
from spout.sink_config import SinkConfig
from spout.topology import Topology

MINUTE = 60_000
PROBLEM = "lines-0 (lines[0], running): no progress for 62 s: 3 messages are in flight"


class Hold(Bolt):
    """Acks no tuple."""

    auto_ack = False

    def execute(self, tup):
        pass


def holding(messages=3, config=TopologyConfig()):
    topology = Topology("words")
    topology.spout("lines", LogSpout("lines"))
    topology.bolt("hold", Hold()).shuffle("lines")
    world = MemoryWorld()
    for _ in range(messages):
        world.topic("lines").append(b"a b")
    return TopologyDriver(topology, world, config=config)


def taken(test, later_ms=0):
    """Return the figures that many ms after the engine's last step."""
    times = {"started_ms": 0, "at_ms": test.now_ms + later_ms, "now_ms": test.now_ms + later_ms}
    return snapshot(test.executor, state="running", **times)


def frozen():
    """Return the figures of a topology whose engine has taken no turn for 62 s."""
    test = holding()
    test.advance(2_000)
    figures = taken(test, 62_000)
    test.kill()
    return figures


def test_a_frozen_engine_is_seen_by_health_without_a_turn_of_it():
    is_healthy, document = health(frozen())
    assert not is_healthy and [problem.partition(", and neither")[0] for problem in document["problems"]] == [PROBLEM]


def test_the_metric_says_for_how_long():
    text = generate_latest(registry_of(frozen)).decode()
    name = 'flakelog_topology_no_progress_seconds{component="lines",partition="0",topic="lines"}'
    assert f"{name} 62.0" in text
    test = holding()
    test.advance(2_000)
    assert f"{name} 0.0" in generate_latest(registry_of(lambda: taken(test))).decode()


def test_the_line_of_figures_and_its_facts_say_it():
    assert f"problems 1, the first: {PROBLEM}" in line_of(None, frozen())
    assert facts_of(None, frozen())["problems"][0].startswith(PROBLEM)


def test_the_console_shows_it_from_the_published_document():
    document = json.loads(document_of(None, frozen(), host="a", pid=1))
    page = topology_page([document], "words")
    (problem,) = page.problems
    assert page.row.problems == 1 and page.partitions[0]["error"].startswith("no progress for 62 s")
    assert problem.startswith("lines-0 (lines, running): no progress for 62 s: 3 messages are in flight")


def test_tuples_that_time_out_and_come_again_are_progress_of_an_engine_that_lives():
    test = holding()
    for _ in range(20):
        test.advance(10_000)
        assert not [partition for partition in taken(test).partitions if partition.no_progress]
    test.kill()


def test_a_paused_topology_is_well():
    test = holding()
    test.advance(2_000)
    test.executor.deactivate(test.now_ms)
    assert health(taken(test, 10 * MINUTE))[0]
    test.executor.activate(test.now_ms)
    assert health(taken(test, 10 * MINUTE + 1_000))[0]
    test.kill()


def exactly_once(**sink):
    topology = Topology("copy")
    topology.spout("in", LogSpout("in", store="kafka"))
    topology.bolt("out", LogSink("out", exactly_once=True, **sink)).shuffle("in")
    world = MemoryWorld()
    world.topic("in").append(b"a")
    world.topic("out")
    return TopologyDriver(topology, world)


def test_a_message_that_waits_for_its_transaction_is_no_reason():
    with exactly_once(config=SinkConfig(sink_commit_interval_ms=10 * MINUTE)) as test:
        for _ in range(19):
            test.advance(30_000)
            assert taken(test).problems == []


def test_transactions_that_are_aborted_again_and_again_are_no_progress():
    test = exactly_once()
    test.log("out").down = "NOT_ENOUGH_REPLICAS"
    test.advance(2 * MINUTE)
    (problem,) = taken(test).problems
    assert problem.startswith("in-0 (in[0], running): no progress for 1")
    assert problem.endswith("its progress is not stored")
    test.log("out").down = None
    test.advance(10_000)
    assert taken(test).problems == []
    test.stop()
