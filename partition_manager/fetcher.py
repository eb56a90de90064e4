"""SHELL (Twisted): fetches records and finds offsets through any broker of Kafka's protocol.

Each broker has two connections: one for the fetches of all its partitions (broker.client.fetch_connections), and one
for all other requests, which a fetch that the broker holds open would delay.
"""

from collections.abc import Callable, Generator, Mapping
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any
from uuid import UUID

from twisted.internet.base import ReactorBase
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.python.failure import Failure

from broker.client.core import EARLIEST, LATEST
from broker.client.errors import BrokerError, TopicRecreated, Unsupported
from broker.client.fetch_connections import FetchConnections
from broker.client.fetch_session import Key, PartitionAsk, end_of
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

OnAnswer = Callable[[Answer], None]
Opening = list[tuple[Key, OnAnswer]]
Asking = Generator["Deferred[Any]", Any, Answer]


class TwistedFetcher:
    """A RecordFetcher. Raise ValueError if `servers` holds no address. A test may give its own `client`."""

    def __init__(
        self, servers: str, config: SpoutConfig, reactor: ReactorBase, client: TwistedClient | None = None
    ) -> None:
        self._isolation_level = (
            fetch.READ_COMMITTED if config.isolation_level == READ_COMMITTED else fetch.READ_UNCOMMITTED
        )
        self._client = client if client is not None else TwistedClient(servers, reactor)
        self._fetches = FetchConnections(
            self._client,
            max_wait_ms=config.spout_fetch_max_wait_ms,
            max_bytes=config.spout_fetch_answer_max_bytes,
            isolation_level=self._isolation_level,
        )
        self._opening: Opening = []  # whose bounds are asked for in this turn of the reactor
        self._epochs: dict[Key, tuple[int, int]] = {}  # where each partition is read to, and in which epoch

    def ask(self, request: FetcherRequest, answer: OnAnswer) -> None:
        """Carry out a request; answer Failed on any error."""
        if isinstance(request, Fetch):
            self._fetch(request, answer)
            return
        if isinstance(request, FindBounds):
            self._ask_bounds((request.topic, request.partition), answer)
            return
        if isinstance(request, ListPartitions):
            asking = self._partitions(request)
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

    def _ask_bounds(self, key: Key, answer: OnAnswer) -> None:
        """Ask for the bounds of all partitions that are opened in this turn of the reactor together."""
        self._opening.append((key, answer))
        if len(self._opening) == 1:
            self._client.reactor.callLater(0, self._find_bounds)

    def _find_bounds(self) -> None:
        opening, self._opening = self._opening, []
        found = self._bounds_of([key for key, _ in opening])
        found.addCallbacks(_tell, self._no_bounds, callbackArgs=(opening,), errbackArgs=(opening,))

    def _no_bounds(self, failure: Failure, opening: Opening) -> None:
        """Answer one partition; ask for several one by one, because one of them may have the error."""
        for key, answer in opening:
            if len(opening) == 1:
                answer(_failed(failure))
            else:
                self._bounds_of([key]).addCallback(itemgetter(key)).addErrback(_failed).addCallback(answer)

    @inlineCallbacks
    def _bounds_of(self, keys: list[Key]) -> Generator["Deferred[Any]", Any, dict[Key, Bounds]]:
        core = self._client.core
        starts = yield self._client.run(core.list_offsets(keys, EARLIEST))
        ends = yield self._client.run(core.list_offsets(keys, LATEST, isolation_level=self._isolation_level))
        return {key: Bounds(ends[key] if starts[key] is None else starts[key], ends[key]) for key in keys}

    @inlineCallbacks
    def _epoch_end(self, request: FindEpochEnd) -> Asking:
        try:
            found = yield self._client.run(self._client.core.find_epoch_end(*request))
        except Unsupported:  # a broker before Apache Kafka 2.0: then only offsets are compared
            return EpochEnd(-1, -1)
        return EpochEnd(*found)

    def _fetch(self, request: Fetch, answer: OnAnswer) -> None:
        topic, partition, (offset, _, max_bytes), topic_id = request
        read_to, epoch = self._epochs.get((topic, partition), NOTHING_READ)
        if read_to != offset:
            epoch = NO_EPOCH
        ask = PartitionAsk(topic, partition, offset, max_bytes, _uuid_of(topic_id), epoch)
        self._fetches.fetch(ask, partial(self._fetched, request, answer))

    def _fetched(self, request: Fetch, answer: OnAnswer, result: FetchedPartition | Exception) -> None:
        key = request.topic, request.partition
        if isinstance(result, Exception):
            self._not_fetched(key, answer, result)
            return
        try:
            found = answer_of(result, request.wanted.offset, self._isolation_level)
        except Exception as error:
            answer(_error(error))
            return
        if isinstance(found, OutOfRange):
            self._epochs.pop(key, None)
        elif found.leader_epoch != NO_EPOCH:
            self._epochs[key] = found.next_offset, found.leader_epoch
        answer(found)

    def _not_fetched(self, key: Key, answer: OnAnswer, error: Exception) -> None:
        if isinstance(error, TopicRecreated):
            self._epochs.pop(key, None)
            answer(Recreated(str(error.topic_id)))
        elif isinstance(error, BrokerError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._epochs.pop(key, None)
            bounds = self._bounds_of([key]).addCallback(lambda found: OutOfRange(*found[key]))
            bounds.addErrback(_failed).addCallback(answer)
        else:
            answer(_error(error))


def _tell(bounds: Mapping[Key, Bounds], opening: Opening) -> None:
    for key, answer in opening:
        answer(bounds[key])


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


@lru_cache(1_000)
def _uuid_of(topic_id: str) -> UUID | None:
    """Return one object for all partitions of a topic."""
    return UUID(topic_id) if topic_id else None


def _failed(failure: Failure) -> Failed:
    return _error(failure.value)


def _error(error: BaseException | None) -> Failed:
    text = error.with_remedy if isinstance(error, BrokerError) else str(error)
    return Failed(text or "no reason given")
