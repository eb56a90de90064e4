"""A walk over the batches of one segment: they must follow each other, and their ids and index entries must fit them.

    .log        each batch has magic 2, begins at or after the end of the one before, and is whole
    .idindex    its entries cover exactly the batches' offsets, and the ids rise
    .index      each entry names a batch of the walk and its last offset; entries rise
    .timeindex  each entry is the largest timestamp up to its offset; judged in a walk from the segment's beginning

A batch's base offset, length and leader epoch are outside its CRC, so the walk is their check. Epochs never decrease,
and in an epoch that the log knows to begin at an offset, its batches have that epoch. Compaction leaves holes
between batches; then the id index has the same holes. A walk with `crc` verifies the batches' CRCs too.

Damage of the log or of the ids raises `Damaged`, because neither can be rebuilt. At a wrong index the walk goes on
with `index_is_right` False, and a walk from the beginning can write both indexes anew.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter

from broker.log.segment import Segment, batches_of
from broker.record.batch import HEADER_BYTES, MAGIC, BatchHeader, CorruptBatch, verify
from broker.record.records import LONG_MAX
from broker.wire.id_entries import ENTRY_BYTES, IdEntry, read_entry, seed_of

_STRETCH_BYTES = 1024 * ENTRY_BYTES
_INDEX_ENTRY, _TIME_ENTRY = struct.Struct(">II"), struct.Struct(">qI")
_BLOCK = 512  # index entries of one read
_start_of = itemgetter(1)  # of an epoch


class Damaged(Exception):
    """The log or its ids are damaged; the message names the file and the place."""


def _entries_of(file: object, entry: struct.Struct, number: int) -> Iterator[tuple[int, int]]:
    """Yield the entries of an index file from `number` on, read in blocks."""
    read = file.read  # type: ignore[attr-defined]
    while True:
        data = read(number * entry.size, _BLOCK * entry.size)
        data = data[: len(data) - len(data) % entry.size]
        if not data:
            return
        yield from entry.iter_unpack(data)
        number += len(data) // entry.size


class _IdWalk:
    """The entries of the id index in order; each batch takes those of its offsets."""

    def __init__(self, segment: Segment) -> None:
        self._file = segment.ids.file
        self._base_offset = segment.base_offset
        self._seed = seed_of(segment.base_offset)
        self._number = 0
        self._data = b""
        self._data_at = 0
        self.end = -1
        """Offset after the last entry that was taken."""
        self._last_id = -1

    def _next(self) -> IdEntry | None:
        at = self._number * ENTRY_BYTES
        if not self._data_at <= at < self._data_at + len(self._data):
            self._data, self._data_at = self._file.read(at, _STRETCH_BYTES), at
            if not self._data:
                return None
        entry = read_entry(self._data, at - self._data_at, self._base_offset, self._seed)
        if entry is None:
            raise Damaged(f"{self._file.path}: the entry at byte {at} is damaged")
        self._number += 1
        return entry

    def begin_at(self, offset: int) -> None:
        """Go to the entry with an offset, before the first batch is taken."""
        low, high = 0, self._file.size // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            self._number = middle
            entry = self._next()
            if entry is None or entry.offset > offset:
                high = middle
            else:
                low = middle + 1
        self._number = max(low - 1, 0)
        batch = self._next()
        if batch is None or not batch.offset <= offset < batch.offset + batch.length:
            raise Damaged(f"{self._file.path}: there is no id for offset {offset}")
        self.end = batch.offset + batch.length
        self._last_id = batch.first_id + batch.length - 1

    def take(self, base_offset: int, following: int, end: int) -> None:
        """Take the ids of a batch with offsets base_offset .. end - 1; `following` is the end of the batch before."""
        at = self.end
        if base_offset != following or at < 0:
            if following < at:
                raise Damaged(f"{self._file.path}: offset {following} has an id and no batch")
            at = base_offset
            if at >= end:
                return
        while at < end:
            entry = self._next()
            if entry is None or entry.offset != at:
                raise Damaged(f"{self._file.path}: there is no id for offset {at}")
            if entry.first_id <= self._last_id:
                raise Damaged(f"{self._file.path}: the ids from offset {at} on do not rise")
            at = entry.offset + entry.length
            self._last_id = entry.first_id + entry.length - 1
        self.end = at

    @property
    def is_done(self) -> bool:
        """Return True if no entry is left."""
        return self._next() is None


class SegmentWalk:
    """A walk over a segment's batches from a position to `end`, in as many steps as the caller likes.

    A walk from a position other than 0 begins at the batch there, or continues a walk that ended there at `offset`.
    `epochs` are the log's leader epochs with their start offsets, and `epoch_max` is its leader epoch.
    """

    def __init__(
        self,
        segment: Segment,
        end: int,
        epochs: Sequence[tuple[int, int]],
        epoch_max: int,
        interval_bytes: int,
        position: int = 0,
        offset: int | None = None,
        index_number: int = 0,
        crc: bool = False,
    ) -> None:
        self.segment = segment
        self.end = end
        self.position = position
        self.next_offset = segment.base_offset if offset is None else offset
        self.index_is_right = True
        self.first_offset: int | None = None
        self.batches = 0
        self.max_timestamp_ms, self.max_timestamp_offset = -1, segment.base_offset
        self.first_timestamp_ms = -1
        self._crc = crc
        self._epochs, self._epoch_max = epochs, epoch_max
        self._epoch, self._epoch_most = 0, epoch_max
        self._epochs_until = -1
        """Offset up to which `_epoch_most` holds."""
        self._ids = _IdWalk(segment)
        self._begins_at_offset = position == 0 or offset is not None
        if position and offset is not None:
            self._ids.begin_at(offset - 1)
        self._is_whole = position == 0
        self._index = _entries_of(segment.offsets.file, _INDEX_ENTRY, index_number)
        self._indexed = next(self._index, None)
        self._times = _entries_of(segment.times.file, _TIME_ENTRY, 0) if self._is_whole else iter(())
        self._time = next(self._times, None)
        self._last_time: tuple[int, int] | None = None
        self._interval_bytes = interval_bytes
        self._since_index = 0
        self._newest_indexed = -1
        self.index_entries: list[tuple[int, int]] = []
        """The offset index as it should be, of a walk from the beginning."""
        self.time_entries: list[tuple[int, int]] = []

    def damaged(self, reason: str) -> Damaged:
        return Damaged(f"{self.segment.log.path} at byte {self.position}: {reason}")

    @property
    def is_done(self) -> bool:
        return self.position >= self.end

    def step(self, to: int, batches_max: int) -> None:
        """Walk to a position at least, or over `batches_max` batches. Raise Damaged or StorageError."""
        end = self.end
        batches_left = batches_max
        for position, header in batches_of(self.segment.log, self.position, end):
            self._take(position, header)
            batches_left -= 1
            if batches_left <= 0 or self.position >= to:
                return
        if self.position < min(to, end):
            raise self.damaged(f"there is no whole batch, and {end} bytes were written")

    def _take(self, position: int, header: BatchHeader) -> None:
        base_offset, delta, count = header.base_offset, header.last_offset_delta, header.record_count
        if not self._begins_at_offset:
            self._ids.begin_at(base_offset)
            self.next_offset = base_offset
            self._begins_at_offset = True
        if header.magic != MAGIC or delta < 0 or not 0 <= count <= delta + 1:
            raise self.damaged("the header of a batch is damaged")
        if base_offset < self.next_offset:
            raise self.damaged(f"offset {base_offset} stands where {self.next_offset} belongs")
        if base_offset >= self._epochs_until:
            self._use_epoch_at(base_offset)
        if not self._epoch <= header.leader_epoch <= self._epoch_most:
            raise self.damaged(f"leader epoch {header.leader_epoch}; {self._epoch} to {self._epoch_most} are possible")
        if self._crc:
            try:
                verify(self.segment.log.read(position, header.size), header)
            except CorruptBatch as error:
                raise self.damaged(str(error)) from None
        end = base_offset + delta + 1
        if end > self._ids.end or base_offset != self.next_offset:
            self._ids.take(base_offset, self.next_offset, end)
        self._epoch = header.leader_epoch
        if self.first_offset is None:
            self.first_offset = base_offset
        self._check_index(position, end - 1 - self.segment.base_offset)
        if self._is_whole:
            self._note_times(position, header, end - 1)
        self.next_offset = end
        self.position = position + header.size
        self.batches += 1

    def _use_epoch_at(self, offset: int) -> None:
        """Note the epochs that a batch may have from an offset on.

        Where the log names epoch 0 any later one may be right, because that stands for the epochs of a lost file too.
        """
        number = bisect_right(self._epochs, offset, key=_start_of)
        last_known = self._epochs[number - 1][0] if number else 0
        self._epoch, self._epoch_most = max(self._epoch, last_known), last_known or self._epoch_max
        self._epochs_until = self._epochs[number][1] if number < len(self._epochs) else LONG_MAX

    def _check_index(self, position: int, relative_offset: int) -> None:
        indexed = self._indexed
        if indexed is None or indexed[1] > position:
            return
        if indexed != (relative_offset, position):
            self.index_is_right = False
        following = next(self._index, None)
        if following is not None and (following[0] <= indexed[0] or following[1] <= indexed[1]):
            self.index_is_right = False
        self._indexed = following if self.index_is_right else None

    def _note_times(self, position: int, header: BatchHeader, last_offset: int) -> None:
        """Note what the indexes should say of a batch, as `Segment.passed` does, and compare the time index."""
        base = self.segment.base_offset
        if header.record_count:
            if self.first_timestamp_ms < 0:
                self.first_timestamp_ms = header.max_timestamp
            if header.max_timestamp > self.max_timestamp_ms:
                self.max_timestamp_ms, self.max_timestamp_offset = header.max_timestamp, last_offset
                if self._time is not None and self._time[1] < last_offset - base:
                    self.index_is_right = False
                if self._time == (self.max_timestamp_ms, last_offset - base):
                    self._last_time, self._time = self._time, next(self._times, None)
        if self._since_index > self._interval_bytes:
            self.index_entries.append((last_offset - base, position))
            self._append_time()
            self._since_index = 0
        self._since_index += header.size

    def _append_time(self) -> None:
        if self.max_timestamp_ms > self._newest_indexed:
            self.time_entries.append((self.max_timestamp_ms, self.max_timestamp_offset - self.segment.base_offset))
            self._newest_indexed = self.max_timestamp_ms

    @property
    def strays(self) -> bool:
        """Return True if the next index entry leads a search for a walked offset astray: past the walk, or between two
        batches."""
        indexed = self._indexed
        base = self.segment.base_offset
        return indexed is not None and (indexed[0] < self.next_offset - base or indexed[1] < self.position)

    def finish(self, is_sealed: bool) -> None:
        """End a walk from the beginning. `is_sealed` says that the segment ends at `end` and gets no appends.

        Raise Damaged if there are ids without batches.
        """
        base = self.segment.base_offset
        if is_sealed:
            if self._ids.end > self.next_offset or not self._ids.is_done:
                raise Damaged(f"{self.segment.ids.file.path}: it has ids after the last batch")
            self._append_time()
            newest = (self.max_timestamp_ms, self.max_timestamp_offset - base)
            if self.max_timestamp_ms >= 0 and self._last_time != newest:
                self.index_is_right = False
            if self._time is not None:
                self.index_is_right = False
        if self.strays or (is_sealed and self._indexed is not None):
            self.index_is_right = False
        if self._time is not None and self._time[1] < self.next_offset - base:
            self.index_is_right = False

    def rebuilt(self) -> tuple[bytes, bytes]:
        """Return the offset index and the time index of the walked part, which began at the segment's beginning."""
        return (
            b"".join([_INDEX_ENTRY.pack(*entry) for entry in self.index_entries]),
            b"".join([_TIME_ENTRY.pack(*entry) for entry in self.time_entries]),
        )


def is_batch(segment: Segment, position: int, last_offset: int) -> bool:
    """Return True if a batch at this position ends with this offset."""
    data = segment.log.read(position, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        return False
    header = next((batch for at, batch in batches_of(segment.log, position, segment.log.size) if at == position), None)
    return header is not None and header.last_offset == last_offset
