"""The index of aborted transactions: `<base offset>.txnindex` beside the segment with their markers (KIP-98).

    version i16 = 0 | producer id i64 | first offset i64 | last offset i64 | last stable offset i64

The last offset is the marker's. The last stable offset is the log's once the marker is appended. All transactions below
it are decided, so a lookup ends at the first entry whose last stable offset reaches the end of the range. Entries are
in the order of their markers, so both offsets rise. The format is Kafka's, and the file exists only if a transaction
was aborted. It can be rebuilt from the log: recovery rewrites its newest entries, and all entries if one is damaged.

Kafka's format has no checksum, so `<base offset>.txncheck` has one for each entry:

    crc-32c u32 of the entry, seeded with the segment's base offset and the entry's number

An entry is read only together with its checksum, and a wrong entry is an error. A file without the other one, or of
another length, is damaged. A log of an older version has no checksums, so a start rebuilds both files once.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from crc32c import crc32c

from broker.log.index.index import EntryFile
from broker.log.storage.port import File, Storage, StorageError

TXN_INDEX, TXN_CHECK = ".txnindex", ".txncheck"

_ENTRY = struct.Struct(">hqqqq")
_CHECK_BYTES = 4
_SEED = struct.Struct(">qI")
_VERSION = 0
_LAST_OFFSET = 3  # its place in an entry
_UNFINISHED = b"\0"  # the checksums while the index is rebuilt: of no index's length


def check_bytes(index_bytes: int) -> int:
    """Return the size of the checksums of an index of this size."""
    return index_bytes // _ENTRY.size * _CHECK_BYTES


class AbortedTransaction(NamedTuple):
    """An index entry. Both offsets are inclusive; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class _CheckedEntries(EntryFile):
    """The entries, each verified when its block is read."""

    def __init__(self, file: File, checks: File | None, base_offset: int) -> None:
        super().__init__(file, _ENTRY)
        self.checks = checks
        self._base_offset = base_offset

    def checksums(self, first: int, entries: bytes) -> bytes:
        """Return the checksums of consecutive entries; `first` is the number of the first one."""
        return b"".join(
            crc32c(entries[at : at + self._bytes], crc32c(_SEED.pack(self._base_offset, number))).to_bytes(4, "big")
            for number, at in enumerate(range(0, len(entries), self._bytes), first)
        )

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        return self.near(number if number >= 0 else number + len(self))

    def _read(self, number: int) -> tuple[int, bytes]:
        first, block = super()._read(number)
        wanted = self.checksums(first, block)
        if self.checks is None or self.checks.read(first * _CHECK_BYTES, len(wanted)) != wanted:
            self._cuts += 1  # so that the block is not kept
            raise StorageError(self.file.path, "an entry is damaged: its checksum does not hold")
        return first, block


class TransactionIndex:
    """The index of one segment. Its files are created when the first aborted transaction ends in the segment."""

    def __init__(self, storage: Storage, path: str, base_offset: int, exists: bool | None = None) -> None:
        """Open the index. `exists` says if the file exists, None if that is unknown."""
        self._storage = storage
        self._path = path
        self._check_path = TXN_CHECK.join(path.rsplit(TXN_INDEX, 1))
        self._base_offset = base_offset
        self._entries: _CheckedEntries | None = None
        self._rebuilds = False
        if storage.exists(path) if exists is None else exists:
            checks = storage.open(self._check_path) if storage.exists(self._check_path) else None
            self._entries = _CheckedEntries(storage.open(path), checks, base_offset)

    def __len__(self) -> int:
        return 0 if self._entries is None else len(self._entries)

    @property
    def files(self) -> tuple[File, ...]:
        """Return the files that exist."""
        if self._entries is None:
            return ()
        checks = self._entries.checks
        return (self._entries.file,) if checks is None else (self._entries.file, checks)

    @property
    def size(self) -> int:
        """Return the size of the entries in bytes."""
        return 0 if self._entries is None else self._entries.file.size

    def _made(self) -> _CheckedEntries:
        if self._entries is None:
            file = self._storage.open(self._path, create=True)
            self._entries = _CheckedEntries(file, None, self._base_offset)
        if self._entries.checks is None:
            checks = self._entries.checks = self._storage.open(self._check_path, create=True)
            size = check_bytes(self._entries.file.size)
            if checks.size > size:  # a power cut took the other file, and left this one
                checks.truncate(size)
        return self._entries

    def append(self, aborted: AbortedTransaction) -> None:
        """Append an entry and its checksum. After a StorageError the caller cuts both files with `keep_bytes`."""
        entries = self._made()
        if not self._rebuilds and entries.checks is not None:  # first, because a thread may read the entry at once
            entries.checks.append(entries.checksums(len(entries), _ENTRY.pack(_VERSION, *aborted)))
        entries.append((_VERSION, *aborted))

    def keep_bytes(self, size: int) -> None:
        """Cut the index to `size` bytes, and the checksums with it."""
        if self._entries is not None:
            self._entries.keep_bytes(size)
            checks = self._entries.checks
            if checks is not None and checks.size > check_bytes(size):
                checks.truncate(check_bytes(size))

    def begin_rebuild(self) -> None:
        """Empty the index. Until `end_rebuild` it counts as damaged, so that a crash leaves no partial index."""
        if self._entries is None and not self._storage.exists(self._check_path):
            return
        entries = self._made()
        self._storage.replace(self._check_path, _UNFINISHED)
        entries.checks = self._storage.open(self._check_path)
        entries.keep_bytes(0)
        self._rebuilds = True

    def end_rebuild(self) -> None:
        """Sync the entries that were appended since `begin_rebuild`, then write their checksums."""
        if self._rebuilds and self._entries is not None:
            file = self._entries.file
            file.sync()
            self._storage.replace(self._check_path, self._entries.checksums(0, file.read(0, file.size)))
            self._entries.checks = self._storage.open(self._check_path)
            self._rebuilds = False
        for index_file in self.files:
            index_file.sync()

    def ending_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """Yield the aborted transactions whose marker is at or past `offset`, in the order of their markers.

        Raise StorageError if an entry is damaged.
        """
        if self._entries is None:
            return
        for number in range(self._entries.rank(offset - 1, _LAST_OFFSET), len(self._entries)):
            yield AbortedTransaction(*self._entries.near(number)[1:])

    def is_sound(self, base_offset: int, next_offset: int) -> bool:
        """Return True if this is the whole index of a segment with these offsets: all checksums hold, and all markers
        are in range."""
        entries = self._entries
        if entries is None:
            return not self._storage.exists(self._check_path) or not self._storage.open(self._check_path).size
        if self.size % _ENTRY.size or entries.checks is None or entries.checks.size != check_bytes(self.size):
            return False
        if entries.checksums(0, entries.file.read(0, self.size)) != entries.checks.read(0, entries.checks.size):
            return False
        if not self.size:
            return True
        first, last = entries[0], entries[-1]
        return bool(base_offset <= first[_LAST_OFFSET] <= last[_LAST_OFFSET] < next_offset)
