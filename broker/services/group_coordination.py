"""Shared parts of the group handlers: the coordinator, and the topic with its records.

A handler asks `check` whether this node coordinates the group, calls its verb on `core`, and calls `settle` before it
answers. Then everything the answer says is in the log, and the requests that waited for it have their answers.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from broker.group.coordinator import GroupCoordinator
from broker.group.offset_records import BadOffsetsRecord
from broker.group.outbox import Append
from broker.group.results import Pending
from broker.log.keyed_records import Replayed, read_back
from broker.log.partition_log import PartitionLog
from broker.metadata.topic import GROUP_OFFSETS_TOPIC
from broker.now import Now
from broker.record.batch import CorruptBatch
from broker.services.coordinator_topic import CoordinatorPorts, CoordinatorTopic
from broker.settings.group_config import GroupConfig
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode

R = TypeVar("R")

# Errors that clients receive when a record could not be appended: Kafka's translation (CoordinatorRuntime), in which
# COORDINATOR_NOT_AVAILABLE stands for every error that may pass.
_CLIENT_ERRORS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
}


class GroupCoordination:
    """The coordinator over `__consumer_offsets`. `start_ms` is on the monotonic clock."""

    def __init__(self, ports: CoordinatorPorts, config: GroupConfig, start_ms: int) -> None:
        self.config = config
        self.core = GroupCoordinator(config, start_ms)
        partitions = config.offsets_topic_num_partitions
        properties = {"cleanup.policy": "compact", "segment.bytes": str(config.offsets_topic_segment_bytes)}
        self.topic = CoordinatorTopic(ports, GROUP_OFFSETS_TOPIC, partitions, properties, "groups")
        self._ports = ports

    # --- lookup --------------------------------------------------------------------------------------------------

    def check(self, group_id: str) -> ErrorCode:
        """Return NONE if this node coordinates the group and can log its changes."""
        return self.topic.check(group_id)

    # --- consequences of a verb ----------------------------------------------------------------------------------

    def settle(self, now: Now) -> dict[str, ErrorCode]:
        """Append the verb's records, then answer waiting requests. Return the errors of refused groups."""
        refused: dict[str, ErrorCode] = {}
        written: dict[PartitionLog, None] = {}
        while appends := self.core.take_appends():  # a refusal may begin a rebalance, which may write in turn
            for (partition, producer), records in self._by_partition(appends).items():
                log, error = self.topic.append(partition, records, now, _CLIENT_ERRORS, producer)
                if log is not None:
                    written[log] = None
                if error:
                    refused.update(dict.fromkeys((record.group_id for record in records), error))
                    believed = {record.group_id for record in records if producer is None and record.value is not None}
                    for group_id in believed:
                        self.core.append_failed(group_id, error, now)
        self.core.settled(refused, now)
        for pending in self.core.take_answered():
            self._ports.purgatory.touch(pending.key, now)
        for log in written:
            self._ports.appended(log, now)
        return refused

    def _by_partition(self, appends: Iterable[Append]) -> dict[tuple[int, tuple[int, int] | None], list[Append]]:
        """Group records by partition, and by the producer whose transaction they belong to. The records of one verb all
        have the same producer, or none."""
        by_partition: dict[tuple[int, tuple[int, int] | None], list[Append]] = {}
        for append in appends:
            key = self.topic.partition_of(append.group_id), append.producer
            by_partition.setdefault(key, []).append(append)
        return by_partition

    def transaction_ended(self, partition: int, producer_id: int, commit: bool, now: Now) -> None:
        """Apply or drop the offsets of a producer's transaction, because their partition got its marker."""
        self.core.transaction_ended(producer_id, commit, self._keeps(partition), now.wall_ms)

    def _keeps(self, partition: int) -> Callable[[str], bool]:
        return lambda group_id: self.topic.partition_of(group_id) == partition

    def tick(self, now: Now) -> None:
        """Expire sessions, rebalances and offsets, and do what follows."""
        self.core.tick(now)
        self.settle(now)

    def resign(self, now: Now) -> None:
        """Answer the waiting requests, because the topic of the groups' records was deleted."""
        self.core.resign()
        for pending in self.core.take_answered():
            self._ports.purgatory.touch(pending.key, now)

    def forget_topics(self, is_gone: Callable[[str], bool], now: Now) -> None:
        """Drop the offsets committed for deleted topics, because they mean nothing for new topics of the same names."""
        self.core.forget_topics(is_gone, now)
        self.settle(now)

    # --- start ---------------------------------------------------------------------------------------------------

    def load(self, now: Now) -> None:
        """Replay the partitions led here. A damaged partition goes offline with its groups; the others are served."""
        topic = self.topic.topic
        for partition in range(len(topic.partitions) if topic else 0):
            try:
                log = self._ports.log_of(GROUP_OFFSETS_TOPIC, partition)
            except ApiError:
                continue  # offline and reported, or led by another node
            try:
                for record in read_back(log):
                    if isinstance(record, Replayed):
                        self.core.load(*record)
                    else:
                        self.core.transaction_ended(*record, self._keeps(partition))
            except (CorruptBatch, BadOffsetsRecord, ApiError) as error:
                log.offline = str(error)
                self._ports.report(f"partition {log.name} is offline, and the groups it keeps: {error}")
        self.forget_topics(lambda name: self._ports.metadata.topic(name) is None, now)  # offsets left by a full disk
        self.core.loaded(now)


def when_answered(
    pending: Pending[R], answer: Callable[[R], dict[str, Any]], crowded: R
) -> dict[str, Any] | Delayed[dict[str, Any]]:
    """Return the answer, or a Delayed until there is one. The group's timers bound the wait. `crowded` is the result if
    too many requests wait already (`flakelog.max.delayed.operations`)."""
    if pending.result is not None:
        return answer(pending.result)

    def try_complete(now: Now) -> dict[str, Any] | None:
        return None if pending.result is None else answer(pending.result)

    return Delayed((pending.key,), None, try_complete, lambda now: answer(crowded))
