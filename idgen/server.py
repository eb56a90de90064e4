"""SHELL (Twisted: sockets, timers): the id service over framed Thrift, and the driver of a claim under the reactor.

Each read leads to one write, with the answers in the order of the calls. The server does not read from a peer that does
not read its answers, nor from a peer whose next call has to wait for the clock. Such calls wait in one fair queue
(idgen/fair_queue.py): back-pressure by timer, never by blocking. In one reactor iteration, all id connections together
are answered at most flakelog.ids.look.calls calls, so that a log in the same process keeps its share of the reactor
during a flood.
"""

from collections.abc import Callable
from typing import cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from coordination.deferred import executor
from coordination.port import CoordinationError, Coordinator, Result
from coordination.reactor import DelayedCall, Reactor, Transport
from idgen import fork
from idgen.claim import WorkerClaim
from idgen.claim_news import ClaimNews
from idgen.claim_state import ClaimState
from idgen.clock import IdClock
from idgen.errors import NoWorkerNumber, SequenceExhausted
from idgen.fair_queue import UNLIMITED, Caller, FairQueue, ThriftCaller, TurnBudget, Waiting
from idgen.peer_log import PeerLog
from idgen.service import IdService
from idgen.wire import ThriftError

WAKE_MS_MAX = 1_000  # the longest time between two checks of the session's events and of a stepped clock
BURST_BYTES = 1 << 16  # answers are written in pieces of this size, which is also Twisted's threshold for a backlog


