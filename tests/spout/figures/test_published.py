"""The figures of a topology, added up from the documents of its processes."""

import json

import pytest

from spout.figures.document import document_of
from spout.figures.published import snapshot_of
from spout.log_spout import LogSpout
from spout.multilang.figures import task_snapshot
from spout.topology import Topology
from tests.spout.multilang.storm_side import CoreDriver, emits, storm_tuple
from tests.spout.worlds import Collect, SpoutWorld


def topology_of():
    topology = Topology("t", id="t-1")
    topology.spout("flights", LogSpout("flights"), parallelism=2)
    topology.bolt("collect", Collect()).fields("flights", "id")
    return topology


def spout_driver(index):
    world = SpoutWorld(2)
    for number in range(4):
        world.log.append(b"v", partition=number % 2)
    driver = CoreDriver(topology_of(), "flights", index=index, world=world)
    driver.activate()
    driver.work()
    first, _ = emits(driver.next())
    driver.ack(first)
    return driver


def bolt_driver():
    driver = CoreDriver(topology_of(), "collect")
    driver.instance.context.counter("seen").add(2)
    driver.send(*[storm_tuple(str(n), [n, None, "~bv", None], "flights") for n in range(3)])
    return driver


def documents_of(*drivers, state="running", started_ms=1_000):
    times = {"started_ms": started_ms, "at_ms": 9_000, "now_ms": 0}
    taken = [task_snapshot(driver.setup, driver.task, state=state, **times) for driver in drivers]
    return [json.loads(document_of(None, snapshot, host="h", pid=1)) for snapshot in taken]


def figures_of(*documents, since_ms=0):
    return snapshot_of(topology_of().plan(), documents, run_id="r", since_ms=since_ms, at_ms=10_000)


def test_the_figures_of_all_tasks_add_up():
    figures = figures_of(*documents_of(spout_driver(0), spout_driver(1), bolt_driver()))
    flights, collect = figures.components
    assert (figures.topology, figures.topology_id, figures.state, figures.in_flight) == ("t", "t-1", "running", 2)
    assert (flights.kind, flights.parallelism, flights.total("emitted"), flights.total("acked")) == ("spout", 2, 4, 2)
    assert flights.messages["acked"] == 2 and sum(flights.latencies()) == 2
    assert (collect.kind, collect.parallelism, collect.total("acked"), collect.metrics) == ("bolt", 1, 3, {"seen": 2})
    assert [source.component for source in collect.inputs] == ["flights"]
    assert sorted(partition.partition for partition in figures.partitions) == [0, 1] and figures.lag("lag") == 2
    assert figures.dead_letter_topics == ("flights.dead-letters",) and figures.started_ms == 1_000


def test_the_longest_wait_of_a_process_for_its_group_is_that_of_the_spout():
    (first,), (second,) = documents_of(spout_driver(0)), documents_of(spout_driver(1))
    second["components"][0]["group_wait_ms"] = 7_000
    del first["components"][0]["group_wait_ms"]  # as older versions publish
    assert figures_of(first, second).group_waits == {"flights": "waits for its group for 7 s"}


def test_a_topology_starts_until_each_task_has_a_document_and_every_component_has_figures():
    figures = figures_of(*documents_of(bolt_driver()))
    assert figures.state == "starting" and figures.component("flights").total("acked") == 0
    assert figures_of().state == "starting" and figures_of().started_ms == 10_000


def test_a_task_that_ends_is_named_by_the_state():
    documents = documents_of(spout_driver(0), spout_driver(1)) + documents_of(bolt_driver(), state="finishing")
    assert figures_of(*documents).state == "finishing"


def test_processes_of_an_earlier_run_do_not_count():
    assert figures_of(*documents_of(bolt_driver()), since_ms=1_001).component("collect").tasks == ()


FIELDS = ["state", "started_ms", "in_flight", "components", "partitions", "dead_letter_topics"]


@pytest.mark.parametrize("odd", [None, 5, "x", [], {}, [None], [{}], {"a": []}, True])
@pytest.mark.parametrize("field", FIELDS)
def test_a_document_with_odd_fields_is_left_out_or_read(field, odd):
    (document,) = documents_of(bolt_driver())
    assert figures_of(document | {field: odd}).topology == "t"
    for name in ("tasks", "messages", "metrics", "outages"):
        component = document["components"][0] | {name: odd}
        assert figures_of(document | {"components": [component]}).component("collect").total("acked") in (0, 3)
