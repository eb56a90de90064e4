"""A segment: a range of the log with its indexes, in files named by its first offset.

    00000000000000000000.log         record batches, one after the other
    00000000000000000000.index       positions by offset       (broker.log.index.index)
    00000000000000000000.timeindex   offsets by time           (broker.log.index.index)
    00000000000000000000.idindex     ids by offset             (broker.log.index.id_index)
    00000000000000000000.txnindex    aborted transactions, if the segment has any (broker.log.index.txn_index)
    00000000000000000000.txncheck    checksums of the entries of .txnindex

A reader keeps the segments that it holds, even after the log drops them from its list.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from broker.log.index.id_index import IdIndex
from broker.log.index.index import OffsetIndex, TimeIndex
from broker.log.index.txn_index import TXN_CHECK, TXN_INDEX, TransactionIndex
from broker.log.last_writes import LAST_WRITES, LastWrites
from broker.log.storage.port import Buffer, File, Storage
from broker.record.batch import HEADER, HEADER_BYTES, LENGTH_END, BatchHeader
from broker.wire.frame import FileRegion
from broker.wire.id_entries import IdEntry

LOG, INDEX, TIME_INDEX, ID_INDEX = ".log", ".index", ".timeindex", ".idindex"
SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX, TXN_CHECK, ID_INDEX)
DELETED = ".deleted"
"""Suffix of a file that is to be removed, and of a deleted topic's directory."""
CLEANED, SWAP = ".cleaned", ".swap"
"""Suffixes of a segment that the cleaner writes, and of one that is to replace others (see swap.py). The first is also
the suffix of indexes that are being rewritten."""
RELATIVE_OFFSET_MAX = 2**31 - 1

_extent_from = struct.Struct(">qi11xi").unpack_from  # of a header: base offset, batch length, last offset delta
_header_of = tuple.__new__  # as BatchHeader._make, at half its price
_INDEXED_MAX = 1024  # index entries per write
_SCAN_BYTES = 16 * 1024  # a little more than index.interval.bytes, so a lookup is one read

Placed: TypeAlias = tuple[BatchHeader, int, memoryview]
"""The header of a batch whose place is decided, its base offset, and the batch."""


class Copied(NamedTuple):
    """The bytes of batches that another log has, as they lie there, and the ids of all their offsets."""

    data: memoryview
    ids: Sequence[IdEntry]


def file_name(offset: int, suffix: str) -> str:
    """Return a file name with twenty digits, so that names sort as numbers do."""
    return f"{offset:020d}{suffix}"


def remove_files(storage: Storage, directory: str, base_offset: int, ending: str = "") -> None:
    """Remove a segment's files, the ids last: recovery cuts batches without ids, but ignores ids without batches."""
    for suffix in SUFFIXES:
        storage.remove(f"{directory}/{file_name(base_offset, suffix)}{ending}")


def retire_files(storage: Storage, directory: str, base_offset: int) -> Iterator[str]:
    """Rename a segment's files to `.deleted`, the ids last as in `remove_files`. Yield each new path."""
    for suffix in SUFFIXES:
        path = f"{directory}/{file_name(base_offset, suffix)}"
        if storage.exists(path):
            storage.rename(path, path + DELETED)
            yield path + DELETED


