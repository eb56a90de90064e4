"""The ids of a segment's offsets: `<base offset>.idindex`, entries of `broker.wire.id_entries`.

It is data, not an index that could be rebuilt: it is written before the log entry, and nothing is ever stamped again.
Entries past the log's end (an append that failed, or a crash between the two writes) are cut off, and the cut is synced
before anything is written in their place: they must not come back beside a batch they were not made for.
"""

from collections.abc import Iterator, Sequence

from broker.log.storage import File, StorageError
from broker.wire.frame import FileRegion
from broker.wire.id_entries import ENTRY_BYTES, IdEntry, pack_entry, read_entries, read_entry, seed_of

_STRETCH = 1024


class IdIndex:
    """One segment's id index; `base_offset` is the segment's."""

    def __init__(self, file: File, base_offset: int) -> None:
        self.file = file
        self.base_offset = base_offset
        self._seed = seed_of(base_offset)

    def __len__(self) -> int:
        return self.file.size // ENTRY_BYTES

    def append(self, offset: int, runs: Sequence[tuple[int, int]]) -> None:
        """The ids from an offset on, as runs (first id, how many), with one write: an entry for each run, whichever
        batches it goes over."""
        relative_offset = offset - self.base_offset
        entries = []
        for first_id, length in runs:
            entries.append(pack_entry(self._seed, relative_offset, length, first_id))
            relative_offset += length
        self.file.append(b"".join(entries))

    def append_entry(self, entry: IdEntry) -> None:
        """One that follows all there are."""
        self.file.append(pack_entry(self._seed, entry.offset - self.base_offset, entry.length, entry.first_id))

    def entry(self, number: int) -> IdEntry | None:
        """The entry, or None where its check does not hold."""
        data = self.file.read(number * ENTRY_BYTES, ENTRY_BYTES)
        return read_entry(data, 0, self.base_offset, self._seed)

    def _sound(self, number: int) -> IdEntry:
        entry = self.entry(number)
        if entry is None:
            raise StorageError(self.file.path, f"the entry at byte {number * ENTRY_BYTES} is damaged: its check fails")
        return entry

    def entries(self) -> Iterator[IdEntry]:
        """All of them, read in stretches; StorageError at one that is damaged."""
        for start in range(0, len(self), _STRETCH):
            data = self.file.read(start * ENTRY_BYTES, _STRETCH * ENTRY_BYTES)
            number = start
            for number, entry in enumerate(read_entries(data, self.base_offset), start + 1):
                yield entry
            if number < min(start + _STRETCH, len(self)):
                self._sound(number)

    def _number_of(self, offset: int) -> int:
        """The last entry that begins at or before `offset`; 0 where none does."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._sound(middle).offset <= offset:
                low = middle + 1
            else:
                high = middle
        return max(low - 1, 0)

    def region(self, first_offset: int, end_offset: int) -> FileRegion:
        """The entries that hold the ids of first_offset .. end_offset - 1."""
        start = self._number_of(first_offset)
        end = self._number_of(end_offset - 1) + 1 if len(self) else 0
        return FileRegion(self.file, start * ENTRY_BYTES, max(end - start, 0) * ENTRY_BYTES)

    def runs(self, first_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
        """The ids of first_offset .. end_offset - 1 as runs (first id, how many)."""
        found = []
        for number in range(self._number_of(first_offset), len(self)):
            entry = self._sound(number)
            if entry.offset >= end_offset:
                break
            skip = max(first_offset - entry.offset, 0)
            length = min(entry.offset + entry.length, end_offset) - entry.offset - skip
            if length > 0:
                found.append((entry.first_id + skip, length))
        return tuple(found)

    def offset_of_id(self, id: int) -> int | None:
        """The first offset whose id is not below `id`; None where all are."""
        low, high = 0, len(self)
        while low < high:  # the first entry whose last id is not below
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
