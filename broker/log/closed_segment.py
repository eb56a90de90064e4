"""Closed segments: no append follows, all data is on the disk, and each file is opened on its first read.

At most `flakelog.max.open.segments` closed segments of all logs have files open, the most recently read ones. A file
closes with its last reference, so a region that is being sent keeps its file open even if its segment is closed
meanwhile.
"""

from typing import Any, NamedTuple

from broker.log.index.id_index import IdIndex
from broker.log.index.index import OffsetIndex, TimeIndex
from broker.log.index.txn_index import TXN_CHECK, TXN_INDEX, TransactionIndex, check_bytes
from broker.log.last_writes import LastWrites
from broker.log.segment import DELETED, ID_INDEX, INDEX, LOG, TIME_INDEX, Segment, file_name
from broker.log.storage.port import File, Storage
from broker.record.batch import BatchHeader


class Facts(NamedTuple):
    """The facts of a closed segment that need no open file: offsets, sizes in bytes, and times."""

    base_offset: int
    next_offset: int
    log_bytes: int
    id_bytes: int
    index_bytes: int
    time_index_bytes: int
    txn_index_bytes: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    max_timestamp_offset: int

    @classmethod
    def of(cls, segment: Segment) -> "Facts":
        """Return the facts of a segment whose files are open."""
        return cls(
            segment.base_offset,
            segment.next_offset,
            segment.log.size,
            segment.ids.file.size,
            segment.offsets.file.size,
            segment.times.file.size,
            segment.aborted.size,
            segment.first_timestamp_ms,
            segment.max_timestamp_ms,
            segment.max_timestamp_offset,
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes by file name. Only the files of aborted transactions may be missing."""
        sizes = {
            LOG: self.log_bytes,
            ID_INDEX: self.id_bytes,
            INDEX: self.index_bytes,
            TIME_INDEX: self.time_index_bytes,
        }
        if self.txn_index_bytes:
            sizes[TXN_INDEX] = self.txn_index_bytes
            sizes[TXN_CHECK] = check_bytes(self.txn_index_bytes)
        return {file_name(self.base_offset, suffix): size for suffix, size in sizes.items()}


class OpenSegments:
    """The closed segments with open files, least recently read first; at most `limit`.

    Besides these, at most `limit` rolled segments of all logs stay open until a sync; `unsynced` counts them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.unsynced = 0
        self._used: dict[ClosedSegment, None] = {}

    def __len__(self) -> int:
        return len(self._used)

    def used(self, segment: "ClosedSegment") -> None:
        """Mark a segment as read now, and close the files of the least recently read ones beyond the limit."""
        used = self._used
        used.pop(segment, None)
        used[segment] = None
        while len(used) > self.limit:
            oldest = next(iter(used))
            del used[oldest]
            oldest.close_files()

    def forget(self, segment: "ClosedSegment") -> None:
        """Forget a segment that its log no longer has."""
        self._used.pop(segment, None)


class _Apart(OpenSegments):
    """The registry of a segment copy with one reader: empty, as the copy's files close with the last reference."""

    def used(self, segment: "ClosedSegment") -> None:
        pass


_FILES = {"log": LOG, "ids": ID_INDEX, "offsets": INDEX, "times": TIME_INDEX, "aborted": TXN_INDEX}


class ClosedSegment(Segment):
    """A read-only segment that opens each of its files on first use."""

    def __init__(self, storage: Storage, directory: str, facts: Facts, among: OpenSegments) -> None:
        # Do not call the constructor of an open segment, because it opens all files.
        self.directory = directory
        self.base_offset, self.next_offset = facts.base_offset, facts.next_offset
        self.first_timestamp_ms = facts.first_timestamp_ms
        self.max_timestamp_ms, self.max_timestamp_offset = facts.max_timestamp_ms, facts.max_timestamp_offset
        self.broken = self.undone = False
        self._last_writes = LastWrites.none()
        self.facts = facts
        self._storage = storage
        self._among = among
        self._retired: set[str] = set()
        """Paths of the files that are renamed to `.deleted`. They are read under these, as a swap may fail halfway."""
        if not facts.txn_index_bytes:
            self.aborted = TransactionIndex(storage, self._path(TXN_INDEX), self.base_offset, exists=False)

    def _path(self, suffix: str) -> str:
        path = f"{self.directory}/{file_name(self.base_offset, suffix)}"
        return path + DELETED if path + DELETED in self._retired else path

    def renamed(self, before: str, after: str) -> None:
        self._retired.add(after)

    def __getattr__(self, name: str) -> Any:
        """Open a file on first access. Raise StorageError."""
        suffix = _FILES.get(name)
        if suffix is None:
            raise AttributeError(name)
        opened = self._opened(suffix)
        setattr(self, name, opened)
        self._among.used(self)
        return opened

    def _opened(self, suffix: str) -> File | IdIndex | OffsetIndex | TimeIndex | TransactionIndex:
        path = self._path(suffix)
        if suffix == TXN_INDEX:
            return TransactionIndex(self._storage, path, self.base_offset, exists=True)
        file = self._storage.open(path)
        if suffix == ID_INDEX:
            return IdIndex(file, self.base_offset)
        if suffix == INDEX:
            return OffsetIndex(file)
        return TimeIndex(file) if suffix == TIME_INDEX else file

    def close_files(self) -> None:
        """Drop the references to the files. A reader that holds a file keeps it open."""
        for name in _FILES:
            if name != "aborted" or self.aborted_there:
                self.__dict__.pop(name, None)

    @property
    def aborted_there(self) -> bool:
        """Return True if the segment has an index of aborted transactions."""
        held = self.__dict__.get("aborted")
        return held is None or bool(held.files)

    @property
    def size(self) -> int:
        return self.facts.log_bytes

    @property
    def index_sizes(self) -> tuple[int, int]:
        return self.facts.index_bytes, self.facts.time_index_bytes

    @property
    def has_aborted(self) -> bool:
        return self.facts.txn_index_bytes > 0

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        self._among.used(self)
        return super().find(offset)

    def apart(self) -> "ClosedSegment":
        apart = ClosedSegment(self._storage, self.directory, self.facts, _Apart(1))
        apart._retired = self._retired  # shared, because a swap may rename files meanwhile
        return apart


def closed(storage: Storage, segment: Segment, among: OpenSegments) -> ClosedSegment:
    """Return the closed form of a segment that is synced and no longer appended to."""
    if isinstance(segment, ClosedSegment):
        return segment
    return ClosedSegment(storage, segment.directory, Facts.of(segment), among)
