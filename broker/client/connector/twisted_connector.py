"""SHELL (Twisted): early Kafka's consumer, for programs on a reactor."""

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.threads import deferToThreadPool

from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.connector_thread import ConnectorThread
from broker.client.connector.stream_feed import ASKED_TWICE, Decoder, StreamFeed, decoded
from broker.client.connector.topic_filter import TopicFilter
from broker.client.errors import ClientError
from broker.client.log_record import Record
from broker.client.security.client_security import Security


class TwistedMessageStream:
    """The records of one stream, one Deferred after the other.

        @inlineCallbacks
        def work(stream):
            while (record := (yield stream.next())) is not None:
                print(record.id, record.value)

    A record counts as processed when the next one is asked for, and by `finish`.
    """

    def __init__(self, thread: ConnectorThread, feed: StreamFeed, decoder: Decoder | None, reactor: Any) -> None:
        self._thread = thread
        self._feed = feed
        self._decoder = decoder
        self._reactor = reactor
        self._waiting: Deferred[Record | None] | None = None
        self._timeout: Any = None

    def next(self) -> "Deferred[Record | None]":
        """Fire with the next record, its value decoded.

        Fire with None after `consumer_timeout_ms` without a record, and once the connector is shut down. Fail with what
        the decoder raises; the next call skips the record. A cancelled Deferred loses no record.
        """
        if self._waiting is not None:
            return fail(ClientError(ASKED_TWICE))
        waiting: Deferred[Record | None] = Deferred(lambda _: self._forget())
        self._waiting = waiting
        timeout_ms = self._thread.config.consumer_timeout_ms
        if timeout_ms is not None:
            self._timeout = self._reactor.callLater(timeout_ms / 1_000, self._fire, waiting, None)
        self._poll(waiting)
        return waiting

    def finish(self) -> None:
        """Count the record that was taken last as processed, so that `commit_offsets` commits it."""
        self._feed.finish_record()

    def _poll(self, waiting: "Deferred[Record | None]") -> None:
        if self._waiting is not waiting:
            return
        try:
            self._thread.check_process()
            record = self._feed.poll(self, lambda: self._wake(waiting))
            if record is not None or self._feed.is_over:
                self._fire(waiting, None if record is None else decoded(record, self._decoder))
        except Exception as error:  # the program's decoder may raise any
            if self._waiting is waiting:
                self._fire(waiting, error)

    def _wake(self, waiting: "Deferred[Record | None]") -> None:
        self._reactor.callFromThread(self._poll, waiting)

    def _fire(self, waiting: "Deferred[Record | None]", outcome: Record | Exception | None) -> None:
        self._forget()
        if isinstance(outcome, Exception):
            waiting.errback(outcome)
        else:
            waiting.callback(outcome)

    def _forget(self) -> None:
        self._waiting = None
        if self._timeout is not None and self._timeout.active():
            self._timeout.cancel()


class TwistedConsumerConnector:
    """The Twisted version of `ConsumerConnector`: each call returns a Deferred, which fails with ClientError.

    A separate thread keeps the session and releases partitions, even while the reactor is busy.
    """

    def __init__(
        self,
        zookeeper: str,
        group: str,
        servers: str | None = None,
        *,
        reactor: Any,
        config: ConnectorConfig | None = None,
        security: Security = None,
    ) -> None:
        self._thread = ConnectorThread(zookeeper, group, servers, config, security)
        self._reactor = reactor

    @property
    def name(self) -> str:
        """The name of the consumer in the registry: HOST:UUID."""
        return self._thread.name

    def streams(
        self, topics: Mapping[str, int] | TopicFilter, count: int = 1, *, decoder: Decoder | None = None
    ) -> "Deferred[Any]":
        """Connect to ZooKeeper and begin to consume. Call it once.

        Fire with {"orders": [two streams]} for {"orders": 2}, and with `count` streams for a TopicFilter.
        """

        def make(feed: StreamFeed) -> TwistedMessageStream:
            return TwistedMessageStream(self._thread, feed, decoder, self._reactor)

        return self._in_thread(self._thread.open).addCallback(lambda _: self._thread.streams(topics, count, make))

    def commit_offsets(self) -> "Deferred[None]":
        """Commit what the program has come back for, or finished. Fail with CommitFailed."""
        committed: Deferred[None] = Deferred()
        try:
            commit = self._thread.commit(None)
        except ClientError as error:
            return fail(error)
        commit.add_done_callback(lambda done: self._reactor.callFromThread(_pass_on, done, committed))
        return committed

    def shutdown(self) -> "Deferred[None]":
        """Commit processed records, release the partitions and leave the group. Harmless if repeated.

        The Deferreds of the streams fire with None.
        """
        return self._in_thread(self._leave)

    def _leave(self) -> None:
        self._thread.close()
        self._thread.join()

    def _in_thread(self, work: Any) -> "Deferred[Any]":
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), work)


def _pass_on(done: "Future[None]", committed: "Deferred[None]") -> None:
    error = done.exception()
    with suppress(Exception):  # a Deferred that was cancelled
        if error is None:
            committed.callback(None)
        else:
            committed.errback(error)
