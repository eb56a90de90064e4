"""The controller's connections to brokers: a queue of requests for each life of a broker.

A broker has one request at a time, in the order in which the controller decided, and none are merged. A request
without an answer is repeated until the controller processes the end of that life, because a broker registers before it
listens. A broker that is live, and cannot be reached, would stay behind in silence: so `unreached` has its number.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from broker.cluster.orders import Order
from broker.now import Now
from broker.waiting.pending import Pending

RETRY_MS = 100  # as Kafka's controller pauses before it repeats a request
UNREACHED_MS = 20_000
"""A live broker that has not answered a request for so long is not reached. The session of a dead one ends before."""


@dataclass(frozen=True, eq=False)
class Call:
    """A request to one life of a broker. Its answer is passed to `called` with the same object."""

    broker_id: int
    broker_epoch: int
    request: Order


Sent: TypeAlias = Mapping[int, tuple[int, int]]
"""By broker, its life and the number of requests that were decided for this life so far."""


@dataclass
class _Channel:
    broker_epoch: int
    queue: deque[Order] = field(default_factory=deque)
    call: Call | None = None
    retry_ms: int | None = None
    answered: int = 0
    asked_ms: int | None = None
    """When the first request of the queue was sent first; None before, and while there is none."""


class Channels:
    """The queues of all live brokers. They mark `pending` when there are requests to send."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._channels: dict[int, _Channel] = {}
        self.unreached: set[int] = set()
        """The live brokers that have not answered a request for UNREACHED_MS."""

    def open(self, broker_id: int, broker_epoch: int) -> None:
        """Begin the queue of a life. The queue of an earlier life of the broker is dropped."""
        self._channels[broker_id] = _Channel(broker_epoch)

    def close(self, broker_id: int) -> None:
        """Drop the queue of a life that is over. An answer that is still to come is ignored."""
        self._channels.pop(broker_id, None)
        self.unreached.discard(broker_id)

    def close_all(self) -> None:
        self._channels.clear()
        self.unreached.clear()

    def send(self, broker_id: int, request: Order) -> None:
        channel = self._channels.get(broker_id)
        if channel is not None:
            channel.queue.append(request)
            self._pending.calls = True

    @property
    def sent(self) -> Sent:
        return {
            broker_id: (channel.broker_epoch, channel.answered + len(channel.queue))
            for broker_id, channel in self._channels.items()
        }

    def have_answered(self, sent: Sent) -> bool:
        """Return True if each broker has answered all requests of `sent`, or its life of that time is over."""
        return all(
            channel.answered >= number
            for broker_id, (broker_epoch, number) in sent.items()
            if (channel := self._channels.get(broker_id)) is not None and channel.broker_epoch == broker_epoch
        )

    def take_calls(self, now: Now) -> list[Call]:
        """Return the requests to send now, at most one for each broker."""
        calls = []
        for broker_id, channel in self._channels.items():
            is_due = channel.retry_ms is None or channel.retry_ms <= now.ms
            if channel.call is None and channel.queue and is_due:
                channel.call = Call(broker_id, channel.broker_epoch, channel.queue[0])
                channel.retry_ms = None
                channel.asked_ms = now.ms if channel.asked_ms is None else channel.asked_ms
                calls.append(channel.call)
        return calls

    def called(self, call: Call, response: Any | None, now: Now) -> bool:
        """Take the response of a call, None if the broker sent none. Return True if it answers a request that waits."""
        channel = self._channels.get(call.broker_id)
        if channel is None or channel.call is not call:
            return False
        channel.call = None
        if response is None:
            channel.retry_ms = now.ms + RETRY_MS
            if channel.asked_ms is not None and channel.asked_ms + UNREACHED_MS <= now.ms:
                self.unreached.add(call.broker_id)
            return False
        channel.asked_ms = None
        self.unreached.discard(call.broker_id)
        channel.queue.popleft()
        channel.answered += 1
        self._pending.calls = True
        return True

    def next_deadline_ms(self) -> int | None:
        return min((c.retry_ms for c in self._channels.values() if c.retry_ms is not None), default=None)

    def is_idle(self) -> bool:
        """Return True if no request waits for its answer."""
        return not any(channel.queue for channel in self._channels.values())
