"""SHELL (Twisted): fetches records and finds offsets through any broker of Kafka's protocol.

Each broker has two connections: one for the fetches of all its partitions (broker.client.fetch_connections), and one
for all other requests, which a fetch that the broker holds open would delay.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar
from uuid import UUID

from twisted.internet.base import ReactorBase
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.python.failure import Failure

from broker.client.address import Address
from broker.client.epoch_ends import find_epoch_ends
from broker.client.errors import BrokerError, ClientError, TopicRecreated, Unsupported
from broker.client.fetch_connections import FetchConnections
from broker.client.fetch_session import Key, PartitionAsk, end_of
from broker.client.offset_lookup import find_bounds, find_offsets
from broker.client.offset_spec import AtId, AtTime
from broker.client.records import NO_EPOCH, AnswerReader
from broker.client.security.client_security import Security
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
    FoundOffset,
    ListPartitions,
    ListTopics,
    OutOfRange,
    Packed,
    Partitions,
    Recreated,
    Topics,
)

NOTHING_READ = -1, NO_EPOCH
UNPACKED_BYTES = 16 << 20
"""Unpacked bytes with which an answer ends, with its batch; the rest is fetched again. A fetch has about 1 MiB of a
partition, and usual records shrink to a tenth at most."""

OnAnswer = Callable[[Answer], None]
Question = TypeVar("Question", bound=FindBounds | FindTime | FindId | FindEpochEnd)
Asking = Generator["Deferred[Any]", Any, Answer]
Answers = dict[Question, Answer]
AskingForAll = Generator["Deferred[Any]", Any, Answers[Question]]


class _Together(Generic[Question]):
    """Asks a question about all partitions for which it comes in one turn of the reactor, in few requests.

    `find` takes the questions, each once, and returns all answers. If it raises, each answer is Failed. The questions
    for each leader are asked apart, so that a broker that is away delays no answers of the others.
    """

    def __init__(
        self, client: TwistedClient, find: "Callable[[list[Question]], Deferred[Answers[Question]]]"
    ) -> None:
        self._core = client.core
        self._reactor = client.reactor
        self._find = find
        self._waiting: list[tuple[Question, OnAnswer]] = []

    def ask(self, question: Question, answer: OnAnswer) -> None:
        self._waiting.append((question, answer))
        if len(self._waiting) == 1:
            self._reactor.callLater(0, self._send)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        by_leader: dict[Address | None, list[tuple[Question, OnAnswer]]] = {}
        for question, answer in waiting:
            leader = self._core.known_leader(*_key(question))
            by_leader.setdefault(leader and leader.address, []).append((question, answer))
        for some in by_leader.values():
            self._send_some(some)

    def _send_some(self, waiting: list[tuple[Question, OnAnswer]]) -> None:
        questions = list(dict.fromkeys(question for question, _ in waiting))

        def failed(failure: Failure) -> Answers[Question]:
            return dict.fromkeys(questions, _failed(failure))

        self._find(questions).addErrback(failed).addCallback(_tell, waiting)


def _tell(answers: Answers[Question], waiting: list[tuple[Question, OnAnswer]]) -> None:
    for question, answer in waiting:
        answer(answers[question])


class TwistedFetcher:
    """A RecordFetcher. Raise ValueError if `servers` holds no address. A test may give its own `client`."""

    def __init__(
        self,
        servers: str,
        config: SpoutConfig,
        reactor: ReactorBase,
        client: TwistedClient | None = None,
        *,
        security: Security = None,
    ) -> None:
        self._isolation_level = (
            fetch.READ_COMMITTED if config.isolation_level == READ_COMMITTED else fetch.READ_UNCOMMITTED
        )
        self._client = client if client is not None else TwistedClient(servers, reactor, security=security)
        self._fetches = FetchConnections(
            self._client,
            max_wait_ms=config.spout_fetch_max_wait_ms,
            max_bytes=config.spout_fetch_answer_max_bytes,
            isolation_level=self._isolation_level,
        )
        self._bounds = _Together(self._client, self._find_bounds)
        self._times = _Together(self._client, self._find_times)
        self._ids = _Together(self._client, self._find_ids)
        self._epoch_ends = _Together(self._client, self._find_epoch_ends)
        self._epochs: dict[Key, tuple[int, int]] = {}  # where each partition is read to, and in which epoch

    def ask(self, request: FetcherRequest, answer: OnAnswer) -> None:
        """Carry out a request; answer Failed on any error."""
        if isinstance(request, Fetch):
            self._fetch(request, answer)
        elif isinstance(request, FindBounds):
            self._bounds.ask(request, answer)
        elif isinstance(request, FindTime):
            self._times.ask(request, answer)
        elif isinstance(request, FindId):
            self._ids.ask(request, answer)
        elif isinstance(request, FindEpochEnd):
            self._epoch_ends.ask(request, answer)
        else:
            asking = self._topics() if isinstance(request, ListTopics) else self._partitions(request)
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
    def _find_bounds(self, requests: list[FindBounds]) -> AskingForAll[FindBounds]:
        failed: dict[Key, ClientError] = {}
        keys = [_key(request) for request in requests]
        steps = find_bounds(self._client.core, keys, isolation_level=self._isolation_level, failed=failed)
        bounds = yield self._client.run(steps)
        return _answers(requests, bounds, failed)

    @inlineCallbacks
    def _find_times(self, requests: list[FindTime]) -> AskingForAll[FindTime]:
        answers: Answers[FindTime] = {}
        for time_ms in dict.fromkeys(request.timestamp_ms for request in requests):
            of_this_time = [request for request in requests if request.timestamp_ms == time_ms]
            answers |= yield self._find_offsets(of_this_time, AtTime(time_ms))
        return answers

    @inlineCallbacks
    def _find_ids(self, requests: list[FindId]) -> AskingForAll[FindId]:
        answers: Answers[FindId] = {}
        for id in dict.fromkeys(request.id for request in requests):
            of_this_id = [request for request in requests if request.id == id]
            answers |= yield self._find_offsets(of_this_id, AtId(id))
        return answers

    @inlineCallbacks
    def _find_offsets(self, requests: list[Question], spec: AtTime | AtId) -> AskingForAll[Question]:
        failed: dict[Key, ClientError] = {}
        keys = [_key(request) for request in requests]
        steps = find_offsets(self._client.core, keys, spec, failed=failed)
        offsets = yield self._client.run(steps)
        return _answers(requests, {key: FoundOffset(offset) for key, offset in offsets.items()}, failed)

    @inlineCallbacks
    def _find_epoch_ends(self, requests: list[FindEpochEnd]) -> AskingForAll[FindEpochEnd]:
        answers: Answers[FindEpochEnd] = {}
        while unanswered := [request for request in requests if request not in answers]:
            by_partition = {_key(request): request for request in unanswered}  # one epoch of each partition
            failed: dict[Key, ClientError] = {}
            epochs = {key: request.leader_epoch for key, request in by_partition.items()}
            steps = find_epoch_ends(self._client.core, epochs, failed)
            try:
                ends = yield self._client.run(steps)
            except Unsupported:  # a broker before Apache Kafka 2.0: then only offsets are compared
                ends = dict.fromkeys(by_partition, (-1, -1))
            answers |= _answers(by_partition.values(), {key: EpochEnd(*end) for key, end in ends.items()}, failed)
        return answers

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
        unpack = partial(self._unpack, request, result)
        answer(Packed(unpack) if result.size else unpack())

    def _unpack(self, request: Fetch, result: FetchedPartition) -> Fetched | OutOfRange | Failed:
        key = request.topic, request.partition
        try:
            fetched = answer_of(result, request.wanted.offset, self._isolation_level)
        except Exception as error:
            return _error(error)
        if isinstance(fetched, OutOfRange):
            self._epochs.pop(key, None)
        elif fetched.leader_epoch != NO_EPOCH:
            self._epochs[key] = fetched.next_offset, fetched.leader_epoch
        return fetched

    def _not_fetched(self, key: Key, answer: OnAnswer, error: Exception) -> None:
        if isinstance(error, TopicRecreated):
            self._epochs.pop(key, None)
            answer(Recreated(str(error.topic_id)))
        elif isinstance(error, BrokerError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._epochs.pop(key, None)
            self._bounds.ask(FindBounds(*key), partial(_out_of_range, answer))
        else:
            answer(_error(error))


def answer_of(fetched: FetchedPartition, offset: int, isolation_level: int) -> Fetched | OutOfRange:
    """Return what a broker's result means for a reader at `offset`.

    With a diverging epoch the log has lost what was read last, and has other records there now: it is OutOfRange with
    the end of what is left (KIP-595). Raise CorruptBatch and MissingId.
    """
    if fetched.diverging is not None:
        _, end_offset = fetched.diverging
        return OutOfRange(fetched.log_start_offset, max(fetched.log_start_offset, end_offset))
    reader, end = AnswerReader(fetched, offset), end_of(fetched, isolation_level)
    records = reader.read(UNPACKED_BYTES, sys.maxsize)
    return Fetched(records, reader.next_offset, end, tuple(reader.poison), reader.leader_epoch, reader.unpacked_bytes)


def _out_of_range(answer: OnAnswer, bounds: Answer) -> None:
    answer(OutOfRange(*bounds) if isinstance(bounds, Bounds) else bounds)


def _key(question: Question) -> Key:
    return question.topic, question.partition


def _answers(
    questions: Iterable[Question], answers: Mapping[Key, Answer], failed: Mapping[Key, ClientError]
) -> Answers[Question]:
    """Return {question: the answer about its partition, or Failed}."""
    by_partition = {**answers, **{key: _error(error) for key, error in failed.items()}}
    return {question: by_partition[_key(question)] for question in questions}


@lru_cache(1_000)
def _uuid_of(topic_id: str) -> UUID | None:
    """Return one object for all partitions of a topic."""
    return UUID(topic_id) if topic_id else None


def _failed(failure: Failure) -> Failed:
    return _error(failure.value)


def _error(error: BaseException | None) -> Failed:
    text = error.with_remedy if isinstance(error, BrokerError) else str(error)
    return Failed(text or "no reason given")
