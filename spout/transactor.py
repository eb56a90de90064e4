"""SHELL (Twisted): the transactional producer of a process, over any broker of Kafka's protocol."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from twisted.internet.base import ReactorBase
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.client.core import Steps
from broker.client.errors import BrokerError, ClientError, MustAbort, ProducerFenced, TryAgain, Unsupported
from broker.client.security.client_security import Security
from broker.client.transaction import TransactionalProducer, TransactionPhase
from broker.client.twisted import TwistedClient
from broker.wire.errors import ErrorCode
from partition_manager.dead_letter import (
    RECORD_FAULTS,
    TOO_LARGE,
    LetterForm,
    dead_letter_record,
    first_form,
    next_form,
)
from partition_manager.dead_letter_sink import LETTER_BYTES_MAX
from partition_manager.ports import LetterRefused, Saved
from spout.partitioner import partition_of
from spout.record_producer import BAD_RECORD
from spout.refused_record import limit_of, size_of, why_refused
from spout.sink_config import SinkConfig
from spout.sink_ports import Output, records_of
from spout.transaction_ports import Aborted, Committed, FencedOut, Letter, OutputsRefused, Transact, TransactAnswer

BATCH_OVERHEAD = 100  # bytes of a batch's header, and room for what Output.size estimates

Asking = Generator["Deferred[Any]", Any, TransactAnswer]
Doing = Generator["Deferred[Any]", Any, None]


class _Batch(NamedTuple):
    """Outputs of a transaction, by their numbers; a dead letter is a batch without numbers."""

    topic: str
    partition: int
    numbers: list[int]


class TwistedTransactor:
    """A Transactor for the topics at `servers`. `sources` are those that the spouts read; all are one cluster.

    It begins its first transaction at once: that ends what an earlier process of the same transactional id left open.
    Raise ValueError if `servers` holds no address.
    """

    log = Logger()

    def __init__(
        self,
        servers: str,
        sources: Mapping[str, Security],
        transactional_id: str,
        config: SinkConfig,
        reactor: ReactorBase,
        *,
        security: Security = None,
    ) -> None:
        self._servers = servers
        self._sources = [(cluster, theirs) for cluster, theirs in sources.items() if cluster != servers]
        self._transactional_id = transactional_id
        self._config = config
        self._reactor = reactor
        self._client = TwistedClient(servers, reactor, security=security)
        self._turns = 0  # of records without a key
        self._batch_bytes: dict[str, int] = {}  # the most in a batch, of topics that refused larger ones
        self._closed = False
        self._renew()
        self._opening: Deferred[Any] = self._persist(self._producer.begin).addErrback(lambda failure: None)

    def ask(self, request: Transact, answer: Callable[[TransactAnswer], None]) -> None:
        """Carry out a transaction, for as long as it takes."""
        self._ask(request).addErrback(self._failed).addCallback(answer)

    def close(self) -> None:
        """Close the connections. The broker aborts an open transaction, and an outstanding request has no answer."""
        self._closed = True
        self._client.close()

    # --- internals

    def _renew(self) -> None:
        timeout_ms = self._config.sink_transaction_timeout_ms
        self._producer = TransactionalProducer(self._client.core, self._transactional_id, timeout_ms)

    @inlineCallbacks
    def _ask(self, request: Transact) -> Asking:
        yield self._opening
        refused = yield self._require_one_cluster()
        if refused is not None:
            return LetterRefused(refused)
        forms: list[LetterForm | None] = [first_form(letter.letter) for letter in request.letters]
        alone: set[int] = set()
        while True:
            batches: list[_Batch] = []
            try:
                yield self._transact(request, forms, alone, batches)
            except MustAbort as stop:
                batch = self._refused_batch(stop.error, batches)
                yield self._persist(self._producer.abort)
                if batch is not None:
                    errors = yield self._divide(request.outputs, batch, alone, stop.error)
                    if errors:
                        return OutputsRefused(errors)
                elif not self._next_forms(request.letters, forms, stop.error):
                    return Aborted(str(stop))
            except ProducerFenced as fenced:
                self._renew()
                return FencedOut(str(fenced))
            else:
                return Committed([Saved(save.request.version) for save in request.saves])

    @inlineCallbacks
    def _transact(
        self, request: Transact, forms: Sequence[LetterForm | None], alone: set[int], batches: "list[_Batch]"
    ) -> Doing:
        """Carry out the transaction, and add its batches to `batches`. Each of `alone` gets a batch of its own."""
        counts = yield self._count(request)
        commits = [save.store.committed_offset(save.request) for save in request.saves]
        producer = self._producer
        if producer.state is TransactionPhase.READY:
            yield self._persist(producer.begin)
        now_ms = time.time_ns() // 1_000_000
        batches += self._batches(request.outputs, counts, alone)
        for batch in batches:
            records = records_of(tuple(request.outputs[number] for number in batch.numbers))
            producer.add(batch.topic, batch.partition, records, now_ms, self._config.codec)
        for (topic, letter), form in zip(request.letters, forms, strict=True):
            if form is not None:
                batches.append(_Batch(topic, letter.partition % counts[topic], []))
                producer.add(topic, batches[-1].partition, [dead_letter_record(letter, form)], now_ms, form.codec)
        for save, (identity, offset) in zip(request.saves, commits, strict=True):
            producer.add_offsets(identity, {(save.request.topic, save.request.partition): offset})
        yield self._persist(producer.commit)

    def _batches(self, outputs: Sequence[Output], counts: dict[str, int], alone: set[int]) -> "list[_Batch]":
        """Return the outputs in batches of one partition each; those of a partition keep their order."""
        batches: list[_Batch] = []
        latest: dict[tuple[str, int], _Batch] = {}
        sizes: dict[tuple[str, int], int] = {}
        for number, output in enumerate(outputs):
            self._turns += output.key is None
            topic = output.topic
            partition = topic, partition_of(output.key, counts[topic], self._turns, self._config.sink_partitioner)
            size = sizes.get(partition, 0) + output.size
            is_full = size > self._batch_bytes.get(topic, self._config.sink_batch_bytes)
            if is_full or partition not in latest or number in alone or latest[partition].numbers[-1] in alone:
                latest[partition] = _Batch(*partition, [])
                batches.append(latest[partition])
                size = output.size
            latest[partition].numbers.append(number)
            sizes[partition] = size
        return batches

    # --- outputs that a topic refuses

    def _refused_batch(self, error: BrokerError, batches: "Sequence[_Batch]") -> "_Batch | None":
        """Return the batch of outputs because of which the transaction must abort; None if the cause is another."""
        if error.code not in BAD_RECORD:
            return None
        topic, _, number = error.what.rpartition("-")
        mine = [batch for batch in batches if (batch.topic, str(batch.partition)) == (topic, number)]
        unanswered = self._producer.batches_left(topic, int(number)) if mine else 0
        return mine[-unanswered] if 0 < unanswered <= len(mine) and mine[-unanswered].numbers else None

    @inlineCallbacks
    def _divide(
        self, outputs: Sequence[Output], batch: "_Batch", alone: set[int], error: BrokerError
    ) -> Generator["Deferred[Any]", Any, dict[int, str]]:
        """Return the outputs of a refused batch that its topic will never take, each with the reason.

        If none is known yet, return {}, and let the next attempt divide the batch.
        """
        limit: int | None = None
        if error.code in TOO_LARGE:
            limit = yield limit_of(self._client, batch.topic)
        sizes = {number: size_of(outputs[number], self._config.codec) for number in batch.numbers}
        is_single = len(sizes) == 1
        refused = [number for number in batch.numbers if is_single or (limit is not None and sizes[number] > limit)]
        if not refused:
            most = None if limit is None else limit - BATCH_OVERHEAD
            if most is not None and 0 < most < self._batch_bytes.get(batch.topic, self._config.sink_batch_bytes):
                self._batch_bytes[batch.topic] = most
            else:
                alone.update(batch.numbers)
        partition = f"{batch.topic}-{batch.partition}"
        return {number: why_refused(partition, error, sizes[number], limit) for number in refused}

    @inlineCallbacks
    def _count(self, request: Transact) -> Generator["Deferred[Any]", Any, dict[str, int]]:
        """Return the number of partitions of each topic. Create the topics of dead letters that do not exist."""
        counts: dict[str, int] = {}
        letters = {letter.topic for letter in request.letters}
        for topic in dict.fromkeys([*(output.topic for output in request.outputs), *letters]):
            try:
                metadata = yield self._client.topic(topic)
            except BrokerError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or topic not in letters:
                    raise
                yield self._create(topic)
                metadata = yield self._client.topic(topic)
            counts[topic] = metadata.partitions
        return counts

    @inlineCallbacks
    def _create(self, topic: str) -> Doing:
        try:
            yield self._client.create_topic(topic, 1, {"max.message.bytes": str(LETTER_BYTES_MAX)})
        except BrokerError as raced:
            if raced.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    def _next_forms(self, letters: Sequence[Letter], forms: list[LetterForm | None], error: BrokerError) -> bool:
        """Choose the next form of the letters in the partition that refused one. Return False if that is not why."""
        topic = error.what.rpartition("-")[0]
        to_topic = [number for number, letter in enumerate(letters) if letter.topic == topic]
        refused = [number for number in to_topic if forms[number] is not None]
        if error.code not in RECORD_FAULTS or not refused:
            return False
        for number in refused:
            form = forms[number]
            forms[number] = next_form(form, error.code) if form is not None else None
            if forms[number] is None:
                self.log.error("{topic} refuses a dead letter in every form: {error}", topic=topic, error=error)
        return True

    @inlineCallbacks
    def _require_one_cluster(self) -> Generator["Deferred[Any]", Any, str | None]:
        """Return why no transaction can succeed, or None if the spouts read the cluster that the sinks write."""
        while self._sources:
            yield self._client.run(self._client.core.metadata([]))
            servers, security = self._sources[0]
            other = TwistedClient(servers, self._reactor, security=security)
            try:
                yield other.run(other.core.metadata([]))
            finally:
                other.close()
            ours, theirs = self._client.core.cluster_id, other.core.cluster_id
            if ours != theirs:
                read = f"a spout reads cluster {theirs} at {servers}"
                return f"exactly_once needs one cluster: the sink writes cluster {ours} at {self._servers}, {read}"
            del self._sources[0]
        return None

    @inlineCallbacks
    def _persist(self, operation: Callable[[], Steps[None]]) -> Doing:
        """Carry out an operation of the producer, again and again while it has to wait."""
        tries = 0
        while True:
            try:
                yield self._client.run(operation())
                return
            except TryAgain as again:
                if self._closed:
                    raise
                tries += 1
                if tries == 10:
                    self.log.warn("a transaction waits: {reason}", reason=str(again))
                yield deferLater(cast(IReactorTime, self._reactor), again.pause_ms / 1000, lambda: None)

    def _failed(self, failure: Failure) -> TransactAnswer:
        error = failure.value
        if isinstance(error, Unsupported) or (
            isinstance(error, BrokerError) and self._producer.state is TransactionPhase.BROKEN
        ):
            return LetterRefused(str(error))
        if isinstance(error, ClientError):
            return Aborted(error.with_remedy if isinstance(error, BrokerError) else str(error))
        failure.raiseException()
        raise AssertionError("unreachable")
