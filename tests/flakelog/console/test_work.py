"""Topologies, replays and loads, as far as their documents go: others write them, so anything may be in them."""

import json

import pytest

from broker.client.log_record import Record as ReadRecord
from broker.record.records import BatchRecord, encode_batch
from flakelog.console.broker_pages import LivePart
from flakelog.console.pages import NotThere, render_part
from flakelog.console.replays import bars, documents_of, work_page, work_rows
from flakelog.console.topologies import LOST_MS, graph_of, topology_page, topology_rows
from tests.broker.engine_client import WALL_MS
from tests.flakelog.console.world import TEMPLATES, World, fields_of, html_of, now

ODD = (None, 5, "x", [], {}, [None], {"a": []}, -1.5, True)


def component(name, *inputs, kind="bolt"):
    streams = [{"component": source, "stream": "default", "grouping": "shuffle"} for source in inputs]
    return {"name": name, "kind": kind, "parallelism": 2, "inputs": streams, "tasks": [{"errors": 1}]}


def document(**more):
    parts = [component("orders", kind="spout"), component("parse", "orders"), component("store", "parse", "orders")]
    rates = {"orders": {"emitted": 5.0, "acked": 4.0, "failed": 1.0}}
    return {"topology": "shop", "topology_id": "shop", "state": "running", "components": parts, "rates": rates} | more


READ = {"partitions": [{"topic": "orders", "partition": 0, "lag": 3}]}


def test_processes_of_a_topology_are_summed():
    closing = {"state": "closing", "lag": {"lag": 4, "lag_ms": 10}}
    two = [document(lag={"lag": 3, "lag_ms": 50}, **READ), document(**READ, **closing)]
    (row,) = topology_rows(two)
    assert (row.processes, row.acked, row.lag, row.lag_ms, row.states) == (2, 8.0, 7, 50, ["closing", "running"])
    assert [component.tasks for component in topology_page(two, "shop").components] == [4, 4, 4]


def test_a_lag_that_one_process_does_not_know_is_not_known():
    (row,) = topology_rows([document(lag={"lag": 3}, **READ), document(**READ)])
    assert row.lag is None


def task_document(name, inputs=(), kind="bolt", **more):
    """Return the document of one task inside Storm: a process with one component. A bolt reads no partition."""
    part = component(name, *inputs, kind=kind) | {"parallelism": 1}
    return document(components=[part], lag={"lag": None, "lag_ms": None}, partitions=[], **more)


def test_the_tasks_inside_storm_add_up_to_the_topology_that_an_embedded_process_would_be():
    spouts = [
        task_document("orders", kind="spout", rates={"orders": {"acked": 4.0}}, latency_ms={"orders": {"p99": p99}})
        | READ
        | {"lag": {"lag": 3, "lag_ms": 20}, "in_flight": 2}
        for p99 in (7, None)
    ]
    bolts = [task_document("parse", ["orders"], rates={"parse": {"executed": 5.0}}) for _ in range(3)]
    (row,) = topology_rows([*spouts, *bolts])
    assert (row.processes, row.acked, row.lag, row.lag_ms, row.in_flight) == (5, 8.0, 6, 20, 4)
    page = topology_page([*bolts, *spouts], "shop")
    figures = {component.name: (component.tasks, component.p99_ms) for component in page.components}
    assert figures == {"orders": (2, 7), "parse": (3, None)}
    assert len(page.graph.edges) == 1 and len(page.partitions) == 2
    assert [task["task"] for task in page.processes] == ["parse"] * 3 + ["orders"] * 2


def test_of_very_many_processes_the_first_are_listed_and_all_are_counted():
    page = topology_page([task_document("parse") for _ in range(150)], "shop")
    assert (len(page.processes), page.row.processes, page.components[0].tasks) == (100, 150, 150)


def test_a_spout_that_waits_for_its_group_is_named_with_its_process():
    waits = component("orders", kind="spout") | {"group_wait_ms": 20_400}
    page = topology_page([document(components=[waits], host="a", pid=7)], "shop")
    assert page.group_waits == ["orders waits for its group for 20 s (process 7 at a)"] and not page.problems
    for odd in (*ODD, 3_000):
        part = component("orders", kind="spout") | {"group_wait_ms": odd}
        assert topology_page([document(components=[part])], "shop").group_waits == []


def test_without_a_partition_there_is_no_lag():
    assert topology_rows([document()])[0].lag is None


# --- topologies that ended -------------------------------------------------------------------------------------------


@pytest.fixture
def world():
    made = World()
    made.clock.ms = WALL_MS
    made.broker.create("__flakelog_topologies")
    return made


def publish(world, key, content, at_ms=WALL_MS):
    value = None if content is None else json.dumps(content).encode()
    batch = encode_batch([BatchRecord(0, 0, key, value)], base_timestamp_ms=at_ms)
    world.client.produce("__flakelog_topologies", 0, batch)


def published(at_ms=WALL_MS, **more):
    return document(v=1, at_ms=at_ms, expires_ms=at_ms + 10_000, **more)


def topologies_now(world):
    tables = now(world.work.topologies_page(fields_of({}))).model
    return [row.id for row in tables["now"]], [(row.id, row.processes) for row in tables["lost"]]


