"""What a user writes: spouts that bring tuples in, bolts that work on them. Storm's contract, in Python's manner.

    class Shout(Bolt):
        output_fields = ("word",)

        def execute(self, tup):
            self.emit((tup["word"].upper(),))

One thread calls everything, so no method may block for long. `context` and `collector` are set before `open` or
`prepare`. A component handed to a topology is a template: each task works with a deep copy of its own, as in Storm.
Contract: https://storm.apache.org/releases/2.8.1/Concepts.html, Guaranteeing-message-processing.html.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from coordination.access import Access
from partition_manager.config import SpoutConfig
from partition_manager.ports import DeadLetterSink, OffsetStore, RecordFetcher
from spout.config import TopologyConfig

DEFAULT_STREAM = "default"

Anchors = tuple[tuple[int, int], ...]  # (root, edge): the tuple trees this tuple is part of, and its own edge in each


class Fields:
    """A stream's field names, and where each stands in its tuples."""

    __slots__ = ("names", "index")

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.index = {name: position for position, name in enumerate(self.names)}


class Tuple:
    """Values under field names, and where they come from: `tup["carrier"]`, `tup[0]`.

    `anchors` is None once the tuple is acked or failed.
    """

    __slots__ = ("values", "fields", "component", "stream", "task", "anchors")

    def __init__(
        self,
        values: Sequence[Any],
        fields: Fields,
        component: str,
        stream: str,
        task: int,
        anchors: Anchors | None = (),
    ) -> None:
        self.values = values
        self.fields = fields
        self.component = component
        self.stream = stream
        self.task = task
        self.anchors = anchors

    def __getitem__(self, field: str | int) -> Any:
        if isinstance(field, int):
            return self.values[field]
        try:
            return self.values[self.fields.index[field]]
        except KeyError:
            known = ", ".join(self.fields.names)
            raise KeyError(f"{self.component} emits no {field!r} to {self.stream!r}; its fields are: {known}") from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={value!r}" for name, value in zip(self.fields.names, self.values))
        return f"<{self.component}/{self.stream}: {pairs}>"


class Stream(NamedTuple):
    """A declared stream. On a direct one the emitter names the task that receives."""

    fields: tuple[str, ...]
    direct: bool = False


class OutputDeclarer:
    """Collects the streams of one component."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}

    def declare(self, *fields: str, direct: bool = False) -> None:
        """The default stream's fields."""
        self.declare_stream(DEFAULT_STREAM, *fields, direct=direct)

    def declare_stream(self, stream: str, *fields: str, direct: bool = False) -> None:
        """A named stream's fields. ValueError when it is declared twice, or has a field twice."""
        if stream in self.streams:
            raise ValueError(f"stream {stream!r} is declared twice")
        if len(set(fields)) != len(fields):
            raise ValueError(f"stream {stream!r} has a field twice: {', '.join(fields)}")
        self.streams[stream] = Stream(fields, direct)


class World(Protocol):
    """The engine's ways out, for spouts that need them: each call makes a port, whose owner closes it."""

    def fetcher(self, servers: str, config: SpoutConfig) -> RecordFetcher: ...

    def offset_store(self, store: str, path: str, access: Access) -> OffsetStore: ...

    def dead_letters(self, servers: str, topic: str) -> DeadLetterSink: ...


class Context(Protocol):
    """What a task may know of its place in the topology."""

    component: str
    task: int
    index: int  # of this task among its component's, from 0
    parallelism: int
    topology: str
    topology_id: str
    run_id: str  # of this life of the topology; never used again
    config: TopologyConfig
    world: World
    wake: Callable[[], None]  # something has come: call `poll` soon
    log: Callable[[str], None]  # a line for people
    failure: str  # while `Spout.fail` is called: the failing bolt's own words, or "timeout"

    @property
    def now_ms(self) -> int:
        """The engine's clock: it never steps back, and begins anywhere."""

    def tasks_of(self, component: str) -> tuple[int, ...]:
        """Task numbers of a component, for direct emits."""


