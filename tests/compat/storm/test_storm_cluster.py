"""A topology with every grouping in a real local Storm cluster, from the YAML that `flakelog spout storm` writes.

test_storm_kills.py has what takes longer: rebalances, kills and the examples.
"""

import json
import re
from collections import Counter

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from spout.figures.document import running
from spout.figures.topology_reader import PublishedFigures
from spout.topology_source import find_topology
from tests.compat.console.console_visitor import Visitor
from tests.compat.storm.cluster import need_storm, storm_of
from tests.compat.storm.storm_program import KEYS
from tests.patience import until

need_storm()

TOPOLOGY = "tests.compat.storm.storm_program:everything"
TOPIC = "numbers-for-storm"
PARTITIONS = 3
TASKS = 10
FIRST = range(0, 60)
UNLUCKY, LATE, SILENT, AWAY = 13, 7, 17, 19
LUCKY = set(FIRST) - {UNLUCKY}
EVEN = {n for n in LUCKY if n % 2 == 0}
TIMEOUT = ("--set", "topology.message.timeout.secs=4")  # longer than a busy machine keeps a tuple waiting


class Run:
    """The cluster, what its bolts noted, and the figures that its processes publish."""

    def __init__(self, cluster, broker, directory, figures):
        self.figures = figures
        self.cluster = cluster
        self.broker = broker
        self.directory = directory

    def say(self, numbers):
        """Produce the numbers to all partitions in turn."""
        with Client(self.broker.address) as client:
            for partition in range(PARTITIONS):
                values = [n for n in numbers if n % PARTITIONS == partition]
                records = [BatchRecord(at, 0, None, json.dumps({"n": n}).encode()) for at, n in enumerate(values)]
                client.produce(TOPIC, partition, encode_batch(records, base_timestamp_ms=0))

    def notes(self, component):
        """Return the notes of all tasks of a component."""
        files = self.directory.glob(f"{component}-*.jsonl")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def seen(self, component):
        return {note["n"] for note in self.notes(component)}

    def await_all(self, numbers):
        wanted = set(numbers) - {UNLUCKY}
        until(lambda: wanted <= self.seen("by-key"), f"all of {numbers} in Storm")


@pytest.fixture(scope="module")
def run(broker, tmp_path_factory):
    with Client(broker.address) as client:
        client.create_topic(TOPIC, PARTITIONS)
    directory = tmp_path_factory.mktemp("storm")
    environment = {"FLAKELOG_SERVERS": broker.address, "STORM_TEST_TOPIC": TOPIC}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        figures = PublishedFigures(find_topology(TOPOLOGY).plan(), broker.address, "test")
    figures.start()
    with storm_of(TOPOLOGY, directory, *TIMEOUT, **environment) as cluster:
        run = Run(cluster, broker, directory, figures)
        run.say(FIRST)
        run.await_all(FIRST)
        yield run
    figures.close()


def tasks_by_number(run, component, stream):
    """Return the tasks that got each number on a stream."""
    tasks = {}
    for note in run.notes(component):
        if note["stream"] == stream:
            tasks.setdefault(note["n"], set()).add(note["task"])
    return tasks


def test_each_grouping_gives_a_tuple_to_the_tasks_it_chooses(run):
    by_key = {(note["n"] % KEYS, note["task"]) for note in run.notes("by-key")}
    assert len(by_key) == KEYS and {task for _, task in by_key} == {0, 1}, "fields: each key has one task"
    assert tasks_by_number(run, "spread", "route/even") == {n: {0, 1} for n in EVEN}, "all"
    assert tasks_by_number(run, "spread", "route/chosen") == {n: {n % 2} for n in LUCKY}, "direct"
    assert tasks_by_number(run, "spread", "route/default").keys() == LUCKY, "partial key"
    assert tasks_by_number(run, "one", "route/default") == {n: {0} for n in LUCKY}, "global"
    assert tasks_by_number(run, "one", "route/even").keys() == EVEN, "none"
    assert tasks_by_number(run, "one", "numbers/default").keys() == set(FIRST), "local or shuffle"


