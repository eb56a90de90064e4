"""Where tuples come from: their messages, the path of emits, and what a failure's report shows of them."""

from flakelog.testing import TopologyDriver
from spout.api import Bolt, Spout, Unavailable
from spout.bolts import BatchBolt
from spout.config import TopologyConfig
from spout.executor import Executor
from spout.log_spout import LogSpout
from spout.origin import MessagePlace, Origin
from spout.topology import Topology
from tests.spout.worlds import SpoutWorld


class Origins(Bolt):
    """A bolt that records the origin of each input."""

    def __init__(self):
        self.seen = []

    def execute(self, tup):
        self.seen.append(tup.origin)


class Twice(Bolt):
    """A bolt that emits each value twice, and fails the first time it sees the value b"fails"."""

    output_fields = ("value",)

    def __init__(self):
        self.failed = False

    def execute(self, tup):
        self.emit((tup["value"],))
        if tup["value"] == b"fails" and not self.failed:
            self.failed = True
            raise RuntimeError("on purpose")
        self.emit((tup["value"],))


def log_driver(world, connect):
    topology = Topology("t")
    topology.spout("log", LogSpout("flights"))
    connect(topology)
    return TopologyDriver(topology, world)


def origins_of(driver):
    return driver.tasks("origins")[0].seen


def test_a_tuple_knows_its_message_and_the_emits_that_led_to_it():
    world = SpoutWorld()
    world.log.append(b"zero")
    world.log.append(b"one")

    def connect(topology):
        topology.bolt("twice", Twice()).shuffle("log")
        topology.bolt("origins", Origins()).shuffle("twice")

    messages = (MessagePlace(world.log.topic_id, 0, 1),)
    assert origins_of(log_driver(world, connect).run())[2:] == [
        Origin(messages, (("log", 0), ("twice", 0))),
        Origin(messages, (("log", 0), ("twice", 1))),
    ]


def test_a_message_has_the_same_origins_at_every_attempt():
    world = SpoutWorld()
    world.log.append(b"fails")

    def connect(topology):
        topology.bolt("twice", Twice()).shuffle("log")
        topology.bolt("origins", Origins()).shuffle("twice")

    first, again, second = origins_of(log_driver(world, connect).advance(10_000))
    assert first == again != second and first.messages == second.messages


def test_the_tuples_a_spout_emits_for_one_message_are_numbered():
    class Pairs(Spout):
        output_fields = ("n",)
        next = 0

        def next_tuple(self):
            if self.next < 2:
                self.next += 1
                self.emit((1,), id="same")
                self.emit((2,), id="same")

    topology = Topology("t")
    topology.spout("pairs", Pairs())
    topology.bolt("origins", Origins()).shuffle("pairs")
    seen = origins_of(TopologyDriver(topology).run())
    assert [origin.path for origin in seen] == [(("pairs", 0),), (("pairs", 1),)] * 2
    assert {origin.messages for origin in seen} == {(MessagePlace("pairs", 0, "same"),)}


def test_a_tuple_anchored_to_a_batch_comes_from_all_its_messages():
    class Batch(BatchBolt):
        output_fields = ("n",)

        def process_batch(self, batch):
            self.emit((len(batch),), anchors=batch)

    world = SpoutWorld()
    for _ in range(3):
        world.log.append()

    def connect(topology):
        topology.bolt("batch", Batch()).shuffle("log")
        topology.bolt("origins", Origins()).shuffle("batch")

    (origin,) = origins_of(log_driver(world, connect).advance(1_000))
    assert [message.offset for message in origin.messages] == [0, 1, 2]


def test_a_failing_bolt_is_reported_with_its_traceback_and_the_message():
    world = SpoutWorld()
    world.log.append(b"fails")
    topology = Topology("t")
    topology.spout("log", LogSpout("flights"))
    topology.bolt("twice", Twice()).shuffle("log")
    reports = []
    plan, config = topology.plan(), TopologyConfig()
    executor = Executor(plan, config, world, run_id="r", random_bits=lambda: 1, report=reports.append)
    executor.start(0)
    for _ in range(5):
        executor.step(0)
    (report,) = [report for report in reports if report.level == "error"]
    assert (report.task, report.text) == ("twice[0]", "RuntimeError: on purpose")
    assert report.messages == [{"topic": "flights", "partition": 0, "offset": 0, "id": 1000, "attempt": 1}]
    assert "in execute" in report.traceback and report.traceback.endswith("RuntimeError: on purpose\n")


def test_a_spout_is_told_if_a_service_was_unavailable():
    class Listening(Spout):
        output_fields = ("n",)

        def __init__(self):
            self.numbers, self.failures = [1, 2], []

        def next_tuple(self):
            if self.numbers:
                self.emit((self.numbers[0],), id=self.numbers.pop(0))

        def fail(self, id):
            self.failures.append((id, self.context.failure, self.context.unavailable))

    class Needs(Bolt):
        def execute(self, tup):
            raise Unavailable("no database") if tup["n"] == 1 else KeyError("x")

    topology = Topology("t")
    topology.spout("told", Listening())
    topology.bolt("needs", Needs()).shuffle("told")
    (spout,) = TopologyDriver(topology).run().tasks("told")
    assert spout.failures == [(1, "Unavailable: no database, in needs", True), (2, "KeyError: 'x', in needs", False)]
