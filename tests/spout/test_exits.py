"""SystemExit, KeyboardInterrupt and other BaseExceptions of user code: what they end, and what they fail."""

import asyncio
import sys

import pytest
from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs

from flakelog.testing import MemoryWorld, TopologyDriver
from spout.api import Bolt, Spout
from spout.background import TwistedBackground
from spout.bolts import BatchBolt
from spout.log_spout import LogSpout
from spout.runner import Runner, RunnerState
from spout.topology import Topology
from tests.spout.test_runner import ended, turn
from tests.spout.worlds import Collect, SpoutWorld


class Fatal(BaseException):
    """An exception of a user's own."""


class InStep(Bolt):
    """A bolt that raises `error` at each message whose value begins with "bad"."""

    def __init__(self, error):
        self.error = error
        self.seen = []

    def execute(self, tup):
        self.work(tup)

    def work(self, tup):
        if tup["value"].startswith(b"bad"):
            raise self.error
        self.seen.append(tup["value"])


class InThread(InStep):
    threads = 1


class InCoroutine(InStep):
    async def execute(self, tup):
        await asyncio.sleep(0)
        self.work(tup)


class InBatch(BatchBolt):
    tick_interval_ms = 10

    def __init__(self, error):
        self.error = error
        self.seen = []

    def process_batch(self, batch):
        InStep.work(self, batch[0])
        self.seen += [tup["value"] for tup in batch[1:]]


BOLT_CLASSES = [InStep, InThread, InCoroutine]


def topology_of(bolt, spout=None):
    topology = Topology("t")
    topology.spout("lines", spout or LogSpout("lines", store="progress"))
    topology.bolt("work", bolt).shuffle("lines")
    return topology


def world_of(*values):
    world = MemoryWorld()
    for value in values:
        world.topic("lines").append(value)
    return world


def drive(topology, world):
    """Run the topology for a second; return the driver and the exception that it raised."""
    driver = TopologyDriver(topology, world)
    try:
        driver.advance(1_000)
    except (SystemExit, KeyboardInterrupt) as error:
        return driver, error
    return driver, None


@pytest.mark.parametrize("bolt_class", BOLT_CLASSES)
@pytest.mark.parametrize("error, code", [(SystemExit(3), 3), (KeyboardInterrupt(), 130), (SystemExit("no"), 1)])
def test_an_exit_stops_the_topology_and_leaves_its_message_alone_unsettled(bolt_class, error, code):
    world = world_of(b"a", b"bad", b"c")
    driver, raised = drive(topology_of(bolt_class(error)), world)
    assert type(raised) is type(error) and raised.args == error.args
    (report,) = [text for _, text in driver.reports if "exit code" in text]
    ending = "the message stays unsettled and comes again at the next start"
    assert report == f"execute raised {error!r}: the topology stops with exit code {code}; {ending}"
    assert world.progress("lines")[0].offset == 1 and world.letters("lines") == []
    again = TopologyDriver(topology_of(Collect()), world).run()
    assert [values[-1] for values in again.tasks("work")[0].seen] == [b"bad"]


def test_an_exit_in_a_batch_leaves_all_of_the_batch_and_in_a_tick_nothing():
    world = world_of(b"bad", b"b", b"c")
    driver, raised = drive(topology_of(InBatch(SystemExit(3))), world)
    assert raised.code == 3 and world.progress("lines")[0].offset == 0 and driver.executor.in_flight == 0

    class Ticks(Collect):
        tick_interval_ms = 10

        def tick(self):
            sys.exit(4)

    world = world_of(b"a")
    driver, raised = drive(topology_of(Ticks()), world)
    assert raised.code == 4 and world.progress("lines")[0].offset == 1
    assert ("work[0]", "tick raised SystemExit(4): the topology stops with exit code 4") in driver.reports


@pytest.mark.parametrize("bolt_class", [*BOLT_CLASSES, InBatch])
@pytest.mark.parametrize("error", [asyncio.CancelledError("by the user"), Fatal("x"), GeneratorExit("y")])
def test_every_other_exception_fails_the_message(bolt_class, error):
    world = world_of(b"a", b"bad", b"c") if bolt_class is not InBatch else world_of(b"bad")
    driver, raised = drive(topology_of(bolt_class(error)), world)
    assert raised is None and driver.executor.in_flight == 0
    assert sum(counts.failed for counts in driver.executor.counts()["lines"]) >= 1
    assert any(type(error).__name__ in text for _, text in driver.reports)


