"""Delivery of a task's tuples to the inboxes of their receivers, each with an edge in the trees it belongs to.

A bolt's collector also runs its work on tuples and settles them. See background_collector.py for work outside the step.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, NoReturn, cast

from spout.acker import Acker
from spout.api import DEFAULT_STREAM, Bolt, Emitter, Tuple, Unavailable
from spout.error_text import error_text, printable
from spout.origin import Link
from spout.task import Outlet, StreamOutlet, Task
from spout.work import EXITS, InstanceFenced, Interruption, exit_code, result_fault

ErrorReporter = Callable[[Task, str, BaseException | None, Sequence[Tuple]], None]

_NO_ID = object()  # equal to no id


class Engine:
    """State shared by all collectors of any engine: the time of the step, its log, its clock's alarm.

    `exit` is the first SystemExit or KeyboardInterrupt of user code: the engine stops because of it.
    """

    what_stops = "the topology stops"
    when_again = "at the next start"

    def __init__(self, on_error: ErrorReporter, wake: Callable[[], None]) -> None:
        """Create the shared state; `wake` asks for a step soon."""
        self.now_ms = 0
        self.on_error = on_error
        self.in_step = False
        self.exit: BaseException | None = None
        self._wake = wake

    def wake(self) -> None:
        """Ask for a step soon, because work outside a step has emitted or ended."""
        if not self.in_step:
            self._wake()

    def report(self, task: Task, error: str | BaseException, tuples: Sequence[Tuple]) -> None:
        """Report an error of a task, and the tuples that it failed on."""
        cause = error if isinstance(error, BaseException) else None
        self.on_error(task, text_of(error), cause, tuples)

    def leave(self, task: Task, error: BaseException, tuples: Sequence[Tuple], method: str = "it") -> None:
        """Ask for a stop because user code raised one of EXITS, and report it in one line."""
        if self.exit is None:
            self.exit = error
        reason = error.reason if isinstance(error, InstanceFenced) else f"{method} raised {_call_of(error)}"
        text = f"{reason}: {self.what_stops} with exit code {exit_code(error)}"
        messages: Sequence[str] = getattr(error, "__notes__", ())  # of a message that no tuple has yet
        if messages or any(tup.messages for tup in tuples):
            text = "; ".join((text, f"the message stays unsettled and comes again {self.when_again}", *messages))
        self.on_error(task, text, None, tuples)

    def outlet(self, task: Task, stream: str) -> StreamOutlet:
        """Return the task's outlet for `stream`. Raise ValueError if the component has not declared the stream."""
        raise NotImplementedError


class AckerEngine(Engine):
    """State shared by all collectors of the embedded engine: the acker, edges and roots too."""

    def __init__(
        self, acker: Acker, random_bits: Callable[[], int], on_error: ErrorReporter, wake: Callable[[], None]
    ) -> None:
        """Create the shared state.

        `random_bits` returns 64 independent random bits at each call, because the acker relies on random edges.
        """
        super().__init__(on_error, wake)
        self.acker = acker
        self.edge = random_bits
        self.roots = count(1)

    def outlet(self, task: Task, stream: str) -> Outlet:
        """Return the task's outlet for `stream`. Raise ValueError if the component has not declared the stream."""
        outlet = task.outlets.get(stream)
        if outlet is None:
            raise undeclared(task, stream, task.outlets)
        return outlet


class TaskCollector:
    """The collector of a task in any engine: a spout.api.Collector. `_deliver` is the engine's part of an emit."""

    def __init__(self, task: Task, exchange: Engine) -> None:
        self._task = task
        self._exchange = exchange

    def emit(
        self,
        values: Sequence[Any],
        *,
        id: Any = None,
        anchors: Sequence[Tuple] | None = None,
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
    ) -> list[int]:
        """Emit a tuple. Return the numbers of the receiving tasks, or [] if the engine does not know them by then.

        A spout gives an `id`, a bolt `anchors`, by default the tuples it works on. Raise ValueError if
        the stream or the values were not declared, or if an anchor is already acked or failed. Raise TypeError or
        ValueError if the engine cannot carry a value.
        """
        return self._deliver(values, id, anchors, stream, task)

    def _deliver(
        self, values: Sequence[Any], id: Any, anchors: Sequence[Tuple] | None, stream: str, task: int | None
    ) -> list[int]:
        raise NotImplementedError

    def report_error(self, error: str | BaseException, tuples: Sequence[Tuple] = ()) -> None:
        """Report an error to the log, with the messages of the tuples it concerns; the component continues."""
        self._exchange.report(self._task, error, tuples)


