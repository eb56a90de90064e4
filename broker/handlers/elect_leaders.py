"""ElectLeaders, v0 to v2.

Behaviour: the one node leads every partition, so there is nothing to elect: ELECTION_NOT_NEEDED for each that is asked
for (KIP-183); where all are meant none is named, as those that need no election are left out.
Version notes: v1 has the kind of the election (KIP-460): 0 the preferred leader, 1 an unclean one.
"""

from typing import Any

from broker.handlers.call import Call
from broker.now import Now
from broker.wire.errors import ErrorCode

KINDS = (0, 1)


def handle(call: Call, now: Now) -> dict[str, Any]:
    if call.request.election_type not in KINDS:
        return {"throttle_time": 0, "error_code": ErrorCode.INVALID_REQUEST, "replica_election_results": ()}
    asked = call.request.topic_partitions or ()
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "replica_election_results": [
            {"topic": each.topic, "partition_result": [_result(call, each.topic, index) for index in each.partitions]}
            for each in asked
        ],
    }


def _result(call: Call, name: str, index: int) -> dict[str, Any]:
    topic = call.services.metadata.topic(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}"
    else:
        code, message = ErrorCode.ELECTION_NOT_NEEDED, f"{name}-{index} is led by its preferred leader"
    return {"partition_id": index, "error_code": code, "error_message": message}
