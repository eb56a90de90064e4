"""Reads of a log: regions of its files for clients, and lookups by offset, id and time.

    bisect over the segments -> offset index -> region, for read_committed up to the last stable offset

Nothing is copied or decoded. A region refers to a file, and holds it open when retention or compaction removes it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from broker.log.index.txn_index import AbortedTransaction
from broker.log.integrity.region_check import RegionCheck
from broker.log.non_blocking_reader import NonBlockingReader, NotCached, NotVerified, find_now
from broker.log.partition_log import PartitionLog
from broker.log.search import BLOCKING, ReadMode, Search
from broker.log.segment import Segment
from broker.log.storage.port import StorageError
from broker.record.batch import LENGTH_END, BatchHeader
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import IdRegion
from broker.wire.frame import FileRegion

LARGE_READ_BYTES = 128 * 1024  # in a smaller read, finding the end of a batch costs more than sending a useless piece
EMPTY: FileRegion | bytes = b""
_record = tuple.__new__  # as ReadResult(...), at half its price


class ReadResult(NamedTuple):
    records: FileRegion | bytes
    ids: IdRegion | None = None
    aborted: tuple[tuple[int, int], ...] | None = None
    """(producer id, first offset) of aborted transactions; None unless committed records were requested."""


NOTHING = ReadResult(EMPTY)
NOTHING_COMMITTED = ReadResult(EMPTY, None, ())


@contextmanager
def reading(log: PartitionLog) -> Iterator[None]:
    """Turn a StorageError of a read into an ApiError, and take the log offline unless the error passes.

    Use it in the reactor thread only, and for a segment that the log has.
    """
    try:
        yield
    except StorageError as error:
        log.failed_read(error)
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


# --- read ------------------------------------------------------------------------------------------------------------


def read(
    log: PartitionLog,
    offset: int,
    max_bytes: int,
    at_least_one: bool,
    with_ids: bool = False,
    committed: bool = False,
    waits: bool = True,
    upto: int | None = None,
) -> ReadResult:
    """Return batches of one segment, from the one with `offset` on, at most `max_bytes`; the last may be cut.

    `at_least_one`: return a first batch larger than `max_bytes` whole (KIP-74). `committed`: end at the last
    stable offset, and list the aborted transactions. `upto`: end there instead, at the end of a batch, and return
    batches without records too. A follower, and a coordinator that loads, read up to the log's end. Raise ApiError
    OFFSET_OUT_OF_RANGE, or KAFKA_STORAGE_ERROR if a file cannot be read: the log is offline then, unless the error
    passes. Without `waits`, raise NotCached if the lookup would wait for the disk.
    """
    if log.offline is not None:
        log.check_online()
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {log.name}; it holds {log.log_start_offset} to {log.log_end_offset}",
        )
    shown = log.high_watermark if upto is None else upto
    end = log.last_stable_offset if committed else shown
    nothing = NOTHING_COMMITTED if committed else NOTHING
    if offset >= end:
        return nothing
    try:  # the hot path: no context manager
        is_unverified = log.segments.unverified and offset < log.trusted_from
        if is_unverified:
            verify(log, log.segments.all[bisect_right(log.segments.bases, offset) - 1], offset, waits)
        located = _locate(log, offset, end, with_ids, waits, skips_emptied=upto is None)
        if located is None:
            return nothing
        segment, position, header = located
        if header.base_offset >= end:  # compaction has left no batch from `offset` up to `end`
            return nothing
        end_position = segment.size
        if is_unverified:
            end_position = verify(log, segment, max(offset, header.base_offset), waits)
        if segment.next_offset > shown and (hidden := segment.find(shown)) is not None:
            end_position = hidden[0]  # batches past the high watermark are not visible yet
        length = end_position - position
        if length > max_bytes:
            length = max_bytes
        size = header.batch_length + LENGTH_END
        if length < size:
            if not at_least_one:
                return nothing
            length = size
        ids = _ids_within(segment, position, length, header) if with_ids else None
        if not committed:
            return _record(ReadResult, (_record(FileRegion, (segment.log, position, length)), ids, None))
        if end < log.log_end_offset:
            length = _up_to(end, segment, position, length)
        aborted = _aborted_within(log, offset, end, segment, position, length)
        return _record(ReadResult, (_record(FileRegion, (segment.log, position, length)), ids, aborted))
    except StorageError as error:
        log.failed_read(error)
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


def verify(log: PartitionLog, segment: Segment, offset: int, waits: bool = True) -> int:
    """Return the position up to which a segment's batches are verified, from the one with an offset on.

    This process trusts its own batches. Those behind older ones of the same segment are found by its index, so the end
    of the older ones is verified first.

    Raise ApiError if the log is damaged or cannot be read, NotVerified if a thread must verify the batches first.
    """
    is_own = offset >= log.opened_at
    offset = min(offset, log.opened_at - 1)
    for _ in range(2):
        state = log.segments.unverified.get(segment.base_offset)
        span = None if state is None else state.span_of(offset)
        if is_own and (state is None or span is not None):
            log.trusted_from = min(log.trusted_from, max(log.opened_at, segment.base_offset))
        if state is None:
            return segment.size
        if span is not None:
            return segment.size if span.end >= state.end else span.end
        if state.error is not None:
            error, state.error = state.error, None
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, error)
        if not waits:
            raise NotVerified(segment, offset)
        check = RegionCheck(log, segment, offset)
        check.run()
        check.apply()
        log.check_online()
    raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name}: offset {offset} could not be verified")


def whole_batches(log: PartitionLog, offset: int, records: FileRegion) -> FileRegion:
    """Return records read from `offset` on without the useless piece of a batch at their end.

    With batches of 600 kB and a limit of 1 MB, two bytes in five belong to such a piece. Return the records
    unchanged if the index does not give a batch boundary without waiting.
    """
    end = records.position + records.length
    segment = log.segments.all[bisect_right(log.segments.bases, offset) - 1]
    if records.length < LARGE_READ_BYTES or end == segment.size:
        return records
    try:
        if segment.log is not records.file or segment.is_between_writes(end):
            return records
        in_memory = offset >= log.opened_at and segment is log.segments.active
        offsets = segment.offsets if in_memory else NonBlockingReader(segment).offsets
        last = offsets.last_up_to(end)
    except (NotCached, StorageError):
        return records
    # A batch without an index entry starts at most `index.interval.bytes` after the last entry, so an end this
    # close is a batch boundary, such as the high watermark, or cuts off a small piece only.
    if end - last <= log.config.index_interval_bytes or last <= records.position:
        return records
    return FileRegion(records.file, records.position, last - records.position)


def _up_to(offset: int, segment: Segment, position: int, length: int) -> int:
    """Return the length of a segment's region up to an offset, where a batch begins."""
    located = segment.find(offset) if offset < segment.next_offset else None
    return length if located is None else min(length, located[0] - position)


