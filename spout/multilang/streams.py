"""Declarations of a topology to Storm: streams, groupings and ticks; and refusals of plans that cannot run there.

Each stream has one more field, the last one, which carries where a tuple comes from; see spout.multilang.origins.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from spout.api import Bolt, Stream
from spout.grouping import ByFields, Custom, Direct, Grouping, LocalOrShuffle, PartialKey, Shuffle, ToAll, ToFirst
from spout.log_sink import LogSink
from spout.topology import Node, Plan, TopologyError

MESSAGE_FIELD = "__message"

PARTIAL_KEY_CLASS = "org.apache.storm.grouping.PartialKeyGrouping"  # Flux has no name for it

_TYPES: Mapping[type, str] = {
    Shuffle: "SHUFFLE",
    LocalOrShuffle: "LOCAL_OR_SHUFFLE",
    ByFields: "FIELDS",
    ToAll: "ALL",
    ToFirst: "GLOBAL",
    Direct: "DIRECT",
    PartialKey: "CUSTOM",
}


class StormGrouping(NamedTuple):
    """A grouping as Flux names it: `type`, the `fields` it groups by, and the Java class of a CUSTOM one."""

    type: str
    fields: tuple[str, ...] = ()
    class_name: str = ""


def storm_streams(node: Node[Any]) -> dict[str, Stream]:
    """Return the streams of a component by name, each with the component's fields followed by MESSAGE_FIELD."""
    return {name: Stream((*stream.fields, MESSAGE_FIELD), stream.direct) for name, stream in node.streams.items()}


def storm_grouping(grouping: Grouping) -> StormGrouping:
    """Return the grouping as Storm has it. Raise TopologyError for one in Python code, which Storm cannot call."""
    if isinstance(grouping, Custom):
        raise TopologyError(_CUSTOM)
    class_name = PARTIAL_KEY_CLASS if isinstance(grouping, PartialKey) else ""
    return StormGrouping(_TYPES[type(grouping)], tuple(getattr(grouping, "fields", ())), class_name)


def storm_tick_seconds(bolt: Bolt) -> int | None:
    """Return the seconds for `topology.tick.tuple.freq.secs` of a bolt, or None if Storm does not tick it.

    Storm ticks in whole seconds. The process itself ticks a bolt with another interval, or with a first tick that comes
    at another time.
    """
    interval_ms = bolt.tick_interval_ms
    if not interval_ms or interval_ms % 1000 or bolt.tick_first_ms not in (None, interval_ms):
        return None
    return interval_ms // 1000


def check_for_storm(plan: Plan) -> None:
    """Raise TopologyError for the first part of a plan that cannot run inside Storm; the message names it."""
    for node in plan.nodes:
        for stream, declared in node.streams.items():
            if stream.startswith("__"):
                raise TopologyError(f"{node.name!r} declares stream {stream!r}: names with __ in front are Storm's own")
            if MESSAGE_FIELD in declared.fields:
                declaration = f"{node.name!r} declares field {MESSAGE_FIELD!r} of stream {stream!r}"
                advice = "which Flakelog adds to each stream inside Storm: give it another name"
                raise TopologyError(f"{declaration}, {advice}")
    for bolt in plan.bolts:
        received = set()
        for source, stream, grouping in bolt.inputs:
            if (source, stream) in received:
                raise TopologyError(
                    f"bolt {bolt.name!r} receives stream {stream!r} of {source!r} by several groupings, and Storm "
                    "keeps one for each stream: declare another stream, or another bolt"
                )
            received.add((source, stream))
            if isinstance(grouping, Custom):
                raise TopologyError(f"bolt {bolt.name!r} receives stream {stream!r} of {source!r} by {_CUSTOM}")
        made = bolt.make()
        if isinstance(made, LogSink) and made.exactly_once:
            raise TopologyError(
                f"bolt {bolt.name!r} is a sink with exactly_once, which commits with its spouts in one process, and "
                "Storm gives each a process of its own: write at least once, or run the topology embedded"
            )


_CUSTOM = (
    "a grouping in Python code, which Storm cannot call: compute a field in the bolt before and group by it, or emit "
    "to a direct stream"
)
