"""SHELL (asyncio, a thread): the Producer for programs under asyncio."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from os import PathLike
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from broker.client.errors import ClientError, MustAbort, ProduceError, QueueFull
from broker.client.group_protocol import Partition
from broker.client.librdkafka import Headers
from broker.client.producer import Encoder, GroupMember, Partitioner, Producer
from broker.client.producer_arguments import check_servers
from broker.client.producer_figures import ProducerCounts, ProducerFigures
from broker.client.producer_outcomes import Delivered

if TYPE_CHECKING:
    from idgen.snowflake import Snowflake

SERVE_MS = 100  # how often the thread checks whether the producer was closed
ROOM_SECONDS = 0.01  # pause before a message is tried again while the queue is full

NO_FIGURES = ProducerCounts(0.0).figures(0.0)  # until the first message

Outcome = ProduceError | Delivered


class ProducerSettings(TypedDict, total=False):
    """The arguments of `Producer`, except `sync`."""

    encoder: Encoder
    key_encoder: Encoder
    partitioner: Partitioner | None
    queue_time_ms: int
    batch_size: int
    queue_size: int
    enqueue_timeout_ms: int
    timeout_ms: int
    acks: str
    compression: str
    transactional_id: str | None
    transaction_timeout_ms: int
    ids: str | None
    zookeeper: str | None
    directory: "str | PathLike[str] | None"
    snowflake: "Snowflake | None"


class AsyncProducer:
    """The asyncio version of `Producer`, with the same arguments, except `sync`.

        async with AsyncProducer("127.0.0.1:9092") as producer:
            delivered = await producer.send("greetings", "hello", key="world")

    `send` waits for the acknowledgement. To send many messages at once, gather several calls. A producer belongs to
    one event loop.
    """

    def __init__(self, servers: str, **settings: Unpack[ProducerSettings]) -> None:
        check_servers(servers)
        self._servers = servers
        self._wait_seconds = settings.pop("enqueue_timeout_ms", 30_000) / 1_000
        self._settings = settings
        self._producer: Producer | None = None
        self._starting = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._is_closed = False
        self._outcomes: deque[tuple[asyncio.Future[Delivered], Outcome]] = deque()

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _started(self) -> Producer:
        """Return the producer. It is made in a thread, because a claim of a worker number may wait."""
        if self._is_closed:
            raise ClientError("the producer was closed")
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise ClientError("the producer belongs to the event loop that used it first")
        if self._producer is not None:
            return self._producer
        async with self._starting:
            if self._producer is None:
                settings: Any = self._settings | {"enqueue_timeout_ms": 0}
                self._producer = await asyncio.to_thread(Producer, self._servers, **settings)
                self._thread = Thread(target=self._serve, args=(self._producer,), name="producer", daemon=True)
                self._thread.start()
        return self._producer

    def _serve(self, producer: Producer) -> None:
        """Call the callbacks of acknowledged messages. Runs in the thread."""
        while not self._is_closed:
            with suppress(ClientError):  # each call that waits, and each later one, gets it too
                producer.poll(timeout_ms=SERVE_MS)

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivered:
        """Send a message, and return its place when it is acknowledged. Raise ProduceError or QueueFull.

        A call that is cancelled after it began may still send the message.
        """
        producer = await self._started()
        outcome: asyncio.Future[Delivered] = asyncio.get_running_loop().create_future()

        def done(error: ProduceError | None, delivered: Delivered | None) -> None:
            if error is not None or delivered is not None:
                self._tell(outcome, error or delivered)

        ends = asyncio.get_running_loop().time() + self._wait_seconds
        if self._settings.get("partitioner") is not None:
            await asyncio.to_thread(producer.partitions_of, topic)
        while True:
            try:
                producer.send(
                    topic, value, key, done, headers=headers, partition=partition, timestamp_ms=timestamp_ms
                )
                return await outcome
            except QueueFull:
                if asyncio.get_running_loop().time() >= ends:
                    raise QueueFull(f"the queue stayed full for {self._wait_seconds * 1_000:g} ms") from None
                await asyncio.sleep(ROOM_SECONDS)

    def _tell(self, outcome: asyncio.Future[Delivered], result: Any) -> None:
        """Hand an outcome to the loop; several that come together wake it once."""
        self._outcomes.append((outcome, result))
        if len(self._outcomes) == 1:
            with suppress(RuntimeError):  # the loop is closed, so no task waits for the outcome
                outcome.get_loop().call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._outcomes:
            outcome, result = self._outcomes.popleft()
            if outcome.done():
                continue
            if isinstance(result, ProduceError):
                outcome.set_exception(result)
            else:
                outcome.set_result(result)

    async def flush(self) -> None:
        """Wait until each message is acknowledged or failed."""
        await asyncio.to_thread((await self._started()).flush)

    def figures(self) -> ProducerFigures:
        """Return messages and bytes sent, failed and queued, and the times of requests and acknowledgements."""
        return NO_FIGURES if self._producer is None else self._producer.figures()

    async def begin(self) -> None:
        """Begin a transaction, as `Producer.begin` does."""
        await asyncio.to_thread((await self._started()).begin)

    async def commit(self) -> None:
        """Commit the transaction, as `Producer.commit` does."""
        await asyncio.to_thread((await self._started()).commit)

    async def abort(self) -> None:
        """Abort the transaction, as `Producer.abort` does."""
        await asyncio.to_thread((await self._started()).abort)

    async def send_offsets(self, consumer: GroupMember, offsets: Mapping[Partition, int] | None = None) -> None:
        """Commit a consumer's progress with the transaction, as `Producer.send_offsets` does."""
        await asyncio.to_thread((await self._started()).send_offsets, consumer, offsets)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Begin a transaction; commit it at the end of the block, or abort it if the block raises."""
        await self.begin()
        try:
            yield self
        except Exception:
            await self.abort()
            raise
        except BaseException:  # a cancellation ends the task also if no broker answers
            with suppress(ClientError):
                await self.abort()
            raise
        try:
            await self.commit()
        except MustAbort:
            await self.abort()
            raise

    async def close(self) -> None:
        """Wait until each message is acknowledged or failed, and give back the worker number."""
        if self._producer is None or self._is_closed:
            self._is_closed = True
            return
        try:
            await asyncio.to_thread(self._producer.close)
        finally:
            self._is_closed = True
            if self._thread is not None:
                await asyncio.to_thread(self._thread.join)