def _aborted_within(
    log: PartitionLog, offset: int, stable: int, segment: Segment, position: int, length: int
) -> tuple[tuple[int, int], ...]:
    """Return (producer id, first offset) of the aborted transactions in a region of a segment from `offset` on."""
    if not log.segments.aborting and not log.segments.active.has_aborted:  # nearly always
        return ()
    if next(log.segments.aborting_from(offset), None) is None:
        return ()
    end = min(_end_of(segment, position, length), stable)
    return tuple(
        (transaction.producer_id, transaction.first_offset) for transaction in aborted_transactions(log, offset, end)
    )


def aborted_transactions(log: PartitionLog, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
    """Return the aborted transactions with records or marker in first_offset .. end_offset - 1, by their markers.

    Raise ApiError if an index cannot be read.
    """
    transactions = []
    with reading(log):
        for segment in log.segments.aborting_from(first_offset):
            for aborted in segment.aborted.ending_from(first_offset):
                if aborted.first_offset < end_offset:
                    transactions.append(aborted)
                if aborted.last_stable_offset >= end_offset:
                    return transactions
    return transactions


def _locate(
    log: PartitionLog, offset: int, end: int, with_ids: bool, waits: bool, skips_emptied: bool
) -> tuple[Segment, int, BatchHeader] | None:
    """Find the first batch that ends at or after `offset`; with `skips_emptied` one with a record that begins below
    `end`, if there is one.

    Return (segment, position, header), None if no batch ends there. `end` is the end of the visible offsets.
    """
    segments = log.segments.all
    index = bisect_right(log.segments.bases, offset) - 1
    located = None
    while located is None and index < len(segments):  # compaction may leave a segment's end empty
        segment = segments[index]
        index += 1
        # Batches that this process wrote to the newest segment are in memory, and most fetches request them.
        if waits or (offset >= log.opened_at and index == len(segments)):
            located = segment.find(offset)
        else:
            located = find_now(segment, offset, with_ids)
    if located is None:
        return None
    position, header = located
    if not header.record_count and skips_emptied:
        return _past_emptied(segments[index - 1 :], position, header, end)
    return segment, position, header


def _ids_within(segment: Segment, position: int, length: int, header: BatchHeader) -> IdRegion:
    """Return the ids of a region of a segment; `header` is that of its first batch."""
    whole = position + length == segment.size
    end = segment.next_offset if whole else _end_of(segment, position, length)
    return IdRegion(segment.base_offset, segment.ids.region(header.base_offset, end, is_newest=whole))


def _past_emptied(
    segments: Sequence[Segment], position: int, header: BatchHeader, end: int
) -> tuple[Segment, int, BatchHeader]:
    """Return the next batch with a record, because librdkafka takes an answer without records for a cut one.

    It gives up after some of these. If no such batch exists, return the batch that compaction emptied, because its
    header has the end of its offsets.
    """
    emptied = segments[0], position, header
    for segment in segments:
        for at, batch in segment.batches(position if segment is emptied[0] else 0):
            if batch.base_offset >= end:
                return emptied
            if batch.record_count:
                return segment, at, batch
    return emptied


def _end_of(segment: Segment, position: int, length: int) -> int:
    """Return the offset after the last batch that begins in a region of the segment."""
    near = segment.offsets.rank(position + length - 1, field=1)
    start = max(position, int(segment.offsets[near - 1][1])) if near else position
    end = segment.base_offset
    for at, header in segment.batches(start):
        if at >= position + length:
            break
        end = header.last_offset + 1
    return end


# --- lookups ---------------------------------------------------------------------------------------------------------


def ids_of(log: PartitionLog, first_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
    """Return the ids of first_offset .. end_offset - 1 as runs (first id, count), without deleted records."""
    runs: tuple[tuple[int, int], ...] = ()
    first_offset = max(first_offset, log.log_start_offset)
    with reading(log):
        for segment in log.segments.all[max(bisect_right(log.segments.bases, first_offset) - 1, 0) :]:
            if segment.base_offset >= end_offset:
                break
            runs += segment.ids.runs(first_offset, end_offset)
    return runs


def search(log: PartitionLog) -> Search:
    """Return a snapshot of the log, for a search in this or another thread."""
    segments = log.segments
    end = segments.active.log.size
    return Search(segments.all, segments.newest, log.log_start_offset, end, segments.counted, segments.unverified_times)


def offset_of_id(log: PartitionLog, id: int, mode: ReadMode = BLOCKING) -> int:
    """Return the first offset whose id is not below `id`, the high watermark if consumers see no such id.

    Raise WouldBlock.
    """
    with reading(log):
        return bounded(log, search(log).of_id(id, mode))


def bounded(log: PartitionLog, offset: int | None) -> int:
    """Limit an offset found by its id to the offsets that consumers see; None becomes the high watermark."""
    return log.high_watermark if offset is None else max(min(offset, log.high_watermark), log.log_start_offset)


def offset_of_time(log: PartitionLog, timestamp_ms: int, mode: ReadMode = BLOCKING) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record not older than `timestamp_ms`, None if all are older.

    Raise WouldBlock or CorruptBatch.
    """
    with reading(log):
        return search(log).of_time(timestamp_ms, mode)


def offset_of_newest(log: PartitionLog, mode: ReadMode = BLOCKING) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record with the largest timestamp in the log, None without times.

    Raise the errors of `offset_of_time`.
    """
    with reading(log):
        newest, log.segments.counted = search(log).of_newest(mode)
    return newest
