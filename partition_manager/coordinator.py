"""The partitions of one task: managers that follow the assignment, emit in turn and commit together.

The coordinator exchanges values with its driver: `take_asks` returns requests, and `answered` takes the answers in any
order and at any time. A failed request is retried automatically. All calls are non-blocking, so the same core runs in
the embedded engine, in Apache Storm's worker and in a simulation.
"""

from collections import defaultdict, deque
from collections.abc import Iterable

from partition_manager.asks import Ask, Asks
from partition_manager.assignment import partitions_of
from partition_manager.entry import Counts, Message, sum_of
from partition_manager.failing_requests import FailingRequests
from partition_manager.group_assignment import GroupAssignment
from partition_manager.manager import PartitionManager
from partition_manager.notes import Note, Notes
from partition_manager.offset_document import OffsetDocument
from partition_manager.opening import is_recreated
from partition_manager.outage import outages_of
from partition_manager.packed_answers import PackedAnswers
from partition_manager.parked import TopicPartitionOffset
from partition_manager.ports import Answer, Failed, Packed, Partitions, Request
from partition_manager.progress import Progress
from partition_manager.share import TaskShare
from partition_manager.source import Source
from partition_manager.standstill import Standstills
from partition_manager.subscription import SourceSubscription
from partition_manager.takeovers import Takeovers
from partition_manager.task_partition import PartitionStatus, Phase, TaskPartition
from partition_manager.turns import TURN_MESSAGES, MessageId, Turns

__all__ = ["TURN_MESSAGES", "MessageId", "PartitionCoordinator"]

DELETED_MAX = 100  # ids kept of deleted topics, which a broker with old metadata may still name


