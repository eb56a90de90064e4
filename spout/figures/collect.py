"""Collects the figures of a topology's tasks in this process."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from broker.client.security.client_security import Security
from partition_manager.entry import Counts
from partition_manager.outage import Outage
from partition_manager.standstill import Standstill
from partition_manager.task_partition import PartitionStatus
from spout.api import Spout
from spout.executor import Executor
from spout.figures.model import ComponentFigures, Input, OutageFigures, Snapshot, SpoutPartitionFigures
from spout.grouping import ByFields, Custom, Direct, Grouping, LocalOrShuffle, PartialKey, Shuffle, ToAll, ToFirst
from spout.log_spout import LogSpout, clusters_read
from spout.task import TaskCounts
from spout.topology import Node, Plan

GROUPINGS: dict[type, str] = {
    Shuffle: "shuffle",
    LocalOrShuffle: "local_or_shuffle",
    ByFields: "fields",
    ToAll: "all",
    ToFirst: "global",
    Direct: "direct",
    PartialKey: "partial_key",
    Custom: "custom",
}


def snapshot(executor: Executor, *, state: str, started_ms: int, at_ms: int, now_ms: int) -> Snapshot:
    """Return the figures of a topology. Times are Unix ms, but `now_ms` is on the executor's clock."""
    plan = executor.plan
    counts, metrics = executor.counts(), executor.metrics()
    components, partitions, letters = [], [], []
    for node in plan.nodes:
        instances = dict(enumerate(executor.instances_of(node.name)))
        components.append(component_figures(node, instances, counts[node.name], metrics.get(node.name, {}), now_ms))
        partitions += partition_figures(node.name, instances, at_ms, now_ms)
        letters += dead_letter_topics(instances)
    return Snapshot(
        topology=plan.name,
        topology_id=plan.id,
        run_id=executor.run_id,
        state=state,
        started_ms=started_ms,
        at_ms=at_ms,
        in_flight=executor.in_flight,
        components=tuple(components),
        partitions=tuple(partitions),
        dead_letter_topics=tuple(sorted(set(letters))),
    )


def component_figures(
    node: Node[Any],
    instances: Mapping[int, Any],
    counts: Sequence[TaskCounts],
    metrics: Mapping[str, float],
    now_ms: int,
) -> ComponentFigures:
    """Return the figures of a component's tasks in this process: `instances` are its spouts or bolts by task index.

    `now_ms` is on the engine's clock.
    """
    log_spouts = [instance for instance in instances.values() if isinstance(instance, LogSpout)]
    return ComponentFigures(
        name=node.name,
        kind="spout" if isinstance(next(iter(instances.values())), Spout) else "bolt",
        parallelism=len(instances),
        streams={name: stream.fields for name, stream in node.streams.items()},
        inputs=inputs_of(node),
        tasks=tuple(task_counts.copy() for task_counts in counts),
        messages=_messages(list(instances.values())),
        metrics=dict(metrics),
        outages=tuple(_outages(instances)),
        group_wait_ms=max((spout.group_wait_ms(now_ms) for spout in log_spouts), default=0),
        group_error=next((spout.group_error for spout in log_spouts if spout.group_error), ""),
    )


def inputs_of(node: Node[Any]) -> tuple[Input, ...]:
    """Return the subscriptions of a component, which are none for a spout."""
    return tuple(_input(*subscription) for subscription in node.inputs)


def partition_figures(
    component: str, instances: Mapping[int, Any], at_ms: int, now_ms: int
) -> list[SpoutPartitionFigures]:
    """Return the figures of the partitions that these tasks read. `now_ms` is on the engine's clock."""
    partitions = []
    for index, instance in instances.items():
        standstills = instance.standstills(now_ms) if isinstance(instance, LogSpout) else {}
        for status in _statuses(instance):
            standstill = standstills.get((status.topic, status.partition))
            partitions.append(_partition(component, index, status, standstill, at_ms))
    return partitions


def dead_letter_topics(instances: Mapping[int, Any]) -> list[str]:
    """Return the topics to which these tasks write dead letters."""
    topics = (getattr(instance, "dead_letter_topic", "") for instance in instances.values())
    return [topic for topic in topics if topic]


def clusters_of(plan: Plan) -> dict[str, Security]:
    """Return the clusters that the topology's spouts read, where its figures are published, as `clusters_read` does."""
    return clusters_read(node.make() for node in plan.spouts)


def _input(component: str, stream: str, grouping: Grouping) -> Input:
    return Input(component, stream, GROUPINGS[type(grouping)], tuple(getattr(grouping, "fields", ())))


def _messages(instances: Sequence[Any]) -> dict[str, int]:
    counted = [instance.counts for instance in instances if isinstance(getattr(instance, "counts", None), Counts)]
    total = sum(counted, Counts())
    return {field.name: getattr(total, field.name) for field in fields(Counts)} if counted else {}


def _outages(instances: Mapping[int, Any]) -> Iterator[OutageFigures]:
    for task, instance in instances.items():
        outage = getattr(instance, "outage", None)
        seen = outage() if callable(outage) else None
        if isinstance(seen, Outage):
            yield OutageFigures(task, seen.type, seen.lasted_ms, seen.probes_failed, str(seen))


def _statuses(instance: Any) -> list[PartitionStatus]:
    status = getattr(instance, "status", None)
    statuses = status() if callable(status) else []
    return [partition for partition in statuses if isinstance(partition, PartitionStatus)]


def _partition(
    component: str, task: int, status: PartitionStatus, standstill: Standstill | None, at_ms: int
) -> SpoutPartitionFigures:
    lag = None
    if status.watermark is not None and status.high_watermark is not None:
        lag = max(status.high_watermark - status.watermark, 0)
    oldest = status.oldest
    lag_bytes = 0 if lag == 0 else None if lag is None or oldest is None else round(lag * oldest.mean_bytes)
    lag_ms = 0 if lag == 0 else None if oldest is None else max(at_ms - oldest.timestamp_ms, 0)
    return SpoutPartitionFigures(
        component=component,
        task=task,
        topic=status.topic,
        partition=status.partition,
        phase=status.phase.value,
        watermark=status.watermark,
        position=status.position,
        high_watermark=status.high_watermark,
        pending=status.pending,
        lag=lag,
        lag_bytes=lag_bytes,
        lag_ms=lag_ms,
        error=status.error,
        no_progress_ms=0 if standstill is None else standstill.lasted_ms,
        no_progress="" if standstill is None else str(standstill),
    )
