"""The cleaner's input and output: chunks of whole batches with their ids, and the segment that it writes.

It reads and writes many batches at a time, because a log of small batches has many.
"""

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from broker.log.segment import CLEANED, Segment
from broker.log.storage.port import Storage, StorageError
from broker.record.batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    CorruptBatch,
    verify,
)
from broker.record.retained import Written
from broker.wire.id_entries import IdEntry

CHUNK_BYTES = 256 << 10
"""Bytes of batches that are read, or collected for a write, at once. A larger batch is read alone."""

_header_of = tuple.__new__  # as BatchHeader._make, at half its price


class Chunk(NamedTuple):
    """Some bytes of a segment, and the positions and headers of the batches in it."""

    data: bytes
    batches: list[tuple[int, BatchHeader]]


def chunks(segment: Segment, position: int, chunk_bytes: int) -> Iterator[Chunk]:
    """Yield every batch of a segment from `position`, whole and verified. Raise CorruptBatch if one is bad."""
    end, wanted = segment.size, chunk_bytes
    while position < end:
        data = segment.log.read(position, min(wanted, end - position))
        batches, read = _whole(data, segment, position)
        if batches:
            yield Chunk(data, batches)
            position += read
            # A large batch follows another one, so only its header is read before the whole.
            wanted = HEADER_BYTES if batches[-1][1].size > chunk_bytes else chunk_bytes
        elif len(data) < read <= end - position:
            wanted = read
        else:
            raise CorruptBatch(f"{segment.log.path} at byte {position}: no batch, and the segment has {end} bytes")


def _whole(data: bytes, segment: Segment, position: int) -> tuple[list[tuple[int, BatchHeader]], int]:
    """Return the positions and headers of the whole batches in `data`, and where the last one ends.

    Without a whole batch, return the bytes that one may need.
    """
    batches: list[tuple[int, BatchHeader]] = []
    view, size, at = memoryview(data), len(data), 0
    while size - at >= HEADER_BYTES:
        header = _header_of(BatchHeader, HEADER.unpack_from(data, at))
        end = at + header.batch_length + LENGTH_END
        if end > size:
            return batches, at if batches else end
        if header.magic != MAGIC or at + HEADER_BYTES > end or crc32c(view[at + CRC_START : end]) != header.crc:
            _raise(view, at, header, f"{segment.log.path} at byte {position + at}")
        batches.append((at, header))
        at = end
    return batches, at if batches else HEADER_BYTES


def _raise(view: memoryview, at: int, header: BatchHeader, where: str) -> None:
    try:
        verify(view, header, at)
    except CorruptBatch as error:
        raise CorruptBatch(f"{where}: {error}") from None


class Target:
    """The segment that the cleaner writes. `flush` writes the batches that were put since the last `flush`."""

    def __init__(self, storage: Storage, directory: str, base_offset: int, interval_bytes: int) -> None:
        self.segment = Segment(storage, directory, base_offset, create=True, ending=CLEANED)
        self._interval_bytes = interval_bytes
        self._batches: list[Written] = []
        self._ids: list[IdEntry] = []

    def put(self, written: Written, ids: list[IdEntry]) -> None:
        """Put a batch and the ids of its offsets."""
        self._batches.append(written)
        self._ids += ids

    def flush(self) -> None:
        """Write the batches and their ids, with one write per file. Raise StorageError; discard the segment then.

        No reader sees the segment before it is whole and synced, so the order of these writes does not matter.
        """
        if not self._batches:
            return
        segment, position = self.segment, self.segment.size
        segment.ids.append_entries(self._ids)
        segment.log.append(b"".join([written.data for written in self._batches]))
        batches = [(written.header, written.header.base_offset) for written in self._batches]
        segment.passed(position, batches, self._interval_bytes)
        self._batches, self._ids = [], []


class IdsInOrder:
    """The ids of a segment's batches, for callers that ask in offset order: one pass over the index."""

    def __init__(self, segment: Segment) -> None:
        self._path = segment.ids.file.path
        self._entries = segment.ids.entries()
        self._entry: IdEntry | None = None

    def of(self, first_offset: int, end_offset: int) -> list[IdEntry]:
        """Return the ids of first_offset .. end_offset - 1. Raise StorageError if an offset has no id."""
        entries: list[IdEntry] = []
        offset = first_offset
        while offset < end_offset:
            while self._entry is None or self._entry.offset + self._entry.length <= offset:
                self._entry = next(self._entries, None)
                if self._entry is None:
                    raise StorageError(self._path, f"offset {offset} has no id in it")
            at, length, id = self._entry
            if at > offset:
                raise StorageError(self._path, f"offset {offset} has no id in it")
            length = min(at + length, end_offset) - offset
            entries.append(IdEntry(offset, length, id + offset - at))
            offset += length
        return entries
