"""SHELL (asyncio, a thread): the Producer for programs under asyncio."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from os import PathLike
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from broker.client.async_outcomes import Acknowledgement, AsyncOutcomes
from broker.client.errors import ClientError, MustAbort, ProduceError, QueueFull
from broker.client.group_protocol import Partition
from broker.client.librdkafka import Headers
from broker.client.old_spellings import renamed
from broker.client.producer import Encoder, GroupMember, Producer
from broker.client.producer_arguments import LIMITS, check_brokers, check_numbers
from broker.client.producer_figures import ProducerCounts, ProducerFigures
from broker.client.producer_outcomes import Delivered
from broker.client.producer_partitions import Partitioner
from broker.client.security.client_security import Security

if TYPE_CHECKING:
    from idgen.snowflake import Snowflake

SERVE_MS = 100  # how often the thread checks whether the producer was closed
ROOM_SECONDS = 0.01  # pause before a message is tried again while the queue is full

NO_FIGURES = ProducerCounts(0.0).figures(0.0)  # until the first message


class ProducerSettings(TypedDict, total=False):
    """The arguments of `Producer`."""

    registry: str | None
    encoder: Encoder
    key_encoder: Encoder
    partitioner: Partitioner | None
    queue_time_ms: int
    batch_size: int
    queue_size: int
    enqueue_timeout_ms: int
    timeout_ms: int
    max_request_size: int
    acks: str
    compression: str
    transactional_id: str | None
    transaction_timeout_ms: int
    ids: str | None
    zookeeper: str | None
    directory: "str | PathLike[str] | None"
    snowflake: "Snowflake | None"
    security: Security


class AsyncProducer:
    """The asyncio version of `Producer`, with the same arguments.

        async with AsyncProducer("127.0.0.1:9092") as producer:
            delivered = await producer.send_and_wait("greetings", "hello", key="world")

    `send` queues a message and returns its future, `send_and_wait` waits for the acknowledgement. `flush` and `close`
    raise ProduceError if messages failed, and the program has not read that from their futures. A producer belongs to
    one event loop.
    """

    @renamed(sync="queue_time_ms=0, and call send_and_wait(...)")
    def __init__(self, servers: str | None = None, **settings: Unpack[ProducerSettings]) -> None:
        check_brokers(servers, settings.get("registry"))
        check_numbers(**{name: number for name, number in settings.items() if name in LIMITS})
        if "hook" in settings or "event_handler" in settings:
            raise TypeError("an AsyncProducer has no hook: the future of `send` tells the outcome of a message")
        self._servers = servers
        self._wait_seconds = settings.pop("enqueue_timeout_ms", 30_000) / 1_000
        self._settings = settings
        self._producer: Producer | None = None
        self._starting = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._is_closed = False
        self._outcomes = AsyncOutcomes()

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close. If the block raised an exception, suppress the ClientError of the flush."""
        try:
            await self._close(error)
        except ClientError:
            if error is None:
                raise

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
    ) -> Acknowledgement:
        """Queue a message, and return a future of its place. Raise QueueFull, or as `Producer.send` does.

        The future fails with ProduceError if the message is lost. A call that is cancelled after it began may still
        send the message.
        """
        producer = await self._started()
        future = Acknowledgement(loop=asyncio.get_running_loop())

        def done(error: ProduceError | None, delivered: Delivered | None) -> None:
            outcome = error or delivered
            if outcome is not None:
                self._outcomes.report(future, outcome)

        ends = asyncio.get_running_loop().time() + self._wait_seconds
        if self._settings.get("partitioner") is not None:
            await asyncio.to_thread(producer.partitions_of, topic)
        while True:
            try:
                producer.send(
                    topic, value, key, done, headers=headers, partition=partition, timestamp_ms=timestamp_ms
                )
                return future
            except QueueFull:
                if asyncio.get_running_loop().time() >= ends:
                    raise QueueFull(f"the queue stayed full for {self._wait_seconds * 1_000:g} ms") from None
                await asyncio.sleep(ROOM_SECONDS)

    async def send_and_wait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivered:
        """Send a message, and return its place when it is acknowledged. Raise ProduceError, or as `send` does."""
        return await (
            await self.send(topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        )

    async def flush(self) -> None:
        """Wait until each message is acknowledged or failed. Raise ProduceError if messages failed, and the program
        has not read that from their futures.
        """
        await asyncio.to_thread((await self._started()).flush)
        self._outcomes.raise_failures()

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
        self._outcomes.forget_failures()

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
        """Flush, and give back the worker number. Harmless if repeated. Raise as `flush` does.

        A call that is cancelled drops the messages that are left, and logs how many.
        """
        await self._close(None)

    async def _close(self, error: BaseException | None) -> None:
        """Close, after an error of the program or without one."""
        if self._producer is None or self._is_closed:
            self._is_closed = True
            return
        try:
            await asyncio.to_thread(self._producer.__exit__, type(error) if error else None, error, None)
        except asyncio.CancelledError:  # the thread waits on, and the program would wait for the thread
            self._producer.drop()
            raise
        finally:
            self._is_closed = True
            if self._thread is not None:
                await asyncio.to_thread(self._thread.join)
        self._outcomes.raise_failures()
