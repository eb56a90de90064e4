"""The builder of a topology: components, streams and groupings, validated as a whole before a run.

    topology = Topology("flight-delays")
    topology.spout("flights", LogSpout("flights", servers="127.0.0.1:9092", store="progress"))
    topology.bolt("parse", ParseFlight(), parallelism=2).shuffle("flights")
    topology.bolt("delays", DelayByCarrier(), parallelism=2).fields("parse", "carrier")
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import Generic, NamedTuple, TypeVar

from coordination.errors import FlakelogError
from spout.api import DEFAULT_STREAM, Bolt, Component, OutputDeclarer, Spout, Stream
from spout.grouping import (
    ByFields,
    Custom,
    CustomGrouping,
    Direct,
    Grouping,
    LocalOrShuffle,
    PartialKey,
    Shuffle,
    ToAll,
    ToFirst,
)
from spout.work import method_fault

C = TypeVar("C", bound=Component)


class TopologyError(FlakelogError, ValueError):
    """A topology that cannot run; the message names the component and the correction."""


class StreamSubscription(NamedTuple):
    """A bolt's subscription to a stream of another component."""

    component: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True)
class Node(Generic[C]):
    """A component: a factory for each task's copy of it, and the number of tasks."""

    name: str
    make: Callable[[], C]
    parallelism: int
    streams: Mapping[str, Stream]
    inputs: tuple[StreamSubscription, ...] = ()


class Plan(NamedTuple):
    """A validated topology. In `bolts`, each bolt comes after the bolts it receives from."""

    name: str
    id: str
    spouts: tuple[Node[Spout], ...]
    bolts: tuple[Node[Bolt], ...]

    @property
    def nodes(self) -> tuple[Node[Spout] | Node[Bolt], ...]:
        return (*self.spouts, *self.bolts)


class BoltInputs:
    """The inputs of a bolt. Each method adds one input and returns this object, so calls can be chained."""

    def __init__(self) -> None:
        self.subscriptions: list[StreamSubscription] = []

    def shuffle(self, component: str, *, stream: str = DEFAULT_STREAM) -> "BoltInputs":
        """Receive in turn: the bolt's tasks take tuples one after the other."""
        return self._add(component, stream, Shuffle())

    def fields(self, component: str, *fields: str, stream: str = DEFAULT_STREAM) -> "BoltInputs":
        """Receive equal values of `fields` always in the same task."""
        return self._add(component, stream, ByFields(fields))

    def partial_key(self, component: str, *fields: str, stream: str = DEFAULT_STREAM) -> "BoltInputs":
        """Receive equal values of `fields` in one of two tasks, the one that the emitter gave less so far."""
        return self._add(component, stream, PartialKey(fields))

    def local_or_shuffle(self, component: str, *, stream: str = DEFAULT_STREAM) -> "BoltInputs":
        """Receive in turn, inside Storm in tasks of the emitter's own worker; the embedded engine has one process."""
        return self._add(component, stream, LocalOrShuffle())

    def none(self, component: str, *, stream: str = DEFAULT_STREAM) -> "BoltInputs":
        """Receive in any task; as in Storm, this is `shuffle`."""
        return self.shuffle(component, stream=stream)

    def custom(self, component: str, chooser: object, *, stream: str = DEFAULT_STREAM) -> "BoltInputs":
        """Receive in the tasks that `chooser` returns.

        It is a CustomGrouping, or a function of the values and the numbers of the receiving tasks, which returns one
        of these numbers or several. Raise TopologyError if it is neither.
        """
        if not isinstance(chooser, CustomGrouping) and not callable(chooser):
            wanted = "give a function, or an object with prepare and choose_tasks"
            raise TopologyError(f"{chooser!r} groups the tuples of {component!r}: {wanted}")
        return self._add(component, stream, Custom(chooser))

    def all(self, component: str, *, stream: str = DEFAULT_STREAM) -> "BoltInputs":
        """Receive every tuple in every task."""
        return self._add(component, stream, ToAll())

    def global_(self, component: str, *, stream: str = DEFAULT_STREAM) -> "BoltInputs":
        """Receive every tuple in one task, the first."""
        return self._add(component, stream, ToFirst())

    def direct(self, component: str, *, stream: str = DEFAULT_STREAM) -> "BoltInputs":
        """Receive in the task that the emitter names; the stream must be declared direct."""
        return self._add(component, stream, Direct())

    def _add(self, component: str, stream: str, grouping: Grouping) -> "BoltInputs":
        self.subscriptions.append(StreamSubscription(component, stream, grouping))
        return self


