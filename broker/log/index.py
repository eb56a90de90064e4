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


class EntryFile:
    """A file of entries of one size, ordered by their keys. Found by binary search over the file, O(log n) reads."""

    def __init__(self, file: File, entry: struct.Struct) -> None:
        self.file = file
        self._entry = entry
        self._bytes = entry.size

    def __len__(self) -> int:
        return self.file.size // self._bytes

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        if number < 0:
            number += len(self)
        return self._entry.unpack(self.file.read(number * self._bytes, self._bytes))

    def append(self, *fields: int) -> None:
        self.file.append(self._entry.pack(*fields))

    def rank(self, key: int, field: int = 0) -> int:
        """How many entries have a key <= `key`."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self[middle][field] <= key:
                low = middle + 1
            else:
                high = middle
        return low

    def keep(self, number: int) -> None:
        """Cut the file after its first `number` entries, half entries included."""
        self.keep_bytes(number * self._bytes)

    def keep_bytes(self, size: int) -> None:
        if self.file.size != size:
            self.file.truncate(size)


class OffsetIndex(EntryFile):
    """Where to start looking for an offset."""

    ENTRY = struct.Struct(">II")
    ENTRY_BYTES = ENTRY.size

    def __init__(self, file: File) -> None:
        super().__init__(file, self.ENTRY)

    def position_before(self, relative_offset: int) -> int:
        """The position of a batch that does not begin after the offset; 0 below the first entry."""
        number = self.rank(relative_offset)
        return int(self[number - 1][1]) if number else 0

    def drop_from(self, position: int) -> None:
        """Drop entries of batches at or past `position`; the file must be in order (not after a power cut)."""
        self.keep(self.rank(position - 1, field=1))


class TimeIndex(EntryFile):
    """From which offset on to look for a timestamp."""

    def __init__(self, file: File) -> None:
        super().__init__(file, struct.Struct(">qI"))

    def maybe_append(self, timestamp_ms: int, relative_offset: int) -> None:
        """Append if the timestamp is above the last entry's, as its keys must rise."""
        if timestamp_ms > (self[-1][0] if len(self) else NO_TIMESTAMP):
            self.append(timestamp_ms, relative_offset)

    def offset_before(self, timestamp_ms: int) -> int:
        """A relative offset up to which every timestamp is below `timestamp_ms`; 0 where none is known."""
        number = self.rank(timestamp_ms - 1)
        return int(self[number - 1][1]) if number else 0
