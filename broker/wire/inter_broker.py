"""The messages between brokers that kio lacks: LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown.

A controller with ZooKeeper orders brokers with the first three (keys 4 to 6), and a broker that stops asks with the
fourth (key 7). Apache Kafka 4.0 removed these four, and kio is generated from a later release. The classes follow the
specs in `common/message/*.json` of kafka-clients 3.9.1. A test compares them with the frames that Kafka 3.9.1 sent
(tests/golden/inter_broker).

Each API has one version, that of `inter.broker.protocol.version` 3.9: LeaderAndIsr v7, StopReplica v4, UpdateMetadata
v8, ControlledShutdown v3. Orders come without ApiVersions, in the version of the sender. All four versions are
flexible.

Three messages have fields of ours in tags (KIP-482), which Kafka's brokers neither send nor read (rules E6 and R3 of
replication):

    AlterPartition v3   in each partition of the request: MIN_ISR = the leader's reading of min.insync.replicas
                        in each partition of the answer: ELR = the granted ELR (KIP-966)
    LeaderAndIsr v7     in each partition: ELR
                        in each partition of the answer: KEEPS_RECORDS = a refused replica has lost nothing
    UpdateMetadata v8   in each partition: ELR

kio has AlterPartition too, and its classes are used for v2. The numbers of the tags follow `broker.wire.tags.IDS`.

The classes have the shape of kio's, so that `broker.wire.cold` decodes and encodes them. Fields are named by kio's
rules (`isKRaftController` is `is_k_raft_controller`, `Type` is `type_`). kio repeats the class variables in each
class; here base classes hold them.
"""

import uuid
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import BrokerId, TopicName
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA, CONTROLLED_SHUTDOWN = 4, 5, 6, 7
ALTER_PARTITION = 56
MIN_ISR, ELR, KEEPS_RECORDS = 61_891, 61_892, 61_893
NO_MIN_ISR = -1
"""The min.insync.replicas of a leader that names none: one of Kafka's."""


class _Request:
    __slots__ = ()
    __type__: ClassVar = EntityType.request
    __flexible__: ClassVar[bool] = True
    __header_schema__: ClassVar[type[Any]] = RequestHeader


class _RequestPart(_Request):
    __slots__ = ()
    __type__: ClassVar = EntityType.nested


class _Response:
    __slots__ = ()
    __type__: ClassVar = EntityType.response
    __flexible__: ClassVar[bool] = True
    __header_schema__: ClassVar[type[Any]] = ResponseHeader


class _ResponsePart(_Response):
    __slots__ = ()
    __type__: ClassVar = EntityType.nested


class _LeaderAndIsr:
    __slots__ = ()
    __version__: ClassVar[i16] = i16(7)
    __api_key__: ClassVar[i16] = i16(LEADER_AND_ISR)


class _StopReplica:
    __slots__ = ()
    __version__: ClassVar[i16] = i16(4)
    __api_key__: ClassVar[i16] = i16(STOP_REPLICA)


class _UpdateMetadata:
    __slots__ = ()
    __version__: ClassVar[i16] = i16(8)
    __api_key__: ClassVar[i16] = i16(UPDATE_METADATA)


class _ControlledShutdown:
    __slots__ = ()
    __version__: ClassVar[i16] = i16(3)
    __api_key__: ClassVar[i16] = i16(CONTROLLED_SHUTDOWN)