class Collector(Protocol):
    """Where a component's tuples go; `emit` answers with the numbers of the tasks that got one."""

    def emit(
        self,
        values: Sequence[Any],
        *,
        id: Any = None,
        anchors: Sequence[Tuple] | None = None,
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
    ) -> list[int]: ...

    def ack(self, tup: Tuple) -> None: ...

    def fail(self, tup: Tuple, error: str = "") -> None: ...

    def report_error(self, error: str) -> None: ...


class Component:
    """What spouts and bolts share. `output_fields` declares the default stream; `declare_output_fields` does more."""

    output_fields: ClassVar[tuple[str, ...]] = ()

    context: Context
    collector: Collector

    def declare_output_fields(self, declarer: OutputDeclarer) -> None:
        """Declare every stream this component emits to."""
        if self.output_fields:
            declarer.declare(*self.output_fields)


class Spout(Component):
    """A source of tuples."""

    def open(self) -> None:
        """Called once, before anything else."""

    def next_tuple(self) -> None:
        """Emit the next tuple, or return at once when there is none."""
        raise NotImplementedError(f"{type(self).__name__}.next_tuple")

    def ack(self, id: Any) -> None:
        """The tuple emitted with this id, and all that came of it, is processed."""

    def fail(self, id: Any) -> None:
        """It failed or took too long; `context.failure` says how."""

    def activate(self) -> None:
        """next_tuple will be called from now on."""

    def deactivate(self) -> None:
        """next_tuple will not be called until `activate`; acks and fails still come."""

    def close(self) -> None:
        """The end. Not called when the process is killed."""

    def poll(self) -> None:
        """Called often, active or not: take in answers from outside, hand out requests. Not in Storm."""

    def next_deadline_ms(self) -> int | None:
        """After a next_tuple that emitted nothing: when to ask again; None: at `context.wake()`. Not in Storm."""
        return self.context.now_ms + self.context.config.topology_spout_wait_ms

    def finish(self) -> None:
        """Nothing is in flight any more, `close` comes when `idle`: store what must be stored. Not in Storm."""

    @property
    def idle(self) -> bool:
        """After `finish`: whether nothing is outstanding that `close` would cut off. Not in Storm."""
        return True

    def emit(
        self, values: Sequence[Any], id: Any = None, *, stream: str = DEFAULT_STREAM, task: int | None = None
    ) -> list[int]:
        """Emit a tuple; with an `id`, ack or fail will be called with it once."""
        return self.collector.emit(values, id=id, stream=stream, task=task)


class Bolt(Component):
    """A step of work. With `auto_ack`, a tuple is acked when `execute` returns and failed when it raises."""

    auto_ack: ClassVar[bool] = True
    tick_interval_ms: int | None = None  # how often `tick` is called, None: never

    def prepare(self) -> None:
        """Called once, before anything else."""

    def execute(self, tup: Tuple) -> None:
        """Work on one tuple."""
        raise NotImplementedError(f"{type(self).__name__}.execute")

    def tick(self) -> None:
        """Called every `tick_interval_ms`; Storm's tick tuples."""

    def cleanup(self) -> None:
        """The end. Not called when the process is killed."""

    def emit(
        self,
        values: Sequence[Any],
        *,
        anchors: Sequence[Tuple] | None = None,
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
    ) -> list[int]:
        """Emit a tuple, anchored to the tuple being executed unless `anchors` says otherwise (() is to none)."""
        return self.collector.emit(values, anchors=anchors, stream=stream, task=task)

    def ack(self, tup: Tuple) -> None:
        """This bolt is done with a tuple; where `auto_ack` is off."""
        self.collector.ack(tup)

    def fail(self, tup: Tuple, error: str = "") -> None:
        """This tuple's message shall come again; where `auto_ack` is off."""
        self.collector.fail(tup, error)
