"""One journal for all partitions whose answers wait for the disk: one fdatasync a round, however many partitions.

    PartitionLog.append -> Journal.add -> SyncJournal, in a thread -> Journal.synced -> log.durable_end_offset

A batch is written to its segment at once, as always, and copied here; what has gathered while one round was at the disk
is the next round, so no delay is added. Segments are synced in the background. The journal is a few files
`<number>.journal`; one is removed when every log in it is synced past it. After a crash what the segments lack is taken
from here, with its ids (broker.log.recovery).

    0       4        8          24          28        32                    32 + 12 * number
    +-------+--------+----------+-----------+---------+---------------------+-------+
    | check | length | topic id | partition | number  | runs: first id i64, | batch |
    | u32   | u32    | 16 bytes | i32       | of runs | number of ids u32   |       |
    +-------+--------+----------+-----------+---------+---------------------+-------+

The length is that of all after it. The check is the CRC-32C of what follows it up to the end of the batch's header; for
the rest the batch has a CRC of its own.

A file ends in zeros, over which the next rounds are written; a record that is all zeros does not hold.

What cannot be journaled (the journal is at its limit, or the disk too full for it) waits for a sync of its own log: the
promise is the same, only slower. A sync that fails is never tried again: every log that counts on it goes offline.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from broker.log.partition_log import PartitionLog
from broker.log.placed import Placed, each_ones_runs
from broker.log.storage import Buffer, File, Storage, StorageError
from broker.log.syncs import CutJournal, SyncJournal
from broker.record.batch import HEADER_BYTES, BatchHeader, CorruptBatch, read_header, verify

SUFFIX = ".journal"
# Rounds of small requests are some kilobytes, so that one sync of some hundreds has to bring a new size to the disk.
AHEAD_BYTES = 1 << 20

_LENGTHS = struct.Struct(">II")
_PLACE = struct.Struct(">16siI")
_RUN = struct.Struct(">qI")
_HEAD = struct.Struct(">I16siI")  # of what is checked: the length, and the place
_HEAD_OF_ONE = struct.Struct(">I16siIqI")  # and the only run
_CHECK_BYTES = 4

Key = tuple[UUID, int]
"""Topic id and partition: a topic made anew under an old name has nothing to do with the old one's records."""


class Entry(NamedTuple):
    """A batch as the journal has it. `runs` are (first id, how many)."""

    runs: tuple[tuple[int, int], ...]
    header: BatchHeader
    file: File
    position: int
    """Of the batch, in the journal's file."""

    def batch(self) -> bytes:
        return self.file.read(self.position, self.header.size)


@dataclass(slots=True)
class _Written:
    """One file, and up to which offset each log must be synced before it can go."""

    file: File
    name: str
    bytes: int = 0
    ends: dict[PartitionLog, int] = field(default_factory=dict)
    named: bool = False
    """Its name is on the disk."""


