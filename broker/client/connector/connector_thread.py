"""SHELL (a thread with an event loop, a session with ZooKeeper): the engine of a connector, below its faces.

The faces differ only in how a program waits: ConsumerConnector blocks a thread, AsyncConsumerConnector a task, and
TwistedConsumerConnector returns Deferreds. This module has their common part: connect, begin, commit and leave. The
engine runs in a separate thread, so a consumer keeps its session and releases partitions even while its program works.
"""

import asyncio
import atexit
import os
import socket
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from threading import RLock, Thread
from typing import Any, TypeVar, cast
from uuid import uuid4

from broker.client.address import addresses_of
from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.connector_engine import ConnectorEngine
from broker.client.connector.stream_feed import StreamFeed
from broker.client.connector.topic_filter import TopicFilter, TopicStreams
from broker.client.errors import ClientError
from broker.client.registry.nodes import ConsumerId, group_path
from broker.client.security.client_security import ClientSecurity, Security
from coordination.access import Access, an_ensemble
from coordination.port import CoordinatorUnavailable
from coordination.zookeeper import ZooKeeperCoordinator

S = TypeVar("S")

CLOSED = "the connector was shut down"


class ConnectorThread:
    """The thread of one connector, and its session. Raise ValueError for arguments that cannot work."""

    def __init__(
        self,
        zookeeper: str,
        group: str,
        servers: str | None,
        config: ConnectorConfig | None,
        security: Security = None,
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
        self.name = str(ConsumerId(socket.gethostname(), str(uuid4())))
        self._zookeeper = zookeeper
        self._group = group
        self._servers = servers
        self._security = ClientSecurity.of(security)
        self._process = os.getpid()
        self.is_child = False
        """True in a process that was forked after the connector was made."""
        self._lock = RLock()  # re-entrant, because a signal handler may shut down whatever it interrupts
        self._is_closed = False
        self._coordinator: ZooKeeperCoordinator | None = None
        self._engine: ConnectorEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=self._run, name=f"connector {group}", daemon=True)
        _open.add(self)

    def open(self) -> None:
        """Block until ZooKeeper answers. Harmless if repeated. Raise ClientError if none does."""
        with self._lock:
            self._check_open()
            if self._coordinator is None:
                access = Access(session_timeout_ms=self.config.zookeeper_session_timeout_ms)
                wait_ms = self.config.zookeeper_connection_timeout_ms
                try:
                    self._coordinator = ZooKeeperCoordinator(self._zookeeper, access, connect_timeout_ms=wait_ms)
                except CoordinatorUnavailable as error:
                    raise ClientError(str(error)) from error

    def streams(self, topics: object, count: int, make: Callable[[StreamFeed], S]) -> Any:
        """Begin to consume. Return the streams that `make` makes: by topic, or a list for a TopicFilter.

        Raise InvalidTopics or ClientError.
        """
        streams: dict[str | None, list[S]] = {}
        for (topic, _), feed in self._begin(TopicStreams.wanted(topics, count)).feeds.items():
            streams.setdefault(topic, []).append(make(feed))
        return streams[None] if isinstance(topics, TopicFilter) else streams

    def _begin(self, wanted: TopicStreams) -> ConnectorEngine:
        with self._lock:
            self._check_open()
            if self._engine is not None:
                raise ClientError("this connector has its streams already: make another ConsumerConnector for more")
            assert self._coordinator is not None, "`open` comes first"
            self._loop = asyncio.new_event_loop()
            self._engine = ConnectorEngine(
                self._coordinator,
                self._servers,
                self._group,
                self.name,
                wanted,
                self.config,
                self._loop,
                self._security,
            )
            self._thread.start()
            return self._engine

    def commit(self, taker: object) -> "Future[None]":
        """Commit what the streams' callers are done with, and the records that `taker` took last.

        The Future fails with CommitFailed. Raise ClientError once the connector is closed.
        """
        with self._lock:
            self._check_open()
            if self._engine is not None:
                return self._engine.commit(taker)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self, taker: object | None = None) -> None:
        """Begin to leave the group; `join` waits for the end. The records that `taker` took last count as processed."""
        if os.getpid() != self._process:
            return
        _open.discard(self)
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            engine = self._engine
            if engine is None:
                if is_first and self._coordinator is not None:
                    self._coordinator.close()
                return
        if is_first and taker is not None and not self._is_interrupted:
            for feed in engine.feeds.values():
                if feed.is_taken_by(taker):
                    feed.finish_record()
        engine.call(engine.begin_close)

    def join(self) -> None:
        """Wait until the consumer has left the group.

        Return at once in a signal handler that has interrupted a stream, because the loop may wait for its lock.
        """
        if os.getpid() == self._process and self._thread.ident is not None and not self._is_interrupted:
            self._thread.join()

    @property
    def _is_interrupted(self) -> bool:
        return self._engine is not None and self._engine.is_interrupted

    def _check_open(self) -> None:
        self.check_process()
        if self._is_closed:
            raise ClientError(CLOSED)

    def check_process(self) -> None:
        """Raise ClientError in a forked child: the records fetched ahead are its parent's."""
        if self.is_child:
            raise ClientError("the connector belongs to the process that made it: make one after a fork")

    def forked(self) -> None:
        """Take note that this process is a forked child."""
        self.is_child = True

    def _run(self) -> None:
        engine, loop, coordinator = self._engine, self._loop, self._coordinator
        assert engine is not None and loop is not None and coordinator is not None, "`begin` starts the thread"
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(engine.serve())
        finally:
            coordinator.close()
            loop.close()


_open: "weakref.WeakSet[ConnectorThread]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Shut down the connectors that the program left open."""
    for connector in list(_open):
        connector.close()
        connector.join()


def _forbid_in_child() -> None:
    for connector in list(_open):
        connector.forked()


os.register_at_fork(after_in_child=_forbid_in_child)
