"""The user's interface: spouts that emit tuples and bolts that process them. Storm's contract in Python.

    class Shout(Bolt):
        output_fields = ("word",)

        def execute(self, tup):
            self.emit((tup["word"].upper(),))

A single thread calls all methods, so none may block for long. `context` and `collector` are set before `open` or
`prepare`. A component added to a topology is a template: each task works on a deep copy, as in Storm. Contract:
https://storm.apache.org/releases/2.8.1/Concepts.html, Guaranteeing-message-processing.html.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from broker.client.group_config import GroupMemberConfig
from broker.client.security.client_security import Security
from coordination.access import Access
from partition_manager.config import SpoutConfig
from partition_manager.ports import DeadLetterSink, GroupStore, OffsetStore, RecordFetcher
from spout.config import TopologyConfig
from spout.error_text import traceback_of
from spout.origin import Link, MessagePlace, Origin, OriginSpout
from spout.sink_config import SinkConfig
from spout.sink_ports import RecordProducer
from spout.transaction_ports import Transactor

DEFAULT_STREAM = "default"


class Fields:
    """The field names of a stream, and the position of each in its tuples."""

    __slots__ = ("names", "index")

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.index = {name: position for position, name in enumerate(self.names)}


class Emitter(NamedTuple):
    """A task and one of its streams: the common part of the tuples that the task emits to the stream."""

    fields: Fields
    component: str
    stream: str
    task: int
    spout: OriginSpout | None = None  # the emitting spout; None for a bolt


class Tuple:
    """Values under field names, with their origin: `tup["carrier"]`, `tup[0]`.

    `anchors` is what the engine settles the tuple by, and None after the tuple is acked or failed. `cause` is the id
    that a spout emitted the tuple with, or the links of the tuples that a bolt anchored it to; `number` counts the
    emits for the same cause.
    """

    __slots__ = ("values", "emitter", "anchors", "cause", "number", "children")

    def __init__(
        self, values: Sequence[Any], emitter: Emitter, anchors: Any = (), cause: Any = None, number: int = 0
    ) -> None:
        self.values = values
        self.emitter = emitter
        self.anchors = anchors
        self.cause = cause
        self.number = number
        self.children = 0  # tuples emitted with this one as their first anchor

    @property
    def fields(self) -> Fields:
        """Return the fields of its stream."""
        return self.emitter.fields

    @property
    def component(self) -> str:
        """Return the component that emitted it."""
        return self.emitter.component

    @property
    def stream(self) -> str:
        """Return the stream it was emitted to."""
        return self.emitter.stream

    @property
    def task(self) -> int:
        """Return the number of the task that emitted it."""
        return self.emitter.task

    @property
    def link(self) -> Link | None:
        """Return its link to what it was emitted from, or None if that is nothing; see spout.origin."""
        emitter = self.emitter
        if emitter.spout is not None:
            return Link(emitter.component, self.number, emitter.spout, self.cause)
        return Link(emitter.component, self.number, None, None, self.cause) if self.cause else None

    @property
    def messages(self) -> tuple[MessagePlace, ...]:
        """Return the place of each message the tuple came from: several after a bolt anchored it to a batch.

        It is empty for a tuple that a spout emitted without an id, or a bolt without anchors.
        """
        return self.origin.messages

    @property
    def origin(self) -> Origin:
        """Return the messages and the path of emits to this tuple; see spout.origin."""
        link = self.link
        return link.origin() if link is not None else Origin((), ())

    def __getitem__(self, field: str | int) -> Any:
        if isinstance(field, int):
            return self.values[field]
        try:
            return self.values[self.emitter.fields.index[field]]
        except KeyError:
            names = ", ".join(self.fields.names)
            raise KeyError(f"{self.component} emits no {field!r} to {self.stream!r}; its fields are: {names}") from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={value!r}" for name, value in zip(self.fields.names, self.values))
        return f"<{self.component}/{self.stream}: {pairs}>"


class Stream(NamedTuple):
    """A declared stream. On a direct stream the emitter names the receiving task."""

    fields: tuple[str, ...]
    direct: bool = False


class OutputDeclarer:
    """The streams that one component declares."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}

    def declare(self, *fields: str, direct: bool = False) -> None:
        """Declare the default stream's fields."""
        self.declare_stream(DEFAULT_STREAM, *fields, direct=direct)

    def declare_stream(self, stream: str, *fields: str, direct: bool = False) -> None:
        """Declare a named stream's fields. Raise ValueError if the stream or one of its fields is declared twice."""
        if stream in self.streams:
            raise ValueError(f"stream {stream!r} is declared twice")
        if len(set(fields)) != len(fields):
            raise ValueError(f"stream {stream!r} has a field twice: {', '.join(fields)}")
        self.streams[stream] = Stream(fields, direct)