def test_a_tuple_tells_its_message_after_two_hops(run):
    for note in run.notes("by-key"):
        assert (note["partition"], note["offset"]) == (note["n"] % PARTITIONS, note["n"] // PARTITIONS)


def attempts_of(run):
    return Counter(note["n"] for note in run.notes("route") if "first" in note)


def test_an_emit_returns_the_tasks_that_storm_chose(run):
    emitted = {note["n"]: note["emitted_to"] for note in run.notes("route") if "emitted_to" in note}
    assert emitted.keys() == LUCKY and {len(set(tasks)) for tasks in emitted.values()} == {3}, "one of each bolt"


def test_a_bolt_is_ticked_by_storm_or_by_its_process(run):
    until(lambda: (run.directory / "ticked-by-storm").exists(), "a tick of Storm")
    until(lambda: (run.directory / "ticked-by-itself").exists(), "a tick of the process")


def test_a_failed_message_comes_again_and_a_silent_one_after_the_timeout_of_storm(run):
    attempts = attempts_of(run)
    assert attempts[LATE] == attempts[SILENT] == 2 and attempts[8] == 1


def test_a_message_whose_service_is_away_is_executed_again_without_a_failure_inside_storm(run):
    assert attempts_of(run)[AWAY] == 2 and AWAY in run.seen("by-key")
    until(lambda: run.figures.snapshot().component("numbers").total("acked") == len(LUCKY), "the acked messages")

    def unanswered():
        route = run.figures.snapshot().component("route")
        return route.total("executed") - route.total("acked") - route.total("failed")

    until(lambda: unanswered() == 2, "the silent one, and this one, without an answer at the first execution")


def test_a_message_that_always_fails_becomes_a_dead_letter(run):
    def letters():
        with Client(run.broker.address) as client:
            if f"{TOPIC}.dead-letters" not in [topic.name for topic in client.topics()]:
                return []
            return client.fetch(f"{TOPIC}.dead-letters", 0, 0)[0]

    (letter,) = until(letters, "the dead letter")
    assert json.loads(letter.value) == {"n": UNLUCKY}
    assert dict(letter.headers)["flakelog-dead-attempts"] == b"3"
    assert dict(letter.headers)["flakelog-dead-error"] == b"ValueError: 13 is unlucky, in route"
    assert attempts_of(run)[UNLUCKY] == 3


def test_partitions_are_divided_among_tasks_and_progress_is_stored(run, flakelog):
    store = run.directory / "progress"

    def behind():
        code, out, _ = flakelog(f"spout progress show everything.numbers --store {store} --json")
        partitions = [json.loads(line) for line in out.splitlines()] if code == 0 else []
        return len(partitions) == PARTITIONS and all(partition["lag"] == 0 for partition in partitions)

    until(behind, "the stored progress of each partition")


def documents(broker):
    """Return the documents of the topology's processes that run."""
    with Client(broker.address) as client:
        records, _ = client.fetch("__flakelog_topologies", 0, 0, max_bytes=1 << 24)
    published = running([(record.key, record.value) for record in records], now_ms=0)
    return [document for document in published if document["topology"] == "everything"]


def test_each_process_publishes_its_figures_and_together_they_are_those_of_the_topology(run):
    until(lambda: len(documents(run.broker)) == TASKS, "a document of each task")
    figures = run.figures.snapshot()
    names = ("numbers", "route", "by-key", "spread", "one")
    assert {component.name: len(component.tasks) for component in figures.components} == dict.fromkeys(names, 2)
    assert figures.state == "running" and not figures.problems
    assert sorted(partition.partition for partition in figures.partitions) == list(range(PARTITIONS))


def test_the_console_shows_the_topology_inside_storm_as_one(run):
    def page():
        text = Visitor(run.broker.http).get("/console/topology?id=everything")[1]
        return "<dt>Lag</dt><dd>0<" in text and text

    shown = until(page, "the topology without lag")
    assert shown.count("a task of route") == 2 and "2 × spout" in shown


def test_a_print_of_a_user_is_a_line_of_the_log(run):
    log = (run.directory / "storm.log").read_text()
    assert re.search("INFO .* a print of a user goes to the log", log)
    assert re.search("WARN .* and what is an error stands out", log)


def test_while_it_is_deactivated_nothing_is_emitted_and_nothing_is_lost(run):
    run.cluster.ask("deactivate")
    until(lambda: len(list(run.directory.glob("deactivated-*"))) == 2, "the deactivation of both spout tasks")
    before = len(run.notes("route"))
    later = range(200, 212)
    run.say(later)

    def behind():
        lags = [partition["lag"] for document in documents(run.broker) for partition in document["partitions"]]
        return None not in lags and sum(lags) == len(later)

    until(behind, "the figures of the messages that wait")
    assert len(run.notes("route")) == before
    run.cluster.ask("activate")
    run.await_all(later)


def test_a_stop_ends_all_processes_in_order(run):
    run.cluster.stop()
    assert run.cluster.wait() == 0
    assert documents(run.broker) == [], "each process took its figures back"
