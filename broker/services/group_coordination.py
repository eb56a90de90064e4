"""Shared parts of the group handlers: the coordinators, and the topic with their records.

A handler asks `find` for the coordinator of the group's partition, calls its verb on `core`, and calls `settle` before
it answers. Then everything the answer says is in the log, and the requests that waited for it have their answers.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import merge
from operator import itemgetter
from typing import Any, TypeVar

from broker.group.alarms import ring_due
from broker.group.coordinator import GroupCoordinator
from broker.group.offset_records import BadOffsetsRecord
from broker.group.outbox import Append
from broker.group.results import DescribedGroup, FetchedOffset, JoinResult, ListedGroup, Pending, SyncResult
from broker.group.shared import Shared
from broker.group.states import GroupState
from broker.log.keyed_records import Ended, Replayed
from broker.log.partition_log import PartitionLog
from broker.metadata.topic import GROUP_OFFSETS_TOPIC
from broker.now import Now
from broker.services.coordinator_partitions import CoordinatorPartitions, LoadState, PartitionCoordinator
from broker.services.coordinator_topic import Answer, CoordinatorPorts, CoordinatorTopic
from broker.settings.group_config import GroupConfig
from broker.steps import Pace, Steps
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ErrorCode

R = TypeVar("R", JoinResult, SyncResult)

# Errors that clients receive when a record could not be appended: Kafka's translation (CoordinatorRuntime), in which
# COORDINATOR_NOT_AVAILABLE stands for every error that may pass.
_CLIENT_ERRORS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
}


class GroupPartition(PartitionCoordinator):
    """The coordinator of the groups in one partition of `__consumer_offsets`."""

    bad_record = BadOffsetsRecord

    def __init__(
        self,
        partition: int,
        leader_epoch: int,
        core: GroupCoordinator,
        topic: CoordinatorTopic,
        ports: CoordinatorPorts,
    ) -> None:
        super().__init__(partition, leader_epoch)
        self.core = core
        self._topic = topic
        self._ports = ports
        self._forgotten: list[Callable[[str], bool]] = []
        """While the partition is loading: True for the topics that were deleted meanwhile."""

    # --- consequences of a verb ----------------------------------------------------------------------------------

    def settle(self, now: Now) -> dict[str, ErrorCode]:
        """Append the verb's records, then answer waiting requests. Return the errors of refused groups."""
        core = self.core
        refused: dict[str, ErrorCode] = {}
        written: PartitionLog | None = None
        while appends := core.take_appends():  # a refusal may begin a rebalance, which may write in turn
            for producer, records in _by_producer(appends).items():
                log, error = self._topic.append(self.partition, records, now, _CLIENT_ERRORS, producer)
                written = log or written
                if error:
                    refused.update(dict.fromkeys((record.group_id for record in records), error))
                    believed = {record.group_id for record in records if producer is None and record.value is not None}
                    for group_id in believed:
                        core.append_failed(group_id, error, now)
        core.settled(refused, now)
        self._answer(now)
        if written is not None:
            self._ports.appended(written, now)
        return refused

    def _answer(self, now: Now) -> None:
        for pending in self.core.take_answered():
            self._ports.purgatory.touch(pending.key, now)

    def forget_topics(self, is_gone: Callable[[str], bool], now: Now) -> None:
        """Drop the offsets committed for deleted topics. While the partition is loading, do so when it was loaded."""
        if self.state is LoadState.LOADING:
            self._forgotten.append(is_gone)
        elif self.state is LoadState.ACTIVE:
            self.core.forget_topics(is_gone, now)
            self.settle(now)

    # --- loading -------------------------------------------------------------------------------------------------

    def replay(self, entry: Replayed | Ended) -> None:
        if isinstance(entry, Replayed):
            self.core.load(*entry)
        else:
            self.core.transaction_ended(*entry)

    def prepare(self, pace: Pace, now: Now) -> Steps[Now]:
        self._forget(now)
        return (yield from self.core.finish_load(pace, now))

    def loaded(self, now: Now) -> None:
        self._forget(now)
        self.settle(now)

    def _forget(self, now: Now) -> None:
        forgotten, self._forgotten = self._forgotten, []
        if forgotten:
            self.core.forget_topics(lambda topic: any(is_gone(topic) for is_gone in forgotten), now)
            self.settle(now)

    def stop_timers(self) -> None:
        self.core.stop_timers()

    def unload(self, pace: Pace, now: Now) -> Steps[None]:
        for _ in self.core.unload(pace):
            self._answer(now)
            now = yield
        self._answer(now)


def _by_producer(appends: Iterable[Append]) -> dict[tuple[int, int] | None, list[Append]]:
    """Group records by the producer whose transaction they belong to."""
    by_producer: dict[tuple[int, int] | None, list[Append]] = {}
    for append in appends:
        by_producer.setdefault(append.producer, []).append(append)
    return by_producer


