"""Opening, closing, pausing and ticking of tasks, their own counters, and the log of bolts that block."""

import pytest

from flakelog.testing import TopologyDriver
from spout.api import Bolt
from spout.bolts import BatchBolt
from spout.config import TopologyConfig
from spout.engine_spout import EngineSpout
from spout.executor import Executor
from spout.topology import Topology, TopologyError
from tests.spout.test_executor import Numbers, driver_of, seen, spout_of
from tests.spout.worlds import Collect


class NotesSpout(EngineSpout):
    output_fields = ("n",)

    def __init__(self, name, notes, raises=()):
        self.name, self.notes, self.raises = name, notes, raises

    def next_tuple(self):
        self._note("next_tuple")

    def next_deadline_ms(self):
        return None

    def open(self):
        self._note("open")

    def close(self):
        self._note("close")

    def _note(self, method):
        self.notes.append(f"{self.name} {method}")
        if method in self.raises:
            raise OSError(f"{self.name} {method}")


class NotesBolt(Bolt):
    def __init__(self, name, notes, raises=()):
        self.name, self.notes, self.raises = name, notes, raises

    def prepare(self):
        self._note("prepare")

    def cleanup(self):
        self._note("cleanup")

    _note = NotesSpout._note


def notes_topology(notes, **raises):
    topology = Topology("t")
    topology.spout("a", lambda: NotesSpout("a", notes, raises.get("a", ())))
    topology.spout("b", lambda: NotesSpout("b", notes, raises.get("b", ())))
    topology.bolt("c", lambda: NotesBolt("c", notes, raises.get("c", ()))).shuffle("a").shuffle("b")
    return topology


@pytest.mark.parametrize(
    "raises, notes",
    [
        ({"c": ("prepare",)}, ["c prepare"]),
        ({"a": ("open",)}, ["c prepare", "a open", "c cleanup"]),
        ({"b": ("open",)}, ["c prepare", "a open", "b open", "a close", "c cleanup"]),
    ],
)
def test_if_one_cannot_be_opened_those_opened_before_are_closed(raises, notes):
    noted = []
    ((name, (method,)),) = raises.items()
    with pytest.raises(OSError, match=f"^{name} {method}$"):
        TopologyDriver(notes_topology(noted, **raises))
    assert noted == notes


def test_one_that_cannot_be_closed_keeps_no_other_from_closing():
    noted = []
    driver = TopologyDriver(notes_topology(noted, b=("close",), c=("cleanup",)))
    with pytest.raises(OSError, match="^b close$"):
        driver.executor.close(0)
    assert noted[3:] == ["b close", "a close", "c cleanup"]
    assert driver.reports == [("b[0]", "OSError: b close"), ("c[0]", "OSError: c cleanup")]
    driver.executor.close(0)
    assert len(noted) == 6, "each is closed once"


# --- pause and resume


def test_one_spout_pauses_while_the_others_go_on():
    noted = []
    driver = TopologyDriver(notes_topology(noted)).run()
    driver.executor.deactivate(0, "a")
    noted.clear()
    assert driver.run() and noted == ["b next_tuple"]
    driver.executor.activate(0, "a")
    assert driver.run() and sorted(noted) == ["a next_tuple", "b next_tuple", "b next_tuple"]
    with pytest.raises(TopologyError, match="there is no spout 'c' in 't'; there are: a, b"):
        driver.executor.deactivate(0, "c")


def test_a_second_pause_or_resume_changes_nothing():
    driver = driver_of(lambda t: None, Numbers(0))
    driver.executor.activate(0)
    driver.executor.deactivate(0)
    driver.executor.deactivate(0, "numbers")
    assert spout_of(driver).calls == ["activate", "deactivate"]


# --- ticks, counters, time


@pytest.mark.parametrize("first_ms, times", [(None, [250, 500, 750]), (0, [0, 250, 500, 750]), (700, [700])])
def test_the_first_tick_may_have_a_delay_of_its_own(first_ms, times):
    class Ticks(Collect):
        tick_interval_ms = 250
        tick_first_ms = first_ms

        def tick(self):
            self.seen.append(self.context.now_ms)

    driver = driver_of(lambda t: t.bolt("ticks", Ticks()).shuffle("numbers"), Numbers(0)).advance(800)
    assert driver.tasks("ticks")[0].seen == times


class Counts(Bolt):
    def prepare(self):
        self.odd = self.context.counter("odd")

    def execute(self, tup):
        self.odd.add(tup["n"] % 2)
        self.context.gauge("last").set(tup["n"])


def test_counters_and_gauges_are_summed_over_the_tasks_of_a_component():
    driver = driver_of(lambda t: t.bolt("counts", Counts(), parallelism=2).shuffle("numbers")).run()
    assert driver.executor.metrics() == {"numbers": {}, "counts": {"odd": 5, "last": 8 + 9}}


@pytest.mark.parametrize(
    "name, reason",
    [("odd", "has 'odd' as a counter and as a gauge"), ("more", "flakelog.bolt.metrics.max allows 2"), ("", "a name")],
)
def test_a_name_of_a_gauge_is_its_own_and_their_number_is_limited(name, reason):
    driver = driver_of(lambda t: t.bolt("counts", Counts()).shuffle("numbers"), bolt_metrics_max=2).run()
    with pytest.raises(ValueError, match=reason):
        driver.tasks("counts")[0].context.gauge(name)


def test_a_bolt_that_blocks_the_engines_thread_is_named_once_a_minute():
    clock, reports = [0], []

    class Blocks(Bolt):
        def execute(self, tup):
            clock[0] += (99, 100, 150, 5)[tup["n"]] * 1_000_000

    topology = Topology("t")
    topology.spout("numbers", Numbers(4))
    topology.bolt("blocks", Blocks()).shuffle("numbers")
    plan, config = topology.plan(), TopologyConfig()
    executor = Executor(
        plan, config, None, run_id="r", random_bits=lambda: 1, report=reports.append, clock_ns=lambda: clock[0]
    )
    executor.start(0)
    turns = 0
    while executor.step(0):
        turns += 1
    (report,) = reports
    assert (report.level, report.task) == ("warn", "blocks[0]")
    assert report.text == (
        "execute took 100 ms, and nothing else ran in the engine's thread meanwhile: "
        "set `threads` on the bolt, or make it `async def execute`"
    )
    assert executor.counts()["blocks"][0].busy_ns == 354_000_000
    assert turns >= 4, "each long execute ends the task's turn"


# --- batches


def test_what_a_batch_emits_is_anchored_to_all_of_it_also_on_a_tick():
    class Sums(BatchBolt):
        output_fields = ("sum",)
        batch_size = 3

        def process_batch(self, batch):
            self.emit((sum(tup["n"] for tup in batch),))

    def connect(topology):
        topology.bolt("sums", Sums()).shuffle("numbers")
        topology.bolt("collect", Collect(lambda tup, again: tup["sum"] in (3, 13))).shuffle("sums")

    driver = driver_of(connect, Numbers(8)).advance(1_000)
    assert seen(driver) == [[3, 12, 13]]
    assert [id for id, _ in spout_of(driver).failed] == [0, 1, 2, 6, 7] and spout_of(driver).acked == [3, 4, 5]
