"""Appends to a log: batches with ids, and the markers that end transactions.

    validate (broker.log.validation.batch) -> duplicate? -> ids -> place -> roll? -> ids, log, indexes -> journal

Offsets rise by one for each record, and ids rise strictly with them; only this module assigns them. A follower takes
over both with its leader's batches (broker.log.copied_appender), and writes them as this module does. A failed write
leaves the log as it was, and the log refuses appends until a sync has put that state on the disk (`mending`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeAlias

from broker.log import newest_write
from broker.log.index.txn_index import AbortedTransaction
from broker.log.log_reader import ids_of
from broker.log.newest_write import NewestWrite
from broker.log.partition_log import PartitionLog
from broker.log.segment import RELATIVE_OFFSET_MAX, Copied, Placed, Segment
from broker.log.storage.port import Buffer, StorageError
from broker.now import Now
from broker.record.batch import BATCH_PREFIX, LENGTH_END, NO_TIMESTAMP, BatchHeader, read_header
from broker.record.control import Marker, encode_marker
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import IdRegion
from idgen.worker import IdRun

TOGETHER_RECORDS_MAX = 4096  # in one write, because that number of ids is nearly always available at once


class Rewrite(Protocol):
    """Finishes a batch that contains its ids. `runs` are ids that it was finished with already, empty without any."""

    runs: Sequence[IdRun]

    def __call__(self, header: BatchHeader, runs: Sequence[IdRun]) -> tuple[memoryview, BatchHeader]: ...


class IdSource(Protocol):
    """A source of ids: an IdWorker, or a substitute."""

    @property
    def max_batch(self) -> int:
        """Return the largest number of ids that one call may request."""
        ...

    def next_ids(self, n: int, now_ms: int, floor: int = -1) -> list[IdRun]: ...


class Appended(NamedTuple):
    """The place of a batch: its first and last offset, and its ids as runs (first id, count)."""

    base_offset: int
    last_offset: int
    runs: Sequence[tuple[int, int]]
    duplicate: bool = False
    timestamp_ms: int = NO_TIMESTAMP
    """The max timestamp of the original batch if this is a duplicate."""


AppendedTogether: TypeAlias = tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]
"""(base offset, last offset) of each batch of one write, and the ids of all of them as runs."""

NOTHING_APPENDED: AppendedTogether = (), ()

Staged: TypeAlias = tuple[memoryview, BatchHeader, *tuple[Any, ...]]
"""A batch that waits to be appended, its header, and any values of its owner."""


def append(
    log: PartitionLog, batch: memoryview, header: BatchHeader, ids: IdSource, now: Now, rewrite: Rewrite | None = None
) -> Appended:
    """Append a batch that `broker.log.validation.batch` found valid.

    Its base offset and leader epoch are written into `batch`. `rewrite` finishes a batch that contains its own ids
    (broker.log.validation.topic_rules). Raise ApiError for a wrong sequence or a failed disk, and an error of
    `idgen.errors` if no id is available; the log is unchanged in each case.
    """
    if log.offline is not None:
        log.check_online()
    first = find_duplicate(log, header)
    if first is not None:
        return first
    if log.durability.mending:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name}: a failed write is being undone; try again")
    if rewrite is not None and rewrite.runs and rewrite.runs[0].first > log.last_id:
        runs = rewrite.runs
    else:
        runs = ids.next_ids(header.record_count, now.wall_ms, log.last_id)
    if rewrite is not None:
        batch, header = rewrite(header, runs)
    base_offset = log.log_end_offset
    last_offset = base_offset + header.last_offset_delta
    _write(log, [(header, base_offset, batch)], runs, last_offset, header.size, header.max_timestamp, now)
    return Appended(base_offset, last_offset, runs)


def find_duplicate(log: PartitionLog, header: BatchHeader) -> Appended | None:
    """Return the place of the batch that this one repeats, None if it is new. Raise ApiError for a wrong sequence."""
    duplicate = log.producers.check(header) if header.producer_id >= 0 else None
    if duplicate is None:
        return None
    runs = ids_of(log, duplicate.base_offset, duplicate.last_offset + 1)  # a deleted batch has no ids left
    return Appended(duplicate.base_offset, duplicate.last_offset, runs, True, duplicate.timestamp_ms)


def append_batches(log: PartitionLog, batches: Sequence[Staged], ids: IdSource, now: Now) -> AppendedTogether:
    """Append the first of these valid batches, and as many of the following ones as fit into the same write.

    Append nothing if the first batch is a duplicate or a failed write is being undone; the caller then passes that
    batch to `append`. Raise the errors of `append`; they leave the log unchanged.
    """
    if log.offline is not None:
        log.check_online()
    if log.durability.mending:
        return NOTHING_APPENDED
    if len(batches) == 1:
        batch, header = batches[0][0], batches[0][1]
        if header.producer_id >= 0 and log.producers.check(header) is not None:
            return NOTHING_APPENDED
        base = log.log_end_offset
        last = base + header.last_offset_delta
        runs = ids.next_ids(header.record_count, now.wall_ms, log.last_id)
        size = header.batch_length + LENGTH_END
        _write(log, ((header, base, batch),), runs, last, size, header.max_timestamp, now)
        return ((base, last),), runs
    placed, size, newest, end = _fitting(log, batches, min(ids.max_batch, TOGETHER_RECORDS_MAX))
    if not placed:
        return NOTHING_APPENDED
    runs = ids.next_ids(end - log.log_end_offset, now.wall_ms, log.last_id)
    _write(log, placed, runs, end - 1, size, newest, now)
    return [(base, base + header.last_offset_delta) for header, base, _ in placed], runs


def _fitting(log: PartitionLog, batches: Sequence[Staged], records_max: int) -> tuple[list[Placed], int, int, int]:
    """Choose the batches of one write: the longest prefix that fits the segment and continues its producers.

    Return them with their size, their newest time, and the offset after them.
    """
    segment = log.segments.active
    room = log.config.segment_bytes - segment.size
    offset = log.log_end_offset
    offset_max = min(segment.base_offset + RELATIVE_OFFSET_MAX, offset + records_max)
    placed: list[Placed] = []
    size, newest = 0, NO_TIMESTAMP
    latest: dict[int, BatchHeader] = {}  # each producer's latest batch in this write
    for staged in batches:
        batch, header = staged[0], staged[1]
        end = offset + header.last_offset_delta + 1
        after = size + header.batch_length + LENGTH_END
        if placed and (after > room or end > offset_max):
            break  # only the first batch of a write may begin a new segment
        if header.producer_id >= 0:
            if not _continues(log, latest.get(header.producer_id), header, not placed):
                break
            latest[header.producer_id] = header
        placed.append((header, offset, batch))
        size, offset = after, end
        if header.max_timestamp > newest:
            newest = header.max_timestamp
    return placed, size, newest, offset


def _continues(log: PartitionLog, before: BatchHeader | None, header: BatchHeader, is_first: bool) -> bool:
    """Return True if a producer's batch may follow `before` in one write, or follow the log if `before` is None.

    Raise ApiError if the first batch of a write has a wrong sequence. A later batch is judged when it is the first of a
    write, because the batches before it may change the result.
    """
    if before is not None:
        return log.producers.follows(before, header)
    try:
        return log.producers.check(header) is None
    except ApiError:
        if is_first:
            raise
        return False


def _write(
    log: PartitionLog,
    placed: Sequence[Placed],
    runs: Sequence[IdRun],
    last_offset: int,
    size: int,
    newest_ms: int,
    now: Now,
) -> None:
    """Append batches, `size` bytes in all, and their ids to the log; if that fails, append none and raise."""
    epoch, pack_prefix = log.leader_epoch, BATCH_PREFIX.pack_into
    by_producers = []
    for header, base_offset, batch in placed:
        pack_prefix(batch, 0, base_offset, header.batch_length, epoch)
        if header.producer_id >= 0:
            by_producers.append((header, base_offset))
    first_id, length = runs[-1]
    try:
        written = write(log, placed, runs, last_offset, first_id + length - 1, size, newest_ms, now)
    except Exception:
        for header, _, batch in placed:  # restore the producer's bytes
            BATCH_PREFIX.pack_into(batch, 0, header.base_offset, header.batch_length, header.leader_epoch)
        raise
    for header, base_offset in by_producers:
        log.producers.appended(header, base_offset, now.wall_ms)
    if log.journal is not None:
        log.journal.add(log, placed[0][1], written, runs)


def write(
    log: PartitionLog,
    placed: Sequence[Placed],
    runs: Sequence[tuple[int, int]],
    last_offset: int,
    last_id: int,
    size: int,
    newest_ms: int,
    now: Now,
    copied: Copied | None = None,
) -> Buffer:
    """Write batches and their ids to the log's files, and move the log's end. Return the bytes of the batches.

    If that fails, write nothing and raise: ApiError for a failed disk.
    """
    try:
        segment = segment_for(log, size, newest_ms, last_offset)
        written = segment.append(placed, runs, log.config.index_interval_bytes, copied)
    except Exception as error:
        log.failed_write(error)
        if not isinstance(error, StorageError):
            raise
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    log.last_id = last_id
    log.log_end_offset = segment.next_offset
    log.bytes_in += size
    log.durability.appended(size, now.ms)
    if log.has_copies:
        log.newest_write = None
        if copied is None and size <= newest_write.BYTES_MAX:
            ids = IdRegion(segment.base_offset, segment.ids.newest_entries)
            log.newest_write = NewestWrite(placed[0][1], written, ids)
    return written


def append_marker(
    log: PartitionLog, producer_id: int, producer_epoch: int, marker: Marker, ids: IdSource, now: Now
) -> Appended:
    """Append the marker that ends a producer's transaction.

    Without an open transaction the marker changes nothing, so the end can be retried. The index gets an aborted
    transaction before the log gets its marker, because recovery rebuilds the index from the log and not the log
    from the index. Raise the errors of `append`, and TRANSACTION_COORDINATOR_FENCED.
    """
    log.check_online()
    log.producers.check_marker(producer_id, producer_epoch, marker)
    batch = encode_marker(producer_id, producer_epoch, marker, now.wall_ms)
    header = read_header(batch)
    aborted = None if marker.commit else log.producers.aborted_at(producer_id, log.log_end_offset)
    entries = () if aborted is None else (aborted,)
    with indexed(log, entries, header.size, header.max_timestamp, log.log_end_offset + header.last_offset_delta):
        done = append(log, memoryview(batch), header, ids, now)
    log.producers.marked(header, done.base_offset, marker, now.wall_ms)
    log.producers.first_unstable_offset(log.high_watermark)  # to drop transactions whose marker consumers can see
    return done


@contextmanager
def _answered() -> Iterator[None]:
    """Turn a StorageError of a write to the transaction index into an ApiError. The write is undone."""
    try:
        yield
    except StorageError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


@contextmanager
def indexed(
    log: PartitionLog, aborted: Sequence[AbortedTransaction], size: int, newest_ms: int, last_offset: int
) -> Iterator[None]:
    """Add entries to the transaction index of the segment that the write in the body of the `with` block goes to.

    Remove them if adding them or the body fails. The other arguments are those of that `write`.
    """
    if not aborted:
        yield
        return
    with _answered():
        index = segment_for(log, size, newest_ms, last_offset).aborted
    index_bytes = index.size
    try:
        with _answered():
            for transaction in aborted:
                index.append(transaction)
        yield
    except Exception:
        try:
            index.keep_bytes(index_bytes)
        except StorageError as error:
            log.take_offline(f"{error}, and an aborted transaction that has not ended is in the index")
        raise


def segment_for(log: PartitionLog, size: int, newest_ms: int, last_offset: int) -> Segment:
    """Return the segment that a write goes to: the active one, or a new one if it has no room or is too old."""
    active, config = log.segments.active, log.config
    # Message times give the age, as in Kafka, because by the clock each old message would roll a segment.
    aged = 0 <= active.first_timestamp_ms < newest_ms - config.roll_ms
    return active if active.has_room(size, last_offset, config.segment_bytes) and not aged else log.roll()
