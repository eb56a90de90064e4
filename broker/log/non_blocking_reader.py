"""Reads of a segment that never wait for the disk, for the reactor thread, which serves all connections.

A lookup needs a few small reads in files that were written long ago and may not be in memory. In that case `find_now`
raises NotCached, a worker thread does the same lookup first (`look_up`), and the data is in memory for the next try.
"""

from collections.abc import Iterator
from typing import Any

from broker.log.index.id_index import IdIndex
from broker.log.index.index import OffsetIndex, TimeIndex
from broker.log.segment import Segment, batches_of, first_ending_from
from broker.log.storage.port import File
from broker.record.batch import BatchHeader

AHEAD_BYTES = 64 * 1024
"""Bytes that `look_up` reads of each index in advance, because a consumer of old data reads on from there."""


class WouldBlock(Exception):
    """The lookup takes so long that a worker thread must do it."""


class NotCached(WouldBlock):
    """The lookup would wait for the disk."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(f"the segment at {segment.base_offset} of {segment.directory} is not in memory")
        self.segment = segment


class NotVerified(NotCached):
    """An earlier process wrote the place, and this one has not verified it yet (broker.log.integrity)."""

    def __init__(self, segment: Segment, offset: int) -> None:
        super().__init__(segment)
        self.offset = offset


class _Glance:
    """A segment's file for its indexes. A read that would wait for the disk raises NotCached."""

    def __init__(self, file: File, segment: Segment) -> None:
        self._file = file
        self._segment = segment
        self.path = file.path
        self.size = file.size

    def read(self, position: int, length: int) -> bytes:
        data = self._file.read_now(position, min(length, self.size - position))
        if data is None:
            raise NotCached(self._segment)
        return bytes(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class NonBlockingReader:
    """A segment whose reads never wait for the disk; each raises NotCached instead."""

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
        """Do the same as `Segment.batches`."""
        log = self.log
        return batches_of(log, position, log.size if end is None else end)


def find_now(segment: Segment, offset: int, with_ids: bool) -> tuple[int, BatchHeader] | None:
    """Do the same as `Segment.find`. Raise NotCached if that, or finding the batch's ids, would wait for the disk."""
    glanced = NonBlockingReader(segment)
    located = first_ending_from(offset, offset - segment.base_offset, glanced.offsets, glanced.log)
    if located is not None and with_ids:
        glanced.ids.region(located[1].base_offset, located[1].last_offset + 1)
    return located


def look_up(segment: Segment, offset: int) -> None:
    """Read the data for a lookup of an offset, and some after it, into memory. Run in a thread. StorageError."""
    apart = segment.apart()
    located = apart.find(offset)
    if located is None:
        return
    first = apart.offsets.rank(offset - apart.base_offset)
    apart.offsets.file.read(max(first - 1, 0) * OffsetIndex.ENTRY_BYTES, AHEAD_BYTES)
    apart.ids.file.read(apart.ids.region(located[1].base_offset, located[1].last_offset + 1).position, AHEAD_BYTES)
    next(apart.aborted.ending_from(offset), None)
