"""Compaction of one log: the last record of each key is kept (https://kafka.apache.org/documentation/#compaction).

    1. read the keys of the dirty part and their last offsets, as many as log.cleaner.dedupe.buffer.size holds
    2. copy the retained records, segment by segment from the log's beginning, to a `.cleaned` segment; neighbours
       share one while they fit
    3. hand each written segment back; it takes the place of the segments it was made of (broker.log.compaction.swap)

Records keep their offsets and ids: an `.idindex` has the entries of the retained batches. The last batch of each
written segment is always kept, if only as a header, so that the next segment follows without a gap and recovery can
verify it. A batch with a valid CRC whose records cannot be decoded is kept byte for byte. The work runs in a thread,
one slice at a time. It reads only segments that no longer change and touches nothing of the log except its files.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from broker.log.compaction.cleaner_keys import DROPPED, RECORD, TOMBSTONE, KeyOffsets
from broker.log.compaction.cleaner_plan import Plan
from broker.log.compaction.cleaner_target import CHUNK_BYTES, IdsInOrder, Target, chunks
from broker.log.compaction.cleaner_transactions import Transactions
from broker.log.index.txn_index import AbortedTransaction
from broker.log.producer_state import LastRecords
from broker.log.segment import CLEANED, RELATIVE_OFFSET_MAX, Segment, remove_files
from broker.log.storage.port import Storage, StorageError
from broker.record.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_END,
    TRANSACTIONAL_BIT,
    BatchHeader,
    CorruptBatch,
)
from broker.record.control import Marker, decode_marker
from broker.record.keyed import body_of, keys_of
from broker.record.retained import Written, emptied, reduced
from broker.wire.id_entries import IdEntry

SLICE_BYTES = 1 << 20
"""Bytes read in one slice, some tens of milliseconds of work; a stop of the broker waits for at most one slice."""
POISON_NAMED_MAX = 10
"""Poison batches that a pass names in the log, so that a log full of them does not fill the disk with lines."""

_PLAIN_MARKS = bytes.maketrans(bytes((TOMBSTONE,)), bytes((RECORD,)))
_WITHOUT_TOMBSTONES = bytes.maketrans(bytes((TOMBSTONE,)), bytes((DROPPED,)))


@dataclass(slots=True)
class Moved:
    """Bytes and records that a pass has read and written."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A segment that was written, and the segments it replaces."""

    segment: Segment
    old: tuple[Segment, ...]


