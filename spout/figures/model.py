"""The figures of a topology: a snapshot of its graph, counts, latencies and lag, and rates between two snapshots.

Lag of a partition, from the watermark, the first offset that is not settled:

    messages   the log's end less the watermark, as consumer groups count it; messages settled above the watermark count
    seconds    the age of the next message to be settled, by its timestamp; 0 if all are settled
    bytes      messages times the mean size (key and value, not compressed) of the next messages to be settled

A figure is None while it is not known: before the partition is opened, or before its next message is fetched.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from broker.client.group_config import LONG_WAIT_MS
from spout.task import TaskCounts

NOT_TAKEN = "reads nothing, because its group does not take it"
RATES = ("emitted", "executed", "acked", "failed")  # counts of TaskCounts whose rates are shown


@dataclass(frozen=True, slots=True)
class Input:
    """A bolt's subscription. `grouping` is Storm's name; `fields` are those it groups by."""

    component: str
    stream: str
    grouping: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComponentFigures:
    """A component: its place in the graph, and the counts of each of its tasks by index.

    `messages` are a LogSpout's counts of message outcomes, `metrics` the component's own counters and gauges, `outages`
    the tasks of a LogSpout that try messages one at a time, because all fail or a bolt raised Unavailable. Inside Storm
    a bolt's `outages` are those because of which it holds tuples, and `failures` the latest messages that failed there.
    `group_wait_ms` is how long a LogSpout has waited for its group to rebalance, 0 if it does not wait; `group_error`
    is why the group does not take it.
    """

    name: str
    kind: str
    parallelism: int
    streams: Mapping[str, tuple[str, ...]]
    inputs: tuple[Input, ...]
    tasks: tuple[TaskCounts, ...]
    messages: Mapping[str, int]
    metrics: Mapping[str, float]
    outages: tuple["OutageFigures", ...] = ()
    failures: tuple["MessageFailure", ...] = ()
    group_wait_ms: int = 0
    group_error: str = ""

    def total(self, name: str) -> int:
        """Return the sum of one count of `TaskCounts` over the tasks."""
        return sum(getattr(task, name) for task in self.tasks)

    def latencies(self) -> list[int]:
        """Return how many trees completed within each bucket of `latency_ms`, over all tasks."""
        return [sum(column) for column in zip(*(task.latencies for task in self.tasks))]


@dataclass(frozen=True, slots=True)
class OutageFigures:
    """The outage that a spout task sees. `text` says it to a person, with the way out."""

    task: int
    type: str
    lasted_ms: int
    probes_failed: int
    text: str


@dataclass(frozen=True, slots=True)
class MessageFailure:
    """A message that failed in a bolt. `error` is the exception and the bolt."""

    topic: str
    partition: int
    offset: int
    error: str


@dataclass(frozen=True, slots=True)
class SpoutPartitionFigures:
    """A partition that a spout task reads.

    `error` says why it is not read, or which of its requests fail. `no_progress` says to a person that it stands still,
    and `no_progress_ms` for how long; a partition that does not has "" and 0.
    """

    component: str
    task: int
    topic: str
    partition: int
    phase: str
    watermark: int | None
    position: int | None
    high_watermark: int | None
    pending: int
    lag: int | None
    lag_bytes: int | None
    lag_ms: int | None
    error: str
    no_progress_ms: int = 0
    no_progress: str = ""

    @property
    def trouble(self) -> str:
        """Return the error or the lack of progress, "" if there is neither."""
        return self.error or self.no_progress


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A topology at `at_ms` (Unix ms)."""

    topology: str
    topology_id: str
    run_id: str
    state: str
    started_ms: int
    at_ms: int
    in_flight: int
    components: tuple[ComponentFigures, ...]
    partitions: tuple[SpoutPartitionFigures, ...]
    dead_letter_topics: tuple[str, ...]

    def component(self, name: str) -> ComponentFigures:
        """Return a component by name."""
        return next(component for component in self.components if component.name == name)

    @property
    def spouts(self) -> tuple[ComponentFigures, ...]:
        """Return the spouts."""
        return tuple(component for component in self.components if component.kind == "spout")

    @property
    def problems(self) -> list[str]:
        """Return what keeps messages from being read and processed, a line for each."""
        outages = [
            f"{component.name}[{outage.task}]: {outage.text}"
            for component in self.components
            for outage in component.outages
        ]
        refused = [f"{spout.name} {NOT_TAKEN}: {spout.group_error}" for spout in self.components if spout.group_error]
        return refused + outages + [
            f"{partition.topic}-{partition.partition} ({partition.component}[{partition.task}], {partition.phase}): "
            f"{partition.trouble}"
            for partition in self.partitions
            if partition.trouble or partition.phase in ("fenced", "broken")
        ]

    @property
    def group_waits(self) -> dict[str, str]:
        """Return, for each spout that has waited for its group for long, a text that says so."""
        waits = {spout.name: spout.group_wait_ms for spout in self.components if spout.group_wait_ms >= LONG_WAIT_MS}
        return {name: f"waits for its group for {ms // 1000} s" for name, ms in waits.items()}

    def lag(self, name: str) -> int | None:
        """Return the sum of `lag` or `lag_bytes`, or the largest `lag_ms`, or None if a partition's is not known."""
        return add_lags(name, [getattr(partition, name) for partition in self.partitions])

    @property
    def dead_letters(self) -> int:
        """Return the number of dead letters that the spouts have written."""
        return sum(component.messages.get("dead_lettered", 0) for component in self.components)

    def by_need(self) -> list[SpoutPartitionFigures]:
        """Return the partitions, those with trouble first, then those with the most lag."""
        return sorted(
            self.partitions, key=lambda one: (not one.trouble, -(one.lag or 0), one.topic, one.partition)
        )


