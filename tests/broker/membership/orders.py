"""Orders of a controller, as its channel sends them."""

from uuid import UUID

from kio.static.primitive import i8, i32, i64

from broker.cluster.orders import FULL, UNKNOWN
from broker.wire.inter_broker import (
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

TOPIC_ID = UUID(int=7)


def leader_and_isr(topic, *leaders, topic_id=TOPIC_ID, controller_epoch=1, broker_epoch=1, replicas=None):
    """Return an order; `leaders` are (partition, leader, leader epoch)."""
    states = tuple(
        LeaderAndIsrPartitionState(
            partition_index=i32(partition),
            controller_epoch=i32(controller_epoch),
            leader=i32(leader),
            leader_epoch=i32(epoch),
            isr=(i32(leader),),
            partition_epoch=i32(epoch),
            replicas=replicas or (i32(leader),),
        )
        for partition, leader, epoch in leaders
    )
    return LeaderAndIsrRequest(
        controller_id=i32(1),
        controller_epoch=i32(controller_epoch),
        broker_epoch=i64(broker_epoch),
        type_=i8(UNKNOWN),
        topic_states=(LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=states),),
        live_leaders=(),
    )


def stop_replica(topic, *partitions, delete, leader_epoch=-2, controller_epoch=1, broker_epoch=1):
    states = tuple(
        StopReplicaPartitionState(
            partition_index=i32(partition), leader_epoch=i32(leader_epoch), delete_partition=delete
        )
        for partition in partitions
    )
    return StopReplicaRequest(
        controller_id=i32(1),
        controller_epoch=i32(controller_epoch),
        broker_epoch=i64(broker_epoch),
        topic_states=(StopReplicaTopicState(topic_name=topic, partition_states=states),),
    )


def update_metadata(
    topic, *leaders, topic_id=TOPIC_ID, is_full=False, brokers=(1, 2), controller_epoch=1, offline=(), elr=()
):
    """Return an order; `leaders` are (partition, leader, leader epoch)."""
    states = tuple(
        UpdateMetadataPartitionState(
            partition_index=i32(partition),
            controller_epoch=i32(controller_epoch),
            leader=i32(leader),
            leader_epoch=i32(epoch),
            isr=(i32(leader),),
            zk_version=i32(epoch),
            replicas=(i32(leader),),
            offline_replicas=offline,
            elr=elr,
        )
        for partition, leader, epoch in leaders
    )
    topics = (UpdateMetadataTopicState(topic_name=topic, topic_id=topic_id, partition_states=states),) if topic else ()
    live = tuple(
        UpdateMetadataBroker(
            id_=i32(broker_id),
            endpoints=(
                UpdateMetadataEndpoint(port=i32(9092), host=f"host{broker_id}", listener="A", security_protocol=0),
            ),
            rack=None,
        )
        for broker_id in brokers
    )
    return UpdateMetadataRequest(
        controller_id=i32(2),
        controller_epoch=i32(controller_epoch),
        broker_epoch=i64(1),
        type_=i8(FULL if is_full else UNKNOWN),
        topic_states=topics,
        live_brokers=live,
    )
