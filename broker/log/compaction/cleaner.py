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
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from broker.log.compaction.cleaner_keys import KeyOffsets
from broker.log.compaction.cleaner_plan import Plan
from broker.log.compaction.cleaner_transactions import Transactions
from broker.log.index.txn_index import AbortedTransaction
from broker.log.producer_state import LastRecords
from broker.log.segment import CLEANED, RELATIVE_OFFSET_MAX, Placed, Segment, remove_files
from broker.log.storage.port import Storage, StorageError
from broker.record.batch import HEADER_BYTES, BatchHeader, CorruptBatch, read_header, verify
from broker.record.columns import Columns
from broker.record.control import Marker, decode_marker
from broker.record.retained import Span, Spans, emptied, opened, retain, retain_columns, spans_in
from broker.wire.id_entries import IdEntry

SLICE_BYTES = 1 << 20
"""Bytes read in one slice, some tens of milliseconds of work; a stop of the broker waits for at most one slice."""
POISON_NAMED_MAX = 10
"""Poison batches that a pass names in the log, so that a log full of them does not fill the disk with lines."""


NOTED_RECORDS_MIN = 64  # of a batch that is noted, so that notes take a byte or two for each record


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
        self._aborted = aborted
        self._keys = KeyOffsets(buffer_bytes)
        self._noted: set[int] = set()
        """Base offsets of the batches of which all keys are noted, and nothing else matters."""
        self._marks: bytes | None = None
        """From the first dirty offset on: 1 for the last offset of its key."""
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
        left = SLICE_BYTES
        try:
            while left > 0 and self.cleaned is None:
                left -= next(self._work)
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
        self._marks = self._keys.marks(self.plan.first_dirty)
        transactions = Transactions(self._aborted)
        left = deque(segment for segment in self.plan.segments if segment.base_offset < self._keys.end_offset)
        while left:
            yield from self._clean_next(left, transactions)

    # --- keys ----------------------------------------------------------------------------------------------------

    def _read_keys(self) -> Iterator[int]:
        first_dirty = self.plan.first_dirty
        transactions = Transactions(each for each in self._aborted if each.last_offset >= first_dirty)
        for segment in self.plan.segments:
            if segment.next_offset <= first_dirty:
                continue
            apart = segment.apart()
            position = apart.offsets.position_before(first_dirty - segment.base_offset)
            for _, header, batch in _batches(apart, position):
                self.moved.bytes_read += header.size
                yield header.size
                if not self._note_keys(header, batch, transactions):
                    return
            self._keys.end_offset = segment.next_offset

    def _note_keys(self, header: BatchHeader, batch: bytes, transactions: Transactions) -> bool:
        """Note the last offset of a batch's keys. Return False if the buffer is full; the next pass takes the rest."""
        if header.is_control:
            transactions.may_drop_marker(header, _marker(batch))
        elif not transactions.may_drop_data(header):
            records = _opened(batch, header)
            if isinstance(records, CorruptBatch):
                self._note_poison(header, records)
            elif not self._put_keys(header, records):
                return False
        self._keys.end_offset = max(header.last_offset + 1, self._keys.end_offset)
        return True

    def _put_keys(self, header: BatchHeader, records: Columns | Spans) -> bool:
        pairs: Iterable[tuple[bytes | None, int]]
        if isinstance(records, Columns):
            offsets = _offsets(header, records)
            if offsets[0] >= self.plan.first_dirty and self._keys.put_all(records.keys, offsets):
                if header.record_count >= NOTED_RECORDS_MIN:
                    self._noted.add(header.base_offset)
                return True
            pairs = zip(records.keys, offsets, strict=True)
        else:
            pairs = ((span.key, header.base_offset + span.offset_delta) for span in records.spans)
        for key, offset in pairs:
            if key is None or offset < self.plan.first_dirty:
                continue
            if not self._keys.put(key, offset):
                return False
            self._keys.end_offset = offset + 1
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

    def _clean_next(self, left: deque[Segment], transactions: Transactions) -> Iterator[int]:
        """Clean the next segment in `left`, and the following ones while their size still fits into the same target."""
        directory, self._base_offset = left[0].directory, left[0].base_offset
        remove_files(self._storage, directory, self._base_offset, CLEANED)
        target = Segment(self._storage, directory, self._base_offset, create=True, ending=CLEANED)
        old: list[Segment] = []
        while left and (not old or self._has_room(target, left[0])):
            old.append(left.popleft())
            apart = old[-1].apart()
            end = yield from self._clean_into(target, apart, transactions)
        if target.next_offset < old[-1].next_offset:
            self._write(target, *end)
        for aborted in transactions.take_kept():
            target.aborted.append(aborted)
        target.seal()
        target.log.set_modified_ms(apart.log.modified_ms())  # so that records without timestamps keep their age
        target.sync_whole()
        self._storage.sync_directory(directory)
        self.cleaned = Cleaned(target, tuple(old))
        yield 0

    def _has_room(self, target: Segment, segment: Segment) -> bool:
        fits = target.size + segment.size + HEADER_BYTES <= self._config.segment_bytes
        return fits and segment.next_offset - target.base_offset <= RELATIVE_OFFSET_MAX

    def _clean_into(
        self, target: Segment, segment: Segment, transactions: Transactions
    ) -> Generator[int, None, tuple[Placed, Sequence[tuple[int, int]]]]:
        """Write the retained batches of `segment` to `target`.

        Return the segment's last batch, emptied if nothing of it was retained, and its ids. The caller writes it if the
        target does not reach the segment's end.
        """
        ids = _IdsInOrder(segment)
        for _, header, batch in _batches(segment, 0):
            kept = self._retained(header, batch, transactions)
            data = kept or emptied(header)
            runs = ids.of(header.base_offset, header.last_offset + 1)
            last = (read_header(data), header.base_offset, memoryview(data))
            if kept is not None:
                self._write(target, last, runs)
            self.moved.bytes_read += header.size
            self.moved.records_read += header.record_count
            yield header.size
        return last, runs

    def _write(self, target: Segment, placed: Placed, runs: Sequence[tuple[int, int]]) -> None:
        header = placed[0]
        target.append([placed], runs, self._config.index_interval_bytes)
        self.moved.bytes_written += header.size
        self.moved.records_written += header.record_count

    def _retained(self, header: BatchHeader, batch: bytes, transactions: Transactions) -> bytes | None:
        """Return the retained part of a batch, None if nothing is retained."""
        if header.is_control:
            drop = transactions.may_drop_marker(header, _marker(batch))
            kept = None if drop and self._is_past_horizon(header) else self._kept(header, batch, drop)
        else:
            kept = None if transactions.may_drop_data(header) else self._kept(header, batch)
        if kept is None and self._is_producers_last(header):
            return emptied(header)
        return kept

    def _kept(self, header: BatchHeader, batch: bytes, always_horizon: bool = False) -> bytes | None:
        marks = self._marks_of(header)
        if marks is not None and (1 not in marks or marks.count(1) == header.record_count):
            return batch if 1 in marks else None
        records = _opened(batch, header)
        if isinstance(records, CorruptBatch):
            return batch  # as it lies, because its keys are unknown
        if isinstance(records, Columns) and not header.is_control:
            return retain_columns(batch, header, records, self._wanted(header, records, marks))
        if isinstance(records, Columns):
            records = spans_in(records.data, header)
        horizon_ms = self._wall_ms + self._config.delete_retention_ms
        wanted = records.spans
        if not header.is_control:
            wanted = [span for span in wanted if self._is_wanted(header, span)]
        return retain(batch, header, records, wanted, horizon_ms, always_horizon)

    def _marks_of(self, header: BatchHeader) -> bytes | None:
        """Return the marks of a batch's offsets, None if its records decide."""
        if self._marks is None or header.base_offset not in self._noted:
            return None
        begin = header.base_offset - self.plan.first_dirty
        return self._marks[begin : begin + header.last_offset_delta + 1]

    def _wanted(self, header: BatchHeader, records: Columns, marks: bytes | None) -> bytes:
        """Return a 1 for each record that is to be retained, and a 0 for each other one."""
        if marks is None:
            return self._keys.is_last(records.keys, _offsets(header, records))
        deltas = records.deltas
        return marks[deltas.start : deltas.stop] if isinstance(deltas, range) else bytes(map(marks.__getitem__, deltas))

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        horizon_ms = header.delete_horizon_ms
        return horizon_ms is not None and horizon_ms <= self._wall_ms

    def _is_wanted(self, header: BatchHeader, span: Span) -> bool:
        offset = header.base_offset + span.offset_delta
        if offset >= self._keys.end_offset:
            return True
        if span.key is None or offset < self._keys.last(span.key):
            return False
        return not (span.is_tombstone and self._is_past_horizon(header))

    def _is_producers_last(self, header: BatchHeader) -> bool:
        """Return True if the next start needs this batch to know the producer's next sequence.

        For a producer without data batches, that is a control batch with the producer's epoch.
        """
        producer_id = header.producer_id
        if producer_id in self._producers.epochs:
            return header.is_control and header.producer_epoch == self._producers.epochs[producer_id]
        return self._producers.offsets.get(producer_id) == header.last_offset


