"""The figures of a topology whose tasks are processes elsewhere, put together from their documents.

Others can write to the topic of the documents, so a document that is not as `document` makes it is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from spout.figures.collect import inputs_of
from spout.figures.model import ComponentFigures, OutageFigures, Snapshot, SpoutPartitionFigures
from spout.task import TaskCounts
from spout.topology import Node, Plan

STARTING = "starting"
RUNNING = "running"


class _ComponentPart(NamedTuple):
    """The figures that one process has of a component."""

    tasks: Sequence[TaskCounts]
    messages: Mapping[str, float]
    metrics: Mapping[str, float]
    outages: Sequence[OutageFigures]
    group_wait_ms: int
    group_error: str


class _Part(NamedTuple):
    """The figures of one process."""

    state: str
    started_ms: int
    in_flight: int
    components: Mapping[str, _ComponentPart]
    partitions: Sequence[SpoutPartitionFigures]
    dead_letter_topics: Sequence[str]


def snapshot_of(
    plan: Plan, documents: Iterable[Mapping[str, Any]], *, run_id: str, since_ms: int, at_ms: int
) -> Snapshot:
    """Return the figures at `at_ms` (Unix ms) of the processes that began at `since_ms` or later.

    The state is "starting" until each task of the plan has a document.
    """
    all_parts = [part for document in documents if (part := _part(document)) is not None]
    parts = [part for part in all_parts if part.started_ms >= since_ms]
    components = tuple(_component(plan, node, parts) for node in plan.nodes)
    is_whole = sum(len(component.tasks) for component in components) >= sum(node.parallelism for node in plan.nodes)
    states = {part.state for part in parts} - {RUNNING}
    return Snapshot(
        topology=plan.name,
        topology_id=plan.id,
        run_id=run_id,
        state=min(states) if states else RUNNING if is_whole else STARTING,
        started_ms=min((part.started_ms for part in parts), default=at_ms),
        at_ms=at_ms,
        in_flight=sum(part.in_flight for part in parts),
        components=components,
        partitions=tuple(partition for part in parts for partition in part.partitions),
        dead_letter_topics=tuple(sorted({topic for part in parts for topic in part.dead_letter_topics})),
    )


def _component(plan: Plan, node: Node[Any], parts: Sequence[_Part]) -> ComponentFigures:
    mine = [part.components[node.name] for part in parts if node.name in part.components]
    tasks = tuple(task for part in mine for task in part.tasks)
    return ComponentFigures(
        name=node.name,
        kind="spout" if node in plan.spouts else "bolt",
        parallelism=len(tasks),
        streams={name: stream.fields for name, stream in node.streams.items()},
        inputs=inputs_of(node),
        tasks=tasks,
        messages={name: int(total) for name, total in _sums(part.messages for part in mine).items()},
        metrics=_sums(part.metrics for part in mine),
        outages=tuple(outage for part in mine for outage in part.outages),
        group_wait_ms=max((part.group_wait_ms for part in mine), default=0),
        group_error=next((part.group_error for part in mine if part.group_error), ""),
    )


def _sums(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = sums.get(name, 0) + value
    return sums


def _part(document: Mapping[str, Any]) -> _Part | None:
    try:
        return _Part(
            str(document["state"]),
            int(document["started_ms"]),
            int(document["in_flight"]),
            {str(component["name"]): _component_part(component) for component in document["components"]},
            [SpoutPartitionFigures(**partition) for partition in document["partitions"]],
            [str(topic) for topic in document["dead_letter_topics"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _component_part(component: Mapping[str, Any]) -> _ComponentPart:
    return _ComponentPart(
        [_counts(task) for task in component["tasks"]],
        _numbers(component["messages"]),
        _numbers(component["metrics"]),
        [OutageFigures(**outage) for outage in component["outages"]],
        int(component.get("group_wait_ms", 0)),  # missing in documents of older versions
        str(component.get("group_error", "")),
    )


def _counts(task: Mapping[str, Any]) -> TaskCounts:
    counts = TaskCounts(**task)
    sum([*counts.latencies, counts.emitted, counts.executed, counts.acked, counts.failed, counts.timed_out])
    return counts


def _numbers(numbers: Mapping[str, Any]) -> Mapping[str, float]:
    return {str(name): value + 0 for name, value in numbers.items()}
