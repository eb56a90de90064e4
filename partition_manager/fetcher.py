"""SHELL (Twisted): fetches records, finds offsets and writes dead letters through any broker of Kafka's protocol.

A broker answers the requests of a connection in order, so a fetch that it holds open delays all later requests on that
connection. Therefore the fetches of each partition use a separate connection; all other requests share one.
"""

from collections.abc import Callable, Generator
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.internet.defer import Deferred, inlineCallbacks, succeed
from twisted.python.failure import Failure

from broker.client.core import EARLIEST, LATEST
from broker.client.errors import BrokerError
from broker.client.records import read_records
from broker.client.twisted import TwistedClient
from broker.record.records import Record, encode_batch
from broker.wire.errors import ErrorCode
from partition_manager.config import SpoutConfig
from partition_manager.dead_letter import dead_letter_headers
from partition_manager.ports import (
    Answer,
    Bounds,
    Buried,
    Bury,
    DeadLetter,
    EpochEnd,
    Failed,
    Fetch,
    Fetched,
    FetcherRequest,
    FindBounds,
    FindId,
    FindTime,
    Found,
    ListPartitions,
    ListTopics,
    OutOfRange,
    Partitions,
    Topics,
)

LETTER_BYTES_MAX = 2 << 20
"""max.message.bytes of a dead-letter topic that is created: twice Kafka's default, because a letter adds headers to a
whole message, or to a whole poison batch."""

Asking = Generator["Deferred[Any]", Any, Answer]


class TwistedFetcher:
    """A RecordFetcher. Raise ValueError if `servers` holds no address."""

    def __init__(self, servers: str, config: SpoutConfig, reactor: ReactorBase) -> None:
        self._servers = servers
        self._reactor = reactor
        self._max_wait_ms = config.spout_fetch_max_wait_ms
        self._client = TwistedClient(servers, reactor)
        self._clients: dict[tuple[str, int], TwistedClient] = {}  # one for each partition of this task

    def ask(self, request: FetcherRequest, answer: Callable[[Answer], None]) -> None:
        """Carry out a request; answer Failed on any error."""
        if isinstance(request, Fetch):
            asking = self._fetch(request)
        elif isinstance(request, ListPartitions):
            asking = self._partitions(request)
        elif isinstance(request, FindBounds):
            asking = self._bounds(request.topic, request.partition)
        elif isinstance(request, FindTime):
            asking = _found(self._client.find_offset(request.topic, request.partition, request.timestamp_ms))
        elif isinstance(request, FindId):
            asking = _found(self._client.find_id(request.topic, request.partition, request.id))
        elif isinstance(request, ListTopics):
            asking = self._topics()
        else:
            asking = succeed(EpochEnd(-1, -1))
        asking.addErrback(_failed).addCallback(answer)

    def close(self) -> None:
        """Close every connection; outstanding requests are answered with Failed."""
        for client in (self._client, *self._clients.values()):
            client.close()

    @inlineCallbacks
    def _topics(self) -> Asking:
        topics = yield self._client.topics()
        return Topics(tuple(topic.name for topic in topics))

    @inlineCallbacks
    def _partitions(self, request: ListPartitions) -> Asking:
        topic = yield self._client.topic(request.topic)
        host, port = self._client.core.bootstrap[0]
        return Partitions(tuple(range(topic.partitions)), host, port, str(topic.id) if topic.id else "")

    @inlineCallbacks
    def _bounds(self, topic: str, partition: int) -> Asking:
        start = yield self._client.find_offset(topic, partition, EARLIEST)
        end = yield self._client.find_offset(topic, partition, LATEST)
        return Bounds(start, end)

    @inlineCallbacks
    def _fetch(self, request: Fetch) -> Asking:
        topic, partition, (offset, _, max_bytes), _ = request
        client = self._client_of(topic, partition)
        try:
            steps = client.core.fetch(topic, partition, offset, max_bytes=max_bytes, max_wait_ms=self._max_wait_ms)
            fetched = yield client.run(steps)
        except BrokerError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            bounds = yield self._bounds(topic, partition)
            return OutOfRange(*bounds)
        read = read_records(fetched, offset)
        return Fetched(read.records, read.next_offset, fetched.high_watermark, read.poison)

    def _client_of(self, topic: str, partition: int) -> TwistedClient:
        client = self._clients.get((topic, partition))
        if client is None:
            client = self._clients[topic, partition] = TwistedClient(self._servers, self._reactor)
        return client


class TwistedDeadLetters:
    """A DeadLetterSink that writes to a topic; Buried means acknowledged with acks=all.

    A missing topic is created with one partition, and max.message.bytes of LETTER_BYTES_MAX.
    """

    def __init__(self, servers: str, topic: str, reactor: ReactorBase) -> None:
        self._topic = topic
        self._client = TwistedClient(servers, reactor)

    def ask(self, request: Bury, answer: Callable[[Answer], None]) -> None:
        """Produce the letter; answer Failed on any error."""
        self._bury(request.letter).addErrback(_failed).addCallback(answer)

    def close(self) -> None:
        """Close the connection; unconfirmed letters are answered with Failed."""
        self._client.close()

    @inlineCallbacks
    def _bury(self, letter: DeadLetter) -> Asking:
        partitions = yield self._partitions()
        yield self._client.produce(self._topic, letter.partition % partitions, dead_letter_batch(letter))
        return Buried()

    @inlineCallbacks
    def _partitions(self) -> Generator["Deferred[Any]", Any, int]:
        try:
            topic = yield self._client.topic(self._topic)
        except BrokerError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            try:
                yield self._client.create_topic(self._topic, configs={"max.message.bytes": str(LETTER_BYTES_MAX)})
            except BrokerError as raced:
                if raced.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            topic = yield self._client.topic(self._topic)
        partitions: int = topic.partitions
        return partitions


def dead_letter_batch(letter: DeadLetter) -> bytearray:
    """Encode the letter as a batch of one record with the original message's timestamp."""
    record = letter.record
    kept = Record(0, 0, record.key, record.value, dead_letter_headers(letter))
    return encode_batch([kept], base_timestamp_ms=record.timestamp_ms)


@inlineCallbacks
def _found(offset: "Deferred[int]") -> Asking:
    return Found((yield offset))


def _failed(failure: Failure) -> Failed:
    return Failed(failure.getErrorMessage() or "no reason given")
