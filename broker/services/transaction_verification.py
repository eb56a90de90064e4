"""Verification (KIP-890): a batch or an offset of a transaction is refused unless its partition was added before.

Otherwise the transaction might never end in that partition. The coordinator of the transactional id decides. If another
broker coordinates it, that broker is asked (broker.services.peer_verification), and the request waits for its answer.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from broker.group.offset_records import partition_of
from broker.log.partition_log import PartitionLog
from broker.log.verification import Verification
from broker.metadata.topic import NO_LEADER
from broker.now import Now
from broker.produce.outcome import VerificationRefused
from broker.record.batch import NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader
from broker.services.coordinator_partitions import CoordinatorPartitions
from broker.services.coordinator_topic import CoordinatorPorts, CoordinatorTopic
from broker.services.transaction_partition import TransactionPartition
from broker.settings.transaction_config import TransactionConfig
from broker.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from broker.services.peer_verification import PeerVerification

ABORTABLE_VERSION = 11  # of Produce, from which clients know TRANSACTION_ABORTABLE (KIP-890)

# Errors of the coordinator for which Kafka answers a Produce with NOT_ENOUGH_REPLICAS (ReplicaManager of Kafka 3.9).
# All clients retry that code, and look for no other leader.
_MAY_PASS = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_COORDINATOR,
)

_partition_of = lru_cache(1_000)(partition_of)  # a producer asks with each of its batches


class _Producer(NamedTuple):
    """A producer whose offsets the group coordinator writes, in batches without a sequence."""

    producer_id: int
    producer_epoch: int
    base_sequence: int = NO_SEQUENCE


class TransactionVerification:
    """Asks the coordinator of a transactional id whether its transaction has a partition."""

    def __init__(
        self,
        config: TransactionConfig,
        topic: CoordinatorTopic,
        partitions: CoordinatorPartitions[TransactionPartition],
        ports: CoordinatorPorts,
    ) -> None:
        self._is_enabled = config.transaction_partition_verification_enable
        self._topic = topic
        self._partitions = partitions
        self._node_id = ports.node_id
        self._is_alone = ports.is_alone
        self._peers = _peers(ports, self._leader_of)

    def verify(
        self, transactional_id: str | None, header: BatchHeader, log: PartitionLog, produce_version: int
    ) -> None:
        """Raise ApiError unless this batch of a transaction goes to a partition that was added to it, from the producer
        that has it now, while it is open.

        The error is NOT_ENOUGH_REPLICAS while the coordinator cannot answer. Raise Unverified if another broker
        coordinates the transaction and must be asked first.
        """
        if transactional_id is None:
            reason = f"a batch of a transaction came to {log.name} without a transactional id"
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)
        if header.producer_id <= NO_PRODUCER_ID:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, "the batch is part of a transaction, and no producer's")
        abortable = produce_version >= ABORTABLE_VERSION
        error = self._refusal(transactional_id, header, log, abortable)
        if not error:
            return
        reason = f"{log.name} is not part of an open transaction of {transactional_id} and this producer"
        if error in _MAY_PASS:
            reason = f"it is not known yet whether {log.name} is part of a transaction of {transactional_id}"
            error, reason = ErrorCode.NOT_ENOUGH_REPLICAS, f"{reason}: {error.name}"
        verification = log.producers.verifications.get(header.producer_id)
        raise ApiError(error, reason) if verification is None else VerificationRefused(error, reason, verification)

    def ask(self, verifications: Iterable[Verification], now: Now) -> None:
        """Send the questions to other brokers, unless they were sent. See `PeerVerification.ask`."""
        if self._peers is not None:
            self._peers.ask(verifications, now)

    def refusal(
        self, transactional_id: str, producer_id: int, epoch: int, log: PartitionLog, knows_abortable: bool
    ) -> ErrorCode:
        """Return the error for a client that commits offsets in a transaction; NONE if the transaction has their
        partition, whose log is given. Raise Unverified if another broker must be asked first.

        If the coordinator is not found or does not answer, the error is COORDINATOR_LOAD_IN_PROGRESS, which makes the
        client retry without a search for the group's coordinator (GroupMetadataManager of Kafka 3.9).
        """
        error = self._refusal(transactional_id, _Producer(producer_id, epoch), log, knows_abortable)
        if error and (verification := log.producers.verifications.get(producer_id)) is not None:
            verification.ask_again()
        is_unknown = error in (ErrorCode.NOT_COORDINATOR, ErrorCode.NETWORK_EXCEPTION)
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_unknown else error

    def _refusal(
        self, transactional_id: str, producer: BatchHeader | _Producer, log: PartitionLog, knows_abortable: bool
    ) -> ErrorCode:
        if not self._is_enabled:
            return ErrorCode.NONE
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        topic = self._topic.topic
        if topic is None:
            # No transactional id has a producer yet, or this broker of a cluster has not heard of the topic.
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING if self._is_alone else ErrorCode.COORDINATOR_NOT_AVAILABLE
        led = self._partitions.at(_partition_of(transactional_id, len(topic.partitions)))
        if led is None:
            error = self._elsewhere(transactional_id, producer, log)
        else:
            partition = log.topic, log.partition
            error = led.core.verify(transactional_id, producer.producer_id, producer.producer_epoch, partition)
        if error == ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
            return ErrorCode.INVALID_TXN_STATE
        return error

    def _elsewhere(
        self, transactional_id: str, producer: BatchHeader | _Producer, log: PartitionLog
    ) -> ErrorCode:
        """Return the answer about a transaction that is not coordinated here, or not yet."""
        refused = self._partitions.find(transactional_id)
        if refused is not ErrorCode.NOT_COORDINATOR:
            return refused if isinstance(refused, ErrorCode) else ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self._peers is None or self._leader_of(transactional_id) == self._node_id:
            return refused
        return self._peers.check(transactional_id, producer, log)

    def _leader_of(self, transactional_id: str) -> int:
        """Return the broker that coordinates a transactional id, or NO_LEADER."""
        topic = self._topic.topic
        if topic is None:
            return NO_LEADER
        return topic.partitions[_partition_of(transactional_id, len(topic.partitions))].leader


def _peers(ports: CoordinatorPorts, leader_of: Callable[[str], int]) -> "PeerVerification | None":
    if ports.peer_calls is None:
        return None
    from broker.services.peer_verification import PeerVerification  # a server alone needs none of its messages

    return PeerVerification(ports, ports.peer_calls, leader_of)
