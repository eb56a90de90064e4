"""A running task: its component, its inbox, and the receivers of its tuples."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from spout.api import Bolt, Emitter, Fields, Spout, Stream, Tuple
from spout.engine_spout import EngineSpout, engine_spout
from spout.grouping import (
    ByFields,
    Custom,
    CustomGrouping,
    Direct,
    Grouping,
    PartialKey,
    Shuffle,
    ToAll,
    stable_hash,
    two_choices,
)

LATENCY_BUCKETS = 24  # the last counts times of 70 minutes and more


@dataclass
class TaskCounts:
    """Counts of one task. `acked` and `failed` count a spout's tuples or a bolt's inputs.

    `latencies` counts a spout's complete trees by the time they took: bucket n counts times of n bits in ms.
    """

    emitted: int = 0
    executed: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    errors: int = 0
    busy_ns: int = 0  # time spent in a bolt's calls in the engine's thread
    latencies: list[int] = field(default_factory=lambda: [0] * LATENCY_BUCKETS, compare=False, repr=False)

    def completed_after(self, ms: int) -> None:
        """Count a tree that was complete after `ms`."""
        self.latencies[min(ms.bit_length(), LATENCY_BUCKETS - 1)] += 1

    def copy(self) -> "TaskCounts":
        """Return the counts as they are now."""
        return replace(self, latencies=list(self.latencies))


Chooser = Callable[[Sequence[Any]], list["Task"]]


class Task:
    """A task of a component. A spout's `inbox` is always empty; `receivers` are all tasks its tuples may go to."""

    def __init__(self, number: int, component: str, index: int, instance: Spout | Bolt) -> None:
        self.number = number
        self.component = component
        self.index = index
        self.instance = instance
        self.spout: EngineSpout | None = engine_spout(instance) if isinstance(instance, Spout) else None
        self.inbox: deque[Tuple] = deque()
        self.outlets: dict[str, Outlet] = {}
        self.receivers: list[Task] = []
        self.counts = TaskCounts()
        self.pending = 0  # a spout's tuples whose trees are incomplete
        self.active = False  # of a spout: False while it is paused
        self.running = 0  # a bolt's executions outside the step
        self.concurrency = 1  # the most of them
        self.tick_at_ms: int | None = None

    @property
    def name(self) -> str:
        """Return component[index], for the log."""
        return f"{self.component}[{self.index}]"

    def connect(self, subscribers: dict[str, list[tuple[Grouping, list["Task"]]]], streams: dict[str, Stream]) -> None:
        """Set the receivers of each stream."""
        for name, stream in streams.items():
            self.outlets[name] = Outlet(self, name, stream, subscribers.get(name, []))
        reached = {t.number: t for routes in subscribers.values() for _, tasks in routes for t in tasks}
        self.receivers = [reached[number] for number in sorted(reached)]

    def is_held_up(self, limit: int) -> bool:
        """Return True if a possible receiver of this task's tuples has a full inbox."""
        for receiver in self.receivers:
            if len(receiver.inbox) >= limit:
                return True
        return False

    def room(self, limit: int) -> int:
        """Return how many tuples this task may emit before an inbox of at most `limit` tuples is full."""
        longest = 0
        for receiver in self.receivers:
            longest = max(longest, len(receiver.inbox))
        return limit - longest


class StreamOutlet:
    """The outlet of a task for one stream, in any engine. `directly` has the tasks that it may name, by number."""

    def __init__(self, name: str, stream: Stream, directly: Mapping[int, Any]) -> None:
        self.name = name
        self.fields = Fields(stream.fields)
        self.direct = stream.direct
        self._directly = directly

    def check(self, values: Sequence[Any], task: int | None) -> None:
        """Raise ValueError if the values do not fit the fields, or if a direct emit names no task or a wrong one.

        This method may be called in any thread.
        """
        if len(values) != len(self.fields.names):
            names = ", ".join(self.fields.names)
            raise ValueError(f"stream {self.name!r} has the fields ({names}), got {len(values)} values")
        if not self.direct and task is not None:
            raise ValueError(f"stream {self.name!r} is not declared direct: emit without a task")
        if self.direct and task is None:
            raise ValueError(f"stream {self.name!r} is direct: emit with a task")
        if task is not None and task not in self._directly:
            raise ValueError(f"task {task} receives nothing of {self.name!r}; these do: {sorted(self._directly)}")