class SpoutCollector(TaskCollector):
    """The collector of a spout task in any engine."""

    is_free = True

    def __init__(self, task: Task, exchange: Engine) -> None:
        super().__init__(task, exchange)
        self._id: Any = _NO_ID  # of the latest emit of this `next_tuple`
        self._number = 0  # of that emit among those with its id

    @property
    def emitted(self) -> int:
        """Return the number of tuples emitted so far."""
        return self._task.counts.emitted

    def begin(self) -> None:
        """Begin a call of the spout: what it emits now is a new attempt, also if the id is that of the last emit."""
        self._id = _NO_ID

    def ack(self, tup: Tuple) -> NoReturn:
        raise TypeError(f"{self._task.component} is a spout: it is told of acks, it makes none")

    def fail(self, tup: Tuple, error: str | BaseException = "") -> NoReturn:
        raise TypeError(f"{self._task.component} is a spout: it is told of fails, it makes none")


class EmbeddedSpoutCollector(SpoutCollector):
    """The collector of a spout task in the embedded engine. It tracks tuples with an id to the end of their tree."""

    _exchange: AckerEngine

    def _deliver(
        self, values: Sequence[Any], id: Any, anchors: Sequence[Tuple] | None, stream: str, task: int | None
    ) -> list[int]:
        """Deliver a tuple, which is the next of its message if it has the id of the emit before."""
        if anchors:
            raise ValueError(f"{self._task.component} is a spout: its tuples are anchored to nothing")
        outlet = self._exchange.outlet(self._task, stream)
        targets = outlet.targets(values, task)
        self._number = self._number + 1 if id == self._id else 0
        self._id = id
        self._send(values, outlet.emitter, targets, id, self._number)
        return [target.number for target in targets]

    def emit_all(self, rows: Sequence[Sequence[Any]], id: Any = None) -> None:
        """Emit the tuples of one message to the default stream; if one does not fit, none of them.

        Raise what `emit` raises, or an error of a grouping, before the first tuple is emitted.
        """
        outlet = self._exchange.outlet(self._task, DEFAULT_STREAM)
        if len(rows) == 1:
            (values,) = rows
            self._send(values, outlet.emitter, outlet.targets(values, None), id, 0)
            return
        routed = [outlet.targets(values, None) for values in rows]
        for number, (values, targets) in enumerate(zip(rows, routed)):
            self._send(values, outlet.emitter, targets, id, number)

    def _send(self, values: Sequence[Any], emitter: Emitter, targets: list[Task], id: Any, number: int) -> None:
        exchange, me = self._exchange, self._task
        me.counts.emitted += 1
        if id is None:
            for target in targets:
                target.inbox.append(Tuple(values, emitter, (), id, number))
            return
        root, total = next(exchange.roots), 0
        for target in targets:
            edge = exchange.edge()
            total ^= edge
            target.inbox.append(Tuple(values, emitter, ((root, edge),), id, number))
        exchange.acker.track(root, me.number, id, exchange.now_ms, total)
        me.pending += 1
        if not targets:
            exchange.acker.ack(root, 0)  # without a receiver the tuple is processed (as in Storm)


class WorkCollector(TaskCollector):
    """A bolt task's collector, as far as engines have it in common: its work in the step, and what follows from it.

    `current` are the default anchors of emits.
    """

    def __init__(self, task: Task, exchange: Engine) -> None:
        super().__init__(task, exchange)
        self.current: Sequence[Tuple] = ()

    @property
    def is_free(self) -> bool:
        """Return True if the task may process more at once."""
        return self._task.running < self._task.concurrency

    def process(self, work: Callable[[Any], object], argument: Any, tuples: Sequence[Tuple], settle: bool) -> None:
        """Call `work(argument)`, which processes `tuples`: emits are anchored to them.

        If it raises, report the error and fail them; otherwise ack them if `settle` is true.
        """
        self.process_in_step(work, argument, tuples, settle)

    def process_in_step(
        self, work: Callable[[Any], object], argument: Any, tuples: Sequence[Tuple], settle: bool
    ) -> None:
        """Do what `process` does in the step, also for a bolt whose work runs elsewhere."""
        before, self.current = self.current, tuples
        error: BaseException | None = None
        try:
            result = work(argument)
            if result is not None:
                error = result_fault(work, result)
        except Interruption:
            raise
        except BaseException as raised:
            error = raised
        self.current = before
        self.settle(tuples, error, settle)

    def settle(self, tuples: Sequence[Tuple], error: BaseException | None, ack: bool) -> None:
        """End work on these tuples: report an error and fail them, or ack them if `ack` is true.

        SystemExit and KeyboardInterrupt leave them unsettled, and stop the engine.
        """
        if isinstance(error, EXITS):
            method = cast(Bolt, self._task.instance).work_method if tuples else "tick"
            self._exchange.leave(self._task, error, tuples, method)
            self.leave_all(tuples)
        elif error is not None:
            self.report_error(error, tuples)
            for tup in tuples:
                self.fail(tup, error)
        elif ack:
            self.ack_all(tuples)

    def ack_all(self, tuples: Sequence[Tuple]) -> None:
        """Ack tuples, except those that are acked or failed already."""
        raise NotImplementedError

    def fail(self, tup: Tuple, error: str | BaseException = "") -> None:
        """Fail a tuple so that its message is emitted again. A second ack or fail of it is ignored."""
        raise NotImplementedError

    def leave_all(self, tuples: Sequence[Tuple]) -> None:
        """Neither ack nor fail tuples, now and later: their messages stay unsettled until the next run."""
        for tup in tuples:
            tup.anchors = None


