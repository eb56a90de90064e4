"""Segments that are gone from their logs, until their files are gone from the disk.

    dropped    the log begins later in memory; the files are as they were
    renamed    when a checkpoint that says so is on the disk: a crash before it finds the log as it was
    removed    after file.delete.delay.ms, in a thread; what is left of them is removed at the next start

So no crash leaves a log without a file that its checkpoint speaks of.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment, retire_files
from broker.log.storage import Storage, StorageError
from broker.log.syncs import RemoveFiles

CHECKPOINT_WITHIN_MS = 1000
"""How soon a log's new start is written down. What begins later meanwhile goes with it: a client that deletes records
in a loop does not cost a sync each time."""

RENAMED_AT_ONCE = 64  # segments, of five files each; a rename does not wait for the disk, so this is no setting
RENAME_EVERY_MS = 10


@dataclass(frozen=True, slots=True)
class _Dropped:
    log: PartitionLog
    bases: tuple[int, ...]
    end: int
    remove_ms: int


class Deletions:
    """Of all logs. Times are the monotonic clock's."""

    def __init__(self, storage: Storage, report: Callable[[str], None]) -> None:
        self._storage = storage
        self._report = report
        self._begun: dict[PartitionLog, None] = {}
        """Logs whose start has risen since the checkpoint."""
        self._dropped: list[_Dropped] = []
        self._ready: deque[_Dropped] = deque()
        """Those of which the checkpoint knows nothing any more: to be renamed."""
        self._rename_ms = 0
        self._renamed: list[tuple[int, int, RemoveFiles]] = []
        self._number = 0
        self._checkpoint_ms: int | None = None

    def begins_later(self, log: PartitionLog, now_ms: int) -> None:
        """The log's start has risen; it is to be written down."""
        self._begun[log] = None
        if self._checkpoint_ms is None:
            self._checkpoint_ms = now_ms + CHECKPOINT_WITHIN_MS

    def dropped(self, log: PartitionLog, segments: tuple[Segment, ...], now_ms: int) -> None:
        """These are not in the log's list any more; it begins after them."""
        bases = tuple(segment.base_offset for segment in segments)
        remove_ms = now_ms + log.config.file_delete_delay_ms
        self._dropped.append(_Dropped(log, bases, segments[-1].next_offset, remove_ms))
        self.begins_later(log, now_ms)

    def retired(self, log: PartitionLog, paths: tuple[str, ...], now_ms: int) -> None:
        """These files have been renamed, and may be removed after the log's delay."""
        self._remove_at(now_ms + log.config.file_delete_delay_ms, log, paths)

    def _remove_at(self, remove_ms: int, log: PartitionLog, paths: tuple[str, ...]) -> None:
        self._number += 1
        heappush(self._renamed, (remove_ms, self._number, RemoveFiles(self._storage, log.name, paths)))

    def _retire(self, each: _Dropped, bases: tuple[int, ...]) -> None:
        paths: list[str] = []
        try:
            for base in bases:
                paths.extend(retire_files(self._storage, each.log.name, base))
        except StorageError as error:
            name = each.log.name
            self._report(f"partition {name}: {error}; what is left of old segments is removed at the next start")
        self._remove_at(each.remove_ms, each.log, tuple(paths))

    def forget(self, log: PartitionLog) -> None:
        """The log is deleted as a whole."""
        self._begun.pop(log, None)
        self._dropped = [each for each in self._dropped if each.log is not log]
        self._ready = deque(each for each in self._ready if each.log is not log)

    def next_deadline_ms(self) -> int | None:
        due = [self._renamed[0][0]] if self._renamed else []
        if self._ready:
            due.append(self._rename_ms)
        if self._checkpoint_ms is not None:
            due.append(self._checkpoint_ms)
        return min(due, default=None)

    def to_checkpoint(self, now_ms: int, busy: bool) -> list[PartitionLog]:
        """The logs whose new start is to be written down now; `busy`: a checkpoint is being made, so not yet."""
        if self._checkpoint_ms is None or now_ms < self._checkpoint_ms:
            return []
        if busy:
            self._checkpoint_ms = now_ms + CHECKPOINT_WITHIN_MS
            return []
        begun, self._begun, self._checkpoint_ms = list(self._begun), {}, None
        return begun

    def checkpointed(self) -> None:
        """A checkpoint is on the disk: rename what it does not need, where that are thousands of files bit by bit."""
        dropped, self._dropped = self._dropped, []
        for each in dropped:
            needed = each.log.checkpointed.log_start_offset < each.end
            (self._dropped if needed else self._ready).append(each)
        self._rename_some()

    def rename(self, now_ms: int) -> None:
        """The next few, if it is time for them."""
        if self._ready and now_ms >= self._rename_ms:
            self._rename_ms = now_ms + RENAME_EVERY_MS
            self._rename_some()

    def _rename_some(self) -> None:
        left = RENAMED_AT_ONCE
        while self._ready and left:
            each = self._ready.popleft()
            bases = each.bases[:left]
            left -= len(bases)
            self._retire(each, bases)
            if len(bases) < len(each.bases):
                self._ready.appendleft(replace(each, bases=each.bases[len(bases) :]))

    def to_remove(self, now_ms: int) -> Iterator[RemoveFiles]:
        """What a thread may remove now."""
        while self._renamed and self._renamed[0][0] <= now_ms:
            yield heappop(self._renamed)[2]