def _offsets(header: BatchHeader, records: Columns) -> Sequence[int]:
    base_offset, deltas = header.base_offset, records.deltas
    if isinstance(deltas, range):
        return range(base_offset + deltas.start, base_offset + deltas.stop)
    return [base_offset + delta for delta in deltas]


def _opened(batch: bytes, header: BatchHeader) -> Columns | Spans | CorruptBatch:
    """Return the records of a batch with a valid CRC, or the reason why they cannot be decoded."""
    try:
        return opened(batch, header)
    except CorruptBatch as error:
        return error


def _marker(batch: bytes) -> Marker | None:
    """Return the marker in a control batch; None if it has none, or one that cannot be decoded."""
    try:
        return decode_marker(batch)
    except CorruptBatch:
        return None


def _batches(segment: Segment, position: int) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Yield every batch of a segment from `position`, whole and verified. Raise CorruptBatch if one is bad."""
    for position, header in segment.batches(position):
        batch = segment.log.read(position, header.size)
        try:
            verify(batch, header)
        except CorruptBatch as error:
            raise CorruptBatch(f"{segment.log.path} at byte {position}: {error}") from None
        yield position, header, batch
        position += header.size
    if position != segment.size:
        raise CorruptBatch(f"{segment.log.path} at byte {position}: no batch, and the segment has {segment.size} bytes")


class _IdsInOrder:
    """The ids of a segment's batches, for callers that ask in offset order: one pass over the index."""

    def __init__(self, segment: Segment) -> None:
        self._path = segment.ids.file.path
        self._entries = segment.ids.entries()
        self._entry: IdEntry | None = None

    def of(self, first_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return the ids of first_offset .. end_offset - 1 as runs (first id, count).

        Raise StorageError if an offset has no id.
        """
        runs: list[tuple[int, int]] = []
        offset = first_offset
        while offset < end_offset:
            if self._entry is None or self._entry.offset + self._entry.length <= offset:
                self._entry = next(self._entries, None)
            entry = self._entry
            if entry is None or entry.offset > offset:
                raise StorageError(self._path, f"offset {offset} has no id in it")
            if entry.offset + entry.length > offset:
                length = min(entry.offset + entry.length, end_offset) - offset
                runs.append((entry.first_id + offset - entry.offset, length))
                offset += length
        return runs
