"""SHELL (Twisted): the coordinator of a cluster, whose operations are carried out and whose events are passed on.

Until the broker serves, its Member asks for operations, and this shell is its timer too. From `serve` on the engine
does, whose server asks after each turn and has the timer.
"""

from collections.abc import Callable
from traceback import format_exc
from typing import Any, Protocol

from twisted.internet.defer import maybeDeferred
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from broker.now import Now
from coordination.deferred import executor, wake_in_reactor
from coordination.port import CoordinationError, Coordinator, CoordinatorUnavailable, Event, Operation, Result

POLL_SECONDS = 1.0  # a wake-up may get lost


class AskingCore(Protocol):
    """A core that hands out operations of the coordinator: a Member or an Engine."""

    def take_operations(self) -> list[Operation]: ...

    def completed(self, operation: Operation, outcome: Result | CoordinationError, now: Now) -> None: ...

    def notified(self, event: Event, now: Now) -> None: ...


class TimedCore(AskingCore, Protocol):
    """Such a core with deadlines of its own: a Member."""

    def tick(self, now: Now) -> None: ...

    def next_deadline_ms(self) -> int | None: ...


class CoordinatorShell:
    """The operations and events of one session. `core` is a Member whose broker does not serve yet."""

    def __init__(
        self,
        reactor: Any,
        coordinator: Coordinator,
        core: TimedCore,
        now: Callable[[], Now],
        report: Callable[[str], None],
    ) -> None:
        self._reactor = reactor
        self._coordinator = coordinator
        self._execute = executor(coordinator, reactor)
        self._timed: TimedCore | None = core
        self._core: AskingCore = core
        self._now = now
        self._report = report
        self._turn: Callable[[], None] = self.turn
        self.followed: Callable[[], None] = lambda: None
        """Called after each turn of the Member, until the broker serves."""
        self._timer: Any = None
        self._polls = LoopingCall(self._pass_events)
        self._polls.clock = reactor
        self._is_carrying_out = False
        self._is_unreadable = False
        self._stopped = False

    def begin(self) -> None:
        """Pass the coordinator's events on from now on, the first of which is its session."""
        wake_in_reactor(self._coordinator, self._reactor, self._pass_events)
        self._polls.start(POLL_SECONDS)

    def serve(self, core: AskingCore, turn: Callable[[], None]) -> None:
        """Let `core` take the place of the Member. `turn` is called after each event and outcome."""
        self._timed, self._core, self._turn = None, core, turn
        self._cancel_timer()

    def stop(self) -> None:
        """Pass nothing on any more. Operations under way may still be carried out."""
        self._stopped = True
        self._cancel_timer()
        if self._polls.running:
            self._polls.stop()

    def carry_out(self, operations: list[Operation]) -> None:
        """Begin the operations, in this order; many may be under way."""
        if self._stopped:
            return
        self._is_carrying_out = True
        for operation in operations:
            maybeDeferred(self._execute, operation).addBoth(self._ended, operation)
        self._is_carrying_out = False

    def _ended(self, outcome: Any, operation: Operation) -> None:
        if isinstance(outcome, Failure):
            outcome = self._error(operation, outcome)
        if self._is_carrying_out:  # it failed at once, and the core is in its turn
            self._reactor.callLater(0, self._completed, operation, outcome)
        else:
            self._completed(operation, outcome)

    def _error(self, operation: Operation, failure: Failure) -> CoordinationError:
        error = failure.value
        if isinstance(error, CoordinationError):
            return error
        self._report(f"a fault of the broker's own, at {operation}:\n{failure.getTraceback()}")
        return CoordinatorUnavailable(f"{type(error).__name__}: {error}")

    def _completed(self, operation: Operation, outcome: Result | CoordinationError) -> None:
        if not self._stopped:
            self._guarded(lambda now: self._core.completed(operation, outcome, now))

    def _pass_events(self) -> None:
        """Pass the events on that the coordinator has."""
        if self._stopped:
            return
        try:
            events = self._coordinator.take_events()
        except CoordinationError as error:
            if not self._is_unreadable:
                self._report(f"the coordinator's changes cannot be read, which is tried again: {error}")
            self._is_unreadable = True
            return
        self._is_unreadable = False
        for event in events:
            self._guarded(lambda now, event=event: self._core.notified(event, now))  # type: ignore[misc]

    def _guarded(self, step: Callable[[Now], None]) -> None:
        """Let the core take a step, and let it go on. Report a fault of the broker's own: others must still come."""
        steps: tuple[Callable[[], None], ...] = (lambda: step(self._now()), self._turn)
        for carry_out in steps:
            try:
                carry_out()
            except Exception:
                self._report(f"a fault of the broker's own, with the coordinator:\n{format_exc()}")

    # --- the Member, until the broker serves ---------------------------------------------------------------------

    def turn(self) -> None:
        """Let the Member go on, after one of its verbs was called."""
        core = self._timed
        if core is None or self._stopped:
            return
        self.carry_out(core.take_operations())
        self.followed()
        deadline_ms = core.next_deadline_ms()
        self._cancel_timer()
        if self._timed is core and deadline_ms is not None and not self._stopped:
            seconds = max(deadline_ms - self._now().ms, 0) / 1000
            self._timer = self._reactor.callLater(seconds, self._tick, core)

    def _tick(self, core: TimedCore) -> None:
        self._timer = None
        self._guarded(core.tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
