"""A task inside Storm publishes the figures of its own part of the topology."""

from spout.api import Unavailable
from spout.figures.collect import clusters_of
from spout.figures.model import MessageFailure, Rates
from spout.log_spout import LogSpout
from spout.multilang.figures import task_snapshot
from spout.topology import Topology
from tests.spout.multilang.storm_side import CoreDriver, emits, storm_tuple
from tests.spout.worlds import Collect, SpoutWorld


def topology_of():
    topology = Topology("t", id="t-1")
    topology.spout("flights", LogSpout("flights", servers="a:1"), parallelism=2)
    topology.spout("trains", LogSpout("trains", servers="b:1"))
    topology.bolt("collect", Collect()).fields("flights", "id").shuffle("trains")
    return topology


def taken(driver, at_ms=10_000):
    return task_snapshot(driver.setup, driver.task, state="running", started_ms=0, at_ms=at_ms, now_ms=0)


def test_a_spouts_task_tells_its_counts_its_partitions_and_the_tuples_in_flight():
    world = SpoutWorld(2)
    for number in range(4):
        world.log.append(b"v", partition=number % 2)
    driver = CoreDriver(topology_of(), "flights", index=1, world=world)
    driver.activate()
    driver.work()
    first, second = emits(driver.next())
    driver.ack(first)
    driver.fail(second)
    figures = taken(driver)
    (flights,) = figures.components
    assert (figures.topology_id, figures.run_id, flights.name, flights.kind) == ("t-1", "run-1", "flights", "spout")
    assert flights.parallelism == len(flights.tasks) == 1, "processes add up"
    assert [flights.total(name) for name in ("emitted", "acked", "failed")] == [2, 1, 1] and figures.in_flight == 0
    ((partition, task, lag),) = [(row.partition, row.task, row.lag) for row in figures.partitions]
    assert (partition, task, lag) == (1, 1, 1) and figures.dead_letter_topics == ("flights.dead-letters",)
    assert Rates(None, figures).rate("flights", "emitted") == 0.2


def test_a_bolts_task_tells_its_inputs_so_that_a_reader_has_the_whole_graph():
    (collect,) = taken(CoreDriver(topology_of(), "collect")).components
    assert [(source.component, source.grouping, source.fields) for source in collect.inputs] == [
        ("flights", "fields", ("id",)),
        ("trains", "shuffle", ()),
    ]


def test_a_bolts_task_that_holds_tuples_tells_the_outage_as_a_problem():
    class Away(Collect):
        def execute(self, tup):
            raise Unavailable("no answer")

    topology = topology_of()
    topology.bolt("away", Away()).shuffle("flights")
    driver = CoreDriver(topology, "away")
    assert taken(driver).problems == []
    driver.send(*[storm_tuple(str(n), [n, None, "~bv", None], "flights") for n in range(3)])
    driver.work(2_000)
    assert taken(driver).problems == ["away[0]: 3 tuples held for up to 2.0 s: Unavailable: no answer"]


def test_a_bolts_task_tells_the_messages_that_failed_for_three_seconds():
    driver = CoreDriver(topology_of(), "collect")
    driver.instance.fails = lambda tup, seen: True
    origin = '[[["flights","topic-id",3,41,40,"flights"]],[["flights",0]]]'
    driver.send(*[storm_tuple("1", [1, None, "~bv", text], "flights") for text in (origin, None)])
    failure = MessageFailure("flights", 3, 41, "RuntimeError: on purpose, in collect")
    assert taken(driver).components[0].failures == (failure,)
    driver.work(3_001)
    assert taken(driver).components[0].failures == ()


def test_figures_go_to_each_cluster_that_a_spout_reads():
    assert clusters_of(topology_of().plan()) == {"a:1": None, "b:1": None}
