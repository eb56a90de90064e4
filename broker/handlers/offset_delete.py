"""OffsetDelete, v0 to v0.

Behaviour: deletes the committed offsets of single partitions (KIP-496). Offsets stay for a topic that members of the
group still subscribe to, and all offsets stay for a group whose members are not consumers. The answer is sent when the
deletion is in the log; if it cannot be written the offsets stay.
"""

from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, may
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.services.group_coordination import GroupPartition
from broker.steps import CHANGES_AT_ONCE, Steps
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> Steps[Answer | Delayed[Answer]]:
    named = [(topic.name, partition.partition_index) for topic in call.request.topics for partition in topic.partitions]
    denied = {topic.name for topic in call.request.topics if not _may_read(call, topic.name)}
    existing = [partition for partition in named if partition[0] not in denied and _exists(call, *partition)]
    errors = {partition: AUTHORIZATION_FAILED[ResourceType.TOPIC].code for partition in named if partition[0] in denied}
    coordinators: list[GroupPartition] = []
    for first in range(0, len(existing) or 1, CHANGES_AT_ONCE):
        if first:
            now = yield
        some = existing[first : first + CHANGES_AT_ONCE]
        led = call.services.coordinators.groups.find(call.request.group_id)
        codes = led if isinstance(led, ErrorCode) else _delete(call, led, some, now)
        if not isinstance(led, ErrorCode):
            coordinators.append(led)
        if isinstance(codes, ErrorCode):
            answer: Answer = {"error_code": codes, "throttle_time": 0, "topics": ()}
            break
        errors.update(zip(some, codes))
    else:
        answer = _answer(call, errors)
    return call.services.coordinators.groups.when_stored(coordinators, answer, now)


def _answer(call: RequestContext, errors: dict[tuple[str, int], ErrorCode]) -> Answer:
    return {
        "error_code": ErrorCode.NONE,
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": errors.get(
                            (topic.name, partition.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in call.request.topics
        ],
    }


def _may_read(call: RequestContext, name: str) -> bool:
    return may(call.rights, Operation.READ, ResourceType.TOPIC, name)


def _exists(call: RequestContext, name: str, partition: int) -> bool:
    topic = call.services.metadata.topic(name)
    return topic is not None and 0 <= partition < len(topic.partitions)


def _delete(
    call: RequestContext, led: GroupPartition, partitions: list[tuple[str, int]], now: Now
) -> list[ErrorCode] | ErrorCode:
    group_id = call.request.group_id
    if partitions:
        call.services.id_stamper.ensure(len(partitions), now)
    errors = led.core.delete_offsets(group_id, partitions)
    refused = led.settle(now).get(group_id)
    if refused is not None:
        return refused
    if not isinstance(errors, ErrorCode):
        led.core.offsets_deleted(group_id, [partition for partition, error in zip(partitions, errors) if not error])
    return errors
