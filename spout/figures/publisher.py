"""SHELL (Twisted, this machine's name and process id): writes a topology's documents to __flakelog_topologies.

A failure never disturbs the topology: it is logged when it begins and when it ends, and the next document is tried.
"""

import os
import socket
from collections.abc import Callable, Generator, Mapping
from typing import Any

from twisted.internet.base import DelayedCall, ReactorBase
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.logger import Logger

from broker.client.errors import BrokerError
from broker.client.security.client_security import Security
from broker.client.twisted import TwistedClient
from broker.record.records import BatchRecord, encode_batch
from broker.wire.errors import ErrorCode
from spout.figures.document import INTERVAL_MS, TOPIC, TOPIC_CONFIGS, document_of, key_of
from spout.figures.model import Snapshot

TOMBSTONE_SECONDS = 1.0  # longest time that a stop waits for the tombstone; without it the document expires


class FiguresPublisher:
    """The documents of one run, written to the cluster at `servers`. `take` returns its figures."""

    log = Logger()

    def __init__(
        self, servers: str, take: Callable[[], Snapshot], reactor: ReactorBase, *, security: Security = None
    ) -> None:
        self._servers = servers
        self._take = take
        self._reactor = reactor
        self._client = TwistedClient(servers, reactor, security=security)
        self._before: Snapshot | None = None
        self._call: DelayedCall | None = None
        self._is_busy = self._is_failing = self._is_closed = False

    def start(self) -> None:
        """Write a document now and every INTERVAL_MS."""
        self._call = self._reactor.callLater(INTERVAL_MS / 1000, self.start)
        if not self._is_busy:
            self._is_busy = True
            self._publish(self._document).addErrback(lambda failure: self._failed(failure.value))

    def stop(self) -> "Deferred[None]":
        """Write a tombstone and close. The Deferred fires when that is done, has failed or takes too long."""
        self.close()
        ended: Deferred[Any] = self._publish(lambda _: None)
        ended.addTimeout(TOMBSTONE_SECONDS, self._reactor)  # type: ignore[arg-type]
        return ended.addErrback(lambda _: None).addBoth(lambda _: self._client.close())

    def close(self) -> None:
        """Write nothing more."""
        self._is_closed = True
        if self._call is not None and self._call.active():
            self._call.cancel()

    def abandon(self) -> None:
        """Close at once, without a tombstone: the last document expires."""
        self.close()
        self._client.close()

    def _document(self, after: Snapshot) -> bytes:
        document = document_of(self._before, after, host=socket.gethostname(), pid=os.getpid())
        self._before = after
        return document

    @inlineCallbacks
    def _publish(self, value: Callable[[Snapshot], bytes | None]) -> Generator["Deferred[Any]", Any, None]:
        taken = self._take()
        record = BatchRecord(0, 0, key_of(taken), value(taken))
        batch = encode_batch([record], base_timestamp_ms=taken.at_ms)
        try:
            yield self._client.produce(TOPIC, 0, batch)
        except BrokerError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            yield self._create()
            yield self._client.produce(TOPIC, 0, batch)
        self._is_busy = False
        if self._is_failing:
            self._is_failing = False
            self.log.info("figures are published again at {servers}", servers=self._servers)

    @inlineCallbacks
    def _create(self) -> Generator["Deferred[Any]", Any, None]:
        try:
            yield self._client.create_topic(TOPIC, 1, TOPIC_CONFIGS)
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    def _failed(self, error: BaseException | None) -> None:
        self._is_busy = False
        if not self._is_failing and not self._is_closed:
            self._is_failing = True
            text = "figures cannot be published at {servers}, which does not disturb the topology: {error}"
            self.log.info(text, servers=self._servers, error=error)


class Publishing:
    """The documents of one run, written to each of these clusters: their servers, and their clients' security.

    `take` returns the figures of the run.
    """

    def __init__(
        self, clusters: Mapping[str, Security], take: Callable[[], Snapshot], reactor: ReactorBase
    ) -> None:
        self._publishers = [
            FiguresPublisher(servers, take, reactor, security=security) for servers, security in clusters.items()
        ]
        self._stopping = 0

    @property
    def idle(self) -> bool:
        """Return True if, after `stop`, no tombstone is on its way any longer."""
        return not self._stopping

    def start(self) -> None:
        """Publish now and every two seconds."""
        for publisher in self._publishers:
            publisher.start()

    def stop(self, wake: Callable[[], None]) -> None:
        """Take the documents back; `wake` is called whenever that is done at one cluster, or takes too long."""

        def stopped(_: object) -> None:
            self._stopping -= 1
            wake()

        self._stopping = len(self._publishers)
        for publisher in self._publishers:
            publisher.stop().addBoth(stopped)

    def abandon(self) -> None:
        """Close at once: the last documents expire."""
        for publisher in self._publishers:
            publisher.abandon()
