"""Which transactions were aborted: `<base offset>.txnindex` beside the segment that has their markers (KIP-98).

    version i16 = 0 | producer id i64 | first offset i64 | last offset i64 | last stable offset i64

The last offset is the marker's. The last stable offset is that of the log once the marker stands: what lies below it
was decided, so a lookup can end at the first entry whose last stable offset reaches the end of what is read. Entries
lie in the order of their markers, so both rise. Kafka's file, which is there only where something was aborted. It can
be rebuilt from the log: its newest entries are written again when the log is recovered.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from broker.log.index import EntryFile
from broker.log.storage import File, Storage

TXN_INDEX = ".txnindex"

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_LAST_OFFSET = 3  # its place in an entry


class AbortedTransaction(NamedTuple):
    """Both offsets inclusive; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """One segment's; the file is made when the first aborted transaction ends in it."""

    def __init__(self, storage: Storage, path: str, there: bool | None = None) -> None:
        """`there`: whether the file is, where that is known."""
        self._storage = storage
        self._path = path
        self._entries: EntryFile | None = None
        if storage.exists(path) if there is None else there:
            self._entries = EntryFile(storage.open(path), _ENTRY)

    def __len__(self) -> int:
        return 0 if self._entries is None else len(self._entries)

    @property
    def files(self) -> tuple[File, ...]:
        """The file, where there is one."""
        return () if self._entries is None else (self._entries.file,)

    @property
    def size(self) -> int:
        return 0 if self._entries is None else self._entries.file.size

    def append(self, aborted: AbortedTransaction) -> None:
        if self._entries is None:
            self._entries = EntryFile(self._storage.open(self._path, create=True), _ENTRY)
        self._entries.append((_VERSION, *aborted))

    def keep_bytes(self, size: int) -> None:
        """Cut it after so many bytes."""
        if self._entries is not None:
            self._entries.keep_bytes(size)

    def ending_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """The aborted transactions whose marker is at or past `offset`, in the order of their markers."""
        if self._entries is None:
            return
        for number in range(self._entries.rank(offset - 1, _LAST_OFFSET), len(self._entries)):
            yield AbortedTransaction(*self._entries[number][1:])

    def is_sound(self, base_offset: int, next_offset: int) -> bool:
        """Whether it can be the index of a segment with these offsets: whole entries, the markers within it."""
        if self._entries is None or not self.size:
            return True
        if self.size % _ENTRY.size:
            return False
        first, last = self._entries[0], self._entries[-1]
        return bool(base_offset <= first[_LAST_OFFSET] <= last[_LAST_OFFSET] < next_offset)