class Unavailable(Exception):
    """Raise this in a bolt when a service it needs is down: the message is innocent, so the attempt does not count."""


@dataclass(frozen=True)
class Report:
    """A line for the log from a task. `level` is "info", "warn" or "error".

    If a tuple failed, `error` is the exception, if there was one, and `messages` are the details of the messages that
    the tuple came from, as `EngineSpout.details` returns them.
    """

    level: str
    component: str
    index: int  # of the task within its component
    text: str
    error: BaseException | None = None
    messages: Sequence[Mapping[str, object]] = ()

    @property
    def task(self) -> str:
        """Return component[index]."""
        return f"{self.component}[{self.index}]"

    @property
    def traceback(self) -> str:
        """Return the traceback of `error`, or "" if there is no exception."""
        return traceback_of(self.error) if self.error is not None else ""


class World(Protocol):
    """The engine's ports, for spouts and sinks; the caller closes each port it creates.

    `security` has the properties of a client for TLS and a login, as `Client` takes them.
    """

    def fetcher(self, servers: str, config: SpoutConfig, *, security: Security) -> RecordFetcher: ...

    def offset_store(self, store: str, path: str, access: Access) -> OffsetStore: ...

    def group_member(
        self,
        servers: str,
        group_id: str,
        component: str,
        tasks: int,
        config: GroupMemberConfig,
        *,
        security: Security,
    ) -> Callable[[int], GroupStore]: ...

    def dead_letters(self, servers: str, topic: str, *, security: Security) -> DeadLetterSink: ...

    def producer(self, servers: str, *, security: Security) -> RecordProducer: ...

    def transactor(
        self,
        servers: str,
        sources: Mapping[str, Security],
        transactional_id: str,
        config: SinkConfig,
        *,
        security: Security,
    ) -> Transactor: ...


class Counter(Protocol):
    """A number that a component counts up."""

    def add(self, n: float = 1) -> None: ...


class Gauge(Protocol):
    """A number that a component sets."""

    def set(self, value: float) -> None: ...


class Context(Protocol):
    """A task's view of its place in the topology."""

    component: str
    task: int
    index: int  # of this task within its component, from 0
    parallelism: int
    topology: str
    topology_id: str
    run_id: str  # unique to this run of the topology
    config: TopologyConfig
    world: World
    wake: Callable[[], None]  # report that an answer has arrived, so that `EngineSpout.poll` is called soon
    failure: str  # set while `Spout.fail` is called: "timeout", or the exception's type name, ": ", its text and bolt
    unavailable: bool  # set while `Spout.fail` is called: the bolt raised Unavailable, or inside Storm waited for it

    @property
    def now_ms(self) -> int:
        """The engine's clock in milliseconds: monotonic, with an arbitrary start."""

    def log(self, text: str, level: str = "info") -> None:
        """Write a line to the log at the level "info", "warn" or "error"."""

    def counter(self, name: str) -> "Counter":
        """Return the task's counter of that name; figures show the sum over the component's tasks."""

    def watermarks(self) -> Mapping[tuple[str, str, int], int]:
        """Return `EngineSpout.watermarks` of all spouts, by component, topic and partition."""

    def gauge(self, name: str) -> "Gauge":
        """Return the task's gauge of that name; figures show the sum over the component's tasks."""

    def tasks_of(self, component: str) -> tuple[int, ...]:
        """Return the task numbers of a component, for direct emits."""


class Collector(Protocol):
    """A component's output.

    `emit` returns the numbers of the tasks that received the tuple, if the engine knows them by then. It returns []
    in a bolt's threads, and inside Storm unless the component sets `needs_task_ids`.
    """

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

    def fail(self, tup: Tuple, error: str | BaseException = "") -> None: ...

    def report_error(self, error: str | BaseException, tuples: Sequence[Tuple] = ()) -> None: ...

    def is_open(self, tup: Tuple) -> bool: ...

    @property
    def is_free(self) -> bool: ...

    def process(self, work: Callable[[Any], object], argument: Any, tuples: Sequence[Tuple], settle: bool) -> None: ...