def test_a_topology_whose_processes_were_killed_is_listed_as_lost(world):
    """It used to disappear as if it had been stopped."""
    for run in b"1", b"2":
        publish(world, b"shop/" + run, published())
    publish(world, b"other/1", published(topology_id="other"))
    assert topologies_now(world) == (["other", "shop"], [])
    publish(world, b"other/1", None)
    world.clock.ms += 60_000
    assert topologies_now(world) == ([], [("shop", 2)])
    view = now(world.work.topology_page(fields_of({"id": "shop"})))
    assert "It does not run: its last figures are of 2023-11-14T22:13:20.000Z" in html_of(view) and view.stream == ""
    publish(world, b"shop/3", published(at_ms=world.clock.ms), world.clock.ms)
    assert topologies_now(world) == (["shop"], [])
    assert now(world.work.topology_page(fields_of({"id": "shop"}))).stream == "topology&id=shop"
    publish(world, b"shop/3", None)
    assert topologies_now(world) == ([], []), "its last run was stopped"


def test_a_lost_topology_is_forgotten_after_a_while(world):
    publish(world, b"shop/1", published())
    world.clock.ms += LOST_MS + 20_000
    assert topologies_now(world) == ([], [])
    with pytest.raises(NotThere, match="no topology with the id 'shop' runs now"):
        now(world.work.topology_page(fields_of({"id": "shop"})))


def test_the_streams_of_several_pages_read_the_topic_once(world):
    publish(world, b"shop/1", published())
    jobs = []
    world.jobs.run = lambda job, run=world.jobs.run: jobs.append(job) or run(job)
    for fields in ({"page": "topologies"}, {"page": "topology", "id": "shop"}, {"page": "topologies"}):
        part = world.work.live(fields_of(fields), 0)
        part = part if isinstance(part, LivePart) else now(part)
        assert "4/s" in render_part(TEMPLATES, part.template, part.model)
    assert len(jobs) == 1
    world.clock.ms += 2_000
    now(world.work.live(fields_of({"page": "topologies"}), 0))
    assert len(jobs) == 2


@pytest.mark.parametrize("odd", [*ODD, "\ud800", "x" * 10_000])
@pytest.mark.parametrize("field", ["expires_ms", "at_ms", "topology", "topology_id", "state", "components", "v"])
def test_no_document_of_another_program_hides_the_topologies(world, field, odd):
    publish(world, b"odd/1", published() | {field: odd})
    publish(world, b"shop/1", published(topology_id="shop 2"))
    for later_ms in (0, 60_000):
        world.clock.ms += later_ms
        html = html_of(now(world.work.topologies_page(fields_of({}))))
        assert "/console/topology?id=shop%202" in html
        now(world.work.topology_page(fields_of({"id": "shop 2"})))


def test_a_document_that_is_nested_too_deep_counts_as_none(world):
    batch = encode_batch([BatchRecord(0, 0, b"deep", b"[" * 50_000)], base_timestamp_ms=WALL_MS)
    world.client.produce("__flakelog_topologies", 0, batch)
    assert topologies_now(world) == ([], [])


def test_the_graph_goes_from_left_to_right():
    graph = topology_page([document()], "shop").graph
    left_to_right = sorted(graph.nodes, key=lambda node: node.x)
    assert [node.component.name for node in left_to_right] == ["orders", "parse", "store"]
    assert len(graph.edges) == 3 and graph.edges[0].label == "shuffle"
    assert all(0 <= node.x < graph.width and 0 <= node.y < graph.height for node in graph.nodes)


def test_a_graph_with_a_circle_is_drawn():
    page = topology_page([document(components=[component("a", "b"), component("b", "a"), component("c", "c")])], "shop")
    assert len(page.graph.nodes) == len(page.graph.edges) == 3


def test_a_graph_of_nothing_is_empty():
    assert graph_of([]).nodes == []


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "field",
    ["components", "partitions", "rates", "latency_ms", "lag", "in_flight", "dead_letter_topics", "started_ms"],
)
def test_a_topology_with_odd_fields_is_shown(field, odd):
    spout = {"name": "a", "kind": "spout", field: odd}
    for documents in ([document(**{field: odd})], [document(components=[spout])]):
        assert topology_rows(documents)[0].name == "shop"
        assert topology_page(documents, "shop").row.processes == 1


def record(key, value):
    return ReadRecord(0, None, 0, key, value if value is None else json.dumps(value).encode())


def test_the_newest_document_of_a_key_counts():
    planned, done = ({"v": 1, "state": state} for state in ("planned", "done"))
    records = [record(b"a", planned), record(b"b", planned), record(b"a", done)]
    records += [record(b"b", None), record(b"c", {"v": 2}), record(b"d", [1]), record(None, {"v": 1})]
    assert documents_of(records) == {"a": {"v": 1, "state": "done"}, "": {"v": 1}}


def test_a_load_shows_the_ranges_of_its_manifest():
    ranges = [{"topic": "orders", "partition": n, "start": 10, "end": 20 + n} for n in range(2)]
    load = {"kind": "load", "state": "done", "manifest": {"topic": "orders", "manifest": {"ranges": ranges}}}
    (row,) = work_rows({"k": load | {"receipt": {"rows": 21}}})
    assert (row.topics, row.offsets, row.rows) == (["orders"], 21, 21)
    assert [(bar.label, bar.value) for bar in work_page("k", load).ranges] == [("orders-0", 10), ("orders-1", 11)]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("field", ["kind", "state", "at_ms", "place", "manifest", "receipt", "left_out"])
def test_a_replay_with_odd_fields_is_shown(field, odd):
    for replay in ({field: odd}, {"manifest": {"ranges": odd, "topic": odd}, "receipt": {"files": odd, "parts": odd}}):
        assert len(work_rows({"k": replay})) == 1
        assert work_page("k", replay).row.key == "k"


def test_bars_are_as_long_as_their_values():
    assert [bar.length for bar in bars([("a", 50), ("b", 100), ("c", 0)])] == [500, 1_000, 0]
    assert [bar.length for bar in bars([("a", 0)])] == [0]
