"""The ids of a segment's offsets: `<base offset>.idindex`, entries of `broker.wire.id_entries`.

The file is data and cannot be rebuilt: ids are written before the log entry, and no record ever gets a second id.
Entries past the log's end come from a failed append, or from a crash between the two writes. They are cut off, and the
cut is synced before any write in their place. Otherwise a power cut could bring them back beside a batch that they were
not made for.
"""

from collections.abc import Iterator, Sequence

from broker.log.storage.port import File, StorageError
from broker.wire.frame import FileRegion
from broker.wire.id_entries import ENTRY_BYTES, IdEntry, pack_entry, read_entries, read_entry, seed_of

_STRETCH = 1024
_TAIL = 16
"""So many entries at the end are read at once for a follower, which mostly asks for the newest."""


class IdIndex:
    """The id index of one segment, which begins at `base_offset`."""

    def __init__(self, file: File, base_offset: int) -> None:
        self.file = file
        self.base_offset = base_offset
        self._seed = seed_of(base_offset)
        self.newest_entries = b""
        """The entries that the last `append` has written."""

    def __len__(self) -> int:
        return self.file.size // ENTRY_BYTES

    def append(self, offset: int, runs: Sequence[tuple[int, int]]) -> None:
        """Append the ids of consecutive offsets with one write. Each run (first id, count) becomes one entry, even if
        it spans several batches."""
        relative_offset, seed = offset - self.base_offset, self._seed
        data = b""
        for first_id, length in runs:
            data += pack_entry(seed, relative_offset, length, first_id)
            relative_offset += length
        self.file.append(data)
        self.newest_entries = data

    def append_entries(self, entries: Sequence[IdEntry]) -> None:
        """Append entries that follow all existing ones, with one write."""
        seed, base_offset = self._seed, self.base_offset
        if len(entries) == 1:
            ((at, length, id),) = entries
            self.file.append(pack_entry(seed, at - base_offset, length, id))
            return
        self.file.append(b"".join([pack_entry(seed, at - base_offset, length, id) for at, length, id in entries]))

    def packed(self, entry: IdEntry) -> bytes:
        """Return the bytes of an entry of this index."""
        offset, length, id = entry
        return pack_entry(self._seed, offset - self.base_offset, length, id)

    def entry(self, number: int) -> IdEntry | None:
        """Return an entry, None if its checksum fails."""
        data = self.file.read(number * ENTRY_BYTES, ENTRY_BYTES)
        return read_entry(data, 0, self.base_offset, self._seed)

    def _sound(self, number: int) -> IdEntry:
        entry = self.entry(number)
        if entry is None:
            raise StorageError(self.file.path, f"the entry at byte {number * ENTRY_BYTES} is damaged: its check fails")
        return entry

    def entries(self) -> Iterator[IdEntry]:
        """Yield all entries, read in blocks. Raise StorageError at a damaged one."""
        for start in range(0, len(self), _STRETCH):
            data = self.file.read(start * ENTRY_BYTES, _STRETCH * ENTRY_BYTES)
            number = start
            for number, entry in enumerate(read_entries(data, self.base_offset), start + 1):
                yield entry
            if number < min(start + _STRETCH, len(self)):
                self._sound(number)

    def _number_of(self, offset: int, tail: tuple[int, bytes] | None = None) -> int:
        """Return the number of the last entry that begins at or before `offset`; 0 if none does.

        `tail` has the last entries and the number of their first. They are looked at before the others, from the last
        one on.
        """
        low, high = 0, len(self)
        if tail is not None:
            first, data = tail
            high = first + len(data) // ENTRY_BYTES
            while high > first:
                high -= 1
                entry = read_entry(data, (high - first) * ENTRY_BYTES, self.base_offset, self._seed)
                if (entry or self._sound(high)).offset <= offset:
                    return high
        while low < high:
            middle = (low + high) // 2
            if self._sound(middle).offset <= offset:
                low = middle + 1
            else:
                high = middle
        return max(low - 1, 0)

    def region(self, first_offset: int, end_offset: int, *, is_newest: bool = False) -> FileRegion:
        """Return the region with the entries for first_offset .. end_offset - 1.

        With `is_newest`, these are the last offsets of the index. If they have few entries, one read finds these.
        """
        tail = self._tail() if is_newest else None
        start = self._number_of(first_offset, tail)
        end = self._number_of(end_offset - 1, tail) + 1 if len(self) else 0
        return FileRegion(self.file, start * ENTRY_BYTES, max(end - start, 0) * ENTRY_BYTES)

    def _tail(self) -> tuple[int, bytes]:
        first = max(len(self) - _TAIL, 0)
        return first, self.file.read(first * ENTRY_BYTES, _TAIL * ENTRY_BYTES)

    def runs(self, first_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
        """Return the ids of first_offset .. end_offset - 1 as runs (first id, count)."""
        runs = []
        for number in range(self._number_of(first_offset), len(self)):
            entry = self._sound(number)
            if entry.offset >= end_offset:
                break
            skip = max(first_offset - entry.offset, 0)
            length = min(entry.offset + entry.length, end_offset) - entry.offset - skip
            if length > 0:
                runs.append((entry.first_id + skip, length))
        return tuple(runs)

    def offset_of_id(self, id: int) -> int | None:
        """Return the first offset whose id is at least `id`, None if all ids are below it."""
        low, high = 0, len(self)
        while low < high:  # find the first entry whose last id is at least `id`
            middle = (low + high) // 2
            entry = self._sound(middle)
            if entry.first_id + entry.length - 1 < id:
                low = middle + 1
            else:
                high = middle
        if low == len(self):
            return None
        entry = self._sound(low)
        return entry.offset + max(id - entry.first_id, 0)

    def last_id(self) -> int | None:
        if not len(self):
            return None
        entry = self._sound(len(self) - 1)
        return entry.first_id + entry.length - 1