class SpoutOutput(Collector, Protocol):
    """A spout's output. `emit_all` emits the tuples of one message, all or none, to the default stream."""

    @property
    def emitted(self) -> int: ...

    def begin(self) -> None: ...

    def emit_all(self, rows: Sequence[Sequence[Any]], id: Any = None) -> None: ...


class Component:
    """The common part of spouts and bolts.

    `output_fields` declares the default stream; override `declare_output_fields` to declare more.
    """

    output_fields: ClassVar[tuple[str, ...]] = ()
    needs_task_ids: ClassVar[bool] = False  # inside Storm: each emit but a direct one waits for the tasks it returns

    context: Context
    collector: Collector

    def declare_output_fields(self, declarer: OutputDeclarer) -> None:
        """Declare every stream this component emits to."""
        if self.output_fields:
            declarer.declare(*self.output_fields)

    @property
    def described(self) -> str:
        """Return what the log says of this component at the start, or nothing. Not in Storm."""
        return ""


class Spout(Component):
    """A source of tuples, with Storm's methods.

    The engine calls more methods of a spout.engine_spout.EngineSpout, which waits for answers and stores progress.
    """

    def open(self) -> None:
        """Prepare to emit; called once, before any other method. If it raises, `close` is not called."""

    def next_tuple(self) -> None:
        """Emit the next tuple, or return at once if none is ready."""
        raise NotImplementedError(f"{type(self).__name__}.next_tuple")

    def ack(self, id: Any) -> None:
        """React to success: the tuple emitted with this id, and every tuple anchored to it, is processed."""

    def fail(self, id: Any) -> None:
        """React to a failure or timeout of the tuple emitted with this id.

        `context.failure` holds the reason; `context.unavailable` is True if the message is not to blame.
        """

    def activate(self) -> None:
        """React to activation: `next_tuple` will be called from now on."""

    def deactivate(self) -> None:
        """React to deactivation: `next_tuple` will not be called until `activate`, but acks and fails still come."""

    def close(self) -> None:
        """Release resources. Not called if the process is killed."""

    def emit(
        self, values: Sequence[Any], id: Any = None, *, stream: str = DEFAULT_STREAM, task: int | None = None
    ) -> list[int]:
        """Emit a tuple. If `id` is given, ack or fail is called with it once."""
        return self.collector.emit(values, id=id, stream=stream, task=task)


class Bolt(Component):
    """A processing step.

    With `auto_ack`, a tuple is acked when `execute` returns and failed when it raises.

    `execute` may be `async def`: each task then works on up to `max_concurrent` tuples at once, and a tuple is acked
    when its coroutine returns. It may await Deferreds, and asyncio's futures if Twisted's asyncioreactor is installed.
    A coroutine is cancelled, and its tuple fails, after the message timeout.

    A bolt that blocks sets `threads`: `execute` and `tick` then run in that many threads of each task. The engine
    applies their emits, acks and fails when they return, in order, so `emit` returns no task numbers there.
    """

    auto_ack: ClassVar[bool] = True
    work_method: ClassVar[str] = "execute"  # the method that may be async or run in threads
    threads: int = 0  # 0: the work runs in the engine's thread
    max_concurrent: int | None = None  # coroutines of one task at once; None: flakelog.bolt.max.concurrent
    tick_interval_ms: int | None = None  # interval between calls of `tick`, None: never
    tick_first_ms: int | None = None  # time from the start to the first call, None: an interval

    def prepare(self) -> None:
        """Prepare to process tuples; called once, before any other method. If it raises, `cleanup` is not called."""

    def execute(self, tup: Tuple) -> Awaitable[None] | None:
        """Process one tuple; may be `async def`."""
        raise NotImplementedError(f"{type(self).__name__}.execute")

    def tick(self) -> None:
        """Do periodic work; called every `tick_interval_ms`. Storm's tick tuples."""

    def cleanup(self) -> None:
        """Release resources. Not called if the process is killed."""

    def emit(
        self,
        values: Sequence[Any],
        *,
        anchors: Sequence[Tuple] | None = None,
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
    ) -> list[int]:
        """Emit a tuple, anchored to the tuple being executed unless `anchors` is given (() anchors to none)."""
        return self.collector.emit(values, anchors=anchors, stream=stream, task=task)

    def ack(self, tup: Tuple) -> None:
        """Mark a tuple as processed; for bolts without `auto_ack`."""
        self.collector.ack(tup)

    def fail(self, tup: Tuple, error: str | BaseException = "") -> None:
        """Fail a tuple so that its message is emitted again; for bolts without `auto_ack`."""
        self.collector.fail(tup, error)