class CleanLog:
    """A cleaning pass over a log.

    `run` does one slice in a thread and sets `cleaned`, `finished` and `error` to its outcome. The caller repeats it
    until `finished` or `error` is set.
    """

    def __init__(
        self,
        plan: Plan,
        storage: Storage,
        buffer_bytes: int,
        wall_ms: int,
        producers: LastRecords,
        aborted: Sequence[AbortedTransaction],
    ) -> None:
        self.log = plan.log
        self.plan = plan
        self.cleaned: Cleaned | None = None
        self.finished = False
        self.error: Exception | None = None
        self.moved = Moved()
        self.poison_batches = 0
        """Batches of the dirty part that have a valid CRC and records that cannot be decoded."""
        self.poison: list[str] = []
        """The first of these, in words."""
        self._storage = storage
        self._wall_ms = wall_ms
        self._config = plan.log.config
        self._producers = producers
        self._unsettled_offsets: dict[tuple[int, bool], int] = {}
        """The last offset of the last batch, and of the last marker (True), of an unsettled producer in the dirty
        part."""
        self._aborted = aborted
        self._keys = KeyOffsets(buffer_bytes, plan.first_dirty)
        self._work = self._clean()
        self._base_offset: int | None = None
        """Base offset of the segment that is being written, or is not yet in its place."""

    @property
    def end_offset(self) -> int:
        """Return the offset below which the log is clean once the pass is finished."""
        return self._keys.end_offset

    def run(self) -> None:
        """Do one slice: until a segment is written, or SLICE_BYTES are read. Store errors in `error`."""
        self.cleaned = None
        bytes_left = SLICE_BYTES
        try:
            while bytes_left > 0 and self.cleaned is None:
                bytes_left -= next(self._work)
        except StopIteration:
            self.finished = True
        except (CorruptBatch, StorageError) as error:
            self.error = error
            self.discard()

    def discard(self) -> None:
        """Remove written files that will not be used. The next start removes those that cannot be removed now."""
        with suppress(StorageError):
            if self._base_offset is not None and self._storage.exists(self.log.name):
                remove_files(self._storage, self.log.name, self._base_offset, CLEANED)

    def _clean(self) -> Iterator[int]:
        """Do the whole pass, yielding the number of bytes read since the last yield."""
        yield from self._read_keys()
        transactions = Transactions(self._aborted)
        segments_left = deque(segment for segment in self.plan.segments if segment.base_offset < self._keys.end_offset)
        while segments_left:
            yield from self._clean_next(segments_left, transactions)

    # --- keys ----------------------------------------------------------------------------------------------------

    def _read_keys(self) -> Iterator[int]:
        first_dirty = self.plan.first_dirty
        transactions = Transactions(
            transaction for transaction in self._aborted if transaction.last_offset >= first_dirty
        )
        for segment in self.plan.segments:
            if segment.next_offset <= first_dirty:
                continue
            apart = segment.apart()
            position = apart.offsets.position_before(first_dirty - segment.base_offset)
            for data, batches in chunks(apart, position, _chunk_bytes()):
                read = 0
                for at, header in batches:
                    read += header.batch_length + LENGTH_END
                    if not self._note_keys(data, at, header, transactions):
                        self.moved.bytes_read += read
                        return
                self.moved.bytes_read += read
                yield read
            self._keys.end_offset = segment.next_offset

    def _note_keys(self, data: bytes, at: int, header: BatchHeader, transactions: Transactions) -> bool:
        """Note the last offset of a batch's keys. Return False if the buffer is full; the next pass takes the rest."""
        if header.attributes & CONTROL_BIT:
            transactions.may_drop_marker(header, _marker(data, at))
        elif not (header.attributes & TRANSACTIONAL_BIT and transactions.may_drop_data(header)):
            try:
                records = keys_of(body_of(data, at, header), header)
            except CorruptBatch as error:
                self._keys.except_batch(header.base_offset)
                self._note_poison(header, error)
            else:
                if not self._keys.put(header.base_offset, records):
                    return False
        end_offset = header.base_offset + header.last_offset_delta + 1
        if header.producer_id in self._producers.unsettled:
            self._unsettled_offsets[header.producer_id, header.is_control] = end_offset - 1
        if end_offset > self._keys.end_offset:
            self._keys.end_offset = end_offset
        return True

    def _note_poison(self, header: BatchHeader, error: CorruptBatch) -> None:
        """Count and name a batch whose records cannot be decoded, if it is in the dirty part.

        A batch is in the dirty part of one pass only, so the log names it once.
        """
        if header.base_offset >= self.plan.first_dirty:
            self.poison_batches += 1
            if len(self.poison) < POISON_NAMED_MAX:
                self.poison.append(f"the batch of offsets {header.base_offset} to {header.last_offset}: {error}")

    # --- segments ------------------------------------------------------------------------------------------------

    def _clean_next(self, segments_left: deque[Segment], transactions: Transactions) -> Iterator[int]:
        """Clean the next of `segments_left`, and the following ones while their size fits into the same target."""
        directory, self._base_offset = segments_left[0].directory, segments_left[0].base_offset
        remove_files(self._storage, directory, self._base_offset, CLEANED)
        target = Target(self._storage, directory, self._base_offset, self._config.index_interval_bytes)
        segment = target.segment
        old: list[Segment] = []
        while segments_left and (not old or self._has_room(segment, segments_left[0])):
            old.append(segments_left.popleft())
            apart = old[-1].apart()
            last, ids = yield from self._clean_into(target, apart, transactions)
        if segment.next_offset < old[-1].next_offset:
            self._write(target, last, ids)
            target.flush()
        for aborted in transactions.take_kept():
            segment.aborted.append(aborted)
        segment.seal()
        segment.log.set_modified_ms(apart.log.modified_ms())  # so that records without timestamps keep their age
        segment.sync_whole()
        self._storage.sync_directory(directory)
        self.cleaned = Cleaned(segment, tuple(old))
        yield 0

    def _has_room(self, target: Segment, segment: Segment) -> bool:
        fits = target.size + segment.size + HEADER_BYTES <= self._config.segment_bytes
        return fits and segment.next_offset - target.base_offset <= RELATIVE_OFFSET_MAX

    def _clean_into(
        self, target: Target, segment: Segment, transactions: Transactions
    ) -> Generator[int, None, tuple[Written, list[IdEntry]]]:
        """Write the retained batches of `segment` to `target`.

        Return the segment's last batch, emptied if nothing of it was retained, and its ids. The caller writes it if the
        target does not reach the segment's end.
        """
        ids = IdsInOrder(segment)
        for data, batches in chunks(segment, 0, _chunk_bytes()):
            read = records_read = 0
            for at, header in batches:
                read += header.batch_length + LENGTH_END
                records_read += header.record_count
                kept = self._retained(data, at, header, transactions)
                if kept is not None:
                    entries = ids.of(header.base_offset, header.last_offset + 1)
                    self._write(target, kept, entries)
            target.flush()
            self.moved.bytes_read += read
            self.moved.records_read += records_read
            yield read
        if kept is None:
            kept, entries = emptied(header), ids.of(header.base_offset, header.last_offset + 1)
        return kept, entries

    def _write(self, target: Target, written: Written, ids: list[IdEntry]) -> None:
        target.put(written, ids)
        self.moved.bytes_written += written.header.size
        self.moved.records_written += written.header.record_count

    def _retained(self, data: bytes, at: int, header: BatchHeader, transactions: Transactions) -> Written | None:
        """Return the retained part of a batch, None if nothing is retained."""
        if header.attributes & CONTROL_BIT:
            drop = transactions.may_drop_marker(header, _marker(data, at))
            kept = None if drop and self._is_past_horizon(header) else self._kept(data, at, header, drop)
        elif header.attributes & TRANSACTIONAL_BIT and transactions.may_drop_data(header):
            kept = None
        else:
            kept = self._kept(data, at, header)
        if kept is None and self._is_producers_last(header):
            return emptied(header)
        return kept

    def _kept(self, data: bytes, at: int, header: BatchHeader, always_horizon: bool = False) -> Written | None:
        try:
            marks = self._marks(data, at, header)
        except CorruptBatch:
            return _whole(data, at, header)  # as it lies, because its keys are unknown
        if TOMBSTONE in marks and not header.is_control and self._is_past_horizon(header):
            marks = marks.translate(_WITHOUT_TOMBSTONES)
        number = len(marks) - marks.count(DROPPED)
        if not number:
            return None
        wants_horizon = header.delete_horizon_ms is None and (always_horizon or TOMBSTONE in marks)
        if number == header.record_count and not wants_horizon:
            return _whole(data, at, header)
        body = body_of(data, at, header)
        if len(marks) != header.record_count:  # offsets are missing
            marks = bytes(map(marks.__getitem__, keys_of(body, header).deltas))
        horizon_ms = self._wall_ms + self._config.delete_retention_ms if wants_horizon else None
        return reduced(header, body, marks.translate(_PLAIN_MARKS), horizon_ms) or _whole(data, at, header)

    def _marks(self, data: bytes, at: int, header: BatchHeader) -> bytes:
        """Return the mark of each offset of a batch, or of each record. Raise CorruptBatch if its keys are unknown."""
        if not header.attributes & CONTROL_BIT:
            marks = self._keys.marks(header.base_offset, header.base_offset + header.last_offset_delta)
            if marks is not None:
                return marks
        records = keys_of(body_of(data, at, header), header)
        if header.is_control:
            return bytes((TOMBSTONE if records.tombstones else RECORD,)) * len(records.keys)
        return self._keys.marks_by_key(header.base_offset, records)

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        horizon_ms = header.delete_horizon_ms
        return horizon_ms is not None and horizon_ms <= self._wall_ms

    def _is_producers_last(self, header: BatchHeader) -> bool:
        """Return True if a start, or a truncation, needs this batch to know the producer's next sequence.

        For a producer without data batches, that is a control batch with the producer's epoch. Of an unsettled producer
        without a batch in the dirty part, all batches stay: one of the clean part is the last.
        """
        producer_id = header.producer_id
        if producer_id in self._producers.unsettled:
            return header.last_offset >= self._unsettled_offsets.get((producer_id, header.is_control), 0)
        if producer_id in self._producers.epochs:
            return header.is_control and header.producer_epoch == self._producers.epochs[producer_id]
        last_offset = self._producers.offsets.get(producer_id)
        return last_offset is not None and last_offset == header.last_offset


def _whole(data: bytes, at: int, header: BatchHeader) -> Written:
    return Written(header, memoryview(data)[at : at + header.size])


def _chunk_bytes() -> int:
    return min(CHUNK_BYTES, SLICE_BYTES)


def _marker(data: bytes, at: int) -> Marker | None:
    """Return the marker in a control batch; None if it has none, or one that cannot be decoded."""
    try:
        return decode_marker(data, at)
    except CorruptBatch:
        return None
