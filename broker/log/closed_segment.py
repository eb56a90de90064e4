"""Segments that are not appended to any more, and are on the disk: their files are opened when somebody reads them.

Of all logs together only so many have files open, those that were read last (`flakelog.max.open.segments`). What was
opened closes when nothing refers to it: a region that is being sent keeps its file, whatever is closed meanwhile.
"""

from typing import Any, NamedTuple

from broker.log.id_index import IdIndex
from broker.log.index import OffsetIndex, TimeIndex
from broker.log.segment import DELETED, ID_INDEX, INDEX, LOG, TIME_INDEX, Segment, file_name
from broker.log.storage import File, Storage
from broker.log.txn_index import TXN_INDEX, TransactionIndex
from broker.record.batch import BatchHeader


class Facts(NamedTuple):
    """What is known of a closed segment without opening it: its offsets, sizes in bytes, and times."""

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
        """Of a segment that has its files open."""
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
        """Bytes by file name; only an index of aborted transactions may be missing."""
        found = {
            LOG: self.log_bytes,
            ID_INDEX: self.id_bytes,
            INDEX: self.index_bytes,
            TIME_INDEX: self.time_index_bytes,
        }
        if self.txn_index_bytes:
            found[TXN_INDEX] = self.txn_index_bytes
        return {file_name(self.base_offset, suffix): size for suffix, size in found.items()}


class OpenSegments:
    """The closed segments that have files open, the one that was not read for longest first; at most `limit`.

    So many again may be open because they wait to be synced and closed: `unsynced`, of all logs.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.unsynced = 0
        self._used: dict[ClosedSegment, None] = {}

    def __len__(self) -> int:
        return len(self._used)

    def used(self, segment: "ClosedSegment") -> None:
        """It is read now; another one's files are closed where there are too many."""
        used = self._used
        used.pop(segment, None)
        used[segment] = None
        while len(used) > self.limit:
            oldest = next(iter(used))
            del used[oldest]
            oldest.close_files()

    def forget(self, segment: "ClosedSegment") -> None:
        """It is gone from its log."""
        self._used.pop(segment, None)


class _Apart(OpenSegments):
    """Of a segment that its reader has for itself: its files close with the last reference to it, so none is kept."""

    def used(self, segment: "ClosedSegment") -> None:
        pass


_FILES = {"log": LOG, "ids": ID_INDEX, "offsets": INDEX, "times": TIME_INDEX, "aborted": TXN_INDEX}


class ClosedSegment(Segment):
    """A segment to read, of which the files are opened one by one as they are asked for."""

    def __init__(self, storage: Storage, directory: str, facts: Facts, among: OpenSegments) -> None:
        # Not the constructor of an open segment: that one opens all its files.
        self.directory = directory
        self.base_offset, self.next_offset = facts.base_offset, facts.next_offset
        self.first_timestamp_ms = facts.first_timestamp_ms
        self.max_timestamp_ms, self.max_timestamp_offset = facts.max_timestamp_ms, facts.max_timestamp_offset
        self.broken = self.undone = False
        self.facts = facts
        self._storage = storage
        self._among = among
        self._retired: set[str] = set()
        """Names of its files, where these have the one for what is to be removed: a swap may fail half way."""
        if not facts.txn_index_bytes:
            self.aborted = TransactionIndex(storage, self._path(TXN_INDEX), there=False)

    def _path(self, suffix: str) -> str:
        path = f"{self.directory}/{file_name(self.base_offset, suffix)}"
        return path + DELETED if path + DELETED in self._retired else path

    def renamed(self, before: str, after: str) -> None:
        self._retired.add(after)

    def __getattr__(self, name: str) -> Any:
        """A file that is not open is asked for; StorageError."""
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
            return TransactionIndex(self._storage, path, there=True)
        file = self._storage.open(path)
        if suffix == ID_INDEX:
            return IdIndex(file, self.base_offset)
        if suffix == INDEX:
            return OffsetIndex(file)
        return TimeIndex(file) if suffix == TIME_INDEX else file

    def close_files(self) -> None:
        """Let go of them; who reads one of them keeps it."""
        for name in _FILES:
            if name != "aborted" or self.aborted_there:
                self.__dict__.pop(name, None)

    @property
    def aborted_there(self) -> bool:
        """Whether there is an index of aborted transactions."""
        held = self.__dict__.get("aborted")
        return held is None or bool(held.files)

    @property
    def size(self) -> int:
        return self.facts.log_bytes

    @property
    def has_aborted(self) -> bool:
        return self.facts.txn_index_bytes > 0

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        self._among.used(self)
        return super().find(offset)

    def apart(self) -> "ClosedSegment":
        return ClosedSegment(self._storage, self.directory, self.facts, _Apart(1))


def closed(storage: Storage, segment: Segment, among: OpenSegments) -> ClosedSegment:
    """What takes the place of a segment that has been synced and is not appended to any more."""
    if isinstance(segment, ClosedSegment):
        return segment
    return ClosedSegment(storage, segment.directory, Facts.of(segment), among)
