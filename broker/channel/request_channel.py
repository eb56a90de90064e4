"""The request channel: what the parts of an engine share to take requests and to send their answers.

    Connections     the open connections, and what the shell shall do with them     broker.channel.connections
    TurnQueue       which connections have requests, and whose turn it is           broker.channel.turn_queue
    RequestMemory   the memory of incomplete requests                               broker.channel.request_memory
    Slices          large requests, executed in slices                              broker.channel.slices
    TurnClock       the time of the current turn                                    broker.channel.turn_clock

An answer is encoded now, or when a Delayed is ready, and leaves in the order of the requests. Kafka's RequestChannel
has the same place, between the network's threads and the handlers.
"""

import struct
from collections.abc import Callable, Sequence
from functools import partial
from sys import exception
from traceback import format_exception
from types import GeneratorType
from typing import Any

from broker.channel.connection import Connection, Slot
from broker.channel.connections import Connections
from broker.channel.ports import ChannelServices
from broker.channel.request_memory import RequestMemory
from broker.channel.slices import Slices
from broker.channel.turn_clock import TurnClock
from broker.channel.turn_queue import TurnQueue
from broker.now import Now
from broker.steps import LargeMessage, Steps
from broker.waiting.purgatory import Delayed
from broker.wire.codec import Codec
from broker.wire.frame import LENGTH_BYTES, FileRegion, Part, size_of

_LENGTH_AND_ID = struct.Struct(">ii")
OWN_FAULT = "a fault of the broker's own; see the log"
NO_MEMORY = "the server has no memory for its request"


class RequestChannel:
    """What the parts of an engine share. It puts answers to their connections, and reports answers that fail."""

    def __init__(self, services: ChannelServices, clock_ns: Callable[[], int]) -> None:
        config = services.config
        self._services = services
        self.clock = TurnClock(clock_ns)
        self.connections = Connections(services)
        self.memory = RequestMemory(config.queued_max_request_bytes, config.queued_request_ms)
        self.queue = TurnQueue(self.connections, self.memory)
        self.slices = Slices(self.queue, self.clock, services.partition_budget)

    def reply(
        self, conn: Connection, codec: Codec, version: int, correlation_id: int, response: Any, slot: Slot | None
    ) -> None:
        """Encode an answer and send it, in slices if it is large; `slot` is its place if it had to wait."""
        try:
            parts = codec.encode(version, response)
        except LargeMessage:
            self.slices.begin(conn, self._reply_in_steps(conn, codec, version, correlation_id, response, slot))
        else:
            self._send(conn, codec, version, correlation_id, parts, slot)

    def _reply_in_steps(
        self, conn: Connection, codec: Codec, version: int, correlation_id: int, response: Any, slot: Slot | None
    ) -> Steps[None]:
        try:
            parts = yield from codec.encode_in_steps(version, response)
            self._send(conn, codec, version, correlation_id, parts, slot)
        except Exception:
            self.failed([conn])

    def _send(
        self, conn: Connection, codec: Codec, version: int, correlation_id: int, parts: list[Part], slot: Slot | None
    ) -> None:
        tags = codec.answer_tags(version)
        size = 4 + len(tags) + size_of(parts)
        head, first = _LENGTH_AND_ID.pack(size, correlation_id) + tags, parts[0]
        if isinstance(first, FileRegion):
            parts.insert(0, head)
        else:
            parts[0] = head + first
        clock = self.clock
        if slot is None:
            began_ns = clock.began_ns
            conn.put(parts, size + LENGTH_BYTES)
        else:
            began_ns = slot.began_ns
            conn.fill(slot, parts, size + LENGTH_BYTES)
        self.connections.answered.append(conn)
        self._services.metrics.of_api(codec.key).observe(clock.clock_ns() - began_ns)

    def wait(self, conn: Connection, codec: Codec, version: int, correlation_id: int, delayed: Delayed[Any]) -> None:
        """Send the answer of a Delayed once it is ready. A slot keeps the place of the answer meanwhile."""
        slot = conn.wait()
        slot.began_ns = self.clock.began_ns
        if delayed.holds_connection:
            conn.wait_behind(delayed)
        # Not a closure that names itself: such a cycle keeps segments open until a garbage collection.
        self._watch(conn, delayed, slot, partial(self._done, conn, codec, version, correlation_id, delayed, slot))

    def _done(
        self,
        conn: Connection,
        codec: Codec,
        version: int,
        correlation_id: int,
        delayed: Delayed[Any],
        slot: Slot,
        response: Any,
    ) -> None:
        slot.delayed = None
        if response is None:
            return  # a fault; the connection is being closed
        if conn.behind is delayed:
            conn.wait_behind(None)
        if response.__class__ is GeneratorType:
            done = partial(self._done, conn, codec, version, correlation_id, delayed, slot)
            self.slices.begin(conn, self._complete_in_steps(conn, response, slot, done))
            return
        try:
            self.reply(conn, codec, version, correlation_id, response, slot)
        except Exception:
            self.failed([conn])
        self.queue.resume(conn)

    def _watch(self, conn: Connection, delayed: Delayed[Any], slot: Slot, done: Callable[[Any], None]) -> None:
        slot.delayed = delayed
        delayed.try_complete = self.guarded([conn], delayed.try_complete)
        delayed.expire = self.guarded([conn], delayed.expire)
        # Not limited if its connection waits with it: a connection has one of them at most.
        self._services.purgatory.watch(delayed, done, self.clock.now, limited=not delayed.holds_connection)

    def _complete_in_steps(
        self, conn: Connection, steps: Steps[Any], slot: Slot, done: Callable[[Any], None]
    ) -> Steps[None]:
        """Make the answer of a request that has waited in slices; it may have to wait again."""
        try:
            response = yield from steps
            if isinstance(response, Delayed):
                self._watch(conn, response, slot, done)
            else:
                done(response)
        except Exception:
            self.failed([conn])

    def guarded(self, conns: Sequence[Connection], answer: Callable[[Now], Any]) -> Callable[[Now], Any]:
        """Wrap `answer` so that an exception closes only `conns`: `tick` or another connection's request calls it."""

        def guarded(now: Now) -> Any:
            try:
                return answer(now)
            except Exception:
                self.failed(conns)
                return None

        return guarded

    def failed(self, conns: Sequence[Connection], error: Exception | None = None) -> None:
        """Report the traceback of an unexpected exception, and close the connections on which it happened.

        A lack of memory has no traceback, because the reason of a closed connection says all.
        """
        cause = error or exception()
        reason = reason_of(cause)
        if reason == OWN_FAULT:
            peers, trace = ", ".join(conn.peer for conn in conns), "".join(format_exception(cause))
            self._services.report(f"a fault of the broker's own, on the connection of {peers}:\n{trace}")
        for conn in conns:
            self.connections.close(conn, reason)


def reason_of(error: BaseException | None) -> str:
    """Return why connections are closed on which an unexpected exception happened."""
    return NO_MEMORY if isinstance(error, MemoryError) else OWN_FAULT