class GroupCoordination:
    """The coordinators over `__consumer_offsets`, one for each partition that this node leads. `start_ms` is on the
    monotonic clock."""

    def __init__(self, ports: CoordinatorPorts, config: GroupConfig, start_ms: int) -> None:
        self.config = config
        properties = {"cleanup.policy": "compact", "segment.bytes": str(config.offsets_topic_segment_bytes)}
        partitions = config.offsets_topic_num_partitions
        factor = config.offsets_topic_replication_factor
        self.topic = CoordinatorTopic(ports, GROUP_OFFSETS_TOPIC, partitions, properties, "groups", factor)
        self.partitions = CoordinatorPartitions(self.topic, ports, self._make)
        self.find = self.partitions.find
        self.when_stored = self.partitions.when_stored
        self._ports = ports
        self._shared = Shared(start_ms)
        self._forgets_missing = False
        """True if a load drops the offsets of topics that do not exist."""

    def _make(self, partition: int, leader_epoch: int, now: Now) -> GroupPartition:
        core = GroupCoordinator(self.config, now.ms, partition, self._shared)
        led = GroupPartition(partition, leader_epoch, core, self.topic, self._ports)
        if self._forgets_missing:
            led.forget_topics(self._is_missing, now)
        return led

    # --- all groups ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of groups."""
        return sum(len(led.core) for led in self.partitions)

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """Return the groups of all partitions. Filters ignore case; an empty filter accepts all groups."""
        return [group for led in self.partitions for group in led.core.list_groups(states, types)]

    def describe(self, group_id: str) -> DescribedGroup:
        """Describe one group; the error is that of `find` if it is not coordinated here."""
        led = self.find(group_id)
        if isinstance(led, ErrorCode):
            return DescribedGroup(led, group_id, GroupState.DEAD.value)
        return led.core.describe(group_id)

    def fetch_all(self, group_id: str) -> list[FetchedOffset]:
        """Return all offsets of a group; none if it is not coordinated here."""
        led = self.find(group_id)
        return [] if isinstance(led, ErrorCode) else led.core.fetch(group_id, None)

    def readers(self, topic: str) -> list[str]:
        """Return the ids of the groups that have committed offsets of a topic, sorted."""
        return sorted(group_id for led in self.partitions for group_id in led.core.readers(topic))

    def offsets(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield (group, topic, partition, committed offset) of all groups, those known longest first."""
        for _, group_id, offsets in merge(*(led.core.offsets() for led in self.partitions), key=itemgetter(0)):
            for offset in offsets:
                yield group_id, offset.topic, offset.partition, offset.committed.offset

    @property
    def offsets_number(self) -> int:
        """The number of committed offsets of all groups."""
        return sum(led.core.offsets_number for led in self.partitions)

    def when_answered(
        self,
        led: GroupPartition,
        pending: Pending[R],
        answer: Callable[[R], Answer],
        crowded: R,
        now: Now,
    ) -> Answer | Delayed[Any]:
        """Return the answer to a join or a sync of a group of `led`, or a Delayed until there is one.

        The group's timers bound the wait. `crowded` is the result if too many requests wait already
        (`flakelog.max.delayed.operations`). Like Kafka, a successful answer waits for the group's records to be on the
        disk, if the topic requires that. After a power cut an earlier generation would come back otherwise, and its
        members would own partitions that others have been assigned.
        """

        def stored(result: R, at: Now) -> Answer | Delayed[Answer]:
            return answer(result) if result.error else self.when_stored([led], answer(result), at)

        def waits_again(following: Delayed[Answer]) -> Steps[Delayed[Answer]]:
            yield from ()
            return following

        def try_complete(at: Now) -> Answer | Steps[Delayed[Answer]] | None:
            if pending.result is None:
                return None
            answered = stored(pending.result, at)
            return waits_again(answered) if isinstance(answered, Delayed) else answered

        if pending.result is not None:
            return stored(pending.result, now)
        return Delayed((pending.key,), None, try_complete, lambda at: answer(crowded))

    # --- events --------------------------------------------------------------------------------------------------

    def transaction_ended(self, partition: int, producer_id: int, commit: bool, now: Now) -> None:
        """Apply or drop the offsets of a producer's transaction, because their partition got its marker.

        A partition that is being loaded reads the marker in its turn.
        """
        led = self.partitions.at(partition)
        if led is not None:
            led.core.transaction_ended(producer_id, commit, now.wall_ms)

    def forget_topics(self, is_gone: Callable[[str], bool], now: Now) -> None:
        """Drop the offsets committed for deleted topics, because they mean nothing for new topics of the same names."""
        for led in self.partitions.led():
            led.forget_topics(is_gone, now)

    def tick(self, now: Now) -> None:
        """Go on with loads and unloads, expire sessions, rebalances and offsets, and do what follows."""
        self.partitions.tick(now)
        for partition in ring_due(self._shared.wheel, now):
            led = self.partitions.at(partition)
            if led is not None:
                led.settle(now)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due, on the monotonic clock; None without a deadline."""
        deadlines = self._shared.wheel.next_deadline_ms(), self.partitions.next_deadline_ms()
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # --- start ---------------------------------------------------------------------------------------------------

    def load_all(self, now: Now) -> None:
        """Load the partitions led here, before requests are served.

        Drop the offsets of topics that do not exist: a full disk may have left them.
        """
        self._forgets_missing = True
        self.partitions.load_all(now)
        self._forgets_missing = False

    def load_late(self, partition: int, now: Now) -> None:
        """Load a partition whose log the start could not open, as a start does."""
        self._forgets_missing = True
        self.partitions.load_again(partition, now)
        self._forgets_missing = False

    def _is_missing(self, topic: str) -> bool:
        return self._ports.metadata.topic(topic) is None


def unless_loading(error: ErrorCode, instead: ErrorCode) -> ErrorCode:
    """Return the error of `find`, or another while the group is loaded, for an API whose older clients do not expect
    COORDINATOR_LOAD_IN_PROGRESS."""
    return instead if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
