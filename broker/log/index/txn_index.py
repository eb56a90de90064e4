"""The index of aborted transactions: `<base offset>.txnindex` beside the segment with their markers (KIP-98).

    version i16 = 0 | producer id i64 | first offset i64 | last offset i64 | last stable offset i64

The last offset is the marker's. The last stable offset is the log's once the marker is appended. All transactions below
it are decided, so a lookup ends at the first entry whose last stable offset reaches the end of the range. Entries are
in the order of their markers, so both offsets rise. The format is Kafka's, and the file exists only if a transaction
was aborted. It can be rebuilt from the log: recovery rewrites its newest entries.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from broker.log.index.index import EntryFile
from broker.log.storage.port import File, Storage

TXN_INDEX = ".txnindex"

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_LAST_OFFSET = 3  # its place in an entry


class AbortedTransaction(NamedTuple):
    """An index entry. Both offsets are inclusive; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The index of one segment. Its file is created when the first aborted transaction ends in the segment."""

    def __init__(self, storage: Storage, path: str, there: bool | None = None) -> None:
        """Open the index. `there` says if the file exists, None if that is unknown."""
        self._storage = storage
        self._path = path
        self._entries: EntryFile | None = None
        if storage.exists(path) if there is None else there:
            self._entries = EntryFile(storage.open(path), _ENTRY)

    def __len__(self) -> int:
        return 0 if self._entries is None else len(self._entries)

    @property
    def files(self) -> tuple[File, ...]:
        """Return the file, if it exists."""
        return () if self._entries is None else (self._entries.file,)

    @property
    def size(self) -> int:
        return 0 if self._entries is None else self._entries.file.size

    def append(self, aborted: AbortedTransaction) -> None:
        if self._entries is None:
            self._entries = EntryFile(self._storage.open(self._path, create=True), _ENTRY)
        self._entries.append((_VERSION, *aborted))

    def keep_bytes(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        if self._entries is not None:
            self._entries.keep_bytes(size)

    def ending_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """Yield the aborted transactions whose marker is at or past `offset`, in the order of their markers."""
        if self._entries is None:
            return
        for number in range(self._entries.rank(offset - 1, _LAST_OFFSET), len(self._entries)):
            yield AbortedTransaction(*self._entries[number][1:])

    def is_sound(self, base_offset: int, next_offset: int) -> bool:
        """Return True if this can be the index of a segment with these offsets: whole entries, all markers in range."""
        if self._entries is None or not self.size:
            return True
        if self.size % _ENTRY.size:
            return False
        first, last = self._entries[0], self._entries[-1]
        return bool(base_offset <= first[_LAST_OFFSET] <= last[_LAST_OFFSET] < next_offset)