def add_lags(name: str, values: Collection[int | None]) -> int | None:
    """Return the sum of lags, or None if one is not known. If `name` is `lag_ms`, return the largest that is known.

    A sum without one of its terms would be wrong. A time is at least the largest known one, which hides no delay.
    """
    known = [value for value in values if value is not None]
    if not known or (name != "lag_ms" and len(known) < len(values)):
        return None
    return max(known) if name == "lag_ms" else sum(known)


def latency_ms(latencies: Sequence[int], share: float) -> int | None:
    """Return the time within which `share` of the trees completed, rounded up to a power of two less one, in ms.

    Bucket n of `latencies` counts the times of n bits: 0 ms, 1 ms, 2 to 3 ms, 4 to 7 ms, and so on. Return None if no
    tree completed.
    """
    wanted = sum(latencies) * share
    below = 0
    for bits, number in enumerate(latencies):
        below += number
        if number and below >= wanted:
            return (1 << bits) - 1
    return None


class Rates:
    """Changes between two snapshots of one run, the earlier of which may be missing.

    Counts are sums over tasks. One that has fallen gives 0: a worker that Storm has started again counts from 0, and
    the sum does not tell what its tasks have done since.
    """

    def __init__(self, before: Snapshot | None, after: Snapshot) -> None:
        self._before = before
        self._after = after
        since_ms = after.started_ms if before is None else before.at_ms
        self._seconds = max(after.at_ms - since_ms, 1) / 1000

    def rate(self, component: str, name: str) -> float:
        """Return how often a component's count rose in a second."""
        after = self._after.component(component).total(name)
        before = 0 if self._before is None else self._before.component(component).total(name)
        return max(after - before, 0) / self._seconds

    def latency_ms(self, spout: str, share: float) -> int | None:
        """Return the time within which `share` of a spout's trees completed between the snapshots."""
        after = self._after.component(spout).latencies()
        before = [0] * len(after) if self._before is None else self._before.component(spout).latencies()
        return latency_ms([max(a - b, 0) for a, b in zip(after, before)], share)
