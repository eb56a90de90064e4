"""Looking into a segment without waiting for the disk: in the thread that serves everybody, nobody may wait for it.

What is looked for is found by a few small reads in files that were written long ago, and may not be in memory. Then
`find_now` raises NotInMemory, and a thread looks for the same first (`look_up`): what it has read is in memory then.
"""

from collections.abc import Iterator
from typing import Any

from broker.log.id_index import IdIndex
from broker.log.index import OffsetIndex, TimeIndex
from broker.log.segment import Segment, batches_of, first_ending_from
from broker.log.storage import File
from broker.record.batch import BatchHeader

AHEAD_BYTES = 64 * 1024
"""Of each index a thread reads so much more: who reads old data goes on."""


class NotNow(Exception):
    """It would take so long that a thread must do it."""


class NotInMemory(NotNow):
    """The disk would have to be waited for."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(f"the segment at {segment.base_offset} of {segment.directory} is not in memory")
        self.segment = segment


class _Glance:
    """A file of a segment, as its indexes read it."""

    def __init__(self, file: File, segment: Segment) -> None:
        self._file = file
        self._segment = segment
        self.path = file.path
        self.size = file.size

    def read(self, position: int, length: int) -> bytes:
        data = self._file.read_now(position, min(length, self.size - position))
        if data is None:
            raise NotInMemory(self._segment)
        return bytes(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Glanced:
    """A segment as it is looked into without waiting: NotInMemory, by whatever reads."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def _glance(self, file: File) -> Any:
        return _Glance(file, self._segment)

    @property
    def log(self) -> Any:
        return self._glance(self._segment.log)

    @property
    def offsets(self) -> OffsetIndex:
        return OffsetIndex(self._glance(self._segment.offsets.file))

    @property
    def times(self) -> TimeIndex:
        return TimeIndex(self._glance(self._segment.times.file))

    @property
    def ids(self) -> IdIndex:
        return IdIndex(self._glance(self._segment.ids.file), self._segment.base_offset)

    def batches(self, position: int, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """As of the segment."""
        log = self.log
        return batches_of(log, position, log.size if end is None else end)


def find_now(segment: Segment, offset: int, with_ids: bool) -> tuple[int, BatchHeader] | None:
    """As `Segment.find`; NotInMemory where that, or finding the batch's ids, has to wait for the disk."""
    glanced = Glanced(segment)
    found = first_ending_from(offset, offset - segment.base_offset, glanced.offsets, glanced.log)
    if found is not None and with_ids:
        glanced.ids.region(found[1].base_offset, found[1].last_offset + 1)
    return found


def look_up(segment: Segment, offset: int) -> None:
    """Read what is read when an offset is looked for, and some of what comes next; StorageError. For a thread."""
    apart = segment.apart()
    found = apart.find(offset)
    if found is None:
        return
    first = apart.offsets.rank(offset - apart.base_offset)
    apart.offsets.file.read(max(first - 1, 0) * OffsetIndex.ENTRY_BYTES, AHEAD_BYTES)
    apart.ids.file.read(apart.ids.region(found[1].base_offset, found[1].last_offset + 1).position, AHEAD_BYTES)
    next(apart.aborted.ending_from(offset), None)
