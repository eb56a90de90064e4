"""The orders of one change, gathered for each broker (Kafka's ControllerBrokerRequestBatch).

A state machine gathers while it works and sends at its end: to each broker first LeaderAndIsr, then UpdateMetadata,
then StopReplica. All that one change means for a broker is in one request of each kind; different changes are never
merged. A broker that the controller has not processed as live gets none (rule E3).
"""

from collections.abc import Iterable
from typing import TypeAlias, TypeVar, cast

from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i64

from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import LEADER_DURING_DELETE, NO_LEADER, LeaderAndIsr, Registration, TopicPartition
from broker.cluster.isr_members import is_of_kafka
from broker.wire.inter_broker import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

T = TypeVar("T")
UNDECIDED = LeaderAndIsr(NO_LEADER, (), leader_epoch=-1, partition_epoch=-1)
"""The state of a partition in UpdateMetadata that the controller has not decided about."""

Order: TypeAlias = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest

UNKNOWN, FULL = 0, 2  # the Type of an order
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class Orders:
    """The orders that are being gathered. `listener` is the name of the listener that brokers reach each other on."""

    def __init__(self, context: ControllerContext, controller_id: int, listener: str) -> None:
        self._context = context
        self._controller_id = controller_id
        self._listener = listener
        self._leader_and_isr: dict[int, dict[TopicPartition, LeaderAndIsrPartitionState]] = {}
        self._stop_replica: dict[int, dict[TopicPartition, StopReplicaPartitionState]] = {}
        self._update_metadata: dict[TopicPartition, UpdateMetadataPartitionState] = {}
        self._update_metadata_brokers: set[int] = set()
        self._is_full = False

    def clear(self) -> None:
        self._leader_and_isr.clear()
        self._stop_replica.clear()
        self._update_metadata.clear()
        self._update_metadata_brokers.clear()
        self._is_full = False

    def add_leader_and_isr(
        self, broker_ids: Iterable[int], partition: TopicPartition, leadership: LeaderAndIsr, *, is_new: bool = False
    ) -> None:
        """Tell brokers to lead or follow a partition, and all live brokers who leads it."""
        assignment = self._context.assignment(partition)
        for broker_id in broker_ids:
            states = self._leader_and_isr.setdefault(broker_id, {})
            earlier = states.get(partition)
            states[partition] = LeaderAndIsrPartitionState(
                partition_index=i32(partition.partition),
                controller_epoch=i32(leadership.controller_epoch),
                leader=BrokerId(leadership.leader),
                leader_epoch=i32(leadership.leader_epoch),
                isr=_broker_ids(leadership.isr),
                partition_epoch=i32(leadership.partition_epoch),
                replicas=_broker_ids(assignment.replicas),
                adding_replicas=_broker_ids(assignment.adding),
                removing_replicas=_broker_ids(assignment.removing),
                is_new=is_new or (earlier is not None and earlier.is_new),
                leader_recovery_state=i8(leadership.recovery_state),
                elr=() if is_of_kafka(self._context, broker_id) else _broker_ids(leadership.elr),
            )
        self.add_update_metadata(self._context.broker_epochs, [partition])

    def add_stop_replica(self, broker_id: int, partition: TopicPartition, *, delete: bool) -> None:
        """Tell a broker to stop a replica, and with `delete` to delete its log."""
        states = self._stop_replica.setdefault(broker_id, {})
        earlier = states.get(partition)
        states[partition] = StopReplicaPartitionState(
            partition_index=i32(partition.partition),
            leader_epoch=i32(self._context.leader_epoch(partition)),
            delete_partition=delete or (earlier is not None and earlier.delete_partition),
        )

    def add_update_metadata(self, broker_ids: Iterable[int], partitions: Iterable[TopicPartition] = ()) -> None:
        """Tell brokers the live brokers, and the leaders of partitions. A partition without a state yet is left out."""
        self._update_metadata_brokers.update(broker_ids)
        for partition in partitions:
            leadership = self._context.leadership.get(partition)
            if leadership is not None:
                self._update_metadata[partition] = self._metadata_of(partition, leadership)

    def add_full_metadata(self, broker_ids: Iterable[int]) -> None:
        """Tell brokers all partitions, and that they know no others: the first UpdateMetadata of a term or of a life.

        A topic may have been deleted while a broker was away, or by a controller that died before all had heard of it.
        Its Type is FULL (KIP-866), which Kafka's brokers ignore unless they migrate to KRaft. It is not FULL while the
        node of a topic is damaged: brokers would take that topic for deleted, and drop the offsets committed for it.
        """
        self._is_full = self._context.knows_all_topics
        self.add_update_metadata(broker_ids, self._context.partitions_with_leadership())

    def _add_undecided(self) -> None:
        """Add the partitions that have no leader yet to their topics, because no replica of theirs has lived.

        Kafka's controller leaves them out. Our brokers look groups and transactional ids up by the number of a topic's
        partitions, so they need all: else the coordinator of a group would be another until the last one is decided.
        """
        for topic in {partition.topic for partition in self._update_metadata}:
            for index in self._context.assignments.get(topic, ()):
                partition = TopicPartition(topic, index)
                if partition not in self._context.leadership:
                    self._update_metadata.setdefault(partition, self._metadata_of(partition, UNDECIDED))

    def _metadata_of(self, partition: TopicPartition, leadership: LeaderAndIsr) -> UpdateMetadataPartitionState:
        if partition.topic in self._context.topics_to_delete:
            decided_by = leadership.controller_epoch
            leadership = LeaderAndIsr(LEADER_DURING_DELETE, leadership.isr, controller_epoch=decided_by)
        replicas = self._context.replicas(partition)
        return UpdateMetadataPartitionState(
            partition_index=i32(partition.partition),
            controller_epoch=i32(leadership.controller_epoch),
            leader=BrokerId(leadership.leader),
            leader_epoch=i32(leadership.leader_epoch),
            isr=_broker_ids(leadership.isr),
            zk_version=i32(leadership.partition_epoch),
            replicas=_broker_ids(replicas),
            offline_replicas=_broker_ids(r for r in replicas if not self._context.is_online(partition, r)),
            elr=_broker_ids(leadership.elr),
        )

    def take(self) -> list[tuple[int, Order]]:
        """Return the gathered orders, with the broker of each, and begin anew."""
        live = self._context.broker_epochs
        orders: list[tuple[int, Order]] = []
        for broker_id, leaders in self._leader_and_isr.items():
            if broker_id in live:
                orders.append((broker_id, self._leader_and_isr_request(broker_id, leaders)))
        self._add_undecided()
        topics, brokers = self._metadata_topics(), self._live_brokers()
        for broker_id in sorted(self._update_metadata_brokers & live.keys()):
            request = UpdateMetadataRequest(
                controller_id=BrokerId(self._controller_id),
                controller_epoch=i32(self._context.epoch),
                broker_epoch=i64(live[broker_id]),
                type_=i8(FULL if self._is_full else UNKNOWN),
                topic_states=topics,
                live_brokers=brokers,
            )
            orders.append((broker_id, request))
        for broker_id, stops in self._stop_replica.items():
            if broker_id in live:
                orders.append((broker_id, self._stop_replica_request(broker_id, stops)))
        self.clear()
        return orders

    def _leader_and_isr_request(
        self, broker_id: int, states: dict[TopicPartition, LeaderAndIsrPartitionState]
    ) -> LeaderAndIsrRequest:
        leaders = {state.leader for state in states.values()} & self._context.brokers.keys()
        by_topic = _by_topic(states)
        return LeaderAndIsrRequest(
            controller_id=BrokerId(self._controller_id),
            controller_epoch=i32(self._context.epoch),
            broker_epoch=i64(self._context.broker_epochs[broker_id]),
            type_=i8(UNKNOWN),
            topic_states=tuple(
                LeaderAndIsrTopicState(
                    topic_name=TopicName(topic),
                    topic_id=self._context.topic_ids.get(topic),
                    partition_states=tuple(rows),
                )
                for topic, rows in by_topic.items()
            ),
            live_leaders=tuple(self._live_leader(leader) for leader in sorted(leaders)),
        )

    def _live_leader(self, broker_id: int) -> LeaderAndIsrLiveLeader:
        endpoints = self._context.brokers[broker_id].endpoints
        endpoint = next((e for e in endpoints if e.listener == self._listener), endpoints[0])
        return LeaderAndIsrLiveLeader(
            broker_id=BrokerId(broker_id), host_name=endpoint.host, port=i32(endpoint.port)
        )

    def _metadata_topics(self) -> tuple[UpdateMetadataTopicState, ...]:
        return tuple(
            UpdateMetadataTopicState(
                topic_name=TopicName(topic),
                topic_id=self._context.topic_ids.get(topic),
                partition_states=tuple(rows),
            )
            for topic, rows in _by_topic(self._update_metadata).items()
        )

    def _live_brokers(self) -> tuple[UpdateMetadataBroker, ...]:
        return tuple(_live_broker(broker_id, broker) for broker_id, broker in sorted(self._context.brokers.items()))

    def _stop_replica_request(
        self, broker_id: int, states: dict[TopicPartition, StopReplicaPartitionState]
    ) -> StopReplicaRequest:
        return StopReplicaRequest(
            controller_id=BrokerId(self._controller_id),
            controller_epoch=i32(self._context.epoch),
            broker_epoch=i64(self._context.broker_epochs[broker_id]),
            topic_states=tuple(
                StopReplicaTopicState(topic_name=TopicName(topic), partition_states=tuple(rows))
                for topic, rows in _by_topic(states).items()
            ),
        )


def _live_broker(broker_id: int, broker: Registration) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id_=BrokerId(broker_id),
        endpoints=tuple(
            UpdateMetadataEndpoint(
                port=i32(endpoint.port),
                host=endpoint.host,
                listener=endpoint.listener,
                security_protocol=i16(SECURITY_PROTOCOLS.get(endpoint.protocol, 0)),
            )
            for endpoint in broker.endpoints
        ),
        rack=broker.rack,
    )


def _by_topic(states: dict[TopicPartition, T]) -> dict[str, list[T]]:
    by_topic: dict[str, list[T]] = {}
    for partition in sorted(states):
        by_topic.setdefault(partition.topic, []).append(states[partition])
    return by_topic


def _broker_ids(broker_ids: Iterable[int]) -> tuple[BrokerId, ...]:
    """Return ids as the messages have them. BrokerId() would check each, which is most of the time that orders take."""
    return cast(tuple[BrokerId, ...], tuple(broker_ids))
