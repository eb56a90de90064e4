"""The journal of all partitions whose answers wait for the disk: one fdatasync per round for any number of logs.

    log_appender.append -> Journal.add -> SyncJournal, in a thread -> Journal.synced -> log.durability

An append writes its batch to the segment at once and copies it here. The batches that gather during one round form the
next round, so the journal adds no delay. Segments are synced in the background. The journal is a few files
`<number>.journal`; a file is removed when every log in it is synced past it. After a crash, recovery takes the batches
that a segment lacks from the journal, with their ids (broker.log.recovery.recovery).

The format of the files is in broker.log.journal_format.

A truncated log must not get its cut batches back from the journal. So a truncation closes the journal's file, and the
checkpoint names the number of the next file: older entries of that log do not count (`LogPosition.journal_from`). File
numbers never fall below a number that the checkpoint names. Once no older file is left on the disk, the checkpoint
drops the number.

If the journal is at its limit, or the disk too full for it, the batch waits for a sync of its log instead: the same
guarantee, but slower. A failed sync is never retried: every log that depends on the journal goes offline.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from broker.log.io_jobs import CutJournal, JournalFile, SyncJournal
from broker.log.journal_format import (
    DAMAGED,
    JOURNAL_HEADER_BYTES,
    ROUND_HEADER_BYTES,
    ROUNDLESS_VERSION,
    VERSION,
    Damage,
    JournalRecord,
    Key,
    damaged_number_of,
    header_of,
    name_of,
    number_of,
    read_records,
    record_head,
    round_header,
    synced_by,
    version_of,
)
from broker.log.partition_log import PartitionLog
from broker.log.storage.port import Buffer, File, Storage, StorageError
from broker.record.batch import BatchHeader, read_header
from broker.waiting.pending import Pending

# A round of small requests has a few kilobytes, so only one sync in several must also write a new file size. A larger
# value makes that sync rarer but slower in proportion, and every waiting client sees its delay.
AHEAD_BYTES = 64 << 10


class Entry(NamedTuple):
    """A batch in the journal. `runs` are (first id, count)."""

    runs: tuple[tuple[int, int], ...]
    header: BatchHeader
    file: File
    position: int
    """Position of the batch in the journal's file."""

    def batch(self) -> bytes:
        return self.file.read(self.position, self.header.size)


@dataclass(eq=False, slots=True)
class _Written:
    """A journal file, and the offset up to which each log must be synced before the file can be removed."""

    number: int
    to: JournalFile
    bytes: int = JOURNAL_HEADER_BYTES
    ends: dict[PartitionLog, int] = field(default_factory=dict)