class _AlterPartition:
    __slots__ = ()
    __version__: ClassVar[i16] = i16(3)
    __api_key__: ClassVar[i16] = i16(ALTER_PARTITION)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrPartitionState(_RequestPart, _LeaderAndIsr):
    partition_index: i32 = field(metadata={"kafka_type": "int32"})
    controller_epoch: i32 = field(metadata={"kafka_type": "int32"})
    """The epoch of the controller that decided this state."""
    leader: BrokerId = field(metadata={"kafka_type": "int32"})
    """The id of the leader; -1 if the partition has none."""
    leader_epoch: i32 = field(metadata={"kafka_type": "int32"})
    isr: tuple[BrokerId, ...] = field(metadata={"kafka_type": "int32"}, default=())
    partition_epoch: i32 = field(metadata={"kafka_type": "int32"})
    """The version of the partition's `state` node in ZooKeeper."""
    replicas: tuple[BrokerId, ...] = field(metadata={"kafka_type": "int32"}, default=())
    adding_replicas: tuple[BrokerId, ...] = field(metadata={"kafka_type": "int32"}, default=())
    removing_replicas: tuple[BrokerId, ...] = field(metadata={"kafka_type": "int32"}, default=())
    is_new: bool = field(metadata={"kafka_type": "bool"}, default=False)
    """True if the broker has no log of the partition yet."""
    leader_recovery_state: i8 = field(metadata={"kafka_type": "int8"}, default=i8(0))
    """1 while the leader recovers from an unclean election (KIP-704)."""
    elr: tuple[BrokerId, ...] = field(metadata={"kafka_type": "int32", "tag": ELR}, default=())
    """The granted ELR, for brokers of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrTopicState(_RequestPart, _LeaderAndIsr):
    topic_name: TopicName = field(metadata={"kafka_type": "string"})
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partition_states: tuple[LeaderAndIsrPartitionState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrLiveLeader(_RequestPart, _LeaderAndIsr):
    broker_id: BrokerId = field(metadata={"kafka_type": "int32"})
    host_name: str = field(metadata={"kafka_type": "string"})
    port: i32 = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrRequest(_Request, _LeaderAndIsr):
    """An order to lead some partitions and to follow others."""

    controller_id: BrokerId = field(metadata={"kafka_type": "int32"})
    is_k_raft_controller: bool = field(metadata={"kafka_type": "bool"}, default=False)
    controller_epoch: i32 = field(metadata={"kafka_type": "int32"})
    broker_epoch: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    """The epoch of the broker that the order is for."""
    type_: i8 = field(metadata={"kafka_type": "int8"})
    """0 (unknown) from a controller with ZooKeeper; 1 and 2 tell whether all topics are included (KIP-516)."""
    topic_states: tuple[LeaderAndIsrTopicState, ...]
    live_leaders: tuple[LeaderAndIsrLiveLeader, ...]
    """The addresses of the leaders that the partitions name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrPartitionError(_ResponsePart, _LeaderAndIsr):
    partition_index: i32 = field(metadata={"kafka_type": "int32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    keeps_records: bool = field(metadata={"kafka_type": "bool", "tag": KEEPS_RECORDS}, default=False)
    """True with KAFKA_STORAGE_ERROR if the log is as it was, so that the replica is trusted as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrTopicError(_ResponsePart, _LeaderAndIsr):
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partition_errors: tuple[LeaderAndIsrPartitionError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrResponse(_Response, _LeaderAndIsr):
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    topics: tuple[LeaderAndIsrTopicError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaPartitionState(_RequestPart, _StopReplica):
    partition_index: i32 = field(metadata={"kafka_type": "int32"})
    leader_epoch: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))
    """-2 for a topic that is deleted, which passes the check of the epoch (KIP-570)."""
    delete_partition: bool = field(metadata={"kafka_type": "bool"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaTopicState(_RequestPart, _StopReplica):
    topic_name: TopicName = field(metadata={"kafka_type": "string"})
    partition_states: tuple[StopReplicaPartitionState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaRequest(_Request, _StopReplica):
    """An order to stop replicas, and to delete their logs."""

    controller_id: BrokerId = field(metadata={"kafka_type": "int32"})
    is_k_raft_controller: bool = field(metadata={"kafka_type": "bool"}, default=False)
    controller_epoch: i32 = field(metadata={"kafka_type": "int32"})
    broker_epoch: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    topic_states: tuple[StopReplicaTopicState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaPartitionError(_ResponsePart, _StopReplica):
    topic_name: TopicName = field(metadata={"kafka_type": "string"})
    partition_index: i32 = field(metadata={"kafka_type": "int32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaResponse(_Response, _StopReplica):
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    partition_errors: tuple[StopReplicaPartitionError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataPartitionState(_RequestPart, _UpdateMetadata):
    partition_index: i32 = field(metadata={"kafka_type": "int32"})
    controller_epoch: i32 = field(metadata={"kafka_type": "int32"})
    leader: BrokerId = field(metadata={"kafka_type": "int32"})
    """The id of the leader; -1 if the partition has none, -2 while its topic is deleted."""
    leader_epoch: i32 = field(metadata={"kafka_type": "int32"})
    isr: tuple[BrokerId, ...] = field(metadata={"kafka_type": "int32"}, default=())
    zk_version: i32 = field(metadata={"kafka_type": "int32"})
    """The partition epoch."""
    replicas: tuple[BrokerId, ...] = field(metadata={"kafka_type": "int32"}, default=())
    offline_replicas: tuple[BrokerId, ...] = field(metadata={"kafka_type": "int32"}, default=())
    elr: tuple[BrokerId, ...] = field(metadata={"kafka_type": "int32", "tag": ELR}, default=())
    """The ELR. Kafka's brokers skip the tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataTopicState(_RequestPart, _UpdateMetadata):
    topic_name: TopicName = field(metadata={"kafka_type": "string"})
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partition_states: tuple[UpdateMetadataPartitionState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataEndpoint(_RequestPart, _UpdateMetadata):
    port: i32 = field(metadata={"kafka_type": "int32"})
    host: str = field(metadata={"kafka_type": "string"})
    listener: str = field(metadata={"kafka_type": "string"})
    security_protocol: i16 = field(metadata={"kafka_type": "int16"})
    """0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataBroker(_RequestPart, _UpdateMetadata):
    id_: BrokerId = field(metadata={"kafka_type": "int32"})
    endpoints: tuple[UpdateMetadataEndpoint, ...]
    rack: str | None = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataRequest(_Request, _UpdateMetadata):
    """The live brokers, and the partitions whose state changed."""

    controller_id: BrokerId = field(metadata={"kafka_type": "int32"})
    is_k_raft_controller: bool = field(metadata={"kafka_type": "bool"}, default=False)
    type_: i8 = field(metadata={"kafka_type": "int8", "tag": 0}, default=i8(0))
    """0 (unknown) from a controller with ZooKeeper (KIP-866)."""
    controller_epoch: i32 = field(metadata={"kafka_type": "int32"})
    broker_epoch: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    topic_states: tuple[UpdateMetadataTopicState, ...]
    live_brokers: tuple[UpdateMetadataBroker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataResponse(_Response, _UpdateMetadata):
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlledShutdownRequest(_Request, _ControlledShutdown):
    """A broker's request to move its leaderships before it stops."""

    broker_id: BrokerId = field(metadata={"kafka_type": "int32"})
    broker_epoch: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingPartition(_ResponsePart, _ControlledShutdown):
    topic_name: TopicName = field(metadata={"kafka_type": "string"})
    partition_index: i32 = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlledShutdownResponse(_Response, _ControlledShutdown):
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    remaining_partitions: tuple[RemainingPartition, ...]
    """The partitions that the broker still leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember(_RequestPart, _AlterPartition):
    broker_id: BrokerId = field(metadata={"kafka_type": "int32"})
    broker_epoch: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    """The epoch of the broker in its fetches (KIP-903); -1 from a leader of Kafka's with ZooKeeper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionData(_RequestPart, _AlterPartition):
    partition_index: i32 = field(metadata={"kafka_type": "int32"})
    leader_epoch: i32 = field(metadata={"kafka_type": "int32"})
    new_isr_with_epochs: tuple[IsrMember, ...]
    leader_recovery_state: i8 = field(metadata={"kafka_type": "int8"}, default=i8(0))
    partition_epoch: i32 = field(metadata={"kafka_type": "int32"})
    min_isr: i32 = field(metadata={"kafka_type": "int32", "tag": MIN_ISR}, default=i32(NO_MIN_ISR))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionTopic(_RequestPart, _AlterPartition):
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[AlterPartitionData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionRequest(_Request, _AlterPartition):
    """A leader's request for other ISRs (KIP-497)."""

    broker_id: BrokerId = field(metadata={"kafka_type": "int32"})
    broker_epoch: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    topics: tuple[AlterPartitionTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredPartition(_ResponsePart, _AlterPartition):
    partition_index: i32 = field(metadata={"kafka_type": "int32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    leader_id: BrokerId = field(metadata={"kafka_type": "int32"})
    leader_epoch: i32 = field(metadata={"kafka_type": "int32"})
    isr: tuple[BrokerId, ...] = field(metadata={"kafka_type": "int32"}, default=())
    leader_recovery_state: i8 = field(metadata={"kafka_type": "int8"}, default=i8(0))
    partition_epoch: i32 = field(metadata={"kafka_type": "int32"})
    elr: tuple[BrokerId, ...] = field(metadata={"kafka_type": "int32", "tag": ELR}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredTopic(_ResponsePart, _AlterPartition):
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[AlteredPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResponse(_Response, _AlterPartition):
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    topics: tuple[AlteredTopic, ...]


REQUESTS: dict[int, Any] = {
    LEADER_AND_ISR: LeaderAndIsrRequest,
    STOP_REPLICA: StopReplicaRequest,
    UPDATE_METADATA: UpdateMetadataRequest,
    CONTROLLED_SHUTDOWN: ControlledShutdownRequest,
}
RESPONSES: dict[int, Any] = {
    LEADER_AND_ISR: LeaderAndIsrResponse,
    STOP_REPLICA: StopReplicaResponse,
    UPDATE_METADATA: UpdateMetadataResponse,
    CONTROLLED_SHUTDOWN: ControlledShutdownResponse,
}