class Journal:
    """What is written since the start. `max_bytes` bounds it; half of it is one file."""

    def __init__(self, storage: Storage, max_bytes: int, first_number: int = 1) -> None:
        self.failed: str | None = None
        self._storage = storage
        self._ahead_bytes = min(AHEAD_BYTES, max_bytes // 64)
        self._max_bytes = max_bytes - 2 * self._ahead_bytes
        self._number = first_number
        self._active: _Written | None = None
        self._closed: list[_Written] = []
        self._bytes = 0
        self._parts: list[Buffer] = []
        self._gathered: dict[PartitionLog, tuple[int, int]] = {}
        self._out: dict[PartitionLog, tuple[int, int]] | None = None

    def add(self, log: PartitionLog, placed: Sequence[Placed], runs: Sequence[tuple[int, int]]) -> None:
        """Take batches that were just appended, one after the other, with the ids of all of them, into the next round;
        their bytes are copied."""
        topic_id, partition = log.topic_id.bytes, log.partition
        parts: list[Buffer] = []
        size = 0
        for (batch, _, _), own in zip(placed, each_ones_runs(placed, runs), strict=True):
            head = _head(topic_id, partition, batch, own)
            parts += (head, bytes(batch))
            size += len(head) + len(batch)
        if self.failed is not None or self._bytes + size > self._max_bytes:
            log.ask_sync(log, True)
            return
        _, header, last_base = placed[-1]
        base, end = placed[0][2], last_base + header.last_offset_delta + 1
        first, before = self._gathered.get(log, (base, base))
        self._gathered[log] = (first if before == base else base, end)
        self._parts += parts
        self._bytes += size

    def take_round(self) -> SyncJournal | None:
        """What has gathered, to be written and synced; None while a round is out, or nothing has gathered."""
        if self._out is not None or not self._parts:
            return None
        gathered, self._gathered = self._gathered, {}
        parts, self._parts = tuple(self._parts), []
        try:
            written = self._active = self._active or self._make()
        except StorageError:
            self.recount()
            self._sync_apart(gathered)
            return None
        written.bytes += sum(map(len, parts))
        for log, (_, end) in gathered.items():
            written.ends[log] = end
        self._out = gathered
        return SyncJournal(self._storage, written.file, parts, not written.named)

    def _make(self) -> _Written:
        name = f"{self._number:020d}{SUFFIX}"
        written = _Written(self._storage.open(name, create=True, ahead_bytes=self._ahead_bytes), name)
        self._number += 1
        return written

    def synced(self) -> list[PartitionLog]:
        """The round that was out is on the disk; the logs it was for."""
        logs = []
        for log, (first, end) in (self._out or {}).items():
            if log.offline is None:
                logs.append(log)
                if not log.journaled(first, end):
                    log.ask_sync(log, True)
        self._out = None
        if self._active is not None:
            self._active.named = True
            if self._active.bytes >= self._max_bytes // 2:
                self.rotate()
        return logs

    def not_written(self) -> None:
        """The round that was out did not fit on the disk; the file is as it was before. Its logs sync themselves."""
        gathered, self._out = self._out or {}, None
        for written in (*self._closed, *([self._active] if self._active else [])):
            written.bytes = written.file.size
        self.recount()
        self._sync_apart(gathered)

    @staticmethod
    def _sync_apart(logs: Iterable[PartitionLog]) -> None:
        for log in logs:
            log.ask_sync(log, True)

    def rotate(self) -> None:
        """Write to another file from now on, and have this one's logs synced, so that it can go."""
        written = self._active
        if written is None:
            return
        self._active = None
        self._closed.append(written)
        for log in list(written.ends):
            if not _is_synced(written, log):
                log.ask_sync(log, False)

    def log_synced(self, log: PartitionLog) -> None:
        """`log` is on the disk up to `log.flushed`: files that only it needed may go."""
        for written in self._closed:
            _is_synced(written, log)

    def take_cut(self) -> CutJournal | None:
        """The files that no log needs any more, to be removed."""
        gone = tuple(written.name for written in self._closed if not written.ends)
        if not gone:
            return None
        self._closed = [written for written in self._closed if written.ends]
        self.recount()
        return CutJournal(self._storage, gone)

    def forget(self, log: PartitionLog) -> None:
        """The log was deleted."""
        for written in (*self._closed, *([self._active] if self._active else [])):
            written.ends.pop(log, None)
        for gathered in (self._gathered, self._out or {}):
            gathered.pop(log, None)

    def recount(self) -> None:
        """Count what a sync will free. A file that only logs offline need stays for them, and takes no room."""
        files = [written for written in self._closed if any(log.offline is None for log in written.ends)]
        self._bytes = sum(each.bytes for each in files) + sum(map(len, self._parts))
        self._bytes += self._active.bytes if self._active else 0

    def close(self) -> CutJournal | None:
        """At a clean stop, when all logs are synced: only what logs offline need is left."""
        self._parts, self._gathered, self._out = [], {}, None
        self.rotate()
        gone = tuple(each.name for each in self._closed if not any(log.offline for log in each.ends))
        return CutJournal(self._storage, gone) if gone else None


def _is_synced(written: _Written, log: PartitionLog) -> bool:
    """Whether this log needs the file no more; then it is taken off its list."""
    if log in written.ends and log.flushed.offset >= written.ends[log]:
        del written.ends[log]
    return log not in written.ends


def _head(topic_id: bytes, partition: int, batch: memoryview, runs: Sequence[tuple[int, int]]) -> bytes:
    size = _PLACE.size + len(runs) * _RUN.size + len(batch)
    if len(runs) == 1:  # nearly always
        checked = _HEAD_OF_ONE.pack(size, topic_id, partition, 1, *runs[0])
    else:
        checked = b"".join((_HEAD.pack(size, topic_id, partition, len(runs)), *[_RUN.pack(*run) for run in runs]))
    return crc32c(batch[:HEADER_BYTES], crc32c(checked)).to_bytes(_CHECK_BYTES, "big") + checked


class FoundJournal:
    """What an earlier process left: at a start after a crash, or where it kept files for logs that are offline."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._names = [name for name in storage.list("") if name.endswith(SUFFIX)]
        self._entries: dict[Key, list[Entry]] = {}
        self._files: dict[Key, set[str]] = {}
        self._kept: set[str] = set()
        for name in self._names:
            for key, entry in _read(storage.open(name)):
                self._files.setdefault(key, set()).add(name)
                entries = self._entries.setdefault(key, [])
                # One that comes later stands in place of what a crash took from the log, journaled but not answered.
                while entries and entries[-1].header.base_offset >= entry.header.base_offset:
                    entries.pop()
                entries.append(entry)

    @property
    def next_number(self) -> int:
        return max((int(name[: -len(SUFFIX)]) for name in self._names), default=0) + 1

    def entries(self, topic_id: UUID, partition: int) -> Sequence[Entry]:
        """The batches of one log, by offset."""
        return self._entries.get((topic_id, partition), ())

    def keep(self, topic_id: UUID, partition: int) -> None:
        """Its log could not be opened: what the journal has of it is not thrown away."""
        self._kept |= self._files.get((topic_id, partition), set())

    def remove(self) -> None:
        """All logs are synced past it. Waits for the disk: entries that were dropped must not come back later."""
        gone = [name for name in self._names if name not in self._kept]
        for name in gone:
            self._storage.remove(name)
        if gone:
            self._storage.sync_directory("")
        self._names, self._entries, self._files = [], {}, {}


def _read(file: File) -> Iterator[tuple[Key, Entry]]:
    """The records of a file, up to the first that does not hold: of rounds that were not answered."""
    position = 0
    while (found := _record(file, position)) is not None:
        key, entry = found
        yield key, entry
        position = entry.position + entry.header.size


def _record(file: File, position: int) -> tuple[Key, Entry] | None:
    head = file.read(position, _LENGTHS.size)
    if len(head) < _LENGTHS.size:
        return None
    check, size = _LENGTHS.unpack(head)
    if not _PLACE.size + HEADER_BYTES <= size <= file.size - position - _LENGTHS.size:
        return None  # nor is room made for the four gigabytes that a torn write may ask for
    body = memoryview(file.read(position + _LENGTHS.size, size))
    topic_id, partition, number = _PLACE.unpack_from(body)
    start = _PLACE.size + number * _RUN.size
    if size < start + HEADER_BYTES or crc32c(body[: start + HEADER_BYTES], crc32c(head[_CHECK_BYTES:])) != check:
        return None
    header = read_header(body, start)
    try:
        verify(body, header, start)
    except CorruptBatch:
        return None
    runs = tuple(_RUN.iter_unpack(body[_PLACE.size : start]))
    return (UUID(bytes=topic_id), partition), Entry(runs, header, file, position + _LENGTHS.size + start)