class Journal:
    """The journal that this process writes. `max_bytes` bounds it; a file is closed once it has half of that."""

    def __init__(
        self, storage: Storage, max_bytes: int, pending: Pending, first_number: int = 1, earlier: Iterable[int] = ()
    ) -> None:
        """Number the files from `first_number` on. `earlier` has the numbers of an earlier process's files."""
        self.failed: str | None = None
        self._earlier = set(earlier)
        self._numbers: set[int] = set()
        """Numbers of this process's files that may be on the disk."""
        self._storage = storage
        self._pending = pending
        self._ahead_bytes = min(AHEAD_BYTES, max_bytes // 64)
        self._max_bytes = max_bytes - 2 * (self._ahead_bytes + JOURNAL_HEADER_BYTES) - ROUND_HEADER_BYTES
        self._number = first_number
        self._active: _Written | None = None
        self._closed: list[_Written] = []
        self._bytes = 0
        self._parts: list[Buffer] = []
        self._gathered: dict[PartitionLog, tuple[int, int]] = {}
        self._out: dict[PartitionLog, tuple[int, int]] | None = None
        self._out_to: _Written | None = None
        """The file that the running round is written to."""
        self._synced: tuple[int, int] | None = None
        """The number and the size of the last round's file, once the round is on the disk. The next round's header has
        them, so that a start can tell damage from a torn round."""

    def add(self, log: PartitionLog, first_offset: int, batches: Buffer, runs: Sequence[tuple[int, int]]) -> None:
        """Add one write's batches to the next round: their bytes, which are copied, and their ids.

        The batches begin at `first_offset` and end at the log's end. If the journal is full or has failed, ask for a
        sync of the log instead.
        """
        head = record_head(log.topic_id.bytes, log.partition, batches, runs)
        size = len(head) + len(batches)
        if self.failed is not None or self._bytes + size > self._max_bytes:
            log.ask_sync(soon=True)
            return
        first, before = self._gathered.get(log, (first_offset, first_offset))
        self._gathered[log] = (first if before == first_offset else first_offset), log.log_end_offset
        self._parts += (head, bytes(batches))
        self._pending.jobs = True
        self._bytes += size

    def take_round(self) -> SyncJournal | None:
        """Return the next round to write and sync. Return None if a round is running or the next is empty."""
        if self._out is not None or not self._parts:
            return None
        gathered, self._gathered = self._gathered, {}
        written = self._active = self._active or self._make()
        header = round_header(*(self._synced or (written.number, JOURNAL_HEADER_BYTES)))
        parts, self._parts = (header, *self._parts), []
        written.bytes += sum(map(len, parts))
        self._bytes += len(header)
        for log, (_, end) in gathered.items():
            written.ends[log] = end
        self._out, self._out_to = gathered, written
        return SyncJournal(self._storage, written.to, parts)

    def _make(self) -> _Written:
        number = self._number
        self._numbers.add(number)
        self._number += 1
        return _Written(number, JournalFile(name_of(number), header_of(VERSION), self._ahead_bytes))

    def synced(self) -> list[PartitionLog]:
        """Note that the running round is on the disk, and return its logs."""
        logs = []
        if self._out_to is not None and self._out_to.to.file is not None:
            self._synced = self._out_to.number, self._out_to.to.file.size
        for log, (first, end) in (self._out or {}).items():
            if log.offline is None:
                logs.append(log)
                if not log.durability.journaled(first, end):
                    log.ask_sync(soon=True)
        self._out = self._out_to = None
        if self._active is not None and self._active.bytes >= self._max_bytes // 2:
            self.rotate()
        return logs

    def not_written(self) -> None:
        """Sync each log of a round separately, because the round did not fit on the disk; the file is unchanged."""
        gathered, self._out, self._out_to = self._out or {}, None, None
        if self._active is not None and self._active.to.file is None:
            self._active = None  # the file could not be made; the next round makes another
        for written in (*self._closed, *([self._active] if self._active else [])):
            written.bytes = written.to.file.size if written.to.file is not None else 0
        self.recount()
        self._sync_apart(gathered)

    @staticmethod
    def _sync_apart(logs: Iterable[PartitionLog]) -> None:
        for log in logs:
            log.ask_sync(soon=True)

    def rotate(self) -> None:
        """Start a new file, and ask for syncs of the logs in the old one, so that it can be removed."""
        written = self._active
        if written is None:
            return
        self._active = None
        self._closed.append(written)
        self._pending.jobs = True
        for log in list(written.ends):
            if not _is_synced(written, log):
                log.ask_sync(soon=False)

    def log_synced(self, log: PartitionLog) -> None:
        """Drop the log from the closed files that it no longer needs, so that files without logs can be removed."""
        for written in self._closed:
            _is_synced(written, log)

    def take_cut(self) -> CutJournal | None:
        """Return the removal of the files that no log needs, None if every file is needed.

        The file of the running round stays until the round is back, because a thread may only then make it.
        """
        if not self._closed:
            return None
        unneeded = [written for written in self._closed if not written.ends and written is not self._out_to]
        if not unneeded:
            return None
        names = tuple(written.to.name for written in unneeded)
        self._closed = [written for written in self._closed if written not in unneeded]
        self.recount()
        return CutJournal(self._storage, names)

    def forget(self, log: PartitionLog) -> None:
        """Forget a deleted log."""
        for written in (*self._closed, *([self._active] if self._active else [])):
            written.ends.pop(log, None)
        for gathered in (self._gathered, self._out or {}):
            gathered.pop(log, None)

    # --- truncation ----------------------------------------------------------------------------------------------

    def let_go(self, logs: Collection[PartitionLog]) -> int | None:
        """Forget logs that are to be truncated, whose own files are synced. Begin a file that has no entry of them.

        Return its number. Return None, and do nothing, while a round is running or has entries of these logs.
        """
        if self._out is not None or not self._gathered.keys().isdisjoint(logs):
            return None
        self.rotate()
        for log in logs:
            self.forget(log)
        self._pending.jobs = True
        return self._number

    def has_files_before(self, number: int) -> bool:
        """Return True if a file with a lower number may be on the disk, even after a power cut."""
        return any(other < number for other in self._earlier | self._numbers)

    def removed(self, names: Iterable[str]) -> None:
        """Note that these files are removed, and that the removal is on the disk."""
        self._numbers.difference_update(number for name in names if (number := number_of(name)) is not None)

    def earlier_removed(self, kept: Iterable[int]) -> None:
        """Note that the files of the earlier process are removed, except the `kept` ones."""
        self._earlier = set(kept)

    # --- the files -----------------------------------------------------------------------------------------------

    def recount(self) -> None:
        """Recount the bytes that count against `max_bytes`: those that a sync can free.

        A closed file that only offline logs need is kept for them, but does not count.
        """
        files = [written for written in self._closed if any(log.offline is None for log in written.ends)]
        self._bytes = sum(file.bytes for file in files) + sum(map(len, self._parts))
        self._bytes += self._active.bytes if self._active else 0

    def close(self) -> CutJournal | None:
        """Return the removal of all files at a clean stop, when the logs are synced. Keep the files of offline logs."""
        self._parts, self._gathered, self._out, self._out_to = [], {}, None, None
        self.rotate()
        names = tuple(written.to.name for written in self._closed if not any(log.offline for log in written.ends))
        return CutJournal(self._storage, names) if names else None


def _is_synced(written: _Written, log: PartitionLog) -> bool:
    """Return True if the log no longer needs the file, after dropping it from the file's list if it is synced."""
    if log in written.ends and log.durability.flushed.offset >= written.ends[log]:
        del written.ends[log]
    return log not in written.ends


class FoundJournal:
    """The journal of an earlier process: after a crash, or files that were kept for offline logs.

    `first_numbers` has the truncated logs: entries of such a log in files with a lower number do not count. `damages`
    has the damage in each file, by name. Files with other names are left alone.

    Raise JournalUnreadable if a file cannot be read, before any file has changed.
    """

    def __init__(self, storage: Storage, first_numbers: Mapping[Key, int] | None = None) -> None:
        self._storage = storage
        self._first_numbers = first_numbers or {}
        names = storage.list("")
        self._numbers = {name: number for name in names if (number := number_of(name)) is not None}
        self._set_aside = {number for name in names if (number := damaged_number_of(name)) is not None}
        self._entries: dict[Key, list[Entry]] = {}
        self._files: dict[Key, set[str]] = {}
        self._unopened: set[Key] = set()
        self.damages: dict[str, list[Damage]] = {}
        files = {name: storage.open(name) for name in self._numbers}
        versions = {name: version_of(name, file) for name, file in files.items()}
        self._synced = dict(filter(None, (synced_by(file, versions[name]) for name, file in files.items())))
        for name, file in files.items():
            for item in self._read(name, file, versions[name]):
                if isinstance(item, Damage):
                    self.damages.setdefault(name, []).append(item)
                elif self._numbers[name] >= self._first_numbers.get(item.key, 0):
                    self._add(name, file, item)
        self._damaged = set(self.damages)
        """Names of damaged files that are not set aside yet."""

    def _read(self, name: str, file: File, version: int) -> Iterator[JournalRecord | Damage]:
        # A kept file was written anew without rounds, so what a later file calls its size is not its size now.
        synced_bytes = self._synced.get(self._numbers[name], 0) if version == VERSION else 0
        return read_records(file, version, self._numbers[name], synced_bytes)

    def _add(self, name: str, file: File, record: JournalRecord) -> None:
        self._files.setdefault(record.key, set()).add(name)
        entries = self._entries.setdefault(record.key, [])
        for entry in _entries_of(file, record):
            # A later entry replaces earlier ones from its offset on. The earlier ones were journaled but never
            # answered, and a crash removed them from the log, so their offsets were assigned again.
            while entries and entries[-1].header.base_offset >= entry.header.base_offset:
                entries.pop()
            entries.append(entry)

    @property
    def next_number(self) -> int:
        """Return a number above those of all files, and not below the first number that counts for any log."""
        return max(max({*self.numbers, *self._set_aside}, default=0) + 1, *self._first_numbers.values(), 1)

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the files on the disk."""
        return list(self._numbers.values())

    def entries(self, topic_id: UUID, partition: int) -> Sequence[Entry]:
        """Return the batches of one log, by offset."""
        return self._entries.get((topic_id, partition), ())

    def keep(self, topic_id: UUID, partition: int) -> None:
        """Keep the entries of a log that could not be opened, because they may have batches that it lacks."""
        self._unopened.add((topic_id, partition))

    def opened(self, topic_id: UUID, partition: int) -> None:
        """Remove the entries of a log that was opened late, and is synced past them, as `remove` does."""
        self._unopened.discard((topic_id, partition))
        self.remove()

    def remove(self) -> None:
        """Remove the entries of all logs that are not kept, as these logs are synced past them.

        Wait for the disk, because dropped entries must not reappear. Entries past a gap were never answered, and their
        offsets are given again. A damaged file is renamed, so that people can look at it and no start reads it. On a
        full disk a kept file stays whole.
        """
        needed = set().union(*(self._files.get(key, set()) for key in self._unopened))
        names = [name for name in self._numbers if name not in needed]
        for name in names:
            if name in self._damaged:
                self._storage.rename(name, name + DAMAGED)
            else:
                self._storage.remove(name)
        for name in needed:
            with suppress(StorageError):
                self._drop_others(name)
        if names:
            self._storage.sync_directory("")
        self._damaged -= set(names)
        self._numbers = {name: number for name, number in self._numbers.items() if name in needed}
        self._entries = {}
        self._files = {key: names for key, names in self._files.items() if key in self._unopened}

    def _drop_others(self, name: str) -> None:
        """Replace a file by one with the records of the unopened logs alone, if it has others or is damaged.

        Keep a copy of a damaged file.
        """
        file = self._storage.open(name)
        items = list(self._read(name, file, version_of(name, file)))
        needed = [record.data for record in items if isinstance(record, JournalRecord) and record.key in self._unopened]
        if name in self._damaged:
            self._storage.replace(name + DAMAGED, file.read(0, file.size))
        if len(needed) < len(items):
            self._storage.replace(name, header_of(ROUNDLESS_VERSION) + b"".join(needed))
        self._damaged.discard(name)


def _entries_of(file: File, record: JournalRecord) -> Iterator[Entry]:
    """Yield the batches of a record."""
    runs = deque(record.runs)
    at = record.batches_at
    while at < len(record.data):
        header = read_header(record.data, at)
        yield Entry(_take(runs, header.record_count), header, file, record.position + at)
        at += header.size


def _take(runs: deque[tuple[int, int]], number: int) -> tuple[tuple[int, int], ...]:
    """Remove the first `number` ids from the runs and return them as runs."""
    taken: list[tuple[int, int]] = []
    while number:
        first_id, length = runs.popleft()
        some = min(number, length)
        taken.append((first_id, some))
        if some < length:
            runs.appendleft((first_id + some, length - some))
        number -= some
    return tuple(taken)
