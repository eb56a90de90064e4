"""A test driver that runs bolts and topologies on the real executor with a simulated clock, without threads or waits.

    with TopologyDriver(word_count) as test:
        test.log("sentences").append("a b a")
        test.run()                              until nothing is left to do at this time
        test.advance(1_000)                     a second later
        assert test.emitted("count") == [("a", 1), ("b", 1), ("a", 2)]

    result = run_bolt(Count(), [("a", 1), ("b", 2)], fields=("word", "n"))
    assert result.emitted == [("a", 1), ("b", 2)] and result.failed == []
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any

from flakelog.testing.background import SimulatedBackground
from flakelog.testing.memory import MemoryLog, MemoryWorld
from partition_manager.ports import DeadLetter
from partition_manager.progress import Progress
from spout.api import DEFAULT_STREAM, Bolt, OutputDeclarer
from spout.config import TopologyConfig
from spout.engine_spout import EngineSpout
from spout.executor import Executor
from spout.topology import Topology

STEPS_MAX = 1_000_000  # a topology with work after this number of steps without a time change never rests
RUNS = count(1)


def repeatable_bits(seed: int) -> Callable[[], int]:
    """Return a function that returns 64 pseudo-random bits a call; the same seed gives the same bits.

    SplitMix64 (Steele, Lea, Flood 2014).
    """
    state = seed

    def bits() -> int:
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        return mixed ^ (mixed >> 31)

    return bits


class TopologyDriver:
    """A run of a topology in a test. As a context manager it stops the topology at the end, unless the test failed.

    `world` holds topics, dead letters and stored progress, by default new and empty; a second driver with the same
    world is a restart. If a bolt or spout raises SystemExit or KeyboardInterrupt, the driver stops the topology as the
    engine does, and raises it. `reports` holds the lines for the log, as (task, text). `run_id` is new for each driver,
    and `seed` fixes the order of what is random, so a test runs the same way each time.
    """

    def __init__(
        self,
        topology: Topology,
        world: MemoryWorld | None = None,
        *,
        now_ms: int = 0,
        config: TopologyConfig = TopologyConfig(),
        run_id: str | None = None,
        seed: int = 1,
    ) -> None:
        self.now_ms = now_ms
        self.world = MemoryWorld() if world is None else world
        self.reports: list[tuple[str, str]] = []
        self._emitted: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
        self._background = SimulatedBackground()
        plan = topology.plan()
        self.executor = Executor(
            plan,
            config,
            self.world,
            run_id=f"test-{next(RUNS)}" if run_id is None else run_id,
            random_bits=repeatable_bits(seed),
            report=lambda report: self.reports.append((report.task, report.text)),
            background=self._background,
        )
        for node in plan.nodes:
            self._emitted |= {(node.name, stream): [] for stream in node.streams}
            for task in self.executor.instances_of(node.name):
                self._record(node.name, task.collector)
        self.executor.start(now_ms)

    def __enter__(self) -> "TopologyDriver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()

    # --- time

    def run(self) -> "TopologyDriver":
        """Step until no work is left at this time. Raise RuntimeError if work never ends."""
        self._work()
        if self.executor.exit is not None:
            self.stop()
        return self

    def _work(self) -> None:
        for _ in range(STEPS_MAX):
            worked = self.executor.step(self.now_ms)
            if not self._background.step(self.now_ms) and not worked:
                return
        raise RuntimeError(f"the topology still works after {STEPS_MAX} steps: does a spout emit without end?")

    def advance(self, ms: int) -> "TopologyDriver":
        """Advance the clock from deadline to deadline, doing the work due at each."""
        end_ms = self.now_ms + ms
        while True:
            self.run()
            times = (self.executor.next_deadline_ms(), self._background.next_deadline_ms())
            due_ms = min((time for time in times if time is not None), default=None)
            if due_ms is None or due_ms > end_ms:
                break
            self.now_ms = max(due_ms, self.now_ms + 1)
        self.now_ms = end_ms
        return self.run()

    def stop(self) -> "TopologyDriver":
        """Stop as the engine does: let tuples in flight complete, store progress, close."""
        self.executor.deactivate(self.now_ms)
        self._work()
        self.executor.finish(self.now_ms)
        self._work()
        self.executor.close(self.now_ms)
        if self.executor.exit is not None:
            raise self.executor.exit
        return self

    def kill(self) -> None:
        """End the run as a crash does: no progress is stored and no component is closed. Coroutines are cancelled."""
        self._background.close()

    # --- what went in and what came out

    def log(self, topic: str, *, partitions: int | None = None) -> MemoryLog:
        """Return a topic to append to. It is created if there is none, by default with one partition."""
        return self.world.topic(topic, partitions=partitions)

    def emitted(self, component: str, stream: str = DEFAULT_STREAM) -> list[tuple[Any, ...]]:
        """Return the values of all tuples that a component's tasks emitted, in order.

        A message that failed is emitted again, so its tuples may be here twice. Raise LookupError if the topology has
        no such component or stream.
        """
        try:
            return list(self._emitted[component, stream])
        except KeyError:
            streams = ", ".join(f"{component} to {stream!r}" for component, stream in self._emitted)
            raise LookupError(f"{component!r} emits nothing to {stream!r}; there are: {streams}") from None

    def dead_letters(self, topic: str) -> list[DeadLetter]:
        """Return the messages of a topic that were given up, in order."""
        return self.world.letters(topic)

    def progress(self, topic: str) -> dict[int, Progress]:
        """Return the stored progress of each partition of a topic."""
        return self.world.progress(topic)

    def tasks(self, component: str) -> list[Any]:
        """Return the spout or bolt objects of a component."""
        return self.executor.instances_of(component)

    def _record(self, component: str, collector: Any) -> None:
        """Keep the values of each emit of a task."""
        emit: Any = collector.emit
        emit_all: Any = getattr(collector, "emit_all", None)  # of spouts only

        def recording(values: Sequence[Any], *, stream: str = DEFAULT_STREAM, **rest: Any) -> list[int]:
            tasks: list[int] = emit(values, stream=stream, **rest)
            self._emitted[component, stream].append(tuple(values))
            return tasks

        def recording_all(rows: Sequence[Sequence[Any]], id: Any = None) -> None:
            emit_all(rows, id)
            self._emitted[component, DEFAULT_STREAM] += [tuple(values) for values in rows]

        collector.emit = recording
        if emit_all is not None:
            collector.emit_all = recording_all


@dataclass
class BoltResult:
    """The result of a bolt's run. `acked` and `failed` hold the values of inputs, `errors` the lines for the log.

    `emitted` holds the values emitted to the default stream, `streams` those of every stream by its name.
    """

    emitted: list[tuple[Any, ...]] = field(default_factory=list)
    acked: list[tuple[Any, ...]] = field(default_factory=list)
    failed: list[tuple[Any, ...]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    streams: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)


def run_bolt(
    bolt: Bolt, inputs: Sequence[Sequence[Any]], *, fields: Sequence[str], advance_ms: int = 1_000
) -> BoltResult:
    """Run a copy of `bolt` with these inputs, in order, and advance the clock by `advance_ms`, so that ticks come."""
    result = BoltResult()
    topology = Topology("run-bolt")
    topology.spout("inputs", lambda: _Inputs(inputs, fields, result))
    topology.bolt("bolt", bolt).shuffle("inputs")
    driver = TopologyDriver(topology).advance(advance_ms).stop()
    result.errors = [text for _, text in driver.reports]
    result.streams = {stream: driver.emitted("bolt", stream) for stream in topology.plan().bolts[0].streams}
    result.emitted = result.streams.get(DEFAULT_STREAM, [])
    return result


class _Inputs(EngineSpout):
    def __init__(self, inputs: Sequence[Sequence[Any]], fields: Sequence[str], result: BoltResult) -> None:
        self._inputs = [tuple(values) for values in reversed(inputs)]
        self._fields = fields
        self._result = result

    def declare_output_fields(self, declarer: OutputDeclarer) -> None:
        declarer.declare(*self._fields)

    def next_tuple(self) -> None:
        if self._inputs:
            values = self._inputs.pop()
            self.emit(values, id=values)

    def next_deadline_ms(self) -> int | None:
        return None

    def ack(self, id: Any) -> None:
        self._result.acked.append(id)

    def fail(self, id: Any) -> None:
        self._result.failed.append(id)
