"""TxnOffsetCommit, v0 to v5.

Behaviour: as OffsetCommit, in a producer's transaction: the offsets are written at once, and count when the transaction
commits. The group's partition of `__consumer_offsets` must have been added to the transaction (AddOffsetsToTxn).
If another broker coordinates the transaction, it is asked first.
Version notes: v2 has leader epochs (KIP-320); v3 names the member, whose generation is then checked (KIP-447); v4
clients know TRANSACTION_ABORTABLE (KIP-890), and for earlier ones a group that was not added is INVALID_TXN_STATE.
"""

from collections.abc import Iterable
from typing import Any

from broker.group.results import CommitRequest, OffsetToCommit
from broker.log.verification import Verification
from broker.now import Now
from broker.produce.outcome import Unverified
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, may
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.services.group_coordination import GroupPartition
from broker.stamping.id_stamper import Backpressure
from broker.steps import CHANGES_AT_ONCE, Steps
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ErrorCode

ABORTABLE_VERSION = 4


def handle(call: RequestContext, now: Now) -> Steps[Answer | Delayed[Answer]]:
    partitions = [(topic.name, partition) for topic in call.original.topics for partition in topic.partitions]
    errors: list[ErrorCode] = []
    coordinators: list[GroupPartition] = []
    for first in range(0, len(partitions), CHANGES_AT_ONCE):
        if first:
            now = yield
        led = call.services.coordinators.groups.find(call.request.group_id)
        if not isinstance(led, ErrorCode):
            coordinators.append(led)
        try:
            errors += _commit_some(call, led, partitions[first : first + CHANGES_AT_ONCE], now)
        except Unverified as unverified:
            if not first:
                return _once_verified(call, unverified.verification, now)
            errors += [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * (len(partitions) - first)
            break  # the transaction has ended meanwhile
    return call.services.coordinators.groups.when_stored(coordinators, _answer(call, errors), now)


def _once_verified(call: RequestContext, verification: Verification, now: Now) -> Delayed[Any]:
    """Handle a request when another broker has answered whether the transaction has the group's partition."""
    call.services.coordinators.transactions.ask((verification,), now)
    return Delayed(
        (verification,),
        None,
        lambda at: None if verification.is_pending else _again(call, at),
        lambda at: _not_now(call),
    )


def _again(call: RequestContext, now: Now) -> Steps[Any]:
    try:
        return (yield from handle(call, now))
    except Backpressure:
        return _not_now(call)


def _not_now(call: RequestContext) -> Answer:
    """Return an answer that makes the client retry."""
    number = sum(len(topic.partitions) for topic in call.original.topics)
    return _answer(call, [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * number)


def _commit_some(
    call: RequestContext, led: GroupPartition | ErrorCode, partitions: list[tuple[str, Any]], now: Now
) -> list[ErrorCode]:
    """Return an error for each partition, in order."""
    refused = [_refused(call, topic, partition.partition_index) for topic, partition in partitions]
    accepted = [partition for partition, error in zip(partitions, refused, strict=True) if not error]
    errors = iter(_commit(call, led, accepted, now))
    return [error or next(errors) for error in refused]


def _answer(call: RequestContext, errors: Iterable[ErrorCode]) -> Answer:
    codes = iter(errors)
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": partition.partition_index, "error_code": next(codes)}
                    for partition in topic.partitions
                ],
            }
            for topic in call.original.topics
        ],
    }


def _refused(call: RequestContext, name: str, partition: int) -> ErrorCode:
    """Return the error of a partition that the client may not read, or that does not exist; NONE for any other."""
    if not may(call.rights, Operation.READ, ResourceType.TOPIC, name):
        return AUTHORIZATION_FAILED[ResourceType.TOPIC].code
    topic = call.services.metadata.topic(name)
    exists = topic is not None and 0 <= partition < len(topic.partitions)
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _commit(
    call: RequestContext, led: GroupPartition | ErrorCode, partitions: list[tuple[str, Any]], now: Now
) -> list[ErrorCode]:
    """Return an error for each partition that exists, in order."""
    if isinstance(led, ErrorCode):
        return [led if call.request.group_id else ErrorCode.INVALID_GROUP_ID] * len(partitions)
    error = _refusal(call, led)
    if error or not partitions:
        return [error] * len(partitions)
    call.services.id_stamper.ensure(len(partitions), now)
    request = _request(call, partitions)
    errors = led.core.commit(request, now)
    refused = led.settle(now).get(request.group_id, ErrorCode.NONE)
    if refused:
        led.core.take_back(request, errors)
    return [error or refused for error in errors]


def _refusal(call: RequestContext, led: GroupPartition) -> ErrorCode:
    request = call.request
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    assert led.log is not None, "a coordinator that is served has its log"
    producer = request.transactional_id, request.producer_id, request.producer_epoch
    return call.services.coordinators.transactions.refusal(*producer, led.log, call.version >= ABORTABLE_VERSION)


def _request(call: RequestContext, partitions: list[tuple[str, Any]]) -> CommitRequest:
    request = call.request
    return CommitRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        offsets=tuple(
            OffsetToCommit(
                topic,
                partition.partition_index,
                partition.committed_offset,
                getattr(partition, "committed_leader_epoch", -1),
                partition.committed_metadata,
            )
            for topic, partition in partitions
        ),
        producer=(request.producer_id, request.producer_epoch),
    )
