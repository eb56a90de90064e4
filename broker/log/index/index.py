"""The offset and time index of a segment: files of fixed-size entries in Kafka's formats, which its dump tool reads.

    .index      relative offset u32, position u32    every `index.interval.bytes` of log, one entry:
                                                     the *last* offset of the batch at that position
    .timeindex  timestamp i64, relative offset u32   the largest timestamp up to that offset; rises with each entry

Both can be rebuilt from the log. An entry is appended after its batch, so the newest entries may be missing. Recovery
drops entries that point past the log's end. A lookup below the first entry starts at the segment's beginning.
"""

import struct
import sys
from array import array
from bisect import bisect_right
from typing import Any, TypeAlias

from broker.log.storage.port import File
from broker.record.batch import NO_TIMESTAMP

BLOCK_BYTES = 2048  # one read; half a page, so that a block is in memory whole or not at all


Columns: TypeAlias = "tuple[array[int], array[int]]"
"""The first and the second fields of some entries."""

NO_COLUMNS: Columns = array("I"), array("I")


class EntryFile:
    """A file of equal-size entries in key order.

    A lookup is a binary search over the file, in O(log n) reads. The last block read is kept, because a consumer reads
    on from there.
    """

    def __init__(self, file: File, entry: struct.Struct) -> None:
        self.file = file
        self._entry = entry
        self._bytes = entry.size
        self._in_block = BLOCK_BYTES // entry.size
        self._cuts = 0
        self._block = 0, 0, b""  # cut count at its read, number of its first entry, raw bytes

    def __len__(self) -> int:
        return self.file.size // self._bytes

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        if number < 0:
            number += len(self)
        return self._entry.unpack(self.file.read(number * self._bytes, self._bytes))

    def append(self, *entries: tuple[int, ...]) -> None:
        """Append entries. First cut off a partial entry, which a full disk leaves if undoing the write fails too."""
        self.keep(len(self))
        self.file.append(b"".join([self._entry.pack(*fields) for fields in entries]))

    def rank(self, key: int, field: int = 0) -> int:
        """Return the number of entries whose key (`field`) is at most `key`."""
        low, high = 0, len(self)
        unpack, size = self._entry.unpack_from, self._bytes
        first, block = self._kept()
        end = first + len(block) // size
        if first < end <= high:  # nearly always, the key is in this block or past the last entry
            if unpack(block, len(block) - size)[field] <= key:
                low = end
            elif unpack(block)[field] <= key:
                return first + self._rank_in(block, key, field)
            else:
                high = first
        while low < high:
            middle = (low + high) // 2
            if not first <= middle < end:
                first, block = self._read(middle)
                end = first + len(block) // size
            if unpack(block, (middle - first) * size)[field] <= key:
                low = middle + 1
            else:
                high = middle
        return low

    def _rank_in(self, block: bytes, key: int, field: int) -> int:
        """Do the same as `rank` for the entries of a block only."""
        unpack, size = self._entry.unpack_from, self._bytes
        low, high = 0, len(block) // size
        while low < high:
            middle = (low + high) // 2
            if unpack(block, middle * size)[field] <= key:
                low = middle + 1
            else:
                high = middle
        return low

    def near(self, number: int) -> tuple[Any, ...]:
        """Return an entry, from the kept block if it has it, as it nearly always does after `rank`."""
        first, block = self._kept()
        if not first <= number < first + len(block) // self._bytes:
            first, block = self._read(number)
        return self._entry.unpack_from(block, (number - first) * self._bytes)

    def _second_before(self, number: int) -> int:
        """Return the second field of the entry before `number`, which `rank` has just returned; 0 if `number` is 0."""
        return int(self.near(number - 1)[1]) if number else 0

    def _kept(self) -> tuple[int, bytes]:
        cut, first, block = self._block
        return (first, block) if cut == self._cuts else (0, b"")

    def _read(self, number: int) -> tuple[int, bytes]:
        """Read and keep the block of an entry. The block has the cut count from before the read, so later lookups
        ignore a block that a thread read during a cut."""
        cut, first = self._cuts, number - number % self._in_block
        block = self.file.read(first * self._bytes, self._in_block * self._bytes)
        block = block[: len(block) - len(block) % self._bytes]  # without a partial entry
        self._block = cut, first, block
        return first, block

    def keep(self, number: int) -> None:
        """Cut the file after its first `number` entries; a partial entry goes too."""
        self.keep_bytes(number * self._bytes)

    def keep_bytes(self, size: int) -> None:
        if self.file.size != size:
            self._cuts += 1
            self.file.truncate(size)


class OffsetIndex(EntryFile):
    """An index from offsets to positions in the log file."""

    ENTRY = struct.Struct(">II")
    ENTRY_BYTES = ENTRY.size

    def __init__(self, file: File) -> None:
        super().__init__(file, self.ENTRY)
        self._columns: tuple[bytes, Columns] = b"", NO_COLUMNS
        """A block in which a key was looked for, and its fields."""

    def _rank_in(self, block: bytes, key: int, field: int) -> int:
        of, columns = self._columns
        if of is not block:
            columns = _columns(block)
            self._columns = block, columns
        return bisect_right(columns[field], key)

    def position_before(self, relative_offset: int) -> int:
        """Return the position of a batch that begins at or before the offset; 0 below the first entry."""
        return self._second_before(self.rank(relative_offset))

    def span_of(self, relative_offset: int, end: int) -> tuple[int, int]:
        """Return `position_before`, and the last position where the batch can begin: `end` if no entry limits it."""
        cut, _, block = self._block
        of, (lasts, positions) = self._columns
        if of is block and cut == self._cuts:  # the offset is nearly always in the block of the last lookup
            at = bisect_right(lasts, relative_offset)
            if 0 < at < len(lasts):
                return positions[at - 1], positions[at]
        if not self.file.size:
            return 0, end
        number = self.rank(relative_offset)
        return self._second_before(number), int(self.near(number)[1]) if number < len(self) else end

    def last_up_to(self, position: int) -> int:
        """Return the largest indexed position up to `position`, where a batch begins; 0 if no entry is that small."""
        return self._second_before(self.rank(position, field=1))

    def drop_from(self, position: int) -> None:
        """Drop the entries of batches at or past `position`. They must be in order, unlike after a power cut."""
        self.keep(self.rank(position - 1, field=1))


def _columns(block: bytes) -> Columns:
    fields = array("I", block)
    if sys.byteorder == "little":
        fields.byteswap()
    return fields[0::2], fields[1::2]


class TimeIndex(EntryFile):
    """An index from timestamps to offsets."""

    ENTRY = struct.Struct(">qI")

    def __init__(self, file: File) -> None:
        super().__init__(file, self.ENTRY)
        self._newest = -1, NO_TIMESTAMP  # cut count, last timestamp; rereading it would cost as much as the append

    def append_risen(self, *entries: tuple[int, int]) -> None:
        """Append each (timestamp, relative offset) with a timestamp above the one before, because keys must rise."""
        cut, newest = self._newest
        if cut != self._cuts:
            newest = self[-1][0] if len(self) else NO_TIMESTAMP
            self._newest = self._cuts, newest
        risen = []
        for entry in entries:
            if entry[0] > newest:
                risen.append(entry)
                newest = entry[0]
        if risen:
            self.append(*risen)
            self._newest = self._cuts, newest

    def offset_before(self, timestamp_ms: int) -> int:
        """Return a relative offset up to which every timestamp is below `timestamp_ms`; 0 if the index has none."""
        return self._second_before(self.rank(timestamp_ms - 1))
