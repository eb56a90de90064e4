"""What the answers of brokers to a controller's orders say about their replicas."""

from dataclasses import dataclass
from typing import Any

from broker.cluster.channel import Call
from broker.cluster.controller_context import Replica
from broker.cluster.documents import TopicPartition
from broker.wire.errors import ErrorCode
from broker.wire.inter_broker import LeaderAndIsrRequest, StopReplicaRequest


@dataclass(frozen=True)
class DeletionAnswered:
    """A life of a broker has answered StopReplica with `delete`. The answer of a life that is over counts for nothing:
    the replicas of the next life are deleted anew."""

    broker_id: int
    broker_epoch: int
    deleted: tuple[Replica, ...]
    failed: tuple[Replica, ...]


@dataclass(frozen=True)
class DiskFailed:
    """The disk of a life of a broker was full or failed when these replicas were ordered: the orders are repeated."""

    broker_id: int
    broker_epoch: int
    replicas: tuple[Replica, ...]


@dataclass(frozen=True)
class DisksAnswered:
    """A life of a broker has answered LeaderAndIsr: its disk did not take some replicas, and took others."""

    broker_id: int
    broker_epoch: int
    failed: tuple[Replica, ...]
    taken: tuple[Replica, ...]
    kept: tuple[Replica, ...] = ()
    """Those of the failed whose logs have lost nothing: the disk was full, for example."""
    others: tuple[Replica, ...] = ()
    """Those of the kept in whose place the broker has records of another topic of this name."""


def deletion_answered(call: Call, request: StopReplicaRequest, response: Any) -> DeletionAnswered:
    """Return the replicas that a broker was to delete, by whether it did."""
    errors = {TopicPartition(e.topic_name, e.partition_index): e.error_code for e in response.partition_errors}
    deleted: list[Replica] = []
    failed: list[Replica] = []
    for topic in request.topic_states:
        for state in topic.partition_states:
            if state.delete_partition:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                error_code = response.error_code or errors.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
                replicas = deleted if error_code == ErrorCode.NONE else failed
                replicas.append(Replica(partition, call.broker_id))
    return DeletionAnswered(call.broker_id, call.broker_epoch, tuple(deleted), tuple(failed))


def disks_answered(call: Call, response: Any) -> DisksAnswered:
    """Return the replicas of an order by whether a disk of the broker took them.

    A replica that is refused with STALE_CONTROLLER_EPOCH is taken too: its broker knows these epochs. The answer to the
    same order was lost.
    """
    request = call.request
    errors: list[tuple[TopicPartition, int]] = []
    kept: tuple[Replica, ...] = ()
    if isinstance(request, LeaderAndIsrRequest):
        names = {topic.topic_id: topic.topic_name for topic in request.topic_states}
        kept = tuple(
            Replica(TopicPartition(names[topic.topic_id], error.partition_index), call.broker_id)
            for topic in response.topics
            for error in topic.partition_errors
            if error.keeps_records
        )
        errors += (
            (TopicPartition(names[topic.topic_id], error.partition_index), error.error_code)
            for topic in response.topics
            for error in topic.partition_errors
        )
    elif isinstance(request, StopReplicaRequest):
        errors += (
            (TopicPartition(error.topic_name, error.partition_index), error.error_code)
            for error in response.partition_errors
        )

    def replicas(*codes: ErrorCode) -> tuple[Replica, ...]:
        return tuple(Replica(partition, call.broker_id) for partition, error in errors if error in codes)

    others = replicas(ErrorCode.INCONSISTENT_TOPIC_ID)
    failed = replicas(ErrorCode.KAFKA_STORAGE_ERROR) + others
    taken = replicas(ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH)
    return DisksAnswered(call.broker_id, call.broker_epoch, failed, taken, kept + others, others)
