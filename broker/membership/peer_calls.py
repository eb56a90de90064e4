"""The requests of this broker to other brokers.

They are what the controller's channels are for orders: a shell takes the calls, sends each over a connection of its
broker, and passes the answer back. A call without an answer in time counts as unanswered, and a later answer is
ignored, so the broker may have carried the request out. Callers that repeat a request must bear that.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from broker.now import Now
from broker.waiting.pending import Pending
from broker.waiting.timing_wheel import Timer, TimingWheel

UNDER_WAY_MAX = 5  # as `max.in.flight.requests.per.connection` of clients: hides the network's delay, buries no broker
WAITING_MAX = 1_000  # a broker that does not answer costs this many requests of memory, not one for each transaction
TIMEOUT_MS = 30_000  # as `request.timeout.ms` between Kafka's brokers

Answered: TypeAlias = Callable[[Any | None, Now], None]
"""Receives the response; None if the broker was not reached or did not answer in time."""


@dataclass(frozen=True, eq=False)
class PeerCall:
    """A request to a broker. Its response is passed to `called` with the same object."""

    broker_id: int
    request: Any
    """A message of kio or `broker.wire.inter_broker`, whose class names key and version."""


@dataclass(eq=False)
class _Request:
    call: PeerCall
    answered: Answered
    timer: Timer["_Request"] | None = None


@dataclass(eq=False)
class _Peer:
    waiting: dict[_Request, None] = field(default_factory=dict)
    under_way: dict[PeerCall, _Request] = field(default_factory=dict)


class PeerCalls:
    """Requests to other brokers, each answered exactly once: by its broker, by its timeout, or by its broker's death.

    `ask` answers nothing itself: a request that is one too many is answered None at the next `tick`. `pending` is
    marked when there are requests to send.
    """

    def __init__(self, pending: Pending) -> None:
        self.pending = pending
        self._peers: dict[int, _Peer] = {}
        self._timeouts: TimingWheel[_Request] = TimingWheel()
        self._refused: deque[Answered] = deque()
        self.before_take: list[Callable[[], None]] = []
        """Called at the begin of each `take`, by those that gather what they ask (`broker.membership.peer_batches`)."""

    def ask(
        self, broker_id: int, request: Any, answered: Answered, now: Now, *, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """Send a request to a broker, after the earlier ones."""
        peer = self._peers.get(broker_id)
        if peer is None:
            peer = self._peers[broker_id] = _Peer()
        if len(peer.waiting) >= WAITING_MAX:
            self._refused.append(answered)
            return
        pending = _Request(PeerCall(broker_id, request), answered)
        pending.timer = self._timeouts.add(now.ms + timeout_ms, pending)
        peer.waiting[pending] = None
        self.pending.calls = True

    def take(self) -> list[PeerCall]:
        """Return the calls to send now, in order for each broker. The shell takes them after each turn and tick."""
        for ask in self.before_take:
            ask()
        calls = []
        for peer in self._peers.values():
            while peer.waiting and len(peer.under_way) < UNDER_WAY_MAX:
                pending = next(iter(peer.waiting))
                del peer.waiting[pending]
                peer.under_way[pending.call] = pending
                calls.append(pending.call)
        return calls

    def called(self, call: PeerCall, response: Any | None, now: Now) -> None:
        """Pass a call's response on, None if the broker was not reached. Ignore it if the call was answered before."""
        peer = self._peers.get(call.broker_id)
        pending = None if peer is None else peer.under_way.pop(call, None)
        if pending is None:
            return
        self.pending.calls = True  # another may be waiting
        if pending.timer is not None:
            pending.timer.cancel()
        pending.answered(response, now)

    def lost(self, broker_id: int, now: Now) -> None:
        """Answer all calls of a broker that died with None. Calls that are made meanwhile are for its next life."""
        peer = self._peers.pop(broker_id, None)
        if peer is None:
            return
        for pending in (*peer.under_way.values(), *peer.waiting):
            if pending.timer is not None:
                pending.timer.cancel()
            pending.answered(None, now)

    def tick(self, now: Now) -> None:
        """Answer the calls whose time is over, and those that were too many, with None."""
        refused, self._refused = self._refused, deque()
        for answered in refused:
            answered(None, now)
        for pending in self._timeouts.advance(now.ms):
            peer = self._peers.get(pending.call.broker_id)
            if peer is not None and (peer.under_way.pop(pending.call, None) is not None or pending in peer.waiting):
                peer.waiting.pop(pending, None)
                pending.answered(None, now)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due."""
        return 0 if self._refused else self._timeouts.next_deadline_ms()
