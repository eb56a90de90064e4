"""SHELL (Twisted): the client for programs on the reactor; each call returns a Deferred, and requests are pipelined."""

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail, inlineCallbacks, maybeDeferred
from twisted.internet.error import ConnectError, ConnectingCancelledError, ConnectionClosed
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.client.connection import ClientConnection
from broker.client.core import Address, ClientCore, Exchange, Steps, TopicInfo, advance, parse_addresses
from broker.client.errors import NotAuthenticated, Unreachable
from broker.client.offset_lookup import find_id, find_offset
from broker.client.records import LISTED_BYTES, OnPoison, Record, read_records
from broker.client.security.client_security import ClientSecurity, Security
from broker.client.security.twisted_session import TwistedSession
from broker.client.security.twisted_tls import connect
from broker.client.topic_admin import BROKER_DEFAULT, create_topic
from broker.record.compression import DECOMPRESSED_BYTES_MAX
from broker.wire.errors import WireError
from broker.wire.fetch import FetchedPartition
from broker.wire.produce import PartitionResult

T = TypeVar("T")

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
_DATA = memoryview(b"")


_LOST = ConnectError, ConnectionClosed, ConnectingCancelledError, CancelledError, OSError, ValueError
"""The errors of a connection that cannot be made, or is lost; ValueError for a name that cannot be a host's."""


class _Channel(Protocol):
    """A connection, with the Deferreds of its requests by correlation id."""

    transport: Any

    def __init__(self, owner: "TwistedClient", address: Address) -> None:
        self._owner = owner
        self._address = address
        self._core = ClientConnection()
        self._waiting: dict[int, Deferred[memoryview]] = {}
        self._is_lost = False
        self._session: TwistedSession | None = None

    def log_in(self) -> "Deferred[_Channel]":
        """Log in where the security asks for it; return a Deferred of this channel, ready for requests."""
        security = self._owner.core.security
        ready: Deferred[_Channel] = Deferred()
        if security is None or not security.asks_login:
            ready.callback(self)
            return ready
        log_in = partial(self._owner.core.log_in, self._address)
        self._session = TwistedSession(self._owner.reactor, lambda: security, log_in, self._send)
        return self._session.renew().addCallbacks(lambda _: self, self._not_logged_in)

    def _not_logged_in(self, failure: Failure) -> Failure:
        self.transport.abortConnection()
        return failure

    def ask(self, exchange: Exchange) -> "Deferred[memoryview]":
        if self._session is None or not self._session.has_to_wait:
            return self._send(exchange)
        renewed = self._session.renew().addErrback(self._not_logged_in)
        return renewed.addCallback(lambda _: self._send(exchange))

    def _send(self, exchange: Exchange) -> "Deferred[memoryview]":
        if self._is_lost:  # while a token was fetched
            return fail(Unreachable(str(self._address), "the connection was lost"))
        correlation_id, data = self._core.request(exchange)
        answer: Deferred[memoryview] = Deferred()
        if exchange.expects_reply:
            self._waiting[correlation_id] = answer
            answer.addTimeout(ANSWER_SECONDS, self._owner.reactor, onTimeoutCancel=self._late)
        else:
            answer.callback(_DATA)
        self.transport.write(data)
        return answer

    def _late(self, value: Any, timeout: float) -> Any:
        self.transport.abortConnection()
        raise Unreachable(str(self._address), f"no answer within {timeout:g} s")

    def dataReceived(self, data: bytes) -> None:
        try:
            answers = self._core.receive(memoryview(data), is_reused=False)
        except WireError as error:
            self._fail(str(error))
            self.transport.abortConnection()
            return
        for answer in answers:
            self._waiting.pop(answer.correlation_id).callback(answer.body)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._is_lost = True
        self._owner.lost(self._address, self)
        if isinstance(reason.value, NotAuthenticated):
            self._fail_with(reason.value)
        else:
            self._fail(self._core.with_hint(reason.getErrorMessage(), self._owner.core.security))

    def _fail(self, reason: str) -> None:
        self._fail_with(Unreachable(str(self._address), reason))

    def _fail_with(self, error: Unreachable | NotAuthenticated) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.errback(error)


