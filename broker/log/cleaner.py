"""Compaction of one log: of each key the last record stays (https://kafka.apache.org/documentation/#compaction).

    1. the keys of the dirty part and their last offsets, as many as log.cleaner.dedupe.buffer.size holds
    2. segments from the log's beginning on: what stays is written to `.cleaned`, of neighbours into one while it fits
    3. each that is written is handed back, and takes the place of what it was made of (broker.log.swap)

Offsets stay, and so do ids: an `.idindex` has the entries of the batches that are left. The last batch of a segment
always stays, if only as a header, so segments still follow each other without a gap and recovery can tell. It all runs
in a thread, a slice at a time, on segments that nobody writes to, and touches nothing of the log but their files.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from broker.log.cleaner_keys import KeyOffsets
from broker.log.cleaner_plan import Plan
from broker.log.cleaner_transactions import Transactions
from broker.log.producer_state import LastRecords
from broker.log.segment import CLEANED, RELATIVE_OFFSET_MAX, Placed, Segment, remove_files
from broker.log.storage import Storage, StorageError
from broker.log.txn_index import AbortedTransaction
from broker.record.batch import HEADER_BYTES, BatchHeader, CorruptBatch, read_header, verify
from broker.record.control import decode_marker
from broker.record.retained import Span, Spans, emptied, retain, spans_of
from broker.wire.id_entries import IdEntry

SLICE_BYTES = 1 << 20
"""Read by a thread in one go, some tens of milliseconds of work: a stop of the broker waits for no more than that."""


@dataclass(slots=True)
class Moved:
    """What a pass has read and written."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A segment that was written, and those whose place it is to take."""

    segment: Segment
    old: tuple[Segment, ...]


class CleanLog:
    """One pass over one log. `run` does a slice of it, in a thread; then `cleaned`, `finished` and `error` say what
    came of it. It is run again until one of the latter two is set."""

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
        self._storage = storage
        self._wall_ms = wall_ms
        self._config = plan.log.config
        self._producers = producers
        self._aborted = aborted
        self._keys = KeyOffsets(buffer_bytes)
        self._work = self._clean()
        self._base_offset: int | None = None
        """Of the segment that is being written, or not in its place yet."""

    @property
    def end_offset(self) -> int:
        """When it is finished: the log is cleaned below it."""
        return self._keys.end_offset

    def run(self) -> None:
        """A slice: until a segment is written, or SLICE_BYTES have been read. Errors are left in `error`."""
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
        """Remove what has been written and will not be used; what cannot be removed goes at the next start."""
        with suppress(StorageError):
            if self._base_offset is not None and self._storage.exists(self.log.name):
                remove_files(self._storage, self.log.name, self._base_offset, CLEANED)

    def _clean(self) -> Iterator[int]:
        """Yields the bytes read since it last did."""
        yield from self._read_keys()
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
        """False where there is no room for another key: what comes from it on is left to the next pass."""
        if header.is_control:
            transactions.may_drop_marker(header, decode_marker(batch))
        elif not transactions.may_drop_data(header):
            for span in _spans(batch, header).spans:
                offset = header.base_offset + span.offset_delta
                if span.key is None or offset < self.plan.first_dirty:
                    continue
                if not self._keys.put(span.key, offset):
                    return False
                self._keys.end_offset = offset + 1
        self._keys.end_offset = max(header.last_offset + 1, self._keys.end_offset)
        return True

    # --- segments ------------------------------------------------------------------------------------------------

    def _clean_next(self, left: deque[Segment], transactions: Transactions) -> Iterator[int]:
        """One segment, of the next that are left and those after it for which there is room when they come up."""
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
        target.log.set_modified_ms(apart.log.modified_ms())  # records without times are as old as they were
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
        """Write what stays of a segment; its last batch, emptied, and the ids, in case nothing comes after it."""
        ids = _IdsInOrder(segment)
        for _, header, batch in _batches(segment, 0):
            kept = self._retained(header, batch, transactions)
            data = kept or emptied(header)
            runs = ids.of(header.base_offset, header.last_offset + 1)
            last = (memoryview(data), read_header(data), header.base_offset)
            if kept is not None:
                self._write(target, last, runs)
            self.moved.bytes_read += header.size
            self.moved.records_read += header.record_count
            yield header.size
        return last, runs

    def _write(self, target: Segment, placed: Placed, runs: Sequence[tuple[int, int]]) -> None:
        header = placed[1]
        target.append([placed], runs, self._config.index_interval_bytes)
        self.moved.bytes_written += header.size
        self.moved.records_written += header.record_count

    def _retained(self, header: BatchHeader, batch: bytes, transactions: Transactions) -> bytes | None:
        """What stays of a batch; None where nothing does."""
        records = _spans(batch, header)
        horizon_ms = self._wall_ms + self._config.delete_retention_ms
        kept = None
        if header.is_control:
            drop = transactions.may_drop_marker(header, decode_marker(batch))
            if not (drop and self._is_past_horizon(header)):
                kept = retain(batch, header, records, records.spans, horizon_ms, always_horizon=drop)
        elif not transactions.may_drop_data(header):
            wanted = [span for span in records.spans if self._is_wanted(header, span)]
            kept = retain(batch, header, records, wanted, horizon_ms)
        if kept is None and self._is_producers_last(header):
            return emptied(header)
        return kept

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
        """The batch that says which sequence of a producer comes next; of one without, the marker with its epoch."""
        producer_id = header.producer_id
        if producer_id in self._producers.epochs:
            return header.is_control and header.producer_epoch == self._producers.epochs[producer_id]
        return self._producers.offsets.get(producer_id) == header.last_offset


def _spans(batch: bytes, header: BatchHeader) -> Spans:
    try:
        return spans_of(batch, header)
    except CorruptBatch as error:
        raise CorruptBatch(f"the batch at offset {header.base_offset}: {error}") from None


def _batches(segment: Segment, position: int) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Every batch of a segment from a position on, whole and checked; CorruptBatch names the one that is not."""
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
    """The ids of a segment's batches, asked for in their order: one pass over the index."""

    def __init__(self, segment: Segment) -> None:
        self._path = segment.ids.file.path
        self._entries = segment.ids.entries()
        self._entry: IdEntry | None = None

    def of(self, first_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """The ids of first_offset .. end_offset - 1 as runs (first id, how many); StorageError where one has none."""
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