def batches_of(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) for each batch of a .log file. Stop at a partial batch."""
    chunk, start = b"", 0
    while end - position >= HEADER_BYTES:
        if position + HEADER_BYTES > start + len(chunk) or position < start:
            chunk, start = file.read(position, min(_SCAN_BYTES, end - position)), position
            if len(chunk) < HEADER_BYTES:
                return
        header = BatchHeader._make(HEADER.unpack_from(chunk, position - start))
        if header.batch_length < HEADER_BYTES - LENGTH_END or position + header.size > end:
            return
        yield position, header
        position += header.size


def first_ending_from(
    offset: int, relative_offset: int, offsets: OffsetIndex, log: File
) -> tuple[int, BatchHeader] | None:
    """Return (position, header) of the first batch in a .log file that ends at or after `offset`, None if none does."""
    position, last = offsets.span_of(relative_offset, log.size)
    return first_ending_between(offset, position, last, log)


def first_ending_between(offset: int, position: int, last: int, log: File) -> tuple[int, BatchHeader] | None:
    """Do the same as `first_ending_from` for a batch that begins between two positions of batches."""
    end = log.size
    step = last - position
    wanted = step + HEADER_BYTES
    while end - position >= HEADER_BYTES:
        # If batches are large, read only the headers.
        chunk = log.read(position, HEADER_BYTES if step > _SCAN_BYTES else wanted)
        at, last_at = 0, len(chunk) - HEADER_BYTES
        if last_at < 0:
            return None
        while at <= last_at:
            base_offset, batch_length, last_offset_delta = _extent_from(chunk, at)
            step = batch_length + LENGTH_END
            if base_offset + last_offset_delta >= offset:
                if step < HEADER_BYTES or position + at + step > end:
                    return None
                return position + at, _header_of(BatchHeader, HEADER.unpack_from(chunk, at))
            if step < HEADER_BYTES:
                return None
            at += step
        position += at
        wanted = _SCAN_BYTES
    return None


class Segment:
    """The offsets base_offset .. next_offset - 1 of a log. Only a log's newest segment is appended to."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        base_offset: int,
        create: bool = False,
        ending: str = "",
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Open the segment. `sizes` has the files of the directory; those are opened at their first use."""
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.directory = directory
        self.first_timestamp_ms = -1
        self.max_timestamp_ms = -1
        self.max_timestamp_offset = base_offset
        self.broken = False
        self.undone = False
        self._since_index = 0
        self._last_writes = LastWrites.none()

        def open_file(suffix: str, make: bool) -> File:
            name = f"{file_name(base_offset, suffix)}{ending}"
            return storage.open(f"{directory}/{name}", make, size=sizes.get(name) if sizes else None)

        self.log = open_file(LOG, create)
        # A log is unreadable without its ids. The two indexes are rebuilt if they are missing.
        self.ids = IdIndex(open_file(ID_INDEX, create), base_offset)
        self.offsets = OffsetIndex(open_file(INDEX, True))
        self.times = TimeIndex(open_file(TIME_INDEX, True))
        name = f"{file_name(base_offset, TXN_INDEX)}{ending}"
        exists = None if sizes is None else name in sizes
        self.aborted = TransactionIndex(storage, f"{directory}/{name}", base_offset, exists)

    @property
    def size(self) -> int:
        return self.log.size

    @property
    def data_paths(self) -> tuple[str, str]:
        """Return the paths of the log and the ids, which cannot be rebuilt."""
        return self.log.path, self.ids.file.path

    @property
    def index_sizes(self) -> tuple[int, int]:
        """Return the sizes of the offset and the time index in bytes."""
        return self.offsets.file.size, self.times.file.size

    def reopen_indexes(self, storage: Storage) -> None:
        """Open both indexes again, because their files were replaced."""
        path = f"{self.directory}/{file_name(self.base_offset, '')}"
        self.offsets = OffsetIndex(storage.open(path + INDEX))
        self.times = TimeIndex(storage.open(path + TIME_INDEX))

    @property
    def has_aborted(self) -> bool:
        """Return True if an aborted transaction ends in this segment."""
        return self.aborted.size > 0

    @property
    def files(self) -> tuple[File, ...]:
        """Return the files in the order of their syncs: ids first, because they are written first."""
        return (self.ids.file, self.log, self.offsets.file, self.times.file, *self.aborted.files)

    def append(
        self,
        placed: Sequence[Placed],
        runs: Sequence[tuple[int, int]],
        interval_bytes: int,
        copied: Copied | None = None,
    ) -> Buffer:
        """Append batches and all their ids, with one write per file: ids, then log, then indexes.

        The offsets of the batches are consecutive, unless they are `copied`. Return the bytes of the batches as
        written. An exception leaves the segment as it was, or `broken` if that is impossible. After an exception, sync
        the files before the next write; see `cut`.
        """
        position = self.log.size
        ids_size, times_size = self.ids.file.size, self.times.file.size
        try:
            batches: Buffer
            if copied is None:
                batches = placed[0][2] if len(placed) == 1 else b"".join([batch[2] for batch in placed])
                self.ids.append(placed[0][1], runs)
            else:
                batches = copied.data
                self.ids.append_entries(copied.ids)
            self.log.append(batches)
            self.passed(position, placed, interval_bytes)
            writes = self._last_writes
            if copied is None:
                writes.positions.append(position)
                writes.ids_positions.append(ids_size)
                writes.offsets.append(placed[0][1])
            elif writes.offsets:
                # A write of thousands of batches is searched by its index.
                writes = self._last_writes = LastWrites.none()
        except Exception:  # any exception (MemoryError too): ids without a batch would go to the next one
            self._undo(position, ids_size, times_size)
            raise
        if len(writes.offsets) >= 2 * LAST_WRITES:
            self._last_writes = writes.newest()
        return batches

    def _undo(self, position: int, ids_size: int, times_size: int) -> None:
        self.broken = self.undone = True
        self.offsets.drop_from(position)
        self.times.keep_bytes(times_size)
        self.cut(position, ids_size)
        self.broken = False

    def cut(self, log_size: int, ids_size: int) -> tuple[File, ...]:
        """Cut the log and the ids. Return the files that were cut; sync them before the next append.

        The next append writes both files at the place of the cut. If the cut were not on the disk first, a power cut
        could combine one file's old bytes with the other's new ones: a batch with ids that it was never given.
        """
        self._last_writes = LastWrites.none()
        cut = [(file, size) for file, size in ((self.ids.file, ids_size), (self.log, log_size)) if file.size != size]
        for file, size in cut:
            file.truncate(size)
        return tuple(file for file, _ in cut)

    def passed(
        self, position: int, batches: Iterable[tuple[BatchHeader, int, *tuple[Any, ...]]], interval_bytes: int
    ) -> None:
        """Note consecutive batches (header, base offset) from `position`, after an append or during recovery.

        If it raises StorageError, no batch is noted, but the indexes may have entries for some.
        """
        newest, newest_offset, first = self.max_timestamp_ms, self.max_timestamp_offset, self.first_timestamp_ms
        since_index, last_offset = self._since_index, self.next_offset - 1
        indexed: list[tuple[int, int, int, int]] = []
        for batch in batches:
            header, base_offset = batch[0], batch[1]
            last_offset = base_offset + header.last_offset_delta
            if header.record_count:
                max_timestamp = header.max_timestamp
                if max_timestamp > newest:
                    newest, newest_offset = max_timestamp, last_offset
                if first < 0:
                    first = max_timestamp
            if since_index > interval_bytes:
                indexed.append((last_offset - self.base_offset, position, newest, newest_offset - self.base_offset))
                since_index = 0
                if len(indexed) == _INDEXED_MAX:
                    self._index(indexed)
                    indexed = []
            size = header.batch_length + LENGTH_END
            since_index += size
            position += size
        if indexed:
            self._index(indexed)
        self.max_timestamp_ms, self.max_timestamp_offset, self.first_timestamp_ms = newest, newest_offset, first
        self._since_index, self.next_offset = since_index, last_offset + 1

    def _index(self, indexed: Sequence[tuple[int, int, int, int]]) -> None:
        """Append to both indexes: (relative offset, position) and (time, relative offset)."""
        self.offsets.append(*[entry[:2] for entry in indexed])
        self.times.append_risen(*[entry[2:] for entry in indexed])

    def index_anew(self, storage: Storage, interval_bytes: int, end: int, sealed: bool = False) -> None:
        """Rewrite both indexes from the headers of the batches before `end`.

        Each index gets its name only once it is on the disk. Otherwise an interrupted start would leave a partial index
        that the next start trusts.
        """
        files = []
        for suffix in (TIME_INDEX, INDEX):
            files.append(storage.open(f"{self.directory}/{file_name(self.base_offset, suffix)}{CLEANED}", create=True))
        self.times, self.offsets = TimeIndex(files[0]), OffsetIndex(files[1])
        self._since_index = 0
        self.first_timestamp_ms = self.max_timestamp_ms = -1
        self.passed(0, ((header, header.base_offset) for _, header in self.batches(end=end)), interval_bytes)
        if sealed:
            self.seal()
        for file in files:
            file.sync()
            whole = file.path.removesuffix(CLEANED)
            storage.rename(file.path, whole)
            file.path = whole

    def seal(self) -> None:
        """Append the last time index entry, as Kafka does when it rolls a segment."""
        if self.max_timestamp_ms >= 0:
            self.times.append_risen((self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset))

    def sync_whole(self) -> None:
        """Sync all files, as no append will follow, and free the reserved disk space. Raise StorageError."""
        for file in self.files:
            file.sync()
        self.log.trim()

    def renamed(self, before: str, after: str) -> None:
        """Note the new path of a renamed file. The file stays readable."""
        for file in self.files:
            if file.path == before:
                file.path = after

    @property
    def newest_ms(self) -> int:
        """Return the time of the newest record, or of the last write if no record has a time, as in Kafka."""
        return self.max_timestamp_ms if self.max_timestamp_ms >= 0 else self.log.modified_ms()

    def has_room(self, size: int, last_offset: int, segment_bytes: int) -> bool:
        """Return True if the segment has room for a batch of `size` bytes that ends at `last_offset`."""
        fits = self.log.size + size <= segment_bytes or not self.log.size
        return fits and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX

    def batches(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) for each batch from `position`. Stop at a partial batch."""
        return batches_of(self.log, position, self.log.size if end is None else end)

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return (position, header) of the first batch that ends at or after `offset`, None if none does."""
        offsets, positions, _ = self._last_writes
        following = bisect_right(offsets, offset)
        if following:
            last = positions[following] if following < len(offsets) else self.log.size
            return first_ending_between(offset, positions[following - 1], last, self.log)
        return first_ending_from(offset, offset - self.base_offset, self.offsets, self.log)

    def writes_from(self, offset: int, max_bytes: int) -> tuple[FileRegion, FileRegion] | None:
        """Return the regions of the batches and of the ids of whole writes, from the write that begins at `offset` on.

        Return None unless that is one of the last writes, and has at most `max_bytes`. No file is read.
        """
        spans = self._last_writes.whole_from(offset, max_bytes, self.log.size, self.ids.file.size)
        if spans is None:
            return None
        (start, end), (ids_start, ids_end) = spans
        return FileRegion(self.log, start, end - start), FileRegion(self.ids.file, ids_start, ids_end - ids_start)

    def is_between_writes(self, position: int) -> bool:
        """Return True if one of the last writes begins at a position of the log. No file is read."""
        return self._last_writes.has_position(position)

    def apart(self) -> "Segment":
        """Return the segment in a form for one reader thread; other code does not open or close its files."""
        return self