class TwistedClient:
    """A client of any broker of Kafka's protocol, on a reactor. Deferreds fail with ClientError and its subclasses.

    With the `core` of another client, both share what they know of the cluster and its security, and each has its own
    connections.

    `fetch` skips poison batches, and counts and reports them, as Client does. An error that `on_poison` raises
    fails the Deferred of the fetch.
    """

    log = Logger()

    def __init__(
        self,
        servers: str,
        reactor: Any,
        *,
        on_poison: OnPoison | None = None,
        max_unpacked_bytes: int = DECOMPRESSED_BYTES_MAX,
        core: ClientCore | None = None,
        security: Security = None,
    ) -> None:
        self.core = ClientCore(parse_addresses(servers), ClientSecurity.of(security)) if core is None else core
        self.reactor = reactor
        self.on_poison = on_poison
        self.poison_batches = 0
        self._max_unpacked_bytes = max_unpacked_bytes
        self._connecting: dict[Address, Deferred[Any]] = {}
        self._waiting: dict[Address, list[Deferred[_Channel]]] = {}
        """The Deferreds that wait for a connection that is being made."""
        self._open: dict[Address, _Channel] = {}
        self._closed = False

    def close(self) -> None:
        """Close all connections; the Deferreds that still wait fail."""
        self._closed = True
        for connecting in list(self._connecting.values()):
            connecting.cancel()
        for channel in list(self._open.values()):
            channel.transport.abortConnection()

    @inlineCallbacks
    def run(self, steps: Steps[Any]) -> Any:
        """Carry out an operation of the core; return a Deferred of its result."""
        outcome: memoryview | Unreachable | None = None
        while True:
            try:
                exchange = advance(steps, outcome)
            except StopIteration as done:
                return done.value
            try:
                channel = yield self._channel(exchange.address)
                outcome = yield channel.ask(exchange)
            except Unreachable as error:
                outcome = error
            except _LOST as error:
                outcome = Unreachable(str(exchange.address), str(error) or type(error).__name__)
            if isinstance(outcome, Unreachable):
                self.core.forget(exchange.address)  # another node may lead its partitions by now

    def _channel(self, address: Address) -> "Deferred[_Channel]":
        """Return a Deferred of the connection to a node. Connect if it is not open; calls meanwhile share it."""
        channel: Deferred[_Channel] = Deferred()
        if self._closed:
            channel.errback(Unreachable(str(address), "the client was closed"))
            return channel
        if address in self._open:
            channel.callback(self._open[address])
            return channel
        self._waiting.setdefault(address, []).append(channel)
        if len(self._waiting[address]) == 1:
            made, security = _Channel(self, address), self.core.security
            connecting = maybeDeferred(connect, self.reactor, address, made, security, CONNECT_SECONDS)
            self._connecting[address] = connecting.addCallback(_Channel.log_in)
            connecting.addBoth(self._connected, address)
        return channel

    def _connected(self, result: Any, address: Address) -> None:
        """Pass a new connection, or the Failure to make it, to all Deferreds that wait for it."""
        self._connecting.pop(address, None)
        if isinstance(result, _Channel):
            result.transport.setTcpNoDelay(True)
            self._open[address] = result
        for channel in self._waiting.pop(address):
            channel.callback(result)  # a Failure calls the errbacks

    def lost(self, address: Address, channel: _Channel) -> None:
        """Remove a lost connection and forget the versions and leaders known of its node."""
        if self._open.get(address) is channel:
            del self._open[address]
        self.core.forget(address)

    # --- the operations by name ----------------------------------------------------------------------------------

    def topics(self) -> "Deferred[list[TopicInfo]]":
        return self.run(self.core.metadata())

    def topic(self, name: str) -> "Deferred[TopicInfo]":
        return self.run(self.core.metadata([name])).addCallback(lambda infos: infos[0])

    def create_topic(
        self,
        name: str,
        partitions: int = BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int = BROKER_DEFAULT,
    ) -> "Deferred[None]":
        return self.run(create_topic(self.core, name, partitions, configs, replication_factor=replication_factor))

    def find_offset(self, topic: str, partition: int, timestamp_ms: int) -> "Deferred[int]":
        return self.run(find_offset(self.core, topic, partition, timestamp_ms))

    def find_id(self, topic: str, partition: int, id: int) -> "Deferred[int]":
        return self.run(find_id(self.core, topic, partition, id))

    def produce(
        self, topic: str, partition: int, batch: bytes | bytearray, acks: int = -1
    ) -> "Deferred[PartitionResult]":
        return self.run(self.core.produce(topic, partition, batch, acks))

    def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int = 1 << 20, max_wait_ms: int = 500
    ) -> "Deferred[tuple[list[Record], int]]":
        """Return (records with their ids, the offset to fetch next), without records if none came within the wait."""
        steps = self.core.fetch(topic, partition, offset, max_bytes=max_bytes, max_wait_ms=max_wait_ms)
        return self.run(steps).addCallback(self._without_poison, offset)

    def _without_poison(self, fetched: FetchedPartition, offset: int) -> tuple[list[Record], int]:
        read = read_records(fetched, offset, self._max_unpacked_bytes, enough_bytes=LISTED_BYTES)
        for batch in read.poison:
            self.poison_batches += 1
            self.log.warn("skipped a batch whose records cannot be decoded: {batch}", batch=batch)
            if self.on_poison is not None:
                self.on_poison(batch)
        return read.records, read.next_offset
