"""ElectLeaders, v0 to v2.

Behaviour: a server alone leads every partition, so there is nothing to elect. Each partition asked for is
ELECTION_NOT_NEEDED (KIP-183). A partition that is offline is PREFERRED_LEADER_NOT_AVAILABLE, or for an
unclean election ELIGIBLE_LEADERS_NOT_AVAILABLE. An answer for all partitions has only these. In a cluster the
controller elects; another broker answers NOT_CONTROLLER for each partition, and no error for the request.
Version notes: v1 has the kind of the election (KIP-460): 0 the preferred leader, 1 an unclean one.
"""

from collections.abc import Sequence
from typing import Any

from broker.cluster.documents import TopicPartition
from broker.cluster.requests import Answer, ElectionType, ElectLeaders
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.controller_requests import check_request
from broker.steps import LazyArray
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode

_NOBODY = {
    0: (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."),
    1: (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."),
}
"""The error of a partition that is offline, by the kind of the election, with Kafka's words."""
KINDS = tuple(_NOBODY)


def handle(call: RequestContext, now: Now) -> dict[str, Any] | Delayed[dict[str, Any]]:
    refused = _refusal(call)
    if refused is None and call.services.member is not None:
        return _elect(call, now)
    is_elsewhere = refused is not None and refused.code == ErrorCode.NOT_CONTROLLER
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE if refused is None or is_elsewhere else refused.code,
        "replica_election_results": LazyArray(
            _partitions_by_topic(call, refused), lambda topic: _topic(call, *topic, refused)
        ),
    }


def _elect(call: RequestContext, now: Now) -> dict[str, Any] | Delayed[dict[str, Any]]:
    """Have the controller elect. An answer for all partitions leaves out those that needed no election."""
    from broker.services.membership import asked_of_controller  # a server alone needs none of it

    wanted = call.request.topic_partitions
    partitions = None if wanted is None else tuple(
        TopicPartition(str(topic.topic), index) for topic in wanted for index in topic.partitions
    )
    kind: ElectionType = "unclean" if call.request.election_type else "preferred"

    def encode(answer: Answer) -> dict[str, Any]:
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for (topic, index), (code, message) in answer.elections.items():
            if wanted is not None or code != ErrorCode.ELECTION_NOT_NEEDED:
                result = {"partition_id": index, "error_code": code, "error_message": message}
                by_topic.setdefault(topic, []).append(result)
        results = [{"topic": topic, "partition_result": rows} for topic, rows in by_topic.items()]
        return {"throttle_time": 0, "error_code": answer.error_code, "replica_election_results": results}

    def note(answer: Answer) -> None:
        elected = [f"{topic}-{index}" for (topic, index), (code, _) in answer.elections.items() if not code]
        call.note_change(f"held {'an' if kind == 'unclean' else 'a'} {kind} election for ", elected)

    return asked_of_controller(call.services, ElectLeaders(kind, partitions), encode, now, note)


def _partitions_by_topic(call: RequestContext, refused: ApiError | None) -> list[tuple[str, Sequence[int]]]:
    """Return the partitions to answer, by topic: those asked for, or else all that have no leader."""
    if call.request.topic_partitions is not None or refused is not None:
        return [(partition.topic, partition.partitions) for partition in call.request.topic_partitions or ()]
    is_offline = call.services.logs.is_offline
    offline = [
        (topic.name, [index for index in range(len(topic.partitions)) if is_offline(topic.name, index)])
        for topic in call.services.metadata.topics()
    ]
    return [(name, partitions) for name, partitions in offline if partitions]


def _topic(call: RequestContext, name: str, partitions: Sequence[int], refused: ApiError | None) -> dict[str, Any]:
    return {"topic": name, "partition_result": LazyArray(partitions, lambda n: _result(call, name, n, refused))}


def _refusal(call: RequestContext) -> ApiError | None:
    kind = call.request.election_type
    if kind not in KINDS:
        return ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}; 0 is preferred, 1 unclean")
    try:
        check_request(call)
    except ApiError as error:
        return error
    return None


def _result(call: RequestContext, name: str, index: int, refused: ApiError | None) -> dict[str, Any]:
    """Return a partition's result. It repeats the error of the whole request, because v0 has no other place for it."""
    error = refused or _why_not(call, name, index)
    return {"partition_id": index, "error_code": error.code, "error_message": error.message}


def _why_not(call: RequestContext, name: str, index: int) -> ApiError:
    topic = call.services.metadata.topic(name)
    if topic is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= index < len(topic.partitions):
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if call.services.logs.is_offline(name, index):
        return ApiError(*_NOBODY[call.request.election_type])
    reason = f"Leader election not needed for topic partition. {name}-{index} is led by its preferred leader."
    return ApiError(ErrorCode.ELECTION_NOT_NEEDED, reason)