def test_an_exit_of_a_spout_or_of_its_scheme_names_the_spout_and_the_message():
    class Decodes:
        fields = ("value",)

        def tuples(self, record, partition):
            if record.value == b"bad":
                sys.exit(5)
            return [(record.value,)]

    world = world_of(b"a", b"bad")
    driver, raised = drive(topology_of(Collect(), LogSpout("lines", store="progress", scheme=Decodes())), world)
    (report,) = [text for task, text in driver.reports if task == "lines[0]" and "exit" in text]
    assert raised.code == 5 and report.endswith("comes again at the next start; lines-0 offset 1")
    assert world.progress("lines")[0].offset == 1


def test_an_exit_in_cleanup_is_one_line_that_names_the_bolt():
    class Exits(Collect):
        def cleanup(self):
            sys.exit(3)

    driver = TopologyDriver(topology_of(Exits(), LogSpout("lines", store="progress")))
    with pytest.raises(SystemExit):
        driver.executor.close(0)
    assert driver.reports == [("work[0]", "cleanup raised SystemExit(3): the topology stops with exit code 3")]


# --- the embedded engine


@pytest.mark.parametrize(
    "error, text, shows_traceback",
    [
        (Fatal("no database"), "work[0]: Fatal: no database", True),
        (SystemExit(3), "work[0]: prepare raised SystemExit(3): the topology stops with exit code 3", False),
    ],
)
def test_what_prepare_raises_is_logged_with_the_name_of_its_bolt(error, text, shows_traceback):
    class Broken(Collect):
        def prepare(self):
            raise error

    with capturedLogs() as events, pytest.raises(type(error)):
        Runner(topology_of(Broken(), LogSpout("lines")), world=SpoutWorld(), reactor=Clock()).start()
    (event,) = [event for event in events if event["log_level"] is LogLevel.error]
    assert event["text"] == text and bool(event["traceback"]) is shows_traceback


def test_a_runner_drains_stores_progress_and_ends_with_the_exit():
    class Exits(Collect):
        def execute(self, tup):
            if tup["value"] == b"bad":
                sys.exit(3)
            super().execute(tup)

    world = SpoutWorld()
    for value in (b"a", b"bad", b"c"):
        world.log.append(value)
    topology = Topology("t")
    topology.spout("log", LogSpout("t"))
    topology.bolt("collect", Exits()).shuffle("log")
    runner = Runner(topology, world=world, reactor=Clock())
    run = runner.start()
    turn(runner)
    (error,) = ended(run)
    assert isinstance(error, SystemExit) and error.code == 3 and runner.state is RunnerState.STOPPED
    assert b'"offset":1' in world.ensemble.nodes["/flakelog-spouts/t.log/partition_0"].data
    (collect,) = runner.executor.instances_of("collect")
    assert [values[-1] for values in collect.seen] == [b"a", b"c"]


def test_a_base_exception_of_a_spout_ends_the_run_with_it():
    class Broken(Spout):
        def next_tuple(self):
            raise Fatal("gone")

    topology = Topology("t")
    topology.spout("broken", Broken())
    runner = Runner(topology, world=SpoutWorld(), reactor=Clock())
    run = runner.start()
    turn(runner)
    (error,) = ended(run)
    assert isinstance(error, Fatal) and runner.state is RunnerState.STOPPED


def test_an_exit_in_a_coroutine_ends_neither_the_loop_nor_its_reactor():
    loop = asyncio.new_event_loop()
    reactor = AsyncioSelectorReactor(loop)
    background = TwistedBackground(reactor)
    errors = []

    async def work():
        await asyncio.sleep(0)
        sys.exit(3)

    async def main():
        done = loop.create_future()
        background.run_coroutine("bolt", work(), done.set_result)
        errors.append(await done)

    loop.run_until_complete(main())
    background.close()
    reactor.disconnectAll()
    loop.close()
    assert isinstance(errors[0], SystemExit) and errors[0].code == 3
