"""Files of fixed-size entries, beside each segment, in the formats of Kafka (its dump tool reads them).

    .index      relative offset u32, position u32    every `index.interval.bytes` of log, one entry:
                                                     the *last* offset of the batch at that position
    .timeindex  timestamp i64, relative offset u32   the largest timestamp up to that offset; rises with each entry

Both can be rebuilt from the log. An entry is appended after its batch, so an index may lack its newest entries, and
recovery drops those that point past the log's end. A lookup below the first entry starts at the segment's beginning.
"""

import struct
from typing import Any

from broker.log.storage import File
from broker.record.batch import NO_TIMESTAMP

BLOCK_BYTES = 2048  # what one look into a file reads; a page has two, so that it is there whole or not at all


class EntryFile:
    """A file of entries of one size, ordered by their keys. Found by binary search over the file, O(log n) reads; the
    block that was read last is kept, as who reads a log goes on from there."""

    def __init__(self, file: File, entry: struct.Struct) -> None:
        self.file = file
        self._entry = entry
        self._bytes = entry.size
        self._in_block = BLOCK_BYTES // entry.size
        self._cuts = 0
        self._block = 0, 0, b""  # as of which cut, the first entry, entries as they lie in the file

    def __len__(self) -> int:
        return self.file.size // self._bytes

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        if number < 0:
            number += len(self)
        return self._entry.unpack(self.file.read(number * self._bytes, self._bytes))

    def append(self, *entries: tuple[int, ...]) -> None:
        """A piece of one before them, left by a disk that was full and did not take the cut either, goes first."""
        self.keep(len(self))
        self.file.append(b"".join([self._entry.pack(*fields) for fields in entries]))

    def rank(self, key: int, field: int = 0) -> int:
        """How many entries have a key <= `key`."""
        low, high = 0, len(self)
        unpack, size = self._entry.unpack_from, self._bytes
        first, block = self._kept()
        end = first + len(block) // size
        if first < end <= high:  # nearly always it is in there, or behind the end of all there are
            if unpack(block, len(block) - size)[field] <= key:
                low = end
            elif unpack(block)[field] <= key:
                low, high = first + 1, end - 1
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

    def near(self, number: int) -> tuple[Any, ...]:
        """An entry that was just looked for."""
        first, block = self._kept()
        if not first <= number < first + len(block) // self._bytes:
            first, block = self._read(number)
        return self._entry.unpack_from(block, (number - first) * self._bytes)

    def _second_before(self, number: int) -> int:
        """The second field of the entry before this one, which was just looked for; 0 before the first."""
        return int(self.near(number - 1)[1]) if number else 0

    def _kept(self) -> tuple[int, bytes]:
        cut, first, block = self._block
        return (first, block) if cut == self._cuts else (0, b"")

    def _read(self, number: int) -> tuple[int, bytes]:
        """The block that has an entry. A thread may read it while the file is cut: then nobody looks at it again."""
        cut, first = self._cuts, number - number % self._in_block
        block = self.file.read(first * self._bytes, self._in_block * self._bytes)
        self._block = cut, first, block
        return first, block

    def keep(self, number: int) -> None:
        """Cut the file after its first `number` entries, half entries included."""
        self.keep_bytes(number * self._bytes)

    def keep_bytes(self, size: int) -> None:
        if self.file.size != size:
            self._cuts += 1
            self.file.truncate(size)


class OffsetIndex(EntryFile):
    """Where to start looking for an offset."""

    ENTRY = struct.Struct(">II")
    ENTRY_BYTES = ENTRY.size

    def __init__(self, file: File) -> None:
        super().__init__(file, self.ENTRY)

    def position_before(self, relative_offset: int) -> int:
        """The position of a batch that does not begin after the offset; 0 below the first entry."""
        return self._second_before(self.rank(relative_offset))

    def span_of(self, relative_offset: int, end: int) -> tuple[int, int]:
        """`position_before`, and past which position the batch with the offset cannot begin: `end` if no entry says."""
        number = self.rank(relative_offset)
        return self._second_before(number), int(self.near(number)[1]) if number < len(self) else end

    def last_up_to(self, position: int) -> int:
        """The last position of an entry that is not past `position`, where a batch begins; 0 where there is none."""
        return self._second_before(self.rank(position, field=1))

    def drop_from(self, position: int) -> None:
        """Drop entries of batches at or past `position`; the file must be in order (not after a power cut)."""
        self.keep(self.rank(position - 1, field=1))


class TimeIndex(EntryFile):
    """From which offset on to look for a timestamp."""

    def __init__(self, file: File) -> None:
        super().__init__(file, struct.Struct(">qI"))
        self._newest = -1, NO_TIMESTAMP  # as of which cut; to read it anew would cost as much as the append

    def append_risen(self, *entries: tuple[int, int]) -> None:
        """Append those of (timestamp, relative offset) with a timestamp above the one before: its keys must rise."""
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
        """A relative offset up to which every timestamp is below `timestamp_ms`; 0 where none is known."""
        return self._second_before(self.rank(timestamp_ms - 1))
