"""Verification (KIP-890): a batch or an offset of a transaction is refused unless its partition was added before.

Otherwise the transaction might never end in that partition. The coordinator of the transactional id decides. If its
partition has another leader, the client gets an error that it retries, because this node cannot ask that leader yet.
"""

from functools import lru_cache

from broker.group.offset_records import partition_of
from broker.log.partition_log import PartitionLog
from broker.record.batch import NO_PRODUCER_ID, BatchHeader
from broker.services.coordinator_partitions import CoordinatorPartitions
from broker.services.coordinator_topic import CoordinatorTopic
from broker.services.transaction_partition import TransactionPartition
from broker.settings.transaction_config import TransactionConfig
from broker.txn.coordinator import Partition
from broker.wire.errors import ApiError, ErrorCode

ABORTABLE_VERSION = 11  # of Produce, from which clients know TRANSACTION_ABORTABLE (KIP-890)

# Errors of the coordinator for which Kafka answers a Produce with NOT_ENOUGH_REPLICAS (ReplicaManager of Kafka 3.9).
# All clients retry that code, and look for no other leader.
_MAY_PASS = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

_partition_of = lru_cache(1_000)(partition_of)  # a producer asks with each of its batches


class TransactionVerification:
    """Asks the coordinator of a transactional id whether its transaction has a partition."""

    def __init__(
        self,
        config: TransactionConfig,
        topic: CoordinatorTopic,
        partitions: CoordinatorPartitions[TransactionPartition],
    ) -> None:
        self._is_enabled = config.transaction_partition_verification_enable
        self._topic = topic
        self._partitions = partitions

    def verify(
        self, transactional_id: str | None, header: BatchHeader, log: PartitionLog, produce_version: int
    ) -> None:
        """Raise ApiError unless this batch of a transaction goes to a partition that was added to it, from the producer
        that has it now, while it is open.

        The error is NOT_ENOUGH_REPLICAS while the coordinator loads the transaction, or if another node coordinates it.
        """
        if transactional_id is None:
            reason = f"a batch of a transaction came to {log.name} without a transactional id"
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)
        if header.producer_id <= NO_PRODUCER_ID:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, "the batch is part of a transaction, and no producer's")
        partition, abortable = (log.topic, log.partition), produce_version >= ABORTABLE_VERSION
        error = self._refusal(transactional_id, header.producer_id, header.producer_epoch, partition, abortable)
        if error in _MAY_PASS:
            reason = f"it is not known yet whether {log.name} is part of a transaction of {transactional_id}"
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{reason}: {error.name}")
        if error:
            reason = f"{log.name} is not part of an open transaction of {transactional_id} and this producer"
            raise ApiError(error, reason)

    def refusal(
        self, transactional_id: str, producer_id: int, epoch: int, partition: Partition, knows_abortable: bool
    ) -> ErrorCode:
        """Return the error for a client that commits offsets in a transaction; NONE if the transaction has their
        partition.

        If another node coordinates the transaction, the error is COORDINATOR_LOAD_IN_PROGRESS, which makes the client
        retry without a search for the group's coordinator (GroupMetadataManager of Kafka 3.9).
        """
        error = self._refusal(transactional_id, producer_id, epoch, partition, knows_abortable)
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error is ErrorCode.NOT_COORDINATOR else error

    def _refusal(
        self, transactional_id: str, producer_id: int, epoch: int, partition: Partition, knows_abortable: bool
    ) -> ErrorCode:
        if not self._is_enabled:
            return ErrorCode.NONE
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        topic = self._topic.topic
        if topic is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING  # no transactional id has a producer yet
        led = self._partitions.at(_partition_of(transactional_id, len(topic.partitions)))
        if led is None:
            refused = self._partitions.find(transactional_id)
            return refused if isinstance(refused, ErrorCode) else ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = led.core.verify(transactional_id, producer_id, epoch, partition)
        if error == ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
            return ErrorCode.INVALID_TXN_STATE
        return error
