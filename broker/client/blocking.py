"""SHELL (sockets, a lock): the blocking client; each call waits for its answer.

Threads may share a client for `run` and the operations by name, which they carry out one after the other. `send` and
`receive` are for one thread.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ssl import SSLEOFError, SSLError
from typing import TYPE_CHECKING, Self, TypeVar

from broker.client.core import (
    CLIENT_ID,
    Address,
    ClientCore,
    Exchange,
    Partition,
    Steps,
    TopicInfo,
    addresses_of,
    carry_out,
)
from broker.client.errors import BrokerError, ClientError, NoAnswer, Unreachable
from broker.client.multifetch import multifetch
from broker.client.offset_lookup import find_id, find_offset
from broker.client.old_spellings import renamed
from broker.client.records import LISTED_BYTES, OnPoison, Read, Record, read_answers, read_records
from broker.client.security.tls_failures import handshake_failure, tls_failure
from broker.client.socket_connection import SocketConnection, TlsSocketConnection
from broker.client.topic_admin import BROKER_DEFAULT, create_topic, delete_topic
from broker.record.compression import DECOMPRESSED_BYTES_MAX
from broker.wire.errors import ErrorCode, WireError
from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED
from broker.wire.produce import PartitionResult

if TYPE_CHECKING:
    from broker.client.security.client_security import ClientSecurity, Security

T = TypeVar("T")

TIMEOUT_MS = 30_000  # Kafka's request.timeout.ms
CONNECT_MS_MAX = 10_000  # Kafka's socket.connection.setup.timeout.ms
RETRY_SECONDS = 0.05

_log = logging.getLogger(__name__)


class Client:
    """A client of any broker of Kafka's protocol: `with Client("127.0.0.1:9092") as client: ...`

    It keeps one connection to each broker. `timeout_ms` limits the wait for each socket operation, and
    `connect_timeout_ms` that for a connection and its first answer, which any broker gives at once. A broker's quotas
    and logs name the client by `client_id`. `security` has properties of Kafka's clients, such as `security.protocol`.
    Calls raise ClientError and its subclasses. A process that was forked connects anew.

    `fetch` skips a batch with a valid CRC whose records cannot be decoded, or unpack to more than `max_unpacked_bytes`.
    It logs a warning that names the batch, adds one to `poison_batches` and calls `on_poison` with the PoisonBatch. An
    error that `on_poison` raises reaches the caller of `fetch`.
    """

    @renamed(
        by_position=True,
        timeout="timeout_ms=, in milliseconds",
        connect_timeout="connect_timeout_ms=, in milliseconds",
    )
    def __init__(
        self,
        servers: str | Sequence[Address],
        *,
        timeout_ms: int = TIMEOUT_MS,
        connect_timeout_ms: int | None = None,
        on_poison: OnPoison | None = None,
        max_unpacked_bytes: int = DECOMPRESSED_BYTES_MAX,
        client_id: str = CLIENT_ID,
        security: "Security" = None,
    ) -> None:
        self.core = ClientCore(addresses_of(servers), None if security is None else _security_of(security))
        self.on_poison = on_poison
        self.poison_batches = 0
        self._max_unpacked_bytes = max_unpacked_bytes
        first_ms = timeout_ms if connect_timeout_ms is None else connect_timeout_ms
        connect_ms = min(timeout_ms, CONNECT_MS_MAX) if connect_timeout_ms is None else connect_timeout_ms
        self._timeout_s, self._connect_timeout_s, self._first_timeout_s = (
            ms / 1000 for ms in (timeout_ms, connect_ms, first_ms)
        )
        self._client_id = client_id
        self._process = os.getpid()
        self._running = threading.RLock()
        self._connections: dict[Address, SocketConnection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A call that another thread waits in ends with Unreachable; a later one connects again.
        """
        self.interrupt()
        for address in list(self._connections):
            self._connections.pop(address).close()

    def interrupt(self) -> None:
        """End the call that another thread waits in, with Unreachable. Any thread may call it."""
        if self._process != os.getpid():
            return  # a shutdown would end the connections of the parent
        for connection in list(self._connections.values()):
            connection.interrupt()

    def run(self, steps: Steps[T]) -> T:
        """Carry out an operation of the core; return its result."""
        with self._running:
            return carry_out(steps, self._exchange)

    @renamed(by_position=True, within="timeout_ms=, in milliseconds")
    def retry(self, make: Callable[[], Steps[T]], *, timeout_ms: int = TIMEOUT_MS) -> T:
        """Carry out an operation; retry for up to `timeout_ms` while its error is temporary.

        Temporary errors are, for example, a leader that moved or a broker that restarts.
        """
        return self._repeat(make, timeout_ms / 1000, _is_temporary)

    def at_controller(self, make: Callable[[], Steps[T]]) -> T:
        """Carry out a request to the controller. While the cluster elects one, repeat it for up to `timeout_ms`."""
        return self._repeat(make, self._timeout_s, _has_no_controller)

    def _repeat(self, make: Callable[[], Steps[T]], seconds: float, passes: Callable[[ClientError], bool]) -> T:
        """Carry out an operation; repeat it for up to `seconds` while its error passes."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.run(make())
            except ClientError as error:
                if not passes(error) or time.monotonic() >= end:
                    raise
            time.sleep(RETRY_SECONDS)

    def send(self, exchange: Exchange) -> None:
        """Send a request without waiting for its answer, which `receive` returns. Raise Unreachable."""
        with self._dropping(exchange.address):
            self._connect(exchange.address).send(exchange)

    def receive(self, address: Address) -> memoryview:
        """Return the answer to the earliest request whose answer was not received yet. Raise Unreachable.

        Each answer has a buffer of its own, so views of it stay valid.
        """
        with self._dropping(address):
            if address not in self._connections:
                raise ConnectionResetError("the connection is closed")
            connection = self._connections[address]
            body = connection.receive()
            connection.socket.settimeout(self._timeout_s)
            return body

    def give_up(self, address: Address) -> None:
        """Close the connection if answers are outstanding that nobody will receive."""
        known = self._connections.get(address)
        if known is not None and known.waiting:
            self._connections.pop(address).close()

    def pause(self, ms: int) -> None:
        """Wait. It is here so that a test's client can wait without a clock."""
        time.sleep(ms / 1000)

    def _exchange(self, exchange: Exchange) -> memoryview:
        self.give_up(exchange.address)
        self.send(exchange)
        return self.receive(exchange.address) if exchange.expects_reply else memoryview(b"")

    def _connect(self, address: Address) -> SocketConnection:
        if self._process != os.getpid():  # after a fork: the parent's connections carry the parent's answers
            self._process = os.getpid()
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()
        known = self._connections.get(address)
        if known is not None and not known.waiting and known.has_ended():
            self._drop(address)
            known = None
        if known is None:
            return self._open(address)
        if known.renewal_is_due:
            self._log_in(address, known)
        return known

    def _open(self, address: Address) -> SocketConnection:
        sock, security = self.open_socket(address, self._connect_timeout_s), self.security_at(address)
        context = None if security is None else security.context()
        if context is None:
            made = SocketConnection(sock, self._client_id)
        else:
            try:
                made = TlsSocketConnection(context.wrap_socket(sock, server_hostname=address.host), self._client_id)
            except (OSError, ValueError) as error:  # ValueError for a name that cannot be a host's
                sock.close()
                self.core.forget(address)
                raise handshake_failure(address, error) from error
        made.socket.settimeout(self._first_timeout_s)
        self._connections[address] = made
        if security is not None and security.asks_login:
            self._log_in(address, made)
        self.begin(address, made)
        return made

    def security_at(self, address: Address) -> "ClientSecurity | None":
        """Return the security of connections to an address. A client of several listeners overrides it."""
        return self.core.security

    def begin(self, address: Address, connection: SocketConnection) -> None:
        """Do nothing. A client that has to say more over each new connection, before its requests, overrides it."""

    def _log_in(self, address: Address, connection: SocketConnection) -> None:
        security = self.core.security
        assert security is not None, "only then a login is asked for"
        try:
            lifetime_ms = carry_out(self.core.log_in(address), connection.ask)
        except (OSError, WireError):
            raise  # `_dropping` closes the connection, and says what its listener may have wanted
        except BaseException:  # a signal too: no call may use a connection without its login
            self._drop(address)
            raise
        renewal_ms = security.renewal_ms(lifetime_ms)
        connection.renew_at_s = None if renewal_ms is None else time.monotonic() + renewal_ms / 1_000

    def open_socket(self, address: Address, timeout_s: float) -> socket.socket:
        """Return a connected socket. Raise OSError."""
        try:
            sock = socket.create_connection(address, timeout_s)
        except UnicodeError as error:
            raise OSError(f"its name cannot be that of a host: {error}") from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    @contextmanager
    def _dropping(self, address: Address) -> Iterator[None]:
        """Turn an error of a connection into Unreachable, and close the connection."""
        try:
            yield
        except TimeoutError as error:
            waited, known = self._waits_seconds(address), self._connections.get(address)
            self._drop(address)
            if known is not None:
                raise NoAnswer(str(address), waited, is_broker=known.has_answered) from error
            raise Unreachable(str(address), f"no answer within {waited:g} s") from error
        except (OSError, WireError) as error:
            reason, known = str(error) or type(error).__name__, self._connections.get(address)
            is_end = isinstance(error, (ConnectionError, SSLEOFError))
            if known is not None and is_end:
                reason = known.with_hint(reason, self.security_at(address))
            self._drop(address)
            if isinstance(error, SSLError) and not is_end:
                raise tls_failure(address, error) from error
            raise Unreachable(str(address), reason) from error

    def _waits_seconds(self, address: Address) -> float:
        """Return the longest wait for the address now, in seconds."""
        known = self._connections.get(address)
        seconds = None if known is None else known.socket.gettimeout()
        return self._connect_timeout_s if seconds is None else seconds

    def _drop(self, address: Address) -> None:
        """Close a connection and forget the versions and leaders known of its node."""
        known = self._connections.pop(address, None)
        if known is not None:
            known.close()
        self.core.forget(address)

    # --- the operations by name ----------------------------------------------------------------------------------

    def topics(self) -> list[TopicInfo]:
        """Return all topics, those of the broker itself included."""
        return self.run(self.core.metadata())

    def topic(self, name: str) -> TopicInfo:
        """Return a topic. Raise BrokerError UNKNOWN_TOPIC_OR_PARTITION if it does not exist."""
        return self.run(self.core.metadata([name]))[0]

    def create_topic(
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
        self.at_controller(
            lambda: create_topic(self.core, name, partitions, configs, replication_factor=replication_factor)
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""
        self.at_controller(lambda: delete_topic(self.core, name))

    def find_offset(self, topic: str, partition: int, timestamp_ms: int, committed: bool = False) -> int:
        """Return the first offset at or after a time, Unix ms. The time -2 is the start of the log, and -1 its end."""
        return self.run(find_offset(self.core, topic, partition, timestamp_ms, _isolation(committed)))

    def find_id(self, topic: str, partition: int, id: int) -> int:
        """Return the first offset whose id is at least `id`; the log's end if all are below. Raise Unsupported."""
        return self.run(find_id(self.core, topic, partition, id))

    def produce(self, topic: str, partition: int, batch: bytes | bytearray, acks: int = -1) -> PartitionResult:
        """Send a record batch; the result has its base offset and, from Flakelog, its ids. Raise BrokerError."""
        return self.run(self.core.produce(topic, partition, batch, acks))

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        committed: bool = False,
    ) -> tuple[list[Record], int]:
        """Return (records with their ids, the offset to fetch next), without records if none came within the wait.

        With `committed`, records of aborted and open transactions are left out. Poison batches are skipped (see the
        class), so an answer without records may still move the offset. The list ends with the batch that makes it
        64 MiB long, and the offset to fetch next is that after it.
        """
        level = _isolation(committed)
        steps = self.core.fetch(
            topic, partition, offset, max_bytes=max_bytes, max_wait_ms=max_wait_ms, isolation_level=level
        )
        fetched = self.run(steps)
        return self._without_poison(
            read_records(fetched, offset, self._max_unpacked_bytes, enough_bytes=LISTED_BYTES)
        )

    def multifetch(
        self,
        offsets: Mapping[Partition, int],
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        committed: bool = False,
    ) -> dict[Partition, tuple[list[Record], int]]:
        """Fetch several partitions in one request to each leader: {(topic, partition): offset}.

        Return (records, the offset to fetch next) of each partition, as `fetch` does; `max_bytes` limits each. The
        64 MiB are for all of them: partitions after that come without records, and with the offset that was asked for.
        Raise BrokerError for the first partition that has an error.
        """
        steps = multifetch(
            self.core, offsets, max_bytes=max_bytes, max_wait_ms=max_wait_ms, isolation_level=_isolation(committed)
        )
        reads = read_answers(self.run(steps), offsets, self._max_unpacked_bytes)
        return {key: self._without_poison(read) for key, read in reads.items()}

    def _without_poison(self, read: Read) -> tuple[list[Record], int]:
        for batch in read.poison:
            self.poison_batches += 1
            _log.warning("skipped a batch whose records cannot be decoded: %s", batch)
            if self.on_poison is not None:
                self.on_poison(batch)
        return read.records, read.next_offset


def _is_temporary(error: ClientError) -> bool:
    return isinstance(error, Unreachable) or (isinstance(error, BrokerError) and error.retriable)


def _has_no_controller(error: ClientError) -> bool:
    return isinstance(error, BrokerError) and error.code is ErrorCode.NOT_CONTROLLER


def _isolation(committed: bool) -> int:
    return READ_COMMITTED if committed else READ_UNCOMMITTED


def _security_of(given: "Security") -> "ClientSecurity | None":
    from broker.client.security.client_security import ClientSecurity  # a task of Spark without security loads nothing

    return ClientSecurity.of(given)
