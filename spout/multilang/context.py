"""A task inside Storm: its place in the topology, and what its spout or bolt sees of it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from spout.api import Bolt, Report, Spout, World
from spout.config import TopologyConfig
from spout.grouping import ByFields, Direct, PartialKey
from spout.metrics import TaskMetrics
from spout.multilang.config import StormConfig
from spout.multilang.handshake import Handshake, check_streams
from spout.multilang.origins import Watermarks
from spout.multilang.streams import check_for_storm, storm_streams
from spout.multilang.wire import Pipe, Wire, WireOutlet
from spout.task import Task
from spout.topology import Node, Plan, TopologyError


class TaskSetup(NamedTuple):
    """The shell's arguments for a task: the plan, Storm's handshake, the settings in it, and ports."""

    plan: Plan
    handshake: Handshake
    topology_config: TopologyConfig
    config: StormConfig
    world: World
    run_id: str
    pipe: Pipe
    wake: Callable[[], None]


class StormContext:
    """The spout.api.Context of a task inside Storm."""

    def __init__(self, setup: TaskSetup, wire: Wire, watermarks: Watermarks) -> None:
        handshake = setup.handshake
        self._wire = wire
        self._tasks = handshake.tasks
        self._watermarks = watermarks
        self.component = handshake.component
        self.task = handshake.task
        self.index = handshake.index
        self.parallelism = len(handshake.tasks[handshake.component])
        self.topology = setup.plan.name
        self.topology_id = setup.plan.id
        self.run_id = setup.run_id
        self.config = setup.topology_config
        self.world = setup.world
        self.wake = setup.wake
        self.failure = ""
        self.unavailable = False
        self.keeps: Callable[[str, str], bool] | None = None  # whether a line, with its level, waits for an exception
        self.metrics = TaskMetrics(self.component, setup.topology_config.bolt_metrics_max)
        self.counter = self.metrics.counter
        self.gauge = self.metrics.gauge

    @property
    def now_ms(self) -> int:
        return self._wire.now_ms

    def log(self, text: str, level: str = "info") -> None:
        if self.keeps is None or not self.keeps(text, level):
            self.log_now(text, level)

    def log_now(self, text: str, level: str) -> None:
        """Write a line, also one that `keeps` would keep for later."""
        self._wire.report_line(Report(level, self.component, self.index, text))

    def watermarks(self) -> Mapping[tuple[str, str, int], int]:
        """Return the watermarks that tuples of this task brought, of partitions whose messages it got."""
        return self._watermarks

    def tasks_of(self, component: str) -> tuple[int, ...]:
        """Return the task numbers of a component. Raise TopologyError if the component does not exist."""
        numbers = self._tasks.get(component)
        if numbers is None:
            raise TopologyError(f"there is no component {component!r} in {self.topology!r}")
        return numbers


def node_of(plan: Plan, name: str) -> Node[Spout] | Node[Bolt]:
    """Return a component of the plan. Raise TopologyError if it does not exist, or if the plan cannot run in Storm."""
    check_for_storm(plan)
    for node in plan.nodes:
        if node.name == name:
            return node
    components = ", ".join(node.name for node in plan.nodes)
    raise TopologyError(f"there is no component {name!r} in {plan.name!r}; there are: {components}")


def wire_of(setup: TaskSetup, node: Node[Any]) -> Wire:
    """Return the output of the task. Raise BadHandshake if Storm has other streams than the component declares."""
    check_streams(setup.handshake, {name: stream.fields for name, stream in storm_streams(node).items()})
    outlets = {}
    for name, stream in node.streams.items():
        directly: dict[int, str] = {}
        grouped: list[str] = []
        for bolt in setup.plan.bolts:
            for source, of, grouping in bolt.inputs:
                if (source, of) == (node.name, name):
                    if isinstance(grouping, Direct):
                        directly.update(dict.fromkeys(setup.handshake.tasks.get(bolt.name, ()), bolt.name))
                    elif isinstance(grouping, (ByFields, PartialKey)):
                        grouped.extend(grouping.fields)
        outlets[name] = WireOutlet(name, stream, directly, grouped)
    return Wire(node.name, outlets, setup.config, setup.pipe, setup.wake)


def task_of(setup: TaskSetup, instance: Spout | Bolt) -> Task:
    """Return the task, whose inbox and counts the task's turns use."""
    handshake = setup.handshake
    return Task(handshake.task, handshake.component, handshake.index, instance)


class MetricsSender:
    """The counters and gauges of a task that Java code has registered in Storm. Sent when they have changed."""

    def __init__(self, wire: Wire, metrics: TaskMetrics, names: frozenset[str]) -> None:
        self._wire = wire
        self._metrics = metrics
        self.names = names
        self._sent: dict[str, float] = {}
        self._due_ms = 0

    def send(self, interval_ms: int = 1_000) -> None:
        """Send changed metrics, once in an interval: a counter as its growth, a gauge as its value."""
        if self._wire.now_ms < self._due_ms:
            return
        self._due_ms = self._wire.now_ms + interval_ms
        for name, value in self._metrics.values().items():
            if name in self.names and value != self._sent.get(name, 0):
                self._wire.metric(name, value - self._sent.get(name, 0) if self._metrics.is_counter(name) else value)
                self._sent[name] = value
