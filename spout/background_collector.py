"""The collectors of bolts whose work outlasts a step: coroutines and threads.

Each execution runs in its own context (contextvars), so that a collector can find the tuples to anchor an emit to.
"""

from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, cast

from spout.api import Bolt, Tuple
from spout.collector import BoltCollector, Engine, WorkCollector
from spout.task import Task
from spout.work import EXECUTION, Background, Execution, result_fault


class BackgroundCollector(WorkCollector):
    """A collector whose task has several executions at once. The collector of an engine follows it in its class."""

    def __init__(self, task: Task, exchange: Engine, background: Background) -> None:
        super().__init__(task, exchange)
        self._background = background
        self._executions: dict[Execution, None] = {}  # in the order they began

    def expire(self, now_ms: int, timeout_ms: int) -> None:
        """Give up each execution that has taken longer than the message timeout."""
        for execution in list(self._executions):
            if execution.began_ms + timeout_ms > now_ms:
                return
            self._give_up(execution, timeout_ms)

    def next_deadline_ms(self, timeout_ms: int) -> int | None:
        """Return when the first execution takes too long, or None if none runs."""
        for execution in self._executions:
            if not execution.warned:
                return execution.began_ms + timeout_ms
        return None

    def abandon(self) -> None:
        """Ignore what the executions still do, because the bolt is closed."""
        for execution in self._executions:
            execution.ended = True
        self._executions.clear()

    def ack(self, tup: Tuple) -> None:
        """Ack a tuple. A second ack or fail of it is ignored."""
        self.ack_all((tup,))

    def _give_up(self, execution: Execution, timeout_ms: int) -> None:
        raise NotImplementedError

    def _begin(self, tuples: Sequence[Tuple], in_thread: bool) -> Execution:
        execution = Execution(tuples, self._exchange.now_ms, in_thread)
        self._executions[execution] = None
        self._task.running += 1
        return execution

    def _end(self, execution: Execution, settle: bool, error: BaseException | None) -> None:
        if execution.ended:
            return
        execution.ended = True
        del self._executions[execution]
        self._task.running -= 1
        for call in execution.calls:
            try:
                call()
            except BaseException as raised:
                error = error or raised
        self.settle(execution.tuples, error, settle)
        self._exchange.wake()


class CoroutineWork(BackgroundCollector):
    """A collector of a bolt task whose work is a coroutine."""

    def process(self, work: Callable[[Any], object], argument: Any, tuples: Sequence[Tuple], settle: bool) -> None:
        """Start the coroutine `work(argument)`, which processes `tuples`; they are settled when it ends."""
        execution = self._begin(tuples, in_thread=False)
        copy_context().run(self._start, work, argument, execution, settle)

    def _deliver(
        self, values: Sequence[Any], id: Any, anchors: Sequence[Tuple] | None, stream: str, task: int | None
    ) -> list[int]:
        """Deliver a tuple. The default anchors are the tuples of the running coroutine."""
        if anchors is None and (execution := EXECUTION.get()) is not None:
            anchors = execution.tuples
        numbers = super()._deliver(values, id, anchors, stream, task)
        self._exchange.wake()
        return numbers

    def ack_all(self, tuples: Sequence[Tuple]) -> None:
        """Ack tuples, except those that are acked or failed already."""
        super().ack_all(tuples)
        self._exchange.wake()

    def fail(self, tup: Tuple, error: str | BaseException = "") -> None:
        """Fail a tuple so that its message is emitted again. A second ack or fail of it is ignored."""
        super().fail(tup, error)
        self._exchange.wake()

    def _start(self, work: Callable[[Any], object], argument: Any, execution: Execution, settle: bool) -> None:
        EXECUTION.set(execution)
        coroutine = cast(Coroutine[Any, Any, object], work(argument))
        ended = partial(self._end, execution, settle)
        execution.cancel = self._background.run_coroutine(self._task.component, coroutine, ended)

    def _give_up(self, execution: Execution, timeout_ms: int) -> None:
        cancel = execution.cancel
        self._end(execution, True, TimeoutError(f"its coroutine took longer than {timeout_ms} ms and is cancelled"))
        if cancel is not None:
            cancel()


class ThreadWork(BackgroundCollector):
    """A collector of a bolt task whose work runs in threads.

    A thread's emits, acks and fails are checked at once, and applied in the engine's thread when the work has ended.
    """

    def process(self, work: Callable[[Any], object], argument: Any, tuples: Sequence[Tuple], settle: bool) -> None:
        """Call `work(argument)`, which processes `tuples`, in a thread; they are settled when it has returned."""
        execution = self._begin(tuples, in_thread=True)
        context = copy_context()
        context.run(EXECUTION.set, execution)
        call = partial(context.run, _checked, work, argument)
        threads = cast(Bolt, self._task.instance).threads
        self._background.run_in_thread(self._task.name, threads, call, partial(self._end, execution, settle))

    def _deliver(
        self, values: Sequence[Any], id: Any, anchors: Sequence[Tuple] | None, stream: str, task: int | None
    ) -> list[int]:
        """Check the tuple of a thread, and deliver it later. Return no numbers of receiving tasks there."""
        execution = EXECUTION.get()
        if execution is None:
            return super()._deliver(values, id, anchors, stream, task)
        self._exchange.outlet(self._task, stream).check(values, task)
        given = execution.tuples if anchors is None else tuple(anchors)
        execution.calls.append(partial(super()._deliver, values, id, given, stream, task))
        return []

    def ack_all(self, tuples: Sequence[Tuple]) -> None:
        """Ack tuples, except those that are acked or failed already."""
        self._call(partial(super().ack_all, tuples))

    def fail(self, tup: Tuple, error: str | BaseException = "") -> None:
        """Fail a tuple so that its message is emitted again. A second ack or fail of it is ignored."""
        self._call(partial(super().fail, tup, error))

    def report_error(self, error: str | BaseException, tuples: Sequence[Tuple] = ()) -> None:
        """Report an error to the log, with the messages of the tuples it concerns; the bolt continues."""
        self._call(partial(super().report_error, error, tuples))

    def _call(self, call: Callable[[], object]) -> None:
        execution = EXECUTION.get()
        if execution is None:
            call()
        else:
            execution.calls.append(call)

    def _give_up(self, execution: Execution, timeout_ms: int) -> None:
        if not execution.warned:
            execution.warned = True
            text = f"its thread has worked on a tuple for longer than {timeout_ms} ms and cannot be stopped"
            self._exchange.report(self._task, text, execution.tuples)


class CoroutineCollector(CoroutineWork, BoltCollector):
    """The collector of a bolt task whose work is a coroutine, in the embedded engine."""


class ThreadCollector(ThreadWork, BoltCollector):
    """The collector of a bolt task whose work runs in threads, in the embedded engine."""


def _checked(work: Callable[[Any], object], argument: Any) -> None:
    result = work(argument)
    if result is not None and (fault := result_fault(work, result)) is not None:
        raise fault
