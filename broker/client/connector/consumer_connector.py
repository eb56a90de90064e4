"""SHELL (a thread with an event loop, a session with ZooKeeper): early Kafka's consumer, for programs with threads."""

import asyncio
import atexit
import os
import socket
import weakref
from collections.abc import Callable, Mapping
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self, cast, overload
from uuid import uuid4

from broker.client.address import addresses_of
from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.connector_engine import ConnectorEngine
from broker.client.connector.stream_feed import StreamFeed
from broker.client.connector.topic_filter import TopicFilter, TopicStreams
from broker.client.errors import ClientError
from broker.client.log_record import Record
from broker.client.registry.nodes import ConsumerId, group_path
from coordination.access import Access, an_ensemble
from coordination.port import CoordinatorUnavailable
from coordination.zookeeper import ZooKeeperCoordinator

CLOSED = "the connector was shut down"

Decoder = Callable[[bytes], Any]


class MessageStream:
    """An iterator of the records of one stream. One thread at a time may take its records.

    It ends after `consumer_timeout_ms` without a record, and may be asked again; and when the connector is shut down. A
    record counts as processed when the next one is asked for.
    """

    def __init__(self, connector: "ConsumerConnector", feed: StreamFeed, decoder: Decoder | None) -> None:
        self._connector = connector
        self._feed = feed
        self._decoder = decoder
        self._timeout_ms = connector.config.consumer_timeout_ms

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """Return the next record, its value decoded. Raise what the decoder raises; the next call skips the record."""
        self._connector.check_process()
        record = self._feed.take(self._timeout_ms)
        if record is None:
            raise StopIteration
        if self._decoder is None or record.value is None:
            return record
        return record._replace(value=self._decoder(record.value))


