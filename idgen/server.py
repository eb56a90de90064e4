"""SHELL (Twisted: sockets, timers): the id service over framed Thrift, and the driver of a claim under the reactor.

One write for each read, answers in the order of the calls. A peer that does not read its answers is not read from; nor
is one whose next call has to wait for the clock (DESIGN section 4: back-pressure by timer, never by blocking).
"""

from collections.abc import Iterator
from typing import cast

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from coordination.deferred import executor
from coordination.port import CoordinationError, Coordinator, Result
from coordination.reactor import DelayedCall, Reactor, Transport
from idgen import fork
from idgen.claim import WorkerClaim
from idgen.claim_state import State
from idgen.clock import IdClock
from idgen.errors import NoWorkerNumber, SequenceExhausted
from idgen.service import IdService
from idgen.wire import Call, CallDecoder, ThriftError

WAKE_MS_MAX = 1_000  # a driver looks at the session's events, and at a clock that was stepped, this often
BURST_BYTES = 1 << 16  # answers are written when they are so many; it is also Twisted's mark for a backlog


class ClaimDriver:
    """Keeps the claims of one session going: carries out their operations, one timer for all, in the reactor."""

    def __init__(self, reactor: Reactor, coordinator: Coordinator, clock: IdClock) -> None:
        self._reactor = reactor
        self._coordinator = coordinator
        self._clock = clock
        self._execute = executor(coordinator, reactor)
        self._timer: DelayedCall | None = None
        self._claims: list[WorkerClaim] = []
        self._busy: set[WorkerClaim] = set()  # whose operation is being carried out
        self._held: dict[WorkerClaim, Deferred[WorkerClaim]] = {}
        self._stopped: list[Deferred[None]] = []

    @property
    def claims(self) -> tuple[WorkerClaim, ...]:
        """The claims that are kept."""
        return tuple(self._claims)

    def hold(self, claim: WorkerClaim) -> "Deferred[WorkerClaim]":
        """Begin a claim; fires when it has a number. Fails with what ends it for good (LayoutMismatch...)."""
        fork.guard(claim)
        self._claims.append(claim)
        held = self._held[claim] = Deferred()
        self._turn()
        return held

    def numbers(self) -> set[int]:
        """The worker numbers held."""
        return {claim.number for claim in self._claims if claim.number is not None}

    def stop(self) -> "Deferred[None]":
        """Issue no more ids and give all numbers back; fires when that is done, or cannot be."""
        stopped: Deferred[None] = Deferred()
        self._stopped.append(stopped)
        for claim in self._claims:
            claim.close(self._clock.now_ms())
        self._turn()
        return stopped

    def _turn(self) -> None:
        """Let time and events in, carry out what is asked for, and come again when it is due."""
        now_ms = self._clock.now_ms()
        for event in self._coordinator.take_events():
            for claim in self._claims:
                claim.happened(event, now_ms)
        for claim in self._claims:
            try:
                claim.tick(now_ms)
                self._go_on(claim)
            except Exception:  # a fault of ours in one claim must not stop the others from raising their marks
                self._crash(claim, Failure())  # type: ignore[no-untyped-call]
        if self._stopped and all(claim.state is State.CLOSED for claim in self._claims):
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
        """Not a fault of the registry but ours: no more ids from this claim, and whoever waits is told."""
        self._busy.discard(claim)
        claim.abandon(f"its claim failed: {failure.getErrorMessage()}")
        claim.failure = cast(Exception, failure.value)
        if claim in self._held:
            self._tell(claim)

    def _tell(self, claim: WorkerClaim) -> None:
        if claim.state is State.CLOSED:
            error = claim.failure or NoWorkerNumber(f"no worker number: {claim.problem}")
            self._held.pop(claim).errback(error)
        elif claim.number is not None:
            self._held.pop(claim).callback(claim)

    def _arm(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        deadlines = [claim.next_deadline_ms for claim in self._claims if claim.state is not State.CLOSED]
        if deadlines:
            now_ms = self._clock.now_ms()
            waits = [deadline - now_ms for deadline in deadlines if deadline is not None]
            wait_ms = min(max(min(waits, default=WAKE_MS_MAX), 0), WAKE_MS_MAX)
            self._timer = self._reactor.callLater(wait_ms / 1000, self._turn)


class ThriftProtocol(Protocol):
    """One connection of the id service. It is its own producer: the transport pauses it when answers pile up."""

    service: IdService
    owner: "ThriftFactory"
    transport: Transport  # type: ignore[assignment]  # Twisted says ITransport | None

    def connectionMade(self) -> None:
        self._decoder = CallDecoder(self.service.config.ids_max_frame_bytes)
        self._calls: Iterator[Call] | None = None  # of the last read, as far as they are not answered
        self._backlog = False
        self._reading = True
        self._retry: DelayedCall | None = None
        if not self.owner.admit(self):
            self.transport.abortConnection()
            return
        self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)

    def connectionLost(self, reason: object = None) -> None:
        self.owner.connections.discard(self)
        if self._retry is not None and self._retry.active():
            self._retry.cancel()

    def dataReceived(self, data: bytes) -> None:
        self._calls = self._decoder.calls(data)
        self._go_on()

    def pauseProducing(self) -> None:
        self._backlog = True

    def resumeProducing(self) -> None:
        self._backlog = False
        self._go_on()

    def stopProducing(self) -> None:
        self.close()

    def close(self) -> None:
        """Send what is answered, then close. With a producer registered, Twisted would ask for more instead."""
        self._calls = None
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def _go_on(self) -> None:
        """Answer what can be answered now; read on when all is, and the peer takes it."""
        if self._calls is not None and not self._backlog and self._retry is None:
            try:
                self._answer(self._calls)
            except ThriftError as error:
                self.owner.log.warn("ids: {peer} closed: {why}", peer=self.transport.getPeer(), why=str(error))
                self.close()
                return
        reading = self._calls is None and not self._backlog
        if reading != self._reading:
            self._reading = reading
            (self.transport.resumeProducing if reading else self.transport.pauseProducing)()

    def _answer(self, calls: Iterator[Call]) -> None:
        """Answer calls until they end, the peer does not read, or the clock has to move on first."""
        clock, answers, size = self.owner.clock, [], 0
        now_ms = clock.now_ms()
        try:
            for call in calls:
                answer = self.service.answer(call, now_ms, clock.skew_ms)
                answers.append(answer)
                size += len(answer)
                if size >= BURST_BYTES:
                    self.transport.write(b"".join(answers))
                    answers, size = [], 0
                    if self._backlog:
                        return
            self._calls = None
        except SequenceExhausted as error:
            self._calls = _again(call, calls)
            pause_ms = max(error.retry_at_ms - now_ms, 1)
            self.service.counters.waited(pause_ms)
            self._retry = self.owner.reactor.callLater(pause_ms / 1000, self._resume)
        finally:
            if answers:
                self.transport.write(b"".join(answers))

    def _resume(self) -> None:
        self._retry = None
        self._go_on()


class ThriftFactory(Factory):
    """The id service for `reactor.listenTCP`; at most `flakelog.ids.max.connections` at once."""

    noisy = False
    log = Logger()

    def __init__(self, service: IdService, clock: IdClock, reactor: Reactor) -> None:
        self.service = service
        self.clock = clock
        self.reactor = reactor
        self.connections: set[ThriftProtocol] = set()

    def buildProtocol(self, addr: object) -> ThriftProtocol:
        connection = ThriftProtocol()
        connection.service = self.service
        connection.owner = self
        return connection

    def admit(self, connection: ThriftProtocol) -> bool:
        """Count a new connection in, unless there are too many."""
        if len(self.connections) >= self.service.config.ids_max_connections:
            peer = connection.transport.getPeer()
            self.log.warn("ids: {peer} closed: flakelog.ids.max.connections are open", peer=peer)
            return False
        self.connections.add(connection)
        return True

    def close_connections(self) -> None:
        """Close what is open; a stopping server calls this after it has stopped listening."""
        for connection in list(self.connections):
            connection.close()


def _again(call: Call, rest: Iterator[Call]) -> Iterator[Call]:
    yield call
    yield from rest
