"""The requests that only brokers may send, as a stranger would send them to do harm.

Each is made for a target: the topic `flights` with its `topic_id` and the `state` of its partition 0, the `epoch` of
the broker that is asked, and the epochs of its `order`.
"""

from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.envelope.v0.request import EnvelopeRequest
from kio.schema.types import BrokerId, ProducerId, TopicName, TransactionalId
from kio.schema.write_txn_markers.v1.request import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from kio.static.primitive import i16, i32, i64

from broker.wire.inter_broker import (
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionTopic,
    ControlledShutdownRequest,
    IsrMember,
)
from broker.wire.principal_data import encode_principal
from tests.broker.membership.orders import leader_and_isr, stop_replica, update_metadata

EPOCH = 99
"""The controller epoch of a stranger's orders, far above the real one."""
REQUESTS = {
    "LeaderAndIsr": lambda at: leader_and_isr("flights", (0, 2, 50), topic_id=at.topic_id, **at.order),
    "StopReplica": lambda at: stop_replica("flights", 0, delete=True, leader_epoch=50, **at.order),
    "UpdateMetadata": lambda at: update_metadata("flights", (0, 2, 50), topic_id=at.topic_id, controller_epoch=EPOCH),
    "ControlledShutdown": lambda at: ControlledShutdownRequest(broker_id=BrokerId(1), broker_epoch=i64(at.epoch)),
    "AlterPartition": lambda at: AlterPartitionRequest(
        broker_id=BrokerId(1), broker_epoch=i64(at.epoch), topics=(_without_followers(at),)
    ),
    "AllocateProducerIds": lambda at: AllocateProducerIdsRequest(
        broker_id=BrokerId(1), broker_epoch=i64(at.epoch)
    ),
    "Envelope": lambda at: EnvelopeRequest(
        request_data=b"", request_principal=encode_principal("User", "ANONYMOUS"), client_host_address=b""
    ),
    "AddPartitionsToTxn": lambda at: AddPartitionsToTxnRequest(
        transactions=(
            AddPartitionsToTxnTransaction(
                transactional_id=TransactionalId("orders"),
                producer_id=ProducerId(7),
                producer_epoch=i16(0),
                verify_only=False,
                topics=(AddPartitionsToTxnTopic(name=TopicName("flights"), partitions=(i32(0),)),),
            ),
        ),
    ),
    "WriteTxnMarkers": lambda at: WriteTxnMarkersRequest(
        markers=(
            WritableTxnMarker(
                producer_id=ProducerId(7),
                producer_epoch=i16(0),
                transaction_result=True,
                topics=(WritableTxnMarkerTopic(name=TopicName("flights"), partition_indexes=(i32(0),)),),
                coordinator_epoch=i32(1),
            ),
        )
    ),
}


def _without_followers(at):
    data = AlterPartitionData(
        partition_index=i32(0),
        leader_epoch=i32(at.state.leader_epoch),
        new_isr_with_epochs=(IsrMember(broker_id=BrokerId(1), broker_epoch=i64(at.epoch)),),
        partition_epoch=i32(at.state.partition_epoch),
    )
    return AlterPartitionTopic(topic_id=at.topic_id, partitions=(data,))
