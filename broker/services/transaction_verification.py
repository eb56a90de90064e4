"""Verification (KIP-890): a batch or an offset of a transaction is refused unless its partition was added before.

Otherwise the transaction might never end in that partition.
"""

from broker.log.partition_log import PartitionLog
from broker.record.batch import NO_PRODUCER_ID, BatchHeader
from broker.settings.transaction_config import TransactionConfig
from broker.txn.coordinator import Partition, TransactionCoordinator
from broker.wire.errors import ApiError, ErrorCode

ABORTABLE_VERSION = 11  # of Produce, from which clients know TRANSACTION_ABORTABLE (KIP-890)


class TransactionVerification:
    """Asks the coordinator `core` whether a transaction has a partition."""

    def __init__(self, config: TransactionConfig, core: TransactionCoordinator) -> None:
        self._config = config
        self._core = core

    def verify(
        self, transactional_id: str | None, header: BatchHeader, log: PartitionLog, produce_version: int
    ) -> None:
        """Raise ApiError unless this batch of a transaction goes to a partition that was added to it, from the producer
        that has it now, while it is open."""
        if transactional_id is None:
            reason = f"a batch of a transaction came to {log.name} without a transactional id"
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)
        if header.producer_id <= NO_PRODUCER_ID:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, "the batch is part of a transaction, and no producer's")
        partition, abortable = (log.topic, log.partition), produce_version >= ABORTABLE_VERSION
        error = self.refusal(transactional_id, header.producer_id, header.producer_epoch, partition, abortable)
        if error == ErrorCode.CONCURRENT_TRANSACTIONS:
            error = ErrorCode.NOT_ENOUGH_REPLICAS  # every client retries this code
        if error:
            reason = f"{log.name} is not part of an open transaction of {transactional_id} and this producer"
            raise ApiError(error, reason)

    def refusal(
        self, transactional_id: str, producer_id: int, epoch: int, partition: Partition, knows_abortable: bool
    ) -> ErrorCode:
        """Return the error for a client that writes to a partition in a transaction; NONE if the transaction has it."""
        if not self._config.transaction_partition_verification_enable:
            return ErrorCode.NONE
        error = self._core.verify(transactional_id, producer_id, epoch, partition)
        if error == ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
            return ErrorCode.INVALID_TXN_STATE
        return error
