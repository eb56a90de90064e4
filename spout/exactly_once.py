"""Which spouts and sinks of a topology settle their messages together, exactly once."""

from collections.abc import Callable, Sequence
from typing import Any

from spout.engine_spout import engine_spout
from spout.log_sink import LogSink
from spout.log_spout import clusters_read
from spout.settlement import Settlement
from spout.topology import Plan, TopologyError


def settle_together(plan: Plan, instances_of: Callable[[str], Sequence[Any]]) -> None:
    """Give all sinks with `exactly_once`, and the spouts that feed them, one Settlement.

    Raise TopologyError if a spout cannot take part, or if the sinks differ in servers, settings or security: one
    process has one transactional producer.
    """
    sinks = {node.name: instances_of(node.name) for node in plan.bolts}
    sinks = {name: tasks for name, tasks in sinks.items() if isinstance(tasks[0], LogSink) and tasks[0].exactly_once}
    if not sinks:
        return
    first, *others = sinks
    for name in others:
        for argument in ("servers", "config", "security"):
            if getattr(sinks[name][0], argument) != getattr(sinks[first][0], argument):
                raise TopologyError(
                    f"bolts {first!r} and {name!r} are sinks with exactly_once and differ in their {argument}: "
                    "a process has one transactional producer, so give them the same"
                )
    settlement = Settlement(sinks[first][0].config)
    sources = {spout: sink for sink in sinks for spout in _feeding(plan, sink)}
    for name, sink in sources.items():
        for spout in instances_of(name):
            fault = engine_spout(spout).exactly_once_fault()
            if fault is not None:
                raise TopologyError(f"bolt {sink!r} is a sink with exactly_once, fed by spout {name!r}: {fault}")
            spout.settle_with(settlement)
    clusters = clusters_read(spout for name in sources for spout in instances_of(name))
    for tasks in sinks.values():
        for sink in tasks:
            sink.settle_with(settlement, clusters)


def _feeding(plan: Plan, bolt: str) -> list[str]:
    """Return the names of the spouts from which tuples reach a bolt."""
    inputs = {node.name: [subscription.component for subscription in node.inputs] for node in plan.bolts}
    spouts = {node.name for node in plan.spouts}
    feeding: list[str] = []
    looked: set[str] = set()
    unvisited = [bolt]
    while unvisited:
        name = unvisited.pop()
        if name in looked:
            continue
        looked.add(name)
        if name in spouts:
            feeding.append(name)
        unvisited += inputs.get(name, ())
    return sorted(feeding)
