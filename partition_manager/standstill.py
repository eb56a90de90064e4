"""Partitions that stand still: they have messages, and nothing settles one, though nothing is known that they wait for.

A partition makes progress when a message of it is acked, fails, becomes a dead letter or is skipped, or when its stored
progress moves. One with messages and without progress for `flakelog.spout.no.progress.ms` stands still, but not while

    its spout is paused, or its task sees an outage, which is told apart
    a message of it is in flight within its message timeout, or an exactly-once transaction is due
    a retry is not due yet
    it waits for its turn, and another partition of the task makes progress or has messages in flight

A partition that a group has not given to this task is not looked at. At read_committed the log ends, as far as a spout
sees it, where the first open transaction begins, so nothing is there to be read behind it.

The coordinator looks at each commit, and whoever asks for the figures looks again. So a frozen engine is seen too.
"""

from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import NamedTuple, Protocol

from partition_manager.config import SpoutConfig
from partition_manager.ports import TopicPartition

TIMEOUTS = 2  # Storm fails a tuple after one to two times its message timeout


class Work(NamedTuple):
    """A quick look at a partition. `settled` changes with its progress.

    `is_owed` is True if it has messages, or progress that is being stored.
    """

    settled: int
    emitted: int
    is_owed: bool


class Backlog(NamedTuple):
    """The messages of a partition by what should happen to them next.

    `retry_ms` is when the next retry is due. `is_in_line` is True if its task will emit or fetch when it has room,
    `is_fetching` if a fetch is asked and not answered. `is_opening` is True before its progress is loaded,
    `is_saving` while it is being stored.
    """

    in_flight: int = 0
    burying: int = 0
    retrying: int = 0
    waiting: int = 0
    unread: int = 0
    retry_ms: int | None = None
    is_in_line: bool = False
    is_fetching: bool = False
    is_opening: bool = False
    is_saving: bool = False


class Standstill(NamedTuple):
    """A partition without progress: for how long in ms, and which step is missing."""

    lasted_ms: int
    reason: str

    def __str__(self) -> str:
        return f"no progress for {self.lasted_ms / 1000:,.0f} s: {self.reason}"


class Watched(Protocol):
    """A partition of a task."""

    topic: str
    number: int

    def work(self) -> Work: ...

    def backlog(self) -> Backlog: ...


class _Seen(NamedTuple):
    """A partition at the last look: its latest work, and since when it has had messages without progress."""

    work: Work
    since_ms: int
    emitted_ms: int  # latest emission


class Standstills:
    """The partitions of one task. Not thread-safe; times are the caller's milliseconds."""

    def __init__(
        self,
        config: SpoutConfig,
        partitions: Collection[Watched],
        *,
        has_outage: Callable[[int], object],
        has_enough: Callable[[], bool],
    ) -> None:
        """Watch `partitions`, whatever they are at a look.

        `has_outage(now_ms)` is true in an outage. `has_enough()` is True while the task sends no fetch, because enough
        messages wait.
        """
        self.is_paused = False  # the spout emits nothing, because someone has deactivated it
        self._limit_ms = config.spout_no_progress_ms
        self._partitions = partitions
        self._has_outage = has_outage
        self._has_enough = has_enough
        self._seen: dict[Watched, _Seen] = {}
        self._progress_ms: float = -inf  # latest progress of any partition
        self._emitted_ms: float = -inf  # latest emission of any partition
        self._enough_ms: float = -inf  # when the task sent no fetch, because enough messages waited

    def observe(self, now_ms: int) -> None:
        """Compare each partition with the last look, and remember it; O(partitions)."""
        is_excused = self.is_paused or bool(self._has_outage(now_ms))
        if self._has_enough():
            self._enough_ms = now_ms
        before, self._seen = self._seen, {}
        for partition in self._partitions:
            work, seen = partition.work(), before.get(partition)
            since_ms = emitted_ms = now_ms
            if seen is not None:
                if work.emitted == seen.work.emitted:
                    emitted_ms = seen.emitted_ms
                else:
                    self._emitted_ms = now_ms
                if work.settled != seen.work.settled:
                    self._progress_ms = now_ms
                elif work.is_owed and not is_excused and seen.work.is_owed:
                    since_ms = seen.since_ms
            self._seen[partition] = _Seen(work, since_ms, emitted_ms)

    def find(self, now_ms: int, *, timeout_ms: int, cut_ms: int | None = None) -> Mapping[TopicPartition, Standstill]:
        """Return the partitions that stand still. `timeout_ms` is the message timeout.

        `cut_ms` is when the next transaction begins, in which complete messages are settled; None: nothing waits for
        one.
        """
        self.observe(now_ms)
        standstills: dict[TopicPartition, Standstill] = {}
        for partition, seen in self._seen.items():
            if now_ms - seen.since_ms >= self._limit_ms:
                backlog = partition.backlog()
                if not self._waits(backlog, seen, now_ms, TIMEOUTS * timeout_ms, cut_ms):
                    lasted_ms = now_ms - seen.since_ms
                    standstills[partition.topic, partition.number] = Standstill(lasted_ms, _reason(backlog))
        return standstills

    def _waits(self, backlog: Backlog, seen: _Seen, now_ms: int, timeout_ms: int, cut_ms: int | None) -> bool:
        """Return True if the partition waits for something known."""
        late_ms = now_ms - self._limit_ms  # work that was due before this time is late
        if backlog.in_flight:
            return now_ms - seen.emitted_ms < timeout_ms or (cut_ms is not None and cut_ms > late_ms)
        if backlog.retry_ms is not None and backlog.retry_ms > late_ms:
            return True
        if backlog.is_saving and not (backlog.waiting or backlog.retrying or backlog.unread):
            return False
        is_held = backlog.is_fetching and self._enough_ms > late_ms
        if not (backlog.is_in_line or is_held):
            return False
        return self._progress_ms > late_ms or now_ms - self._emitted_ms < timeout_ms


def _reason(backlog: Backlog) -> str:
    if backlog.is_opening:
        return "its stored progress is not loaded"
    for messages, state in (
        (backlog.in_flight, "in flight, and neither acked nor failed within the message timeout"),
        (backlog.burying, "given up, without a dead letter that is written"),
        (backlog.retrying, "due for another attempt, and not emitted"),
        (backlog.waiting, "fetched, and not emitted"),
    ):
        if messages:
            return f"{_messages(messages)} {state}"
    return f"{_messages(backlog.unread)} not fetched" if backlog.unread else "its progress is not stored"


def _messages(number: int) -> str:
    return "1 message is" if number == 1 else f"{number:,} messages are"