class ClaimDriver:
    """The driver of one session's claims: it carries out their operations in the reactor, with one timer for all.

    `report` receives a line when a claim is cut off, has lost its number, holds a number again, or has failed.
    """

    def __init__(
        self,
        reactor: Reactor,
        coordinator: Coordinator,
        clock: IdClock,
        report: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._reactor = reactor
        self._coordinator = coordinator
        self._clock = clock
        self._execute = executor(coordinator, reactor)
        self._timer: DelayedCall | None = None
        self._claims: list[WorkerClaim] = []
        self._busy: set[WorkerClaim] = set()  # claims with an operation in progress
        self._held: dict[WorkerClaim, Deferred[WorkerClaim]] = {}
        self._report = report
        self._news: dict[WorkerClaim, ClaimNews] = {}
        self._stopped: list[Deferred[None]] = []

    @property
    def claims(self) -> tuple[WorkerClaim, ...]:
        """The claims that this driver keeps."""
        return tuple(self._claims)

    def hold(self, claim: WorkerClaim) -> "Deferred[WorkerClaim]":
        """Begin a claim; fire when it holds a number. Fails with an error that ends it for good (LayoutMismatch...)."""
        fork.guard(claim)
        self._claims.append(claim)
        self._news[claim] = ClaimNews()
        held = self._held[claim] = Deferred()
        self._turn()
        return held

    def numbers(self) -> set[int]:
        """Return the worker numbers held."""
        return {claim.number for claim in self._claims if claim.number is not None}

    def wake(self) -> None:
        """Tick the claims in the next reactor iteration, because one needs a higher mark."""
        self._reactor.callLater(0, self._turn)

    def stop(self) -> "Deferred[None]":
        """Stop issuing ids and release all numbers; fire when every claim is closed, even if its release failed."""
        stopped: Deferred[None] = Deferred()
        self._stopped.append(stopped)
        for claim in self._claims:
            claim.close(self._clock.now_ms())
        self._turn()
        return stopped

    def _turn(self) -> None:
        """Pass time and events to the claims, start their operations, and set the timer for the next deadline."""
        now_ms = self._clock.now_ms()
        for event in self._coordinator.take_events():
            for claim in self._claims:
                claim.happened(event, now_ms)
        for claim in self._claims:
            try:
                claim.tick(now_ms)
                self._go_on(claim)
            except Exception:  # a bug in one claim must not stop the others from raising their marks
                self._crash(claim, Failure())  # type: ignore[no-untyped-call]
            line = self._news[claim].of(claim, now_ms)
            if line is not None:
                self._report(line)
        if self._stopped and all(claim.state is ClaimState.CLOSED for claim in self._claims):
            stopped, self._stopped = self._stopped, []
            for waiting in stopped:
                waiting.callback(None)
        self._arm()

    def _go_on(self, claim: WorkerClaim) -> None:
        operation = claim.take_operation()
        if operation is not None:
            self._busy.add(claim)
            pending = self._execute(operation)
            pending.addCallbacks(self._answered, self._failed, callbackArgs=(claim,), errbackArgs=(claim,))
            pending.addErrback(self._crashed, claim)
        elif claim in self._held and claim not in self._busy:
            self._tell(claim)

    def _answered(self, result: Result, claim: WorkerClaim) -> None:
        self._busy.discard(claim)
        claim.answered(result, self._clock.now_ms())
        self._turn()

    def _failed(self, failure: Failure, claim: WorkerClaim) -> None:
        if not isinstance(failure.value, CoordinationError):
            return self._crashed(failure, claim)
        self._busy.discard(claim)
        claim.failed(failure.value, self._clock.now_ms())
        self._turn()

    def _crashed(self, failure: Failure, claim: WorkerClaim) -> None:
        self._crash(claim, failure)
        self._turn()

    def _crash(self, claim: WorkerClaim, failure: Failure) -> None:
        """End a claim after a bug of ours: it issues no more ids, and the code that waits for it receives the error."""
        self._busy.discard(claim)
        claim.abandon(f"its claim failed: {failure.getErrorMessage()}")
        claim.failure = cast(Exception, failure.value)
        if claim in self._held:
            self._tell(claim)

    def _tell(self, claim: WorkerClaim) -> None:
        if claim.state is ClaimState.CLOSED:
            error = claim.failure or NoWorkerNumber(f"no worker number: {claim.problem}")
            self._held.pop(claim).errback(error)
        elif claim.number is not None:
            self._held.pop(claim).callback(claim)

    def _arm(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        deadlines = [claim.next_deadline_ms for claim in self._claims if claim.state is not ClaimState.CLOSED]
        if deadlines:
            now_ms = self._clock.now_ms()
            waits = [deadline - now_ms for deadline in deadlines if deadline is not None]
            wait_ms = min(max(min(waits, default=WAKE_MS_MAX), 0), WAKE_MS_MAX)
            self._timer = self._reactor.callLater(wait_ms / 1000, self._turn)


class IdQueue:
    """The fair queue of requests that wait for ids, of every protocol, with one timer for all of them.

    The call budget (`TurnBudget`) is renewed when the reactor reports that it has handled all events. With a reactor
    that does not report it, each read renews the budget.
    """

    def __init__(self, service: IdService, clock: IdClock, reactor: Reactor) -> None:
        self.clock = clock
        self.budget = TurnBudget(service.config.ids_look_calls)
        self._line = FairQueue(service.turn_ids, self.budget, service.counters.waited)
        after_events = getattr(reactor, "after_events", None)
        self._tells_of_looks = after_events is not None
        if after_events is not None:
            after_events(self.budget.renew)
        self.reactor = reactor
        self._timer: DelayedCall | None = None

    @property
    def most_now(self) -> int:
        """The ids that a request may take without queueing: none while others wait, else no limit."""
        return 0 if self._line else UNLIMITED

    def may_answer(self) -> bool:
        """Return True if the call budget allows more; otherwise the connection joins the queue."""
        if not self._tells_of_looks:
            self.budget.renew()
        return self.budget.calls > 0

    def join(self, waiter: Waiting, at_ms: int) -> None:
        """Wait for a turn, behind all others. A lone waiter has its turn at `at_ms`, when all its ids are available."""
        now_ms = self.clock.now_ms()
        self._line.join(waiter, now_ms)
        if len(self._line) == 1:
            self._arm(max(at_ms - now_ms, 0))
        elif len(self._line) == 2:  # the first one waits for all its ids: from now on they share
            self._arm(0)

    def leave(self, waiter: Waiting) -> None:
        self._line.leave(waiter)
        if not self._line:
            self._disarm()

    def _serve(self) -> None:
        self._timer = None
        now_ms = self.clock.now_ms()
        if not self._tells_of_looks:
            self.budget.renew()
        at_ms = self._line.serve(now_ms, self.clock.skew_ms)
        if at_ms is not None:
            self._arm(max(at_ms - now_ms, 0))

    def _arm(self, wait_ms: int) -> None:
        self._disarm()
        self._timer = self.reactor.callLater(wait_ms / 1000, self._serve)

    def _disarm(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None


@implementer(IHalfCloseableProtocol)
class IdConnection(Protocol):
    """A connection whose requests a `Caller` answers. The transport pauses it, as a producer, when answers pile up.

    A peer that has closed its sending side (`printf ... | nc`) gets its answers before the connection is closed.
    """

    caller: Caller
    owner: "IdFactory"
    transport: Transport  # type: ignore[assignment]  # Twisted says ITransport | None

    def connectionMade(self) -> None:
        self._backlog = False
        self._waiting = False
        self._reading = True
        self._ended = False  # the peer sends no more
        if not self.owner.admit(self):
            self.transport.abortConnection()
            return
        self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)

    def connectionLost(self, reason: object = None) -> None:
        self.owner.connections.discard(self)
        self.owner.line.leave(self)

    def dataReceived(self, data: bytes) -> None:
        self.caller.receive(data)
        self._go_on()

    def readConnectionLost(self) -> None:
        self._ended, self._reading = True, False
        self._read_on()

    def writeConnectionLost(self) -> None:
        """Abort the connection, because the peer takes no more answers."""
        self.transport.abortConnection()

    def pauseProducing(self) -> None:
        self._backlog = True

    def resumeProducing(self) -> None:
        self._backlog = False
        self._go_on()

    def stopProducing(self) -> None:
        self.close()

    def close(self) -> None:
        """Send the answers made so far, then close. Twisted would ask a registered producer for more instead."""
        self.caller.idle = True
        self.owner.line.leave(self)
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def take_turn(self, most: int, now_ms: int, skew_ms: int) -> bool:
        """Take a turn in the queue (idgen.fair_queue.Waiting)."""
        self.answer(most, now_ms, skew_ms)
        self._waiting = not (self.caller.idle or self._backlog)
        if not self._waiting:
            self._read_on()
        return not self._waiting

    def _go_on(self) -> None:
        """Answer what can be answered now; join the queue if the rest needs more ids or a new call budget."""
        if self._waiting or self._backlog:
            return
        line = self.owner.line
        now_ms = at_ms = line.clock.now_ms()
        try:
            if line.may_answer():
                self.answer(line.most_now, now_ms, line.clock.skew_ms)
        except SequenceExhausted as error:
            at_ms = error.retry_at_ms
        if not self.caller.idle and not self._backlog:
            self._waiting = True
            line.join(self, at_ms)
        self._read_on()

    def _read_on(self) -> None:
        """Read only while all calls are answered and the peer takes the answers. Close if the peer sends no more."""
        if self._ended:
            if self.caller.idle and not self._backlog:
                self.close()
            return
        reading = self.caller.idle and not self._backlog
        if reading != self._reading:
            self._reading = reading
            (self.transport.resumeProducing if reading else self.transport.pauseProducing)()

    def answer(self, most: int, now_ms: int, skew_ms: int) -> None:
        """Answer with at most `most` ids, until all is answered or the peer does not read. SequenceExhausted."""
        answers, size = [], 0
        try:
            for answer in self.caller.answers(most, now_ms, skew_ms):
                answers.append(answer)
                size += len(answer)
                if size >= BURST_BYTES:
                    self.transport.write(b"".join(answers))
                    answers, size = [], 0
                    if self._backlog:
                        return
        finally:
            if answers:
                self.transport.write(b"".join(answers))


class ThriftProtocol(IdConnection):
    """A Thrift connection of the id service."""

    def __init__(self, service: IdService, budget: TurnBudget) -> None:
        self.caller = ThriftCaller(service, budget)

    def answer(self, most: int, now_ms: int, skew_ms: int) -> None:
        try:
            super().answer(most, now_ms, skew_ms)
        except ThriftError as error:
            self.owner.note(self, str(error))
            self.close()


class IdFactory(Factory):
    """The factory of a port's connections, at most `connections_max` at once. `setting` is the name of that limit."""

    noisy = False
    log = Logger()

    def __init__(self, line: IdQueue, setting: str, connections_max: int) -> None:
        self.line = line
        self.connections: set[IdConnection] = set()
        self._setting = setting
        self._connections_max = connections_max
        self._peers = PeerLog(line.reactor, line.clock.now_ms, lambda text: self.log.warn("{line}", line=text))

    def admit(self, connection: IdConnection) -> bool:
        """Add a new connection; return False if there are too many."""
        if len(self.connections) >= self._connections_max:
            self.note(connection, f"{self._setting} are open")
            return False
        self.connections.add(connection)
        return True

    def note(self, connection: IdConnection, why: str, port: str = "ids") -> None:
        """Log that a connection is closed because of its peer: once for each address and minute, then a count."""
        peer, user = connection.transport.getPeer(), getattr(connection.transport, "user", None)
        named = f"{peer}, {user!r}," if user else str(peer)  # quoted, because a certificate may have any name
        self._peers.note(str(getattr(peer, "host", peer)), f"{port}: {named} closed: {why}")

    def close_connections(self) -> None:
        """Close all open connections; a stopping server calls this after it has stopped listening."""
        for connection in list(self.connections):
            connection.close()
        self._peers.stop()


class ThriftFactory(IdFactory):
    """The factory of the id service over Thrift; at most `flakelog.ids.max.connections` connections at once."""

    def __init__(self, service: IdService, line: IdQueue) -> None:
        super().__init__(line, "flakelog.ids.max.connections", service.config.ids_max_connections)
        self._service = service

    def buildProtocol(self, addr: object) -> ThriftProtocol:
        connection = ThriftProtocol(self._service, self.line.budget)
        connection.owner = self
        return connection