class BoltCollector(WorkCollector):
    """The collector of a bolt task in the embedded engine."""

    _exchange: AckerEngine

    def is_open(self, tup: Tuple) -> bool:
        """Return True if the attempt that the tuple belongs to has not ended: it may still be acked and failed."""
        roots = tup.anchors
        return roots is not None and all([self._exchange.acker.is_open(root) for root, _ in roots])

    def _deliver(
        self, values: Sequence[Any], id: Any, anchors: Sequence[Tuple] | None, stream: str, task: int | None
    ) -> list[int]:
        """Deliver a tuple, anchored to `current` unless `anchors` is given."""
        if id is not None:
            raise ValueError(f"{self._task.component} is a bolt: its tuples are anchored, they have no id")
        exchange, me = self._exchange, self._task
        outlet = exchange.outlet(me, stream)
        targets = outlet.targets(values, task)
        if anchors is None:
            anchors = self.current
        roots = self._roots(anchors)
        links, number = _cause_of(anchors)
        for target in targets:
            edges = tuple([(root, exchange.edge()) for root in roots])
            for root, edge in edges:
                exchange.acker.add(root, edge)
            target.inbox.append(Tuple(values, outlet.emitter, edges, links, number))
        me.counts.emitted += 1
        return [target.number for target in targets]

    def _roots(self, anchors: Sequence[Tuple]) -> list[int]:
        if len(anchors) == 1 and anchors[0].anchors is not None:
            return [root for root, _ in anchors[0].anchors]
        roots: dict[int, None] = {}
        for tup in anchors:
            if tup.anchors is None:
                raise ValueError(f"{self._task.component} anchors a tuple to {tup!r}, which it acked or failed before")
            for root, _ in tup.anchors:
                roots[root] = None
        return list(roots)

    def ack(self, tup: Tuple) -> None:
        """Ack a tuple. A second ack or fail of it is ignored."""
        anchors = tup.anchors
        if anchors is not None:
            tup.anchors = None
            self._task.counts.acked += 1
            self._exchange.acker.ack_all((anchors,))

    def ack_all(self, tuples: Sequence[Tuple]) -> None:
        """Ack tuples, except those that are acked or failed already."""
        acked = []
        for tup in tuples:
            if tup.anchors is not None:
                acked.append(tup.anchors)
                tup.anchors = None
        self._exchange.acker.ack_all(acked)
        self._task.counts.acked += len(acked)

    def fail(self, tup: Tuple, error: str | BaseException = "") -> None:
        """Fail a tuple so that its message is emitted again. A second ack or fail of it is ignored."""
        if tup.anchors is None:
            return
        reason = f"{text_of(error)}, in {self._task.component}"
        for root, _ in tup.anchors:
            self._exchange.acker.fail(root, reason, isinstance(error, Unavailable))
        tup.anchors = None
        self._task.counts.failed += 1

    def leave_all(self, tuples: Sequence[Tuple]) -> None:
        """Neither ack nor fail tuples, now and later, and wait for their trees no longer."""
        for tup in tuples:
            for root, _ in tup.anchors or ():
                self._exchange.acker.leave(root)
        super().leave_all(tuples)


def undeclared(task: Task, stream: str, declared_streams: Iterable[str]) -> ValueError:
    """Return the error of an emit to a stream that the component has not declared."""
    declared = ", ".join(sorted(declared_streams)) or "none"
    return ValueError(f"{task.component} emits to stream {stream!r} and declares: {declared}")


def _cause_of(anchors: Sequence[Tuple]) -> tuple[tuple[Link, ...], int]:
    """Return the links to the anchors, and the number of this emit among those with the same first anchor."""
    number = cause_number(anchors)
    return tuple([link for link in [tup.link for tup in anchors] if link is not None]), number


def cause_number(anchors: Sequence[Tuple]) -> int:
    """Return the number of this emit among those with the same first anchor, and count it."""
    if not anchors:
        return 0
    first = anchors[0]
    number = first.children
    first.children = number + 1
    return number


def _call_of(error: BaseException) -> str:
    """Return the exception as it was raised, such as SystemExit(7), or its type's name if its value cannot be shown."""
    try:
        return printable(repr(error))
    except Exception:
        return type(error).__name__


def text_of(error: str | BaseException) -> str:
    """Return an exception as its type's name, ": " and its text; return a text as it is, or "failed" if it is empty."""
    return error_text(error) if isinstance(error, BaseException) else printable(error or "failed")
