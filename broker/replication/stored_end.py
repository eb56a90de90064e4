"""The end of an append, and where its records must be before it is answered.

They must be on the disk if the topic asks for that (`flakelog.durable.acks`), and with acks=all on all replicas in
sync: the high watermark has reached the end while this broker leads the same opening of the log, and the ISR has
`min.insync.replicas` members (rule R2). A new leader epoch that leaves the leader in place changes nothing.
"""

from typing import NamedTuple, Protocol

from broker.log.partition_log import PartitionLog
from broker.replication.partition import Partition
from broker.wire.errors import ApiError, ErrorCode

ACKS_ALL = -1


class Leadership(Protocol):
    """What this broker leads."""

    def log_of(self, topic: str, partition: int, /) -> PartitionLog:
        """Return the log of a partition. Raise ApiError if this broker does not lead it."""

    def partition_of(self, log: PartitionLog, /) -> Partition | None:
        """Return the leader's view of a log's partition; None if the log has one copy."""


class StoredEnd(NamedTuple):
    """An end that is not stored yet."""

    log: PartitionLog
    end_offset: int
    on_disk: bool
    """True if it must be on the disk."""
    on_replicas: bool
    """True if it must be on all replicas in sync: those in sync when it is answered, not when it was appended."""

    @property
    def is_stored(self) -> bool:
        log, end = self.log, self.end_offset
        is_on_disk = not self.on_disk or log.durability.end_offset >= end
        return is_on_disk and (not self.on_replicas or log.high_watermark >= end)

    def is_settled(self, leadership: Leadership) -> bool:
        """Return True if the wait is over: it is stored, the log is offline, or another broker leads."""
        return self.is_stored or self.log.offline is not None or self.lost_leadership(leadership) is not None

    def error(self, leadership: Leadership) -> ApiError | None:
        """Return why an append may not be answered as stored now; None if it may.

        An append that is not stored yet, and may be soon, has the error of `late`.
        """
        log = self.log
        lost = self.lost_leadership(leadership)
        if lost is not None:
            return lost
        if not self.is_stored:
            if log.offline is not None:
                return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name} is offline: {log.offline}")
            if self.on_disk and log.durability.end_offset < self.end_offset:
                return ApiError(
                    ErrorCode.REQUEST_TIMED_OUT, f"{log.name}: the disk takes longer than the request's timeout"
                )
            reason = f"{log.name}: the replicas in sync take longer than the request's timeout"
            return late(leadership.partition_of(log), reason)
        if self.on_replicas:
            return too_few_in_sync(leadership.partition_of(log), ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return None

    def lost_leadership(self, leadership: Leadership) -> ApiError | None:
        """Return why this broker does not lead this opening of the log any more; None if it does, or need not."""
        log = self.log
        if not self.on_replicas:
            return None
        try:
            led = leadership.log_of(log.topic, log.partition)
        except ApiError as lost:
            return lost
        if led is log:
            return None
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{log.name} was truncated since, and led anew")


def unstored_end(log: PartitionLog, acks: int = ACKS_ALL) -> StoredEnd | None:
    """Return the end of a log as it is now; None if an append with these acks may be answered at once."""
    end = log.log_end_offset
    on_disk = acks in log.waiting_acks and log.durability.end_offset < end
    on_replicas = acks == ACKS_ALL and log.replicated_to < end
    if not on_disk and not on_replicas:
        return None
    return StoredEnd(log, end, on_disk, on_replicas or counts_copies(log, acks))


def counts_copies(log: PartitionLog, acks: int) -> bool:
    """Return True if an append that waits for the disk alone has to wait for replicas that come into sync meanwhile."""
    return acks == ACKS_ALL and log.has_copies


def late(partition: Partition | None, reason: str) -> ApiError:
    """Return the error of an append that is late: REQUEST_TIMED_OUT, which clients repeat where they are.

    NOT_LEADER_OR_FOLLOWER if the controller does not grant an ISR without late replicas: another broker may lead, and
    clients are to look for it. Kafka has no such rule, and some of its clients stay with a leader that was cut off.
    """
    if partition is None or not partition.waits_for_controller:
        return ApiError(ErrorCode.REQUEST_TIMED_OUT, reason)
    return ApiError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"{reason}; the controller has not granted an ISR without the late replicas, so another broker may lead",
    )


def too_few_in_sync(
    partition: Partition | None, code: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS
) -> ApiError | None:
    """Return the error of an append with acks=all while the ISR lacks members; None if it has enough."""
    if partition is None or partition.has_min_isr:
        return None
    isr, least = list(partition.isr), partition.min_isr
    return ApiError(code, f"{partition.log.name}: the ISR {isr} has fewer members than min.insync.replicas={least}")


def check_in_sync(partition: Partition | None) -> None:
    """Raise ApiError NOT_ENOUGH_REPLICAS if an append with acks=all must be refused."""
    error = too_few_in_sync(partition)
    if error is not None:
        raise error
