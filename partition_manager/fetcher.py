"""SHELL (Twisted): fetches records and finds offsets through any broker of Kafka's protocol.

Each broker has two connections: one for the fetches of all its partitions (broker.client.fetch_connections), and one
for all other requests, which a fetch that the broker holds open would delay.
"""

from collections.abc import Callable, Generator
from typing import Any
from uuid import UUID

from twisted.internet.base import ReactorBase
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.python.failure import Failure

from broker.client.core import EARLIEST, LATEST
from broker.client.errors import BrokerError, TopicRecreated, Unsupported
from broker.client.fetch_connections import FetchConnections
from broker.client.fetch_session import PartitionAsk, end_of
from broker.client.records import NO_EPOCH, read_records
from broker.client.twisted import TwistedClient
from broker.wire import fetch
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchedPartition
from partition_manager.config import READ_COMMITTED, SpoutConfig
from partition_manager.ports import (
    Answer,
    Bounds,
    EpochEnd,
    Failed,
    Fetch,
    Fetched,
    FetcherRequest,
    FindBounds,
    FindEpochEnd,
    FindId,
    FindTime,
    Found,
    ListPartitions,
    ListTopics,
    OutOfRange,
    Partitions,
    Recreated,
    Topics,
)

NOTHING_READ = -1, NO_EPOCH

Asking = Generator["Deferred[Any]", Any, Answer]


class TwistedFetcher:
    """A RecordFetcher. Raise ValueError if `servers` holds no address."""

    def __init__(self, servers: str, config: SpoutConfig, reactor: ReactorBase) -> None:
        self._isolation_level = (
            fetch.READ_COMMITTED if config.isolation_level == READ_COMMITTED else fetch.READ_UNCOMMITTED
        )
        self._client = TwistedClient(servers, reactor)
        self._fetches = FetchConnections(
            self._client,
            max_wait_ms=config.spout_fetch_max_wait_ms,
            max_bytes=config.spout_fetch_answer_max_bytes,
            isolation_level=self._isolation_level,
        )
        self._epochs: dict[tuple[str, int], tuple[int, int]] = {}  # where each partition is read to, and in which epoch

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
            asking = self._epoch_end(request)
        asking.addErrback(_failed).addCallback(answer)

    def hold(self, is_held: bool) -> None:
        """While `is_held`, send no fetch; fetches that are out are still answered."""
        self._fetches.hold(is_held)

    def close(self) -> None:
        """Close every connection; outstanding requests are answered with Failed."""
        self._fetches.close()
        self._client.close()

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
        core = self._client.core
        end = yield self._client.run(core.find_offset(topic, partition, LATEST, self._isolation_level))
        return Bounds(start, end)

    @inlineCallbacks
    def _epoch_end(self, request: FindEpochEnd) -> Asking:
        try:
            found = yield self._client.run(self._client.core.find_epoch_end(*request))
        except Unsupported:  # a broker before Apache Kafka 2.0: then only offsets are compared
            return EpochEnd(-1, -1)
        return EpochEnd(*found)

    @inlineCallbacks
    def _fetch(self, request: Fetch) -> Asking:
        topic, partition, (offset, _, max_bytes), topic_id = request
        read_to, epoch = self._epochs.get((topic, partition), NOTHING_READ)
        if read_to != offset:
            epoch = NO_EPOCH
        try:
            ask = PartitionAsk(topic, partition, offset, max_bytes, UUID(topic_id) if topic_id else None, epoch)
            fetched = yield self._fetches.fetch(ask)
        except TopicRecreated as error:
            self._epochs.pop((topic, partition), None)
            return Recreated(str(error.topic_id))
        except BrokerError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            self._epochs.pop((topic, partition), None)
            bounds = yield self._bounds(topic, partition)
            return OutOfRange(*bounds)
        answer = answer_of(fetched, offset, self._isolation_level)
        if isinstance(answer, OutOfRange):
            self._epochs.pop((topic, partition), None)
        elif answer.leader_epoch != NO_EPOCH:
            self._epochs[topic, partition] = answer.next_offset, answer.leader_epoch
        return answer


def answer_of(fetched: FetchedPartition, offset: int, isolation_level: int) -> Fetched | OutOfRange:
    """Return what a broker's result means for a reader at `offset`.

    With a diverging epoch the log has lost what was read last, and has other records there now: it is OutOfRange with
    the end of what is left (KIP-595). Raise CorruptBatch and MissingId.
    """
    if fetched.diverging is not None:
        _, end_offset = fetched.diverging
        return OutOfRange(fetched.log_start_offset, max(fetched.log_start_offset, end_offset))
    read = read_records(fetched, offset)
    end = end_of(fetched, isolation_level)
    return Fetched(read.records, read.next_offset, end, read.poison, read.leader_epoch)


@inlineCallbacks
def _found(offset: "Deferred[int]") -> Asking:
    return Found((yield offset))


def _failed(failure: Failure) -> Failed:
    error = failure.value
    text = error.with_remedy if isinstance(error, BrokerError) else failure.getErrorMessage()
    return Failed(text or "no reason given")
