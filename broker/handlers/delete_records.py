"""DeleteRecords, v0 to v2.

Behaviour: moves the beginning of each partition to the offset named; -1 means the high watermark. Records below it
cannot be read afterwards, and whole segments below it are deleted. The answer waits until the logs of all live replicas
begin there, and says where they begin. A partition whose replicas are late at the timeout gets REQUEST_TIMED_OUT. The
new beginning is on the disk soon after the answer, not before (as in Kafka, which writes it each minute).
Refused: offsets that do not exist, topics that are only compacted (KIP-107), and the topics of the broker's internal
records.
"""

from typing import Any, TypeAlias

from broker.log.partition_log import PartitionLog
from broker.metadata.topic import INTERNAL_TOPICS
from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import check
from broker.services.context import RequestContext
from broker.steps import Pace, Steps
from broker.waiting.purgatory import Delayed
from broker.wire.cold import milliseconds
from broker.wire.errors import ApiError, ErrorCode

Answer: TypeAlias = dict[str, Any]
HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


def handle(call: RequestContext, now: Now) -> Steps[Answer | Delayed[Answer]]:
    deadline_ms = now.ms + max(milliseconds(call.request.timeout), 0)
    topics: list[Answer] = []
    pace = Pace()
    deletions = _Deletions(call)
    for topic in call.request.topics:
        partitions: list[Answer] = []
        for partition in topic.partitions:
            partitions.append(deletions.answer(topic.name, partition, now))
            if pace.is_over():
                now = yield
        topics.append({"name": topic.name, "partitions": partitions})
    answer = {"throttle_time": 0, "topics": topics}
    return deletions.when_on_replicas(answer, deadline_ms) if deletions.left else answer


class _Deletions:
    """The deletions of one request. `left` has those that live replicas have not followed yet: each log, its new
    beginning, and its part of the answer."""

    def __init__(self, call: RequestContext) -> None:
        self._call = call
        self.left: list[tuple[PartitionLog, int, Answer]] = []

    def answer(self, topic: str, partition: Any, now: Now) -> Answer:
        """Delete records of a partition; return its part of the answer."""
        answer: Answer = {"partition_index": partition.partition_index, "low_watermark": NO_LOW_WATERMARK}
        try:
            check(self._call.rights, Operation.DELETE, ResourceType.TOPIC, topic)
            log = self._call.services.log_of(topic, partition.partition_index)
            start_offset = log.log_start_offset
            offset = _delete(self._call, log, partition.offset, now)
            if log.log_start_offset > start_offset:
                self._call.note_change("deleted the records of ", [f"{log.name} below offset {log.log_start_offset}"])
            answer |= {"low_watermark": self._low_watermark(log), "error_code": ErrorCode.NONE}
            if answer["low_watermark"] < offset:
                self.left.append((log, offset, answer))
        except ApiError as refusal:
            answer["error_code"] = refusal.code
        return answer

    def when_on_replicas(self, answer: Answer, deadline_ms: int) -> Delayed[Answer]:
        """Return the answer, delayed until the logs of live replicas begin where records were deleted."""

        def try_complete(now: Now) -> Answer | None:
            self.left = [deletion for deletion in self.left if not self._is_settled(*deletion)]
            return None if self.left else answer

        def expire(now: Now) -> Answer:
            for _, _, late in self.left:
                late["error_code"] = ErrorCode.REQUEST_TIMED_OUT
            return answer

        return Delayed([log.durability.key for log, _, _ in self.left], deadline_ms, try_complete, expire)

    def _is_settled(self, log: PartitionLog, offset: int, answer: Answer) -> bool:
        """Return True if the live replicas of a log have followed, or another broker leads it; note that."""
        try:
            if self._call.services.log_of(log.topic, log.partition) is not log:
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{log.name} is led anew")
        except ApiError as lost:
            answer |= {"low_watermark": NO_LOW_WATERMARK, "error_code": lost.code}
            return True
        answer["low_watermark"] = self._low_watermark(log)
        return bool(answer["low_watermark"] >= offset)

    def _low_watermark(self, log: PartitionLog) -> int:
        """Return where the logs of all live replicas begin."""
        partition = self._call.services.partition_of(log)
        if partition is None:
            return log.log_start_offset
        return min([log.log_start_offset, *partition.start_offsets(self._call.services.metadata.brokers)])


def _delete(call: RequestContext, log: PartitionLog, offset: int, now: Now) -> int:
    """Delete records of a log; return where it is to begin. Raise ApiError."""
    if log.topic in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{log.topic} holds the broker's own records; they stay")
    if log.offline is not None:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name} is offline: {log.offline}")
    if log.config.compacts and not log.config.deletes:
        reason = f"cleanup.policy of {log.topic} is {log.config.cleanup_policy}; records go where it has delete"
        raise ApiError(ErrorCode.POLICY_VIOLATION, reason)
    if offset == HIGH_WATERMARK:
        offset = log.high_watermark
    if offset < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"there is no offset {offset}")
    call.services.logs.delete_records(log, offset, now)
    call.services.purgatory.touch(log, now)
    return offset
