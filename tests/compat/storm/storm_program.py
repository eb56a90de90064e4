"""Topologies for the tests inside Storm. Each bolt writes a line for each of its tuples into STORM_TEST_DIRECTORY.

`numbers` notes each message of a topic whose values are numbers. `everything` reads a topic of JSON objects {"n": ...}.
The messages 7, 107, ... fail at the first attempt, 13, 113, ... fail always, and 17, 117, ... get no answer at the
first attempt. 19, 119, ... find their service away at first. While the file `away` is there, all below 1,000 do.
"""

import json
import os
import sys
from pathlib import Path
from threading import Event

from flakelog import Bolt, JsonScheme, LogSpout, SpoutConfig, StringScheme, Topology, Unavailable

DIRECTORY = Path(os.environ.get("STORM_TEST_DIRECTORY", ".")).resolve()
KEYS = 5
FAST = SpoutConfig(
    spout_max_attempts=3,
    spout_retry_initial_ms=50,
    spout_retry_max_ms=100,
    spout_commit_interval_ms=100,
    spout_outage_after_messages=0,
)


class Paused(LogSpout):
    """A spout that notes in a file of its task that it was deactivated."""

    def deactivate(self):
        super().deactivate()
        (DIRECTORY / f"deactivated-{self.context.index}").touch()


class Noted(Bolt):
    """A bolt that notes its tuples in a file of its task."""

    def prepare(self):
        self.notes = open(DIRECTORY / f"{self.context.component}-{self.context.index}.jsonl", "a", buffering=1)

    def note(self, **facts):
        self.notes.write(json.dumps(facts | {"task": self.context.index, "pid": os.getpid()}) + "\n")

    def execute(self, tup):
        (message,) = tup.messages
        stream = f"{tup.component}/{tup.stream}"
        self.note(n=tup["n"], stream=stream, partition=message.partition, offset=message.offset)


class TickedByStorm(Noted):
    """A bolt that Storm ticks, because its interval is of whole seconds."""

    tick_interval_ms = 1_000

    def tick(self):
        (DIRECTORY / "ticked-by-storm").touch()


class TickedByItself(Noted):
    """A bolt whose process ticks it."""

    tick_interval_ms = 50

    def tick(self):
        (DIRECTORY / "ticked-by-itself").touch()


class Route(Noted):
    """Emits to three streams; answers some tuples late or with a failure."""

    auto_ack = False
    needs_task_ids = True

    def declare_output_fields(self, declarer):
        declarer.declare("n", "key")
        declarer.declare_stream("even", "n")
        declarer.declare_stream("chosen", "n", direct=True)

    def execute(self, tup):
        n = tup["n"]
        first = not (DIRECTORY / f"seen-{n}").exists()
        self.note(n=n, first=first)
        if n % 100 in (7, 17, 19):
            (DIRECTORY / f"seen-{n}").touch()
        if (n % 100 == 19 and first) or (n < 1_000 and (DIRECTORY / "away").exists()):
            raise Unavailable(f"the service of {n} is away")
        if n % 100 == 17 and first:
            return
        if n % 100 == 13 or (n % 100 == 7 and first):
            self.fail(tup, ValueError(f"{n} is unlucky"))
            return
        print("a print of a user goes to the log")
        print("and what is an error stands out", file=sys.stderr)
        self.note(n=n, emitted_to=self.emit((n, n % KEYS), anchors=[tup]))
        if n % 2 == 0:
            self.emit((n,), anchors=[tup], stream="even")
        tasks = self.context.tasks_of("spread")
        self.emit((n,), anchors=[tup], stream="chosen", task=tasks[n % len(tasks)])
        self.ack(tup)


def everything():
    """Return a topology with every grouping that Storm has, and several streams."""
    topology = Topology("everything")
    servers, topic = os.environ["FLAKELOG_SERVERS"], os.environ["STORM_TEST_TOPIC"]
    spout = Paused(topic, servers=servers, store=str(DIRECTORY / "progress"), scheme=JsonScheme("n"), config=FAST)
    topology.spout("numbers", spout, parallelism=2)
    topology.bolt("route", Route(), parallelism=2).shuffle("numbers")
    topology.bolt("by-key", Noted(), parallelism=2).fields("route", "key")
    spread = topology.bolt("spread", TickedByStorm(), parallelism=2).all("route", stream="even")
    spread.direct("route", stream="chosen").partial_key("route", "key")
    single = topology.bolt("one", TickedByItself(), parallelism=2).global_("route")
    single.local_or_shuffle("numbers").none("route", stream="even")
    return topology


class Check(Noted):
    """A bolt that notes the number in each message. It takes STORM_TEST_PREPARE_SECONDS to prepare."""

    def prepare(self):
        Event().wait(float(os.environ.get("STORM_TEST_PREPARE_SECONDS", 0)))
        super().prepare()

    def execute(self, tup):
        self.note(n=int(tup["value"]))


def numbers():
    """Return a topology with a spout of two tasks, whose progress is where STORM_TEST_STORE says."""
    topology = Topology("numbers")
    config = SpoutConfig(spout_commit_interval_ms=100)
    store = os.environ.get("STORM_TEST_STORE", str(DIRECTORY / "progress"))
    servers, topic = os.environ["FLAKELOG_SERVERS"], os.environ["STORM_TEST_TOPIC"]
    spout = LogSpout(topic, servers=servers, store=store, scheme=StringScheme(), config=config)
    topology.spout("numbers", spout, parallelism=2)
    topology.bolt("check", Check(), parallelism=2).fields("numbers", "value")
    return topology


def demo():
    """Return the demo's topology."""
    from flakelog.demo.stream import make_topology

    return make_topology(os.environ["FLAKELOG_SERVERS"], os.environ["STORM_TEST_TOPIC"], DIRECTORY)
