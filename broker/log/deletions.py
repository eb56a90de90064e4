"""Dropped segments, from the moment they leave their log until their files are removed from the disk.

    dropped    the log's start has risen in memory; the files are unchanged
    renamed    once a checkpoint with the new start is on the disk; a crash before that leaves the log as it was
    removed    after file.delete.delay.ms, or at once while the disk is full, in a thread; the next start removes any
               leftovers

Because of this order, no crash leaves a log without a file that its checkpoint needs.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from broker.log.io_jobs import RemoveFiles, Runnable, WriteCheckpoint
from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment, retire_files
from broker.log.storage.port import Storage, StorageError

CHECKPOINT_WITHIN_MS = 1000
"""Delay before a log's new start is written to the checkpoint. Changes within the delay share one checkpoint, so a
client that deletes records in a loop does not cost a sync each time."""

CHECKPOINT_AGAIN_MS = 10_000
"""Delay from one such checkpoint to the next try, if the first could not be written."""

RENAMED_AT_ONCE = 64  # segments of six files; not a setting, because a rename does not wait for the disk
RENAME_EVERY_MS = 10


@dataclass(frozen=True, slots=True)
class _Dropped:
    log: PartitionLog
    bases: tuple[int, ...]
    end: int
    remove_ms: int


class Deletions:
    """The deletions of all logs. Times are of the monotonic clock."""

    def __init__(self, storage: Storage, report: Callable[[str], None]) -> None:
        self._storage = storage
        self._report = report
        self._begun: dict[PartitionLog, None] = {}
        """Logs whose start has risen since the checkpoint."""
        self._in_checkpoint: dict[PartitionLog, None] = {}
        """Logs whose start the last checkpoint was to have, until one has it."""
        self._checkpoint_begun_ms = 0
        self._dropped: list[_Dropped] = []
        self._ready: deque[_Dropped] = deque()
        """Segments that the checkpoint no longer needs; they wait to be renamed."""
        self._rename_ms = 0
        self._renamed: list[tuple[int, int, RemoveFiles]] = []
        self._number = 0
        self._removing: set[RemoveFiles] = set()
        """Removals that threads run."""
        self._checkpoint_ms: int | None = None

    def begins_later(self, log: PartitionLog, now_ms: int) -> None:
        """Note that the log's start has risen, so that a checkpoint is written within CHECKPOINT_WITHIN_MS."""
        self._begun[log] = None
        if self._checkpoint_ms is None:
            self._checkpoint_ms = now_ms + CHECKPOINT_WITHIN_MS

    def dropped(self, log: PartitionLog, segments: tuple[Segment, ...], now_ms: int) -> None:
        """Note segments that the log has dropped from its list; the log now begins after them."""
        bases = tuple(segment.base_offset for segment in segments)
        remove_ms = now_ms + log.config.file_delete_delay_ms
        self._dropped.append(_Dropped(log, bases, segments[-1].next_offset, remove_ms))
        self.begins_later(log, now_ms)

    def retired(self, log: PartitionLog, paths: tuple[str, ...], now_ms: int) -> None:
        """Note files that are renamed already, and schedule their removal after the log's delay."""
        self._remove_at(now_ms + log.config.file_delete_delay_ms, log, paths)

    def _remove_at(self, remove_ms: int, log: PartitionLog, paths: tuple[str, ...]) -> None:
        self._number += 1
        heappush(self._renamed, (remove_ms, self._number, RemoveFiles(self._storage, log.name, paths)))

    def _retire(self, dropped: _Dropped, bases: tuple[int, ...]) -> None:
        paths: list[str] = []
        try:
            for base in bases:
                paths.extend(retire_files(self._storage, dropped.log.name, base))
        except StorageError as error:
            name = dropped.log.name
            self._report(f"partition {name}: {error}; what is left of old segments is removed at the next start")
        self._remove_at(dropped.remove_ms, dropped.log, tuple(paths))

    def forget(self, log: PartitionLog) -> None:
        """Forget a log that is deleted as a whole, or truncated: its new opening removes what is renamed."""
        self._begun.pop(log, None)
        self._in_checkpoint.pop(log, None)
        self._renamed = [entry for entry in self._renamed if entry[2].directory != log.name]
        heapify(self._renamed)
        self._dropped = [dropped for dropped in self._dropped if dropped.log is not log]
        self._ready = deque(dropped for dropped in self._ready if dropped.log is not log)

    def next_deadline_ms(self) -> int | None:
        if not self._renamed and not self._ready:
            return self._checkpoint_ms
        due = [self._renamed[0][0]] if self._renamed else []
        if self._ready:
            due.append(self._rename_ms)
        if self._checkpoint_ms is not None:
            due.append(self._checkpoint_ms)
        return min(due, default=None)

    def to_checkpoint(self, now_ms: int, busy: bool) -> list[PartitionLog]:
        """Return the logs whose new start must be checkpointed now; none while a checkpoint is in progress (`busy`)."""
        if self._checkpoint_ms is None or now_ms < self._checkpoint_ms:
            return []
        if busy:
            self._checkpoint_ms = now_ms + CHECKPOINT_WITHIN_MS
            return []
        self._in_checkpoint, self._checkpoint_begun_ms = self._in_checkpoint | self._begun, now_ms
        self._begun, self._checkpoint_ms = {}, None
        return list(self._in_checkpoint)

    def sync_failed(self, job: Runnable) -> None:
        """Ask for a checkpoint again soon, if the job was one, because it could not be written."""
        if not isinstance(job, WriteCheckpoint):
            return
        self._begun, self._in_checkpoint = self._in_checkpoint | self._begun, {}
        if self._begun and self._checkpoint_ms is None:
            self._checkpoint_ms = self._checkpoint_begun_ms + CHECKPOINT_AGAIN_MS

    def checkpointed(self) -> None:
        """Rename files that the checkpoint on the disk no longer needs, in portions as there may be thousands."""
        self._in_checkpoint = {log: None for log in self._in_checkpoint if _is_behind(log)}
        dropped, self._dropped = self._dropped, []
        for part in dropped:
            needed = part.log.durability.checkpointed.log_start_offset < part.end
            if not needed:
                part.log.segments.release_dropped(part.end)  # a log without appends has no other occasion
            (self._dropped if needed else self._ready).append(part)
        self._rename_some()

    def rename(self, now_ms: int) -> None:
        """Rename the next portion, if it is due."""
        if self._ready and now_ms >= self._rename_ms:
            self._rename_ms = now_ms + RENAME_EVERY_MS
            self._rename_some()

    def _rename_some(self) -> None:
        renames_left = RENAMED_AT_ONCE
        while self._ready and renames_left:
            dropped = self._ready.popleft()
            bases = dropped.bases[:renames_left]
            renames_left -= len(bases)
            self._retire(dropped, bases)
            if len(bases) < len(dropped.bases):
                self._ready.appendleft(replace(dropped, bases=dropped.bases[len(bases) :]))

    def to_remove(self, now_ms: int, *, at_once: bool = False) -> Iterator[RemoveFiles]:
        """Yield the removals that a thread may run now: those that are due, or with `at_once` all of them."""
        while self._renamed and (at_once or self._renamed[0][0] <= now_ms):
            removal = heappop(self._renamed)[2]
            self._removing.add(removal)
            yield removal

    def back(self, removal: RemoveFiles) -> None:
        """Take back a removal that has ended."""
        self._removing.discard(removal)

    def is_removing(self, log: PartitionLog) -> bool:
        """Return True while a thread removes files of the log."""
        return any(removal.directory == log.name for removal in self._removing)

    @property
    def wait_for_checkpoint(self) -> bool:
        """Return True if the start of a log has risen, and no checkpoint on the disk has it."""
        return bool(self._begun or self._in_checkpoint)


def _is_behind(log: PartitionLog) -> bool:
    """Return True if the checkpoint on the disk has an older start of the log."""
    return log.durability.checkpointed.log_start_offset < log.log_start_offset
