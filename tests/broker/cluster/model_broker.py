"""A broker that keeps what the controller's orders tell it, and refuses what Kafka's brokers refuse.

Refused, as seen on Kafka 3.9.1: every order of a lower controller epoch (11) or of an earlier life of this broker (77);
in LeaderAndIsr each partition whose leader epoch is not higher than the known one (11).
"""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from broker.cluster.documents import LEADER_DURING_DELETE, TopicPartition
from broker.cluster.orders import FULL
from broker.wire.inter_broker import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)


@dataclass(frozen=True)
class ImageRow:
    """A partition in a broker's metadata."""

    topic_id: UUID | None
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    replicas: tuple[int, ...]


@dataclass(frozen=True)
class HeldReplica:
    topic_id: UUID | None
    leader: int
    leader_epoch: int


@dataclass
class ModelBroker:
    """A broker of the model. `logs` are on its disk and outlive it; it forgets all else when it dies."""

    broker_id: int
    logs: dict[TopicPartition, UUID | None] = field(default_factory=dict)
    broker_epoch: int = -1
    controller_epoch: int = 0
    image: dict[TopicPartition, ImageRow] = field(default_factory=dict)
    live: frozenset[int] = frozenset()
    is_whole: bool = True  # on its disk: False from a power cut to the first LeaderAndIsr after it (rule W1)
    last_epoch: int = -1  # on its disk: the broker epoch of its newest life
    failed_disks: set[TopicPartition] = field(default_factory=set)
    replicas: dict[TopicPartition, HeldReplica] = field(default_factory=dict)
    accepted: list[Any] = field(default_factory=list)  # the orders that it took, for the oracle

    def die(self) -> None:
        self.broker_epoch, self.controller_epoch = -1, 0
        self.image, self.live, self.replicas = {}, frozenset(), {}

    def registered(self, broker_epoch: int, controller_epoch: int) -> None:
        """Begin a life; rule E2: refuse orders below the controller epoch that the registration read."""
        self.broker_epoch = self.last_epoch = broker_epoch
        self.controller_epoch = max(self.controller_epoch, controller_epoch)

    def handle(self, request: Any) -> Any:
        refusal = self._refusal(request)
        if refusal is ErrorCode.none:
            self.controller_epoch = request.controller_epoch
            self.accepted.append(request)
        match request:
            case LeaderAndIsrRequest():
                self.is_whole = self.is_whole or not refusal
                topics = () if refusal else tuple(self._lead_or_follow(topic) for topic in request.topic_states)
                return LeaderAndIsrResponse(error_code=refusal, topics=topics)
            case UpdateMetadataRequest():
                if not refusal:
                    self._update(request)
                return UpdateMetadataResponse(error_code=refusal)
            case StopReplicaRequest():
                errors = () if refusal else tuple(self._stop(request))
                return StopReplicaResponse(error_code=refusal, partition_errors=errors)
        raise AssertionError(request)

    def _refusal(self, request: Any) -> ErrorCode:
        if request.controller_epoch < self.controller_epoch:
            return ErrorCode.stale_controller_epoch
        if request.broker_epoch < self.broker_epoch:
            return ErrorCode.stale_broker_epoch
        return ErrorCode.none

    def _lead_or_follow(self, topic: Any) -> LeaderAndIsrTopicError:
        errors = []
        for state in topic.partition_states:
            partition = TopicPartition(topic.topic_name, state.partition_index)
            held = self.replicas.get(partition)
            assert self.logs.get(partition, topic.topic_id) == topic.topic_id, f"{partition}: a log of another topic id"
            code = ErrorCode.none
            if partition in self.failed_disks:
                code = ErrorCode.kafka_storage_error
            elif held is not None and held.leader_epoch >= state.leader_epoch:
                code = ErrorCode.stale_controller_epoch
            else:
                self.replicas[partition] = HeldReplica(topic.topic_id, state.leader, state.leader_epoch)
                self.logs[partition] = topic.topic_id
            errors.append(LeaderAndIsrPartitionError(partition_index=state.partition_index, error_code=code))
        return LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=tuple(errors))

    def _update(self, request: Any) -> None:
        self.live = frozenset(broker.id_ for broker in request.live_brokers)
        if request.type_ == FULL:
            self.image = {}
        for topic in request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                if state.leader == LEADER_DURING_DELETE:
                    self.image.pop(partition, None)
                else:
                    self.image[partition] = ImageRow(
                        topic.topic_id, state.leader, state.leader_epoch, state.isr, state.zk_version, state.replicas
                    )

    def _stop(self, request: Any) -> list[StopReplicaPartitionError]:
        errors = []
        for topic in request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                if state.delete_partition:
                    self.replicas.pop(partition, None)
                    self.logs.pop(partition, None)
                errors.append(
                    StopReplicaPartitionError(
                        topic_name=topic.topic_name, partition_index=state.partition_index, error_code=ErrorCode.none
                    )
                )
        return errors