class Topology:
    """A builder. Progress is stored under `id`, by default the topology's name."""

    def __init__(self, name: str, *, id: str | None = None) -> None:
        self.name = name
        self.id = name if id is None else id
        _check_name(self.id, "the id of a topology")
        self._spouts: dict[str, Node[Spout]] = {}
        self._bolts: dict[str, tuple[Node[Bolt], BoltInputs]] = {}

    def spout(self, name: str, spout: Spout | Callable[[], Spout], *, parallelism: int = 1) -> None:
        """Add a spout: an object that each task copies, or a factory. Raise TopologyError if it is not valid."""
        self._spouts[name] = self._node(name, spout, Spout, parallelism)

    def bolt(self, name: str, bolt: Bolt | Callable[[], Bolt], *, parallelism: int = 1) -> BoltInputs:
        """Add a bolt: an object that each task copies, or a factory. Return its inputs, for the caller to fill.

        Raise TopologyError if it is not valid.
        """
        inputs = BoltInputs()
        self._bolts[name] = (self._node(name, bolt, Bolt, parallelism), inputs)
        return inputs

    def plan(self) -> Plan:
        """Validate the topology and return its plan. Raise TopologyError naming the first fault."""
        nodes: dict[str, Node[Spout] | Node[Bolt]] = {**self._spouts}
        bolts = {}
        for name, (node, inputs) in self._bolts.items():
            bolts[name] = Node(name, node.make, node.parallelism, node.streams, tuple(inputs.subscriptions))
        nodes |= bolts
        if not self._spouts:
            raise TopologyError(f"topology {self.name!r} has no spout: nothing would ever happen")
        for bolt in bolts.values():
            _check_inputs(bolt, nodes)
        order = _in_order(bolts)
        return Plan(self.name, self.id, tuple(self._spouts.values()), tuple(bolts[name] for name in order))

    def _node(self, name: str, component: C | Callable[[], C], kind: type[C], parallelism: int) -> Node[C]:
        _check_name(name, "the name of a component")
        if not name or name.startswith("__"):
            raise TopologyError(f"{name!r} is no name for a component: names beginning with __ are Storm's own")
        if name in self._spouts or name in self._bolts:
            raise TopologyError(f"there are two components {name!r}")
        if parallelism < 1:
            raise TopologyError(f"{name!r} needs a parallelism of at least 1, got {parallelism}")
        make = _factory(name, component, kind)
        declarer = OutputDeclarer()
        made = make()
        fault = method_fault(made)
        if fault is not None:
            raise TopologyError(f"{name!r}: {fault}")
        made.declare_output_fields(declarer)
        return Node(name, make, parallelism, declarer.streams)


def _factory(name: str, component: C | Callable[[], C], kind: type[C]) -> Callable[[], C]:
    if isinstance(component, kind):
        return lambda: _copied(name, component)
    if not callable(component):
        raise TopologyError(f"{name!r} is a {type(component).__name__}, not a {kind.__name__} or what makes one")
    make: Callable[[], C] = component
    made = make()
    if not isinstance(made, kind):
        raise TopologyError(f"{name!r} makes a {type(made).__name__}, not a {kind.__name__}")
    return make


def _copied(name: str, component: C) -> C:
    try:
        return deepcopy(component)
    except Exception as error:
        kind = type(component).__name__
        advice = f"make it in {'open' if isinstance(component, Spout) else 'prepare'}, or give a function that returns"
        reason = f"{name!r} cannot be copied for each task, because of {_not_copied(component)} ({error})"
        raise TopologyError(f"{reason}: {advice} a new {kind}") from error


def _not_copied(component: Component) -> str:
    """Return the name of the first attribute that cannot be copied."""
    for attribute, value in vars(component).items():
        try:
            deepcopy(value)
        except Exception:
            return f"its attribute {attribute!r}"
    return "its state"


def _check_name(name: object, kind: str) -> None:
    """Raise TopologyError unless the name can be a part of the name that progress is stored under."""
    if not isinstance(name, str) or not name or not name.isprintable() or "/" in name:
        wanted = "progress is stored under it, so give text of printable characters without a slash"
        raise TopologyError(f"{name!r} is not {kind}: {wanted}, such as 'flight-delays'")


def _check_inputs(bolt: Node[Bolt], nodes: Mapping[str, Node[Spout] | Node[Bolt]]) -> None:
    if not bolt.inputs:
        first = next(iter(nodes))
        raise TopologyError(f"bolt {bolt.name!r} receives from nobody: give it an input, as .shuffle({first!r})")
    for component, stream, grouping in bolt.inputs:
        source = nodes.get(component)
        if source is None:
            hint = _unknown("component", component, nodes)
            raise TopologyError(f"bolt {bolt.name!r} receives from {component!r}: {hint}")
        declared = source.streams.get(stream)
        if declared is None:
            hint = _unknown("stream", stream, source.streams)
            raise TopologyError(f"bolt {bolt.name!r} receives stream {stream!r} of {component!r}: {hint}")
        _check_grouping(bolt.name, component, stream, declared, grouping)


def _check_grouping(bolt: str, component: str, stream: str, declared: Stream, grouping: Grouping) -> None:
    subscription = f"bolt {bolt!r} receives stream {stream!r} of {component!r}"
    if declared.direct != isinstance(grouping, Direct):
        kind = "is direct: receive it with .direct()" if declared.direct else "is not declared direct"
        raise TopologyError(f"{subscription}, which {kind}")
    if isinstance(grouping, (ByFields, PartialKey)):
        if not grouping.fields:
            raise TopologyError(f"{subscription} by fields, and names none")
        for field in grouping.fields:
            if field not in declared.fields:
                raise TopologyError(f"{subscription} by field {field!r}: {_unknown('field', field, declared.fields)}")


def _unknown(kind: str, name: str, names: Mapping[str, object] | tuple[str, ...]) -> str:
    near = get_close_matches(name, list(names), n=1)
    hint = f", did you mean {near[0]!r}?" if near else f"; there are: {', '.join(names) or 'none'}"
    return f"no such {kind}{hint}"


def _in_order(bolts: Mapping[str, Node[Bolt]]) -> tuple[str, ...]:
    """Return the names of the bolts, each after the bolts it receives from.

    Raise TopologyError for a cycle, because full queues in a cycle would wait for each other for ever.
    """
    graph = {name: [s.component for s in bolt.inputs if s.component in bolts] for name, bolt in bolts.items()}
    try:
        return tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise TopologyError(f"bolts form a cycle: {' -> '.join(reversed(error.args[1]))}") from None
