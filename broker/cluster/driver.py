"""Drives one procedure at a time: hands out its operations, collects their outcomes, pauses after lost answers."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

from broker.cluster.procedure import Outcome, Pause, Procedure
from broker.now import Now
from broker.waiting.pending import Pending
from coordination.port import ConnectionLost, Operation, SessionLost

RETRY_MS = 100
"""The pause after a batch with a lost answer."""

OnEnd: TypeAlias = Callable[[Any, Exception | None, Now], None]
"""Receives the value of a procedure that ended, or the exception that ended it."""


class Core(Protocol):
    """A part that hands out operations."""

    def take_operations(self) -> list[Operation]: ...

    def completed(self, operation: Operation, outcome: Outcome, now: Now) -> None: ...


class OperationOwners:
    """The operations of several cores that are under way, so that each result reaches the core it belongs to."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[Operation, Core]] = {}
        """By the identity of the operation, because two cores may hand out equal ones."""

    def take(self, cores: Iterable[Core]) -> list[Operation]:
        """Return the operations that the cores hand out now."""
        operations = []
        for core in cores:
            for operation in core.take_operations():
                self._owners[id(operation)] = operation, core
                operations.append(operation)
        return operations

    def completed(self, operation: Operation, outcome: Outcome, now: Now) -> None:
        """Pass the result or the error of an operation to its core."""
        _, core = self._owners.pop(id(operation))
        core.completed(operation, outcome, now)


class Driver:
    """The procedure that is in progress, if any. `waiting_for` says what a paused procedure waits for, for people.

    It marks `pending` when it has operations, except those that `tick` makes due. An owner without one asks each time.
    """

    def __init__(self, pending: Pending | None = None) -> None:
        self._pending = Pending() if pending is None else pending
        self._procedure: Procedure[Any] | None = None
        self._on_end: OnEnd = lambda value, error, now: None
        self._batch: tuple[Operation, ...] = ()
        self._outcomes: dict[int, Outcome] = {}  # by position in the batch
        self._to_take: list[Operation] = []
        self._resume_ms: int | None = None
        self.waiting_for: str | None = None

    @property
    def is_running(self) -> bool:
        return self._procedure is not None

    def begin(self, procedure: Procedure[Any], on_end: OnEnd, now: Now) -> None:
        assert self._procedure is None, "one procedure at a time"
        self._procedure, self._on_end = procedure, on_end
        self._advance(None, now)

    def cancel(self) -> None:
        """End the procedure where it is. Results of its operations are ignored when they come."""
        if self._procedure is not None:
            self._procedure.close()
        self._forget()

    def take_operations(self) -> list[Operation]:
        """Return the operations to carry out now, each once. Pass each result to `completed` with the same object."""
        if self._resume_ms is not None:
            return []
        operations, self._to_take = self._to_take, []
        return operations

    def completed(self, operation: Operation, outcome: Outcome, now: Now) -> None:
        """Take an operation's result or error. An operation of a procedure that is over is ignored."""
        position = next((i for i, own in enumerate(self._batch) if own is operation), None)
        if position is None or position in self._outcomes:
            return
        self._outcomes[position] = outcome
        if len(self._outcomes) < len(self._batch):
            return
        outcomes = [self._outcomes[index] for index in range(len(self._batch))]
        lost = next((error for error in outcomes if isinstance(error, SessionLost)), None)
        if lost is not None:
            self._end(None, lost, now)
            return
        self._advance(outcomes, now)
        if any(isinstance(error, ConnectionLost) for error in outcomes) and self._resume_ms is None and self._batch:
            self._resume_ms = now.ms + RETRY_MS

    def tick(self, now: Now) -> None:
        if self._resume_ms is None or now.ms < self._resume_ms:
            return
        self._resume_ms = None
        if not self._batch:
            self._advance([], now)

    def next_deadline_ms(self) -> int | None:
        return self._resume_ms

    def _advance(self, outcomes: list[Outcome] | None, now: Now) -> None:
        procedure = self._procedure
        assert procedure is not None
        self._batch, self._outcomes, self._to_take, self.waiting_for = (), {}, [], None
        try:
            step = next(procedure) if outcomes is None else procedure.send(outcomes)
            while step == ():
                step = procedure.send([])
        except StopIteration as stop:
            self._end(stop.value, None, now)
        except Exception as error:
            self._end(None, error, now)
        else:
            if isinstance(step, Pause):
                self._resume_ms, self.waiting_for = now.ms + step.ms, step.reason
            else:
                self._batch, self._to_take = step, list(step)
                self._pending.operations = True

    def _end(self, value: Any, error: Exception | None, now: Now) -> None:
        on_end = self._on_end
        self._forget()
        on_end(value, error, now)

    def _forget(self) -> None:
        self._procedure = None
        self._batch, self._outcomes, self._to_take = (), {}, []
        self._resume_ms = self.waiting_for = None
