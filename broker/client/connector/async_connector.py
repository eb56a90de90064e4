"""SHELL (asyncio): early Kafka's consumer, for programs under asyncio."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, overload

from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.connector_thread import ConnectorThread
from broker.client.connector.stream_feed import ASKED_TWICE, Decoder, StreamFeed, decoded
from broker.client.connector.topic_filter import TopicFilter
from broker.client.errors import ClientError
from broker.client.log_record import Record
from broker.client.security.client_security import Security


class AsyncMessageStream:
    """The records of one stream, for `async for`. It refuses a second task that asks while one waits.

    It ends after `consumer_timeout_ms` without a record, and may be asked again; and when the connector is shut down. A
    record counts as processed when the next one is asked for. A cancelled wait loses no record.
    """

    def __init__(self, thread: ConnectorThread, feed: StreamFeed, decoder: Decoder | None) -> None:
        self._thread = thread
        self._feed = feed
        self._decoder = decoder
        timeout_ms = thread.config.consumer_timeout_ms
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1_000
        self._is_asking = False
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Return the next record, its value decoded. Raise what the decoder raises; the next call skips the record."""
        if self._is_asking:
            raise ClientError(ASKED_TWICE)
        self._thread.check_process()
        self._is_asking = True
        try:
            record = await self._take()
        finally:
            self._is_asking = False
        if record is None:
            raise StopAsyncIteration
        return decoded(record, self._decoder)

    async def _take(self) -> Record | None:
        """Return the next record; None after the timeout, and once the connector is closed."""
        self._loop = loop = asyncio.get_running_loop()
        until_s = None if self._timeout_s is None else loop.time() + self._timeout_s
        while True:
            self._changed.clear()
            record = self._feed.poll(asyncio.current_task(), self._wake)
            if record is not None or self._feed.is_over:
                return record
            if until_s is not None and loop.time() >= until_s:
                return None
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await self._changed.wait()

    def _wake(self) -> None:
        """Let the waiting task look again. Called in the thread of the connector."""
        assert self._loop is not None, "a task has asked for a record"
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._changed.set)


class AsyncConsumerConnector:
    """The asyncio version of `ConsumerConnector`, with the same arguments, streams and commits.

        async with AsyncConsumerConnector("zk1:2181/chroot", "billing") as connector:
            [stream] = (await connector.streams({"orders": 1}))["orders"]
            async for record in stream:
                print(record.id, record.value)

    In `commit_offsets` and `shutdown`, and at the end of the `async with` block, the record that the calling task took
    last counts as processed too. A separate thread keeps the session and releases partitions, even while the loop
    is busy.
    """

    def __init__(
        self,
        zookeeper: str,
        group: str,
        servers: str | None = None,
        *,
        config: ConnectorConfig | None = None,
        security: Security = None,
    ) -> None:
        self._thread = ConnectorThread(zookeeper, group, servers, config, security)

    @property
    def name(self) -> str:
        """The name of the consumer in the registry: HOST:UUID."""
        return self._thread.name

    @overload
    async def streams(
        self, topics: Mapping[str, int], *, decoder: Decoder | None = None
    ) -> dict[str, list[AsyncMessageStream]]: ...

    @overload
    async def streams(
        self, topics: TopicFilter, count: int = 1, *, decoder: Decoder | None = None
    ) -> list[AsyncMessageStream]: ...

    async def streams(
        self, topics: Mapping[str, int] | TopicFilter, count: int = 1, *, decoder: Decoder | None = None
    ) -> Any:
        """Connect to ZooKeeper and begin to consume, as `ConsumerConnector.streams` does. Call it once."""
        await asyncio.to_thread(self._thread.open)
        return self._thread.streams(topics, count, lambda feed: AsyncMessageStream(self._thread, feed, decoder))

    async def commit_offsets(self) -> None:
        """Commit what the streams' callers have processed, with the records that this task took last.

        Raise CommitFailed if a partition has gone to another consumer, or if ZooKeeper does not answer.
        """
        await asyncio.wrap_future(self._thread.commit(asyncio.current_task()))

    async def shutdown(self) -> None:
        """Commit processed records, release the partitions and leave the group. Harmless if repeated.

        The streams end.
        """
        await asyncio.to_thread(self._thread.close, asyncio.current_task())
        await asyncio.to_thread(self._thread.join)

    async def abandon(self) -> None:
        """Shut down, but let the records come again that were taken last."""
        await asyncio.to_thread(self._thread.close)
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._thread.open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await (self.shutdown() if error is None else self.abandon())
