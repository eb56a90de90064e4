"""The partitions of one task: managers that follow the assignment, emit in turn and commit together.

The coordinator exchanges values with its driver: `take_asks` returns requests, and `answered` takes the answers in any
order and at any time. A failed request is retried automatically. All calls are non-blocking, so the same core runs in
the embedded engine, in Apache Storm's worker and in a simulation.
"""

from collections import deque
from itertools import count
from typing import NamedTuple

from partition_manager.asks import Ask, Asks
from partition_manager.assignment import partitions_of
from partition_manager.entry import Counts, Message
from partition_manager.manager import PartitionManager
from partition_manager.offset_document import OffsetDocument
from partition_manager.ports import Answer, Failed, ListPartitions, Partitions, Request
from partition_manager.progress import Progress
from partition_manager.source import Source
from partition_manager.task_partition import PartitionStatus, TaskPartition

NOTES_MAX = 100  # notes for the log kept until taken; the oldest are dropped first


class MessageId(NamedTuple):
    """The id a spout emits with a tuple: one emission of one message. It is never reused."""

    partition: int
    offset: int
    ticket: int


class PartitionCoordinator:
    """Task `task` of `tasks` over one topic. `owner` names this run of the task and must be unique to it."""

    def __init__(self, source: Source, task: int, tasks: int, owner: str) -> None:
        partitions_of(task, tasks, ())  # raise ValueError here rather than at the first answer
        self._source = source
        self._task, self._tasks, self._owner = task, tasks, owner
        self._asks = Asks(source.config.error_policy(), self._on_failure)
        self._partitions: dict[int, TaskPartition] = {}
        self._turn: deque[TaskPartition] = deque()  # all partitions, the next to emit first
        self._tickets = count(1)
        self._gone = Counts()  # counts of released partitions
        self._notes: deque[str] = deque(maxlen=NOTES_MAX)
        self._started = self._refreshing = False
        self._commit_at_ms = self._refresh_at_ms = 0

    # --- lifecycle

    def start(self, now_ms: int) -> None:
        """Look up the partitions, then open and read them."""
        self._started = True
        self._commit_at_ms = now_ms + self._source.config.spout_commit_interval_ms
        self._refresh(now_ms)

    def stop(self, now_ms: int) -> None:
        """Stop emitting and store the progress; `idle` becomes True after the last write.

        Messages in flight are emitted again by the next owner.
        """
        self._started = False
        self._asks.forget(self)
        for partition in list(self._turn):
            self._release(partition, now_ms)

    @property
    def idle(self) -> bool:
        """Return True if the task is stopped and every partition is released."""
        return not self._started and not self._partitions

    # --- requests and answers

    def take_asks(self, now_ms: int) -> list[Ask]:
        """Return the requests to carry to the fetcher, the offset store and the dead letters."""
        if self._started:
            self._tick(now_ms)
        for partition in self._turn:
            partition.fetch(now_ms)
        return self._asks.take(now_ms)

    def answered(self, number: int, answer: Answer, now_ms: int) -> None:
        """Process the answer to the request handed out as `number`."""
        self._asks.answered(number, answer, now_ms)
        self._sweep()

    def expects(self, number: int) -> bool:
        """Return True if the answer to a request is still wanted, because its partition was not given up meanwhile."""
        return self._asks.expects(number)

    def next_deadline_ms(self) -> int | None:
        """Return the next time a retry, request, commit or refresh is due, or None if nothing is scheduled.

        An answer may make something available earlier.
        """
        times = [self._asks.next_deadline_ms(), *(p.next_deadline_ms() for p in self._turn)]
        if self._started:
            times += [self._commit_at_ms, self._refresh_at_ms]
        return min((t for t in times if t is not None), default=None)

    # --- calls of the spout

    def next(self, now_ms: int) -> tuple[MessageId, Message] | None:
        """Return the next message to emit, taking partitions in turn, or None if no partition has one."""
        for _ in range(len(self._turn)):
            partition = self._turn[0]
            self._turn.rotate(-1)
            message = partition.next(now_ms)
            if message is not None:
                return MessageId(partition.number, message.record.offset, message.ticket), message
        return None

    def message(self, id: MessageId) -> Message | None:
        """Return the message in flight under this id, or None if the id is stale."""
        manager = self._manager(id.partition)
        return manager.message(id.offset, id.ticket) if manager is not None else None

    def fan_out(self, id: MessageId, tuples: int) -> bool:
        """Set the number of tuples the message became, before the first of them is emitted.

        Return False if the id is stale.
        """
        manager = self._manager(id.partition)
        return manager is not None and manager.fan_out(id.offset, id.ticket, tuples)

    def ack(self, id: MessageId) -> bool:
        """Count one of the message's tuples as processed.

        Return False if the id is stale or the task no longer has the partition.
        """
        manager = self._manager(id.partition)
        return manager is not None and manager.ack(id.offset, id.ticket)

    def fail(self, id: MessageId, now_ms: int, error: str = "") -> bool:
        """Fail the message: schedule a retry or give it up. Return False if the id is stale."""
        manager = self._manager(id.partition)
        if manager is None or not manager.fail(id.offset, id.ticket, now_ms, error):
            return False
        self._partitions[id.partition].bury(now_ms)
        return True

    def reject(self, id: MessageId, now_ms: int, error: str) -> bool:
        """Give up a message that cannot be decoded, without a retry. Return False if the id is stale."""
        manager = self._manager(id.partition)
        if manager is None or not manager.reject(id.offset, id.ticket, now_ms, error):
            return False
        self._partitions[id.partition].bury(now_ms)
        return True

    def commit(self, now_ms: int) -> None:
        """Store the progress of every partition where it has changed, without waiting for the interval."""
        self._commit_at_ms = now_ms + self._source.config.spout_commit_interval_ms
        for partition in self._turn:
            partition.save(now_ms)

    def status(self) -> list[PartitionStatus]:
        """Return the status of every partition of this task, by number."""
        return [partition.status() for _, partition in sorted(self._partitions.items())]

    def watermarks(self) -> dict[tuple[str, int], int]:
        """Return, by topic and partition, the watermark of the stored progress: no message below it comes again."""
        found = {}
        for partition in self._turn:
            if partition.manager is not None and partition.manager.committed is not None:
                found[self._source.topic, partition.number] = partition.manager.committed
        return found

    @property
    def counts(self) -> Counts:
        """Sum the message counts of all partitions the task has had since it was created, including released ones."""
        return sum((partition.counts for partition in self._turn), self._gone)

    def take_notes(self) -> list[str]:
        """Return and clear the lines for the log: where reading began, what failed, which owner was fenced."""
        notes = list(self._notes)
        self._notes.clear()
        return notes

    # --- internals

    def _manager(self, number: int) -> PartitionManager | None:
        partition = self._partitions.get(number)
        return partition.manager if partition else None

    def _tick(self, now_ms: int) -> None:
        if now_ms >= self._commit_at_ms:
            self.commit(now_ms)
        if now_ms >= self._refresh_at_ms:
            self._refresh(now_ms)

    def _refresh(self, now_ms: int) -> None:
        self._refresh_at_ms = now_ms + self._source.config.spout_refresh_interval_ms
        if not self._refreshing:
            self._refreshing = True
            self._asks.ask(self, ListPartitions(self._source.topic), self._assigned, now_ms)

    def _assigned(self, answer: Answer, now_ms: int) -> None:
        self._refreshing = False
        if not isinstance(answer, Partitions):
            return
        mine = partitions_of(self._task, self._tasks, answer.numbers)
        for number in set(self._partitions) - set(mine):
            self._release(self._partitions[number], now_ms)
        for number in mine:
            if number not in self._partitions:
                self._open(number, answer, now_ms)

    def _open(self, number: int, answer: Partitions, now_ms: int) -> None:
        source, owner = self._source, f"{self._owner}.{next(self._tickets)}"
        document = OffsetDocument(
            source.topology_id,
            source.topology_name,
            source.topic,
            number,
            Progress(0),
            answer.host,
            answer.port,
            owner,
        )
        partition = TaskPartition(source, document, self._tickets, self._asks, self._notes.append)
        self._partitions[number] = partition
        self._turn.append(partition)
        partition.open(now_ms)

    def _release(self, partition: TaskPartition, now_ms: int) -> None:
        partition.release(now_ms)
        self._sweep()

    def _sweep(self) -> None:
        for partition in [p for p in self._turn if p.gone]:
            self._gone += partition.counts
            self._turn.remove(partition)
            del self._partitions[partition.number]

    def _on_failure(self, owner: object, request: Request, answer: Failed, failures: int) -> None:
        where = self._source.topic
        if isinstance(owner, TaskPartition):
            owner.error = answer.error
            where = f"{where}-{owner.number}"
        if failures == 1:  # note only the first failure of an outage; each partition's status shows that it lasts
            self._notes.append(f"{where} {type(request).__name__} failed: {answer.error}; it is asked again")
