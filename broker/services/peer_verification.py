"""Questions to the coordinators on other brokers whether transactions have partitions (KIP-890).

The questions of a turn share an AddPartitionsToTxn to each broker, v5 with VerifyOnly as Kafka 3.9 sends it
(AddPartitionsToTxnManager). A transaction is verified once for each partition: from its first batch on, the partition
has it open until a marker ends it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32

from broker.log.partition_log import PartitionLog
from broker.log.verification import Verification
from broker.membership.peer_batches import PeerBatches
from broker.membership.peer_calls import PeerCalls
from broker.now import Now
from broker.produce.outcome import Unverified
from broker.services.coordinator_topic import CoordinatorPorts
from broker.wire.errors import ErrorCode

VERIFICATIONS_MAX = 500
"""The questions of a request: its coordinator answers as many in a few milliseconds."""
SEQUENCE_MAX = 2**31 - 1
REFUSAL_MS = 10_000
"""How long a refusal is kept for the producer's next try. Clients wait a second at most between two tries."""


class Producer(Protocol):
    """A producer that writes to a partition: the header of its batch."""

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def base_sequence(self) -> int: ...


class PeerVerification:
    """Asks the brokers that coordinate transactions. `leader_of` returns the one of a transactional id."""

    def __init__(self, ports: CoordinatorPorts, calls: PeerCalls, leader_of: Callable[[str], int]) -> None:
        self._ports = ports
        self._leader_of = leader_of
        self._batches: PeerBatches[Verification] = PeerBatches(calls, VERIFICATIONS_MAX, _request_of, self._settle)

    def check(self, transactional_id: str, producer: Producer, log: PartitionLog) -> ErrorCode:
        """Return what the coordinator answered about a producer and a partition. Raise Unverified before that."""
        producer_id, epoch, sequence = producer.producer_id, producer.producer_epoch, producer.base_sequence
        producers, questions = log.producers, log.producers.verifications
        if producers.has_open(producer_id) and producers.epoch_of(producer_id) == epoch:
            return ErrorCode.NONE
        before = questions.get(producer_id)
        if before is not None and (before.transactional_id, before.epoch) == (transactional_id, epoch):
            before.lowest_sequence = min(before.lowest_sequence, sequence)
            if before.error is None:
                raise Unverified(before)
            if before.error:
                return before.error
            if sequence > before.lowest_sequence:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            before.lowest_sequence = SEQUENCE_MAX
            return ErrorCode.NONE
        if before is not None and before.is_asked and not before.error and before.epoch >= epoch:
            return ErrorCode.CONCURRENT_TRANSACTIONS if before.is_pending else ErrorCode.PRODUCER_FENCED
        partition = log.topic, log.partition
        verification = Verification(transactional_id, producer_id, epoch, sequence, partition, questions)
        questions[producer_id] = verification
        raise Unverified(verification)

    def ask(self, verifications: Iterable[Verification], now: Now) -> None:
        """Send the questions, unless they were sent. An answer touches its verification in the purgatory."""
        for verification in verifications:
            if verification.is_asked:
                continue
            verification.is_asked = True
            leader = self._leader_of(verification.transactional_id)
            if leader in self._ports.metadata.live_ids:
                self._batches.add(leader, verification, now)
            else:
                self._answer(verification, ErrorCode.COORDINATOR_NOT_AVAILABLE, now)

    def _settle(self, broker_id: int, verifications: list[Verification], response: Any | None, now: Now) -> None:
        """Pass on the answer to each question of a request. NETWORK_EXCEPTION answers those without one, as in Kafka.
        """
        codes: dict[tuple[str, tuple[str, int]], ErrorCode] = {}
        if response is not None:
            codes = {
                (result.transactional_id, (topic.name, partition.partition_index)): ErrorCode(
                    partition.partition_error_code
                )
                for result in response.results_by_transaction
                for topic in result.topic_results
                for partition in topic.results_by_partition
            }
        questions = Counter(map(_question_of, verifications))
        for verification in verifications:
            question = _question_of(verification)
            # Two producers with one transactional id: the answer does not say which of them it is about.
            is_clear = questions[question] == 1
            code = codes.get(question, ErrorCode.NETWORK_EXCEPTION) if is_clear else ErrorCode.CONCURRENT_TRANSACTIONS
            self._answer(verification, code, now)

    def _answer(self, verification: Verification, code: ErrorCode, now: Now) -> None:
        verification.error = code
        if code:
            self._ports.purgatory.call_at(now.ms + REFUSAL_MS, lambda _: verification.expire())
        self._ports.purgatory.touch(verification, now)


def _question_of(verification: Verification) -> tuple[str, tuple[str, int]]:
    return verification.transactional_id, verification.partition


def _request_of(verifications: list[Verification]) -> AddPartitionsToTxnRequest:
    """Return the request for some questions. The questions about one producer share an entry."""
    entries: dict[tuple[str, int, int], dict[str, list[i32]]] = {}
    for verification in verifications:
        topic, partition = verification.partition
        entry = verification.transactional_id, verification.producer_id, verification.epoch
        entries.setdefault(entry, {}).setdefault(topic, []).append(i32(partition))
    return AddPartitionsToTxnRequest(
        transactions=tuple(
            AddPartitionsToTxnTransaction(
                transactional_id=TransactionalId(transactional_id),
                producer_id=ProducerId(producer_id),
                producer_epoch=i16(epoch),
                verify_only=True,
                topics=tuple(
                    AddPartitionsToTxnTopic(name=TopicName(name), partitions=tuple(partitions))
                    for name, partitions in topics.items()
                ),
            )
            for (transactional_id, producer_id, epoch), topics in entries.items()
        )
    )