class PartitionCoordinator:
    """Task `task` of `tasks` over the topics of `source`.

    `owner` names this run of the task and must be unique to it, as <run>.<task>.
    """

    def __init__(self, source: Source, task: int, tasks: int, owner: str) -> None:
        partitions_of(task, tasks, ())  # raise ValueError here rather than at the first answer
        self._source = source
        self._task, self._tasks, self._owner = task, tasks, owner
        self._asks = Asks(source.config.error_policy(), self._on_failure, self._on_success)
        self._partitions: dict[str, dict[int, TaskPartition]] = {}  # by topic and number
        self._all: list[TaskPartition] = []  # all partitions
        self._handing_over: list[TaskPartition] = []
        self._share: TaskShare[TaskPartition] = TaskShare(source.config.spout_max_pending_bytes)
        self._packed = PackedAnswers(self._asks, self._share.memory)
        self._released_counts = Counts()  # counts of released partitions
        self._notes = Notes()
        self._failing = FailingRequests(self._notes)
        self._outages = outages_of(source.config, self._notes.warn)
        self.outage = self._outages.current  # the outage of the bolts at a time
        self.standstills = Standstills(
            source.config, self._all, has_outage=self.outage, has_enough=lambda: self.has_enough
        )
        self._turns = Turns(self._share, self._outages, self._partitions)
        self.next = self._turns.next  # the next message to emit at a time
        self._has_released = False  # some partitions are released, and the next sweep drops them
        self._subscription = SourceSubscription(source, self._asks, self._notes, self)
        self._deleted: deque[str] = deque(maxlen=DELETED_MAX)  # ids of topics that others have replaced
        self._takeovers = Takeovers(source, self._notes, owner)
        self._group = GroupAssignment(self._asks, self._notes, self) if source.in_group else None
        self._listed_partitions: dict[str, Partitions] = {}  # in a group: the partitions of each topic, as last listed
        self._started = False
        self._commit_at_ms = 0

    # --- lifecycle

    def start(self, now_ms: int) -> None:
        """Look up the partitions, then open and read them."""
        self._started = True
        self._commit_at_ms = now_ms + self._source.config.spout_commit_interval_ms
        self._subscription.refresh(now_ms)

    def stop(self, now_ms: int) -> None:
        """Stop emitting and store the progress; `idle` becomes True after the last write.

        Messages in flight are emitted again by the next owner.
        """
        self._started = False
        self._subscription.stop()
        if self._group is not None:
            self._group.stop()
        for partition in list(self._all):
            self._release(partition, now_ms)

    @property
    def idle(self) -> bool:
        """Return True if the task is stopped and every partition is released."""
        return not self._started and not self._all

    # --- requests and answers

    def take_asks(self, now_ms: int) -> list[Ask]:
        """Return the requests to carry to the fetcher, the offset store and the dead letters."""
        if self._started:
            self._tick(now_ms)
        if self._handing_over:
            self._check_handovers(now_ms)
        if self._packed.waiting:
            self._packed.unpack(now_ms)
        if self._share.ready:
            self._share.ready[0].end_turn()
        if self._share.fetches:
            for partition in self._share.take_fetches():
                partition.fetch(now_ms)
        return self._asks.take(now_ms)

    def answered(self, number: int, answer: Answer, now_ms: int) -> None:
        """Process the answer to the request handed out as `number`."""
        if isinstance(answer, Packed):
            self._packed.add(number, answer)
            self._packed.unpack(now_ms)
        else:
            self._asks.answered(number, answer, now_ms)
        self._sweep(now_ms)

    def expects(self, number: int) -> bool:
        """Return True if the answer to a request is still wanted, because its partition was not given up meanwhile."""
        return self._asks.expects(number)

    def next_deadline_ms(self) -> int | None:
        """Return the next time a retry, request, commit or refresh is due, or None if nothing is scheduled.

        An answer may make something available earlier.
        """
        times = [self._asks.next_deadline_ms(), self._turns.next_deadline_ms()]
        if self._started:
            times += [self._commit_at_ms, self._subscription.refresh_at_ms]
        times += [partition.release_at_ms for partition in self._handing_over]
        return min((t for t in times if t is not None), default=None)

    # --- calls of the spout

    @property
    def has_enough(self) -> bool:
        """Return True if the fetcher should hold its fetches, because many messages wait, or answers wait for memory.

        The limit is for all partitions together. Otherwise each of 1,000 partitions with a backlog would keep messages
        in memory long before their turn.
        """
        return self._share.waiting >= self._source.config.spout_fetch_max_records or bool(self._packed.waiting)

    def message(self, id: MessageId) -> Message | None:
        """Return the message in flight under this id, or None if the id is stale."""
        manager = self._manager(id)
        return manager.message(id.offset, id.ticket) if manager is not None else None

    def fan_out(self, id: MessageId, tuples: int) -> bool:
        """Set the number of tuples the message became, 1 by default, before the first of them can be acked.

        Return False if the id is stale.
        """
        manager = self._manager(id)
        if tuples == 0:
            self._outages.ended(id.ticket)
        return manager is not None and manager.fan_out(id.offset, id.ticket, tuples)

    def ack(self, id: MessageId) -> bool:
        """Count one of the message's tuples as processed.

        Return False if the id is stale or the task no longer has the partition.
        """
        manager = self._manager(id)
        before = manager.counts.acked if manager is not None else 0
        acked = manager is not None and manager.ack(id.offset, id.ticket)
        if self._outages.is_troubled:
            if manager is not None and manager.counts.acked > before:
                self._turns.succeeded(id.ticket)
            elif not acked:
                self._outages.ended(id.ticket)
        return acked

    def ack_many(self, ids: Iterable[MessageId]) -> None:
        """Ack each id, faster than one by one."""
        if self._outages.is_troubled:
            for id in ids:
                self.ack(id)
            return
        acks: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for topic, number, offset, ticket, _ in ids:
            acks[topic, number].append((offset, ticket))
        for (topic, number), acks_of_partition in acks.items():
            partition = self._partitions.get(topic, {}).get(number)
            if partition is not None and partition.manager is not None:
                partition.manager.ack_many(acks_of_partition)

    def processed(self, id: MessageId) -> None:
        """Note that the bolts processed a message that is acked later, so that no outage is seen meanwhile."""
        if self._outages.is_troubled:
            self._turns.succeeded(id.ticket)

    def settle(self, id: MessageId) -> bool:
        """Settle a message that was emitted without an id. Return False if the id is stale."""
        manager = self._manager(id)
        return manager is not None and manager.fan_out(id.offset, id.ticket, 1) and manager.ack(id.offset, id.ticket)

    def fail(self, id: MessageId, now_ms: int, error: str = "", *, unavailable: bool = False) -> bool:
        """Fail the message: schedule a retry or give it up. Return False if the id is stale.

        If what the bolts need is `unavailable`, and in an outage, the attempt does not count.
        """
        partition = self._partition(id)
        message = self.message(id)
        if partition is None or message is None:
            self._outages.ended(id.ticket)
            return partition is not None and partition.fail(id.offset, id.ticket, now_ms, error, unavailable)
        failed_message = TopicPartitionOffset(id.topic, id.partition, id.offset)
        attempt = message.attempt
        excused = self._outages.failed(failed_message, id.ticket, attempt, error, now_ms, unavailable=unavailable)
        failed = partition.fail(id.offset, id.ticket, now_ms, error, excused)
        if excused and self._outages.parks and partition.park(id.offset, id.ticket):
            self._outages.park(failed_message, id.ticket)
        return failed

    def reject(self, id: MessageId, now_ms: int, error: str) -> bool:
        """Give up a message that cannot be decoded, without a retry. Return False if the id is stale."""
        partition = self._partition(id)
        self._outages.ended(id.ticket)
        return partition is not None and partition.reject(id.offset, id.ticket, now_ms, error)

    def commit(self, now_ms: int) -> None:
        """Store the progress of every partition where it has changed, without waiting for the interval."""
        self._commit_at_ms = now_ms + self._source.config.spout_commit_interval_ms
        for partition in self._share.take_changed():
            partition.save(now_ms)

    def status(self) -> list[PartitionStatus]:
        """Return the status of every partition of this task, by topic and number."""
        return sorted(partition.status() for partition in self._all)

    def watermarks(self) -> dict[tuple[str, int], int]:
        """Return, by the topic's id (or name, without an id) and partition, the watermark of the stored progress.

        No message below it comes again.
        """
        watermarks = {}
        for partition in self._all:
            if partition.manager is not None and partition.manager.committed is not None:
                watermarks[partition.topic_id or partition.topic, partition.number] = partition.manager.committed
        return watermarks

    @property
    def counts(self) -> Counts:
        """Sum the message counts of all partitions the task has had since it was created, including released ones."""
        return sum_of([self._released_counts, *(partition.counts for partition in self._all)])

    def group_wait_ms(self, now_ms: int) -> int:
        """Return for how long the process has waited for its group, 0 if it does not."""
        since_ms = None if self._group is None else self._group.share.waits_since_ms
        return 0 if since_ms is None else max(0, now_ms - since_ms)

    @property
    def fenced_by(self) -> str:
        """Return why another process has taken the place of this one in the group; "" if none has."""
        return "" if self._group is None else self._group.share.fenced

    @property
    def refused_by(self) -> str:
        """Return why the group does not take this process; "" if it does."""
        return "" if self._group is None else self._group.share.refused

    def take_notes(self) -> list[Note]:
        """Return and clear the lines for the log: where reading began, what failed, which owner was fenced."""
        return self._notes.take() if self._notes.waiting else []

    # --- what the subscription found

    def partitions_found(self, topic: str, partitions: Partitions, now_ms: int) -> None:
        """Open and release partitions of `topic`, so that the task has its share of them."""
        ours = self._partitions.setdefault(topic, {})
        if self._group is not None:  # only the group takes partitions away
            self._listed_partitions[topic] = partitions
            self._group.subscribe(self._source.names or tuple(sorted(self._listed_partitions)), now_ms)
            mine: Iterable[int] = self._group.mine(topic)
        else:
            name = topic if self._source.by_topic else ""
            mine = partitions_of(self._task, self._tasks, partitions.numbers, name)
            for number in set(ours) - set(mine):
                self._release(ours[number], now_ms)
        for number in mine:
            if number not in ours:
                self._open(topic, number, partitions, now_ms)
            elif is_recreated(ours[number].topic_id, partitions.topic_id) and partitions.topic_id not in self._deleted:
                self.recreated(ours[number], partitions.topic_id, now_ms)

    def topic_removed(self, topic: str, now_ms: int) -> None:
        """Release all partitions of `topic`."""
        self._listed_partitions.pop(topic, None)
        for partition in list(self._partitions.get(topic, {}).values()):
            self._release(partition, now_ms)

    # --- what the group tells

    def shared(self, now_ms: int) -> None:
        """Follow a new share: drop what was lost, hand over what is revoked, open what is new."""
        group = self._group
        assert group is not None
        for partition in list(self._all):
            topic_partition = partition.topic, partition.number
            if group.is_lost(topic_partition):
                partition.lose()
            elif topic_partition in group.share.revoked and partition not in self._handing_over:
                self._handing_over.append(partition)
                partition.hand_over(now_ms)
        self._sweep(now_ms)
        self._check_handovers(now_ms)
        for topic, partitions in list(self._listed_partitions.items()):
            self.partitions_found(topic, partitions, now_ms)

    def _check_handovers(self, now_ms: int) -> None:
        for partition in self._handing_over:
            partition.check_handover(now_ms)
        self._sweep(now_ms)

    # --- what the partitions tell

    def released(self) -> None:
        """Note that a partition is released, for the next sweep."""
        self._has_released = True

    def opened(self, partition: TaskPartition, former: str) -> None:
        """Note once whose progress this run continues."""
        self._takeovers.opened(former)

    def fenced(self, partition: TaskPartition) -> None:
        """Note the first partition that another run took over; each refresh names all of them."""
        if partition.phase is Phase.FENCED and sum(other.phase is Phase.FENCED for other in self._all) == 1:
            self._takeovers.fenced(partition)

    def recreated(self, partition: TaskPartition, topic_id: str, now_ms: int) -> None:
        """Open the partition again, because its topic was deleted and created again under another id."""
        self._notes.warn(f"{partition.name}: the topic was recreated, its messages in flight are forgotten")
        self._deleted.append(partition.topic_id)
        partition.drop()
        self._remove(partition)
        host, port = partition.broker
        self._open(partition.topic, partition.number, Partitions((), host, port, topic_id), now_ms)

    def discarded(self, partition: TaskPartition, error: str, now_ms: int) -> None:
        """Read the partition again from its stored progress, because the transaction with the latest was discarded.

        Give it back instead if it is being handed over or was lost: the group decides, so a fence is no reason to stop.
        """
        assert self._group is not None
        self._notes.warn(f"{partition.name} is read again from its stored progress: {error}")
        ends = partition.phase in (Phase.CLOSING, Phase.HANDING_OVER)
        partition.lose()
        if ends or self._group.is_lost((partition.topic, partition.number)):
            self._sweep(now_ms)
            return
        self._remove(partition)
        host, port = partition.broker
        self._open(partition.topic, partition.number, Partitions((), host, port, partition.topic_id), now_ms)

    # --- internals

    def _partition(self, id: MessageId) -> TaskPartition | None:
        """Return the partition of an id, or None if the task no longer has it or its topic was recreated."""
        partitions = self._partitions.get(id.topic)
        return partitions.get(id.partition) if partitions is not None else None

    def _manager(self, id: MessageId) -> PartitionManager | None:
        partition = self._partition(id)
        return partition.manager if partition is not None else None

    def _tick(self, now_ms: int) -> None:
        if now_ms >= self._commit_at_ms:
            self.standstills.observe(now_ms)
            self.commit(now_ms)
            self._notes.summarize()
        if now_ms >= self._subscription.refresh_at_ms:
            self._subscription.refresh(now_ms)
            self._takeovers.remind(self._all)

    def _open(self, topic: str, number: int, address: Partitions, now_ms: int) -> None:
        document = _document_of(self._source, topic, number, address, f"{self._owner}.{next(self._share.tickets)}")
        partition = TaskPartition(self._source, document, self._share, self._asks, self._notes, self)
        if self._group is not None:
            self._group.opened((topic, number))
        self._partitions.setdefault(topic, {})[number] = partition
        self._all.append(partition)
        partition.open(now_ms)

    def _release(self, partition: TaskPartition, now_ms: int) -> None:
        partition.release(now_ms)
        self._sweep(now_ms)

    def _sweep(self, now_ms: int) -> None:
        if not self._has_released:
            return
        self._has_released = False
        for partition in [partition for partition in self._all if partition.is_released]:
            self._remove(partition)
            if self._group is not None:
                self._group.closed((partition.topic, partition.number), now_ms)

    def _remove(self, partition: TaskPartition) -> None:
        self._released_counts += partition.counts
        self._failing.forget(partition.name)
        self._all.remove(partition)
        self._handing_over = [other for other in self._handing_over if other is not partition]
        del self._partitions[partition.topic][partition.number]

    def _on_failure(self, owner: object, request: Request, answer: Failed, failures: int) -> None:
        if isinstance(owner, TaskPartition):
            owner.problems.failed(request, answer.error)
        self._failing.failed(_key_of(owner, request, self._source.described), answer.error, failures)

    def _on_success(self, owner: object, request: Request) -> None:
        if isinstance(owner, TaskPartition):
            owner.problems.succeeded(request)
        self._failing.succeeded(_key_of(owner, request, self._source.described))


def _document_of(source: Source, topic: str, number: int, address: Partitions, owner: str) -> OffsetDocument:
    """Return the document of a partition before its stored progress is known."""
    names = source.topology_id, source.topology_name, topic, number
    return OffsetDocument(*names, Progress(0), address.host, address.port, owner, address.topic_id)


def _key_of(owner: object, request: Request, described: str) -> tuple[str, str]:
    topic = getattr(request, "topic", described)
    return owner.name if isinstance(owner, TaskPartition) else topic, type(request).__name__
