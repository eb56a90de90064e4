"""A test driver that runs bolts and topologies on the real executor with a simulated clock, without threads or waits.

    driver = TopologyDriver(topology, world)          spouts and bolts as they run in production
    driver.run()                                      until nothing can be done at this time
    driver.advance(1_000)                             a second later

    result = run_bolt(Count(), [("a", 1), ("b", 2)], fields=("word", "n"))
    assert result.emitted == [("a", 1), ("b", 2)] and result.failed == []
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordination.access import Access
from partition_manager.ports import DeadLetterSink, OffsetStore, RecordFetcher
from spout.api import Bolt, OutputDeclarer, Spout, Tuple, World
from spout.config import SpoutConfig, TopologyConfig
from spout.executor import Executor
from spout.topology import Topology

STEPS_MAX = 1_000_000  # a topology with work after this number of steps without a time change never rests


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


class NoWorld:
    """A world for topologies whose spouts need no port."""

    def fetcher(self, servers: str, config: SpoutConfig) -> RecordFetcher:
        raise LookupError(f"a spout wants to read from {servers}: give the driver a world with a fetcher")

    def offset_store(self, store: str, path: str, access: Access) -> OffsetStore:
        raise LookupError(f"a spout wants to keep progress in {store}: give the driver a world with a store")

    def dead_letters(self, servers: str, topic: str) -> DeadLetterSink:
        raise LookupError(f"a spout wants to write to {topic}: give the driver a world with dead letters")


class TopologyDriver:
    """A run of a topology in a test. `reports` holds the lines for the log, as (task, text)."""

    def __init__(
        self,
        topology: Topology,
        world: World | None = None,
        *,
        now_ms: int = 0,
        config: TopologyConfig = TopologyConfig(),
        run_id: str = "test",
        seed: int = 1,
    ) -> None:
        self.now_ms = now_ms
        self.reports: list[tuple[str, str]] = []
        self.executor = Executor(
            topology.plan(),
            config,
            world if world is not None else NoWorld(),
            run_id=run_id,
            random_bits=repeatable_bits(seed),
            report=lambda report: self.reports.append((report.task, report.text)),
        )
        self.executor.start(now_ms)

    def run(self) -> "TopologyDriver":
        """Step until no work is left at this time. Raise RuntimeError if work never ends."""
        for _ in range(STEPS_MAX):
            if not self.executor.step(self.now_ms):
                return self
        raise RuntimeError(f"the topology still works after {STEPS_MAX} steps: does a spout emit without end?")

    def advance(self, ms: int) -> "TopologyDriver":
        """Advance the clock from deadline to deadline, doing the work due at each."""
        end_ms = self.now_ms + ms
        while True:
            self.run()
            due_ms = self.executor.next_deadline_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self.now_ms = max(due_ms, self.now_ms + 1)
        self.now_ms = end_ms
        return self.run()

    def stop(self) -> "TopologyDriver":
        """Stop as the engine does: let tuples in flight complete, store progress, close."""
        self.executor.deactivate(self.now_ms)
        self.run()
        self.executor.finish(self.now_ms)
        self.run()
        self.executor.close(self.now_ms)
        return self

    def tasks(self, component: str) -> list[Any]:
        """Return the spout or bolt objects of a component."""
        return self.executor.instances_of(component)


@dataclass
class BoltResult:
    """The result of a bolt's run. `acked` and `failed` hold the values of inputs."""

    emitted: list[tuple[Any, ...]] = field(default_factory=list)
    acked: list[tuple[Any, ...]] = field(default_factory=list)
    failed: list[tuple[Any, ...]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def run_bolt(
    bolt: Bolt, inputs: Sequence[Sequence[Any]], *, fields: Sequence[str], advance_ms: int = 1_000
) -> BoltResult:
    """Run a copy of `bolt` with these inputs, in order, and advance the clock by `advance_ms`.

    Only tuples emitted to the default stream are collected.
    """
    result = BoltResult()
    topology = Topology("run-bolt")
    topology.spout("inputs", lambda: _Inputs(inputs, fields, result))
    topology.bolt("bolt", bolt).shuffle("inputs")
    if "default" in topology.plan().bolts[0].streams:
        topology.bolt("emitted", lambda: _Emitted(result)).shuffle("bolt")
    driver = TopologyDriver(topology).advance(advance_ms).stop()
    result.errors = [text for _, text in driver.reports]
    return result


class _Inputs(Spout):
    def __init__(self, inputs: Sequence[Sequence[Any]], fields: Sequence[str], result: BoltResult) -> None:
        self._left = [tuple(values) for values in reversed(inputs)]
        self._fields = fields
        self._result = result

    def declare_output_fields(self, declarer: OutputDeclarer) -> None:
        declarer.declare(*self._fields)

    def next_tuple(self) -> None:
        if self._left:
            values = self._left.pop()
            self.emit(values, id=values)

    def next_deadline_ms(self) -> int | None:
        return None

    def ack(self, id: Any) -> None:
        self._result.acked.append(id)

    def fail(self, id: Any) -> None:
        self._result.failed.append(id)


class _Emitted(Bolt):
    def __init__(self, result: BoltResult) -> None:
        self._result = result

    def execute(self, tup: Tuple) -> None:
        self._result.emitted.append(tuple(tup.values))