class ConsumerConnector:
    """A consumer that shares topics with the others of its group through ZooKeeper, as early Kafka's did.

        with ConsumerConnector("zk1:2181/chroot", "billing") as connector:
            [stream] = connector.streams({"orders": 1})["orders"]
            for record in stream:
                print(record.topic, record.partition, record.offset, record.id, record.value)

    **Groups.** Consumers with the same `group` share the partitions: each runs the rebalance by itself. Their nodes
    have the layout of Kafka 0.8, below /consumers. The brokers keep nothing of it, so they may be of any kind. They are
    those that ZooKeeper names, or `servers`. Use one way for all consumers of a group.

    **Streams.** `streams` begins to consume. Each stream reads some of the partitions, and may have a thread of its
    own. Partitions that are added, and topics that begin to match a TopicFilter, join by themselves. A full queue of a
    stream stops its fetches, and no other's.

    **Commits.** The connector commits processed records every `auto_commit_interval_ms`, before a partition goes to
    another consumer, and at the end. A record counts as processed when its stream is asked for the next one. In
    `commit_offsets` and `shutdown`, and at the end of the `with` block, the record that the calling thread took last
    counts too. If an exception leaves the block, it comes again. After a crash, all records since the last commit
    come again.

    **Start.** Where the group has no offset, and where the log no longer has it, a stream begins by
    `auto_offset_reset`. A topic that was made again counts as one without offsets, and the log says so.

    **ZooKeeper.** If it does not answer, the streams go on until the session may have ended, and then wait for it.

    **Errors.** The constructor raises ClientError if no ZooKeeper answers, and ValueError for arguments that cannot
    work. A stream raises GroupRefused if another consumer does not let go of a partition within `rebalance_retries_max`
    tries. Failures that may pass are logged and tried again.
    """

    def __init__(
        self, zookeeper: str, group: str, servers: str | None = None, *, config: ConnectorConfig | None = None
    ) -> None:
        config = ConnectorConfig() if config is None else config
        if not isinstance(cast(object, config), ConnectorConfig):
            raise TypeError(f"config={config!r}: give a ConnectorConfig(...)")
        if not isinstance(cast(object, zookeeper), str) or an_ensemble(zookeeper) is not None:
            raise ValueError(f"zookeeper={zookeeper!r}: give the hosts of a ZooKeeper, as host:port,host:port/chroot")
        if not isinstance(cast(object, group), str) or not group:
            raise ValueError(f"group={group!r}: give the name of a group")
        group_path(group)
        if servers is not None:
            addresses_of(servers)
        self.config = config
        self._group = group
        self._servers = servers
        self._process = os.getpid()
        self._is_child = False
        self._is_closed = False
        self._lock = Lock()
        self._engine: ConnectorEngine | None = None
        self._name = str(ConsumerId(socket.gethostname(), str(uuid4())))
        access = Access(session_timeout_ms=config.zookeeper_session_timeout_ms)
        try:
            self._coordinator = ZooKeeperCoordinator(zookeeper, access)
        except CoordinatorUnavailable as error:
            raise ClientError(str(error)) from error
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name=f"connector {group}", daemon=True)
        _open.add(self)

    @property
    def name(self) -> str:
        """The name of the consumer in the registry: HOST:UUID."""
        return self._name

    @overload
    def streams(
        self, topics: Mapping[str, int], *, decoder: Decoder | None = None
    ) -> dict[str, list[MessageStream]]: ...

    @overload
    def streams(
        self, topics: TopicFilter, count: int = 1, *, decoder: Decoder | None = None
    ) -> list[MessageStream]: ...

    def streams(
        self, topics: Mapping[str, int] | TopicFilter, count: int = 1, *, decoder: Decoder | None = None
    ) -> dict[str, list[MessageStream]] | list[MessageStream]:
        """Begin to consume. Call it once.

        With {"orders": 2}, return {"orders": [two streams]}. With a TopicFilter, return `count` streams that share all
        topics that it allows, now and later. `decoder` gets the bytes of each value, unless the value is null, and its
        result becomes the record's `value`. Raise InvalidTopics or ClientError.
        """
        self.check_process()
        if isinstance(topics, TopicFilter):
            wanted = TopicStreams({}, topics, count)
        else:
            wanted = TopicStreams(dict(topics))
        with self._lock:
            if self._is_closed:
                raise ClientError(CLOSED)
            if self._engine is not None:
                raise ClientError("this connector has its streams already: make another ConsumerConnector for more")
            self._engine = ConnectorEngine(
                self._coordinator, self._servers, self._group, self._name, wanted, self.config, self._loop
            )
            self._thread.start()
        streams: dict[str | None, list[MessageStream]] = {}
        for (topic, _), feed in self._engine.feeds.items():
            streams.setdefault(topic, []).append(MessageStream(self, feed, decoder))
        if wanted.topic_filter is not None:
            return streams[None]
        return {str(topic): of_topic for topic, of_topic in streams.items()}

    def commit_offsets(self) -> None:
        """Commit what the streams' callers have processed, with the records that this thread took last.

        Raise CommitFailed if a partition has gone to another consumer, or if ZooKeeper does not answer.
        """
        self.check_process()
        if self._is_closed:
            raise ClientError(CLOSED)
        if self._engine is not None:
            self._finish_records(self._engine)
            asyncio.run_coroutine_threadsafe(self._engine.commit(), self._loop).result()

    def shutdown(self) -> None:
        """Commit what is processed, give the partitions to the others, and leave the group. Harmless if repeated.

        Any thread may call it, and a signal handler. The streams end.
        """
        self._shut_down(is_finished=True)

    def abandon(self) -> None:
        """Shut down, but let the records come again that were taken last."""
        self._shut_down(is_finished=False)

    def _shut_down(self, *, is_finished: bool) -> None:
        if os.getpid() != self._process:
            return
        _open.discard(self)
        engine, is_first = self._engine, not self._is_closed
        self._is_closed = True
        if engine is None:
            if is_first:
                self._coordinator.close()
                self._loop.close()
            return
        is_interrupted = any(feed.is_interrupted for feed in engine.feeds.values())
        if is_finished and is_first and not is_interrupted:
            self._finish_records(engine)
        engine.call(engine.begin_close)
        if not is_interrupted:  # else the loop may wait for a lock that this thread holds
            self._thread.join()

    def _finish_records(self, engine: ConnectorEngine) -> None:
        for feed in engine.feeds.values():
            if feed.is_mine:
                feed.finish_record()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._shut_down(is_finished=error is None)

    def check_process(self) -> None:
        """Raise ClientError in a forked child: the records fetched ahead are its parent's."""
        if self._is_child:
            raise ClientError("the connector belongs to the process that made it: make one after a fork")

    def forked(self) -> None:
        """Take note that this process is a forked child."""
        self._is_child = True

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        assert self._engine is not None
        try:
            self._loop.run_until_complete(self._engine.serve())
        finally:
            self._coordinator.close()
            self._loop.close()


_open: "weakref.WeakSet[ConsumerConnector]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Shut down the connectors that the program left open."""
    for connector in list(_open):
        connector.abandon()


def _forbid_in_child() -> None:
    for connector in list(_open):
        connector.forked()


os.register_at_fork(after_in_child=_forbid_in_child)
