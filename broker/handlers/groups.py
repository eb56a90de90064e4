"""What the group handlers share: the coordinator, and the topic it keeps its records in.

A handler asks `check` whether the group is coordinated here, does its verb on `core`, and calls `settle` before it
answers; then whatever the answer says is in the log, and whoever waited for it has theirs.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from broker.group.config import GroupConfig
from broker.group.coordinator import GroupCoordinator
from broker.group.offset_records import BadOffsetsRecord
from broker.group.outbox import Append
from broker.group.results import Pending
from broker.handlers.call import Services
from broker.handlers.coordinator_topic import CoordinatorTopic
from broker.log.keyed_records import Replayed, read_back
from broker.log.partition_log import PartitionLog
from broker.metadata import GROUP_OFFSETS_TOPIC, Node
from broker.now import Now
from broker.purgatory import Delayed
from broker.record.batch import CorruptBatch
from broker.wire.errors import ApiError, ErrorCode

R = TypeVar("R")

# What clients are told when a record could not be appended: Kafka's translation (CoordinatorRuntime), of which
# COORDINATOR_NOT_AVAILABLE is what stands for everything that may pass.
_TOLD = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
}


class GroupCoordination:
    """The coordinator over `__consumer_offsets`. `start_ms` is the monotonic clock's."""

    def __init__(self, services: Services, config: GroupConfig, start_ms: int) -> None:
        self.config = config
        self.core = GroupCoordinator(config, start_ms)
        partitions = config.offsets_topic_num_partitions
        properties = {"cleanup.policy": "compact", "segment.bytes": str(config.offsets_topic_segment_bytes)}
        self.topic = CoordinatorTopic(services, GROUP_OFFSETS_TOPIC, partitions, properties, "groups")
        self._services = services

    # --- where a group is ----------------------------------------------------------------------------------------

    def check(self, group_id: str) -> ErrorCode:
        """NONE when this node coordinates the group and can write down what happens to it."""
        return self.topic.check(group_id)

    def find(self, group_id: str) -> Node:
        """The node that coordinates the group; ApiError COORDINATOR_NOT_AVAILABLE. Makes the topic the first time."""
        return self.topic.find(group_id)

    # --- what follows from a verb --------------------------------------------------------------------------------

    def settle(self, now: Now) -> dict[str, ErrorCode]:
        """Append what the verb wants written, then answer who waits. Returns the groups whose records were refused."""
        refused: dict[str, ErrorCode] = {}
        written: dict[PartitionLog, None] = {}
        while appends := self.core.take_appends():  # a refusal may begin a rebalance, which may write in its turn
            for (partition, producer), records in self._by_partition(appends).items():
                log, error = self.topic.append(partition, records, now, _TOLD, producer)
                if log is not None:
                    written[log] = None
                if error:
                    refused.update(dict.fromkeys((record.group_id for record in records), error))
                    believed = {record.group_id for record in records if producer is None and record.value is not None}
                    for group_id in believed:
                        self.core.append_failed(group_id, error, now)
        self.core.settled(refused, now)
        for pending in self.core.take_answered():
            self._services.purgatory.touch(pending.key, now)
        for log in written:
            self._services.appended(log, now)
        return refused

    def _by_partition(self, appends: Iterable[Append]) -> dict[tuple[int, tuple[int, int] | None], list[Append]]:
        """By partition, and by the producer in whose transaction they are: one verb's are all of one, or of none."""
        found: dict[tuple[int, tuple[int, int] | None], list[Append]] = {}
        for append in appends:
            place = self.topic.partition_of(append.group_id), append.producer
            found.setdefault(place, []).append(append)
        return found

    def transaction_ended(self, partition: int, producer_id: int, commit: bool, now: Now) -> None:
        """A marker stands in a partition: what the producer committed there in its transaction counts, or is gone."""
        self.core.transaction_ended(producer_id, commit, self._keeps(partition), now.wall_ms)

    def _keeps(self, partition: int) -> Callable[[str], bool]:
        return lambda group_id: self.topic.partition_of(group_id) == partition

    def tick(self, now: Now) -> None:
        """Sessions, rebalance timeouts, expired offsets, and what follows from them."""
        self.core.tick(now)
        self.settle(now)

    def resign(self, now: Now) -> None:
        """The topic of the groups' records was deleted."""
        self.core.resign()
        for pending in self.core.take_answered():
            self._services.purgatory.touch(pending.key, now)

    def forget_topics(self, is_gone: Callable[[str], bool], now: Now) -> None:
        """Topics were deleted, and what was committed for them means nothing for others of the same names."""
        self.core.forget_topics(is_gone, now)
        self.settle(now)

    # --- start ---------------------------------------------------------------------------------------------------

    def load(self, now: Now) -> None:
        """Replay the partitions led here. One that is damaged goes offline, its groups with it; the others serve."""
        topic = self.topic.topic
        for partition in range(len(topic.partitions) if topic else 0):
            try:
                log = self._services.log_of(GROUP_OFFSETS_TOPIC, partition)
            except ApiError:
                continue  # offline and reported, or led by another
            try:
                for each in read_back(log):
                    if isinstance(each, Replayed):
                        self.core.load(*each)
                    else:
                        self.core.transaction_ended(*each, self._keeps(partition))
            except (CorruptBatch, BadOffsetsRecord, ApiError) as error:
                log.offline = str(error)
                self._services.report(f"partition {log.name} is offline, and the groups it keeps: {error}")
        self.forget_topics(lambda name: self._services.metadata.topic(name) is None, now)  # a full disk left them
        self.core.loaded(now)


def when_answered(
    pending: Pending[R], answer: Callable[[R], dict[str, Any]], crowded: R
) -> dict[str, Any] | Delayed[dict[str, Any]]:
    """The answer, or a Delayed until there is one. The group's own timers bound the wait; `crowded` is the answer
    when too many requests wait already (`flakelog.max.delayed.operations`)."""
    if pending.result is not None:
        return answer(pending.result)

    def try_complete(now: Now) -> dict[str, Any] | None:
        return None if pending.result is None else answer(pending.result)

    return Delayed((pending.key,), None, try_complete, lambda now: answer(crowded))
