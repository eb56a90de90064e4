"""The figures of one task inside Storm, as a part of its topology's: each task is a process, and publishes its own.

The documents of a topology's processes have one topology id, and add up (spout/figures/document.py).
"""

from dataclasses import replace
from typing import Any, cast

from spout.figures.collect import component_figures, dead_letter_topics, partition_figures
from spout.figures.model import Snapshot
from spout.multilang.bolt_task import BoltTask
from spout.multilang.context import StormContext, TaskSetup, node_of
from spout.multilang.spout_task import SpoutTask


def task_snapshot(
    setup: TaskSetup, task: SpoutTask | BoltTask, *, state: str, started_ms: int, at_ms: int, now_ms: int
) -> Snapshot:
    """Return the figures of a task. Times are Unix ms, but `now_ms` is on the task's clock."""
    node = node_of(setup.plan, setup.handshake.component)
    own = task.task
    context = cast(StormContext, own.instance.context)
    instances: dict[int, Any] = {own.index: own.instance}
    component = component_figures(node, instances, [own.counts], context.metrics.values(), now_ms)
    if isinstance(task, BoltTask):
        component = replace(component, outages=task.outages(), failures=task.failures())
    return Snapshot(
        topology=setup.plan.name,
        topology_id=setup.plan.id,
        run_id=setup.run_id,
        state=state,
        started_ms=started_ms,
        at_ms=at_ms,
        in_flight=task.in_flight,
        components=(component,),
        partitions=tuple(partition_figures(node.name, instances, at_ms, now_ms)),
        dead_letter_topics=tuple(dead_letter_topics(instances)),
    )
