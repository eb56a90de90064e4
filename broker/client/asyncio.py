"""SHELL (asyncio: sockets, timers): the client under asyncio; the requests of a connection are pipelined."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from ssl import SSLEOFError, SSLError
from types import TracebackType
from typing import Self, TypeVar, cast

from broker.client.connection import ClientConnection
from broker.client.core import (
    CLIENT_ID,
    Address,
    ClientCore,
    Exchange,
    Partition,
    Steps,
    TopicInfo,
    addresses_of,
    advance,
)
from broker.client.errors import BrokerError, ClientError, NotAuthenticated, Unreachable
from broker.client.multifetch import multifetch
from broker.client.offset_lookup import find_id, find_offset
from broker.client.old_spellings import renamed
from broker.client.records import LISTED_BYTES, OnPoison, Read, Record, read_answers, read_records
from broker.client.security.client_security import ClientSecurity, Security
from broker.client.security.tls_failures import handshake_failure, tls_failure
from broker.client.topic_admin import BROKER_DEFAULT, create_topic, delete_topic
from broker.record.compression import DECOMPRESSED_BYTES_MAX
from broker.wire.errors import ErrorCode, WireError
from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED
from broker.wire.produce import PartitionResult

T = TypeVar("T")

TIMEOUT_MS = 30_000  # Kafka's request.timeout.ms
CONNECT_MS_MAX = 10_000  # Kafka's socket.connection.setup.timeout.ms
RECEIVE_BYTES = 1 << 16
RETRY_SECONDS = 0.05

_log = logging.getLogger(__name__)


class Channel(asyncio.BufferedProtocol):
    """A connection to one broker, with the futures of its requests by correlation id."""

    def __init__(self, core: ClientCore, address: Address, client_id: str) -> None:
        self.is_open = False
        self._client = core
        self._address = address
        self._core = ClientConnection(client_id)
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._into = self._buffer
        self._renew_at_s: float | None = None
        """When the login is to be renewed, on the loop's clock; None without an end of the session."""
        self._login: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # asyncio sets TCP_NODELAY itself
        self.is_open = True

    async def ask(self, exchange: Exchange, seconds: float) -> memoryview:
        """Send a request and return its answer. A cancelled call keeps its place in the order. Raise Unreachable."""
        correlation_id, data = self._core.request(exchange)
        self._transport.write(data)
        if not exchange.expects_reply:
            return memoryview(b"")
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = answer
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            self.abort()
            raise Unreachable(str(self._address), f"no answer within {seconds:g} s") from None

    @property
    def renewal_is_due(self) -> bool:
        return self._renew_at_s is not None and asyncio.get_running_loop().time() >= self._renew_at_s

    async def log_in(self, seconds: float) -> None:
        """Log in, or anew; calls meanwhile share the login. No other request may be sent until it has ended.

        Raise NotAuthenticated or Unreachable; then the connection is closed.
        """
        if self._login is None:
            self._login = asyncio.ensure_future(self._carry_out_login(seconds))
            self._login.add_done_callback(lambda login: login.cancelled() or login.exception())  # it is retrieved
        await asyncio.shield(self._login)  # the login of the others goes on when a call is cancelled

    async def _carry_out_login(self, seconds: float) -> None:
        security = self._client.security
        assert security is not None, "only then a login is asked for"
        outcome: memoryview | None = None
        try:
            if security.must_fetch_token:
                await asyncio.to_thread(security.fetch_token)
            steps = self._client.log_in(self._address)
            while True:
                outcome = await self.ask(advance(steps, outcome), seconds)
        except StopIteration as done:
            renewal_ms = security.renewal_ms(done.value)
        except BaseException:
            self.abort()
            raise
        finally:
            self._login = None
        now_s = asyncio.get_running_loop().time()
        self._renew_at_s = None if renewal_ms is None else now_s + renewal_ms / 1_000

    def get_buffer(self, sizehint: int) -> memoryview:
        wanted = self._core.wanted()
        self._into = self._buffer if wanted is None else wanted
        return self._into

    def buffer_updated(self, nbytes: int) -> None:
        try:
            answers = self._core.receive(self._into[:nbytes], is_reused=self._into is self._buffer)
        except WireError as error:
            self._fail(str(error))
            self.abort()
            return
        for answer in answers:
            waiting = self._waiting.pop(answer.correlation_id)
            if not waiting.done():
                waiting.set_result(answer.body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._client.forget(self._address)
        if isinstance(exc, SSLError) and not isinstance(exc, SSLEOFError):
            self._fail_with(tls_failure(self._address, exc))
        else:
            reason = str(exc) if exc is not None else "it closed the connection"
            self._fail(self._core.with_hint(reason, self._client.security))

    def abort(self) -> None:
        """Close the connection; the requests that wait fail."""
        self.is_open = False
        self._transport.abort()

    def _fail(self, reason: str) -> None:
        self._fail_with(Unreachable(str(self._address), reason))

    def _fail_with(self, error: Unreachable | NotAuthenticated) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(error)


class AsyncClient:
    """The asyncio version of `Client`: one connection to each broker, with several requests in flight.

        async with AsyncClient("127.0.0.1:9092") as client:
            records, following = await client.fetch("greetings", 0, 0)

    `timeout_ms` limits the wait for each answer, and `security` is as with `Client`. A client belongs to the event loop
    that first uses it. Calls raise ClientError and its subclasses. `fetch` and `multifetch` treat poison batches as
    `Client.fetch` does.
    """

    @renamed(by_position=True, timeout="timeout_ms=, in milliseconds")
    def __init__(
        self,
        servers: str | Sequence[Address],
        *,
        timeout_ms: int = TIMEOUT_MS,
        on_poison: OnPoison | None = None,
        max_unpacked_bytes: int = DECOMPRESSED_BYTES_MAX,
        client_id: str = CLIENT_ID,
        core: ClientCore | None = None,
        security: Security = None,
    ) -> None:
        """With the `core` of another client, both share its security and what they know of the cluster.

        Connections are their own.
        """
        self.core = ClientCore(addresses_of(servers), ClientSecurity.of(security)) if core is None else core
        self.on_poison = on_poison
        self.poison_batches = 0
        self._max_unpacked_bytes = max_unpacked_bytes
        self._timeout_s = timeout_ms / 1000
        self._connect_timeout_s = min(timeout_ms, CONNECT_MS_MAX) / 1000
        self._client_id = client_id
        self._channels: dict[Address, Channel] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}
        self._is_closed = False

    def apart(self) -> "AsyncClient":
        """Return a client with separate connections, which shares this one's core, timeout and name."""
        return AsyncClient("", timeout_ms=int(self._timeout_s * 1_000), client_id=self._client_id, core=self.core)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls in flight fail with Unreachable."""
        self._is_closed = True
        for channel in self._channels.values():
            channel.abort()
        self._channels.clear()

    async def run(self, steps: Steps[T]) -> T:
        """Carry out an operation of the core; return its result."""
        if self._is_closed:
            raise ClientError("the client was closed")
        outcome: memoryview | Unreachable | None = None
        while True:
            try:
                exchange = advance(steps, outcome)
            except StopIteration as done:
                result: T = done.value
                return result
            try:
                channel = await self._channel(exchange.address)
                if channel.renewal_is_due:
                    await channel.log_in(self._timeout_s)
                outcome = await channel.ask(exchange, self._timeout_s)
            except Unreachable as error:
                self.core.forget(exchange.address)  # another node may lead its partitions by now
                outcome = error

    async def _at_controller(self, make: Callable[[], Steps[T]]) -> T:
        """Carry out a request to the controller. While the cluster elects one, repeat it for up to `timeout_ms`."""
        now = asyncio.get_running_loop().time
        end = now() + self._timeout_s
        while True:
            try:
                return await self.run(make())
            except BrokerError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER or now() >= end:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _channel(self, address: Address) -> Channel:
        """Return the open connection to a broker; calls meanwhile share the attempt to connect."""
        known = self._channels.get(address)
        if known is not None and known.is_open:
            return known
        async with self._connecting.setdefault(address, asyncio.Lock()):
            known = self._channels.get(address)
            if known is not None and known.is_open:
                return known
            if self._is_closed:
                raise Unreachable(str(address), "the client was closed")
            made = await self._connect(address)
            self._channels[address] = made
            self._abort_if_closed()
            return made

    async def _connect(self, address: Address) -> Channel:
        loop, security = asyncio.get_running_loop(), self.core.security
        context = None if security is None else security.context()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, made = await loop.create_connection(
                    lambda: Channel(self.core, address, self._client_id),
                    address.host,
                    address.port,
                    ssl=context,
                    server_hostname=None if context is None else address.host,
                )
        except (OSError, ValueError) as error:  # ValueError for a name that cannot be a host's
            if context is not None:
                raise handshake_failure(address, error) from error
            raise Unreachable(str(address), str(error) or "no connection in time") from error
        if security is not None and security.asks_login:
            try:
                await made.log_in(self._timeout_s)
            except BaseException:  # a cancellation too: no other call would close it
                made.abort()
                raise
        return made

    def _abort_if_closed(self) -> None:
        """Close a connection that was made while `close` was called."""
        if self._is_closed:
            self.close()

    # --- the operations by name ----------------------------------------------------------------------------------

    async def topics(self) -> list[TopicInfo]:
        """Return all topics, those of the broker itself included."""
        return await self.run(self.core.metadata())

    async def topic(self, name: str) -> TopicInfo:
        """Return a topic. Raise BrokerError UNKNOWN_TOPIC_OR_PARTITION if it does not exist."""
        return (await self.run(self.core.metadata([name])))[0]

    async def create_topic(
        self,
        name: str,
        partitions: int = BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int = BROKER_DEFAULT,
    ) -> None:
        """Create a topic, by default with the broker's `num.partitions` and `default.replication.factor`.

        Raise BrokerError. Brokers before Kafka 2.4 cannot choose either of the two, and refuse it (KIP-464).
        """
        await self._at_controller(
            lambda: create_topic(self.core, name, partitions, configs, replication_factor=replication_factor)
        )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""
        await self._at_controller(lambda: delete_topic(self.core, name))

    async def find_offset(self, topic: str, partition: int, timestamp_ms: int, committed: bool = False) -> int:
        """Return the first offset at or after a time, Unix ms. The time -2 is the start of the log, and -1 its end."""
        return await self.run(find_offset(self.core, topic, partition, timestamp_ms, _isolation(committed)))

    async def find_id(self, topic: str, partition: int, id: int) -> int:
        """Return the first offset whose id is at least `id`; the log's end if all are below. Raise Unsupported."""
        return await self.run(find_id(self.core, topic, partition, id))

    async def produce(self, topic: str, partition: int, batch: bytes | bytearray, acks: int = -1) -> PartitionResult:
        """Send a record batch; the result has its base offset and, from Flakelog, its ids. Raise BrokerError."""
        return await self.run(self.core.produce(topic, partition, batch, acks))

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        committed: bool = False,
    ) -> tuple[list[Record], int]:
        """Return (records with their ids, the offset to fetch next), as `Client.fetch` does."""
        level = _isolation(committed)
        fetched = await self.run(
            self.core.fetch(
                topic, partition, offset, max_bytes=max_bytes, max_wait_ms=max_wait_ms, isolation_level=level
            )
        )
        return self._without_poison(
            read_records(fetched, offset, self._max_unpacked_bytes, enough_bytes=LISTED_BYTES)
        )

    async def multifetch(
        self,
        offsets: Mapping[Partition, int],
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        committed: bool = False,
    ) -> dict[Partition, tuple[list[Record], int]]:
        """Fetch several partitions in one request to each leader, as `Client.multifetch` does."""
        steps = multifetch(
            self.core, offsets, max_bytes=max_bytes, max_wait_ms=max_wait_ms, isolation_level=_isolation(committed)
        )
        reads = read_answers(await self.run(steps), offsets, self._max_unpacked_bytes)
        return {key: self._without_poison(read) for key, read in reads.items()}

    def _without_poison(self, read: Read) -> tuple[list[Record], int]:
        for batch in read.poison:
            self.poison_batches += 1
            _log.warning("skipped a batch whose records cannot be decoded: %s", batch)
            if self.on_poison is not None:
                self.on_poison(batch)
        return read.records, read.next_offset


def _isolation(committed: bool) -> int:
    return READ_COMMITTED if committed else READ_UNCOMMITTED