class Outlet(StreamOutlet):
    """The outlet of a task for one stream, and its receivers."""

    def __init__(self, source: Task, name: str, stream: Stream, routes: list[tuple[Grouping, list[Task]]]) -> None:
        directly = {t.number: t for grouping, tasks in routes if isinstance(grouping, Direct) for t in tasks}
        super().__init__(name, stream, directly)
        self.emitter = Emitter(self.fields, source.component, name, source.number, source.spout)
        self._choosers = [_chooser(source, name, grouping, tasks, self.fields) for grouping, tasks in routes]

    def targets(self, values: Sequence[Any], task: int | None) -> list[Task]:
        """Return the tasks that receive these values. Raise ValueError as `check` does."""
        if len(values) != len(self.fields.names) or self.direct or task is not None:
            self.check(values, task)
            return [self._directly[cast(int, task)]]
        if len(self._choosers) == 1:
            return self._choosers[0](values)
        return [target for choose in self._choosers for target in choose(values)]


def _chooser(source: Task, stream: str, grouping: Grouping, tasks: list[Task], fields: Fields) -> Chooser:
    one_each = [[task] for task in tasks]
    if isinstance(grouping, Shuffle):
        return _in_turn(one_each)
    if isinstance(grouping, ByFields):
        return _by_hash(one_each, _hasher(source, grouping.fields, fields))
    if isinstance(grouping, PartialKey):
        return _by_two_choices(one_each, _hasher(source, grouping.fields, fields))
    if isinstance(grouping, Custom):
        return _by_choice(source, stream, grouping, tasks)
    if isinstance(grouping, ToAll):
        return lambda values: tasks
    if isinstance(grouping, Direct):
        return lambda values: []
    return lambda values: one_each[0]


def _in_turn(one_each: list[list[Task]]) -> Chooser:
    turn = deque(one_each)

    def choose(values: Sequence[Any]) -> list[Task]:
        turn.rotate(-1)
        return turn[-1]

    return choose


def _hasher(source: Task, names: Sequence[str], fields: Fields) -> Callable[[Sequence[Any]], int]:
    positions = [fields.index[name] for name in names]

    def hashed(values: Sequence[Any]) -> int:
        try:
            return stable_hash([values[p] for p in positions])
        except TypeError as error:
            raise TypeError(f"{error}; {source.component!r} emits it to a grouping by {', '.join(names)}") from None

    return hashed


def _by_hash(one_each: list[list[Task]], hashed: Callable[[Sequence[Any]], int]) -> Chooser:
    return lambda values: one_each[hashed(values) % len(one_each)]


def _by_two_choices(one_each: list[list[Task]], hashed: Callable[[Sequence[Any]], int]) -> Chooser:
    given = [0] * len(one_each)

    def choose(values: Sequence[Any]) -> list[Task]:
        first, second = two_choices(hashed(values), len(given))
        chosen = first if given[first] <= given[second] else second
        given[chosen] += 1
        return one_each[chosen]

    return choose


def _by_choice(source: Task, stream: str, grouping: Custom, tasks: list[Task]) -> Chooser:
    by_number = {task.number: task for task in tasks}
    numbers = tuple(by_number)
    choose_numbers = _custom(deepcopy(grouping.chooser), source, stream, numbers)

    def choose(values: Sequence[Any]) -> list[Task]:
        chosen = choose_numbers(values)
        try:
            return [by_number[number] for number in ([chosen] if isinstance(chosen, int) else chosen)]
        except (KeyError, TypeError):
            of = f"stream {stream!r} of {source.component!r}"
            raise ValueError(f"the grouping of {of} chose {chosen!r}; the receiving tasks are {numbers}") from None

    return choose


def _custom(
    chooser: CustomGrouping | Callable[[Sequence[Any], Sequence[int]], int | Sequence[int]],
    source: Task,
    stream: str,
    numbers: tuple[int, ...],
) -> Callable[[Sequence[Any]], int | Sequence[int]]:
    if isinstance(chooser, CustomGrouping):
        chooser.prepare(source.component, stream, numbers)
        return partial(chooser.choose_tasks, source.number)
    return lambda values: chooser(values, numbers)
