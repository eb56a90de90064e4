"""WriteTxnMarkers, v1 to v2.

Behaviour: ends what a producer has open in the partitions named, without its coordinator: among brokers of Kafka's the
coordinator asks so, here only administrators do, of a transaction that hangs (KIP-664). Each partition has its error. A
coordinator's epoch that is later than this node's is nobody's: its marker would shut out all that follow.
Version notes: v2 says by which rules the transaction goes (KIP-1228), which changes nothing here.
"""

from typing import Any

from broker.handlers.call import Call
from broker.handlers.transactions import COORDINATOR_EPOCH
from broker.now import Now
from broker.record.control import Marker
from broker.wire.errors import ApiError, ErrorCode
from idgen.errors import IdError


def handle(call: Call, now: Now) -> dict[str, Any]:
    markers = call.request.markers
    partitions = sum(len(topic.partition_indexes) for each in markers for topic in each.topics)
    if partitions:
        call.services.stamp.ensure(partitions, now)
    return {
        "markers": [
            {
                "producer_id": each.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": _write(call, each, topic.name, index, now)}
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in each.topics
                ],
            }
            for each in markers
        ]
    }


def _write(call: Call, asked: Any, topic: str, index: int, now: Now) -> ErrorCode:
    if asked.coordinator_epoch > COORDINATOR_EPOCH:
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    marker = Marker(asked.transaction_result, asked.coordinator_epoch)
    try:
        log = call.services.log_of(topic, index)
        call.services.transactions.write_marker(log, asked.producer_id, asked.producer_epoch, marker, now)
    except ApiError as error:
        return error.code
    except IdError as error:
        call.services.report(f"no ids for a marker that {call.peer} asks for: {error}")
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE
