"""The log of one partition: it appends batches with ids, and reads regions of files.

    append    validate (broker.log.validation.batch) -> duplicate? -> ids -> place -> roll? -> idindex, log, indexes
    read      bisect over the segments -> offset index -> region, for read_committed up to the last stable offset

Offsets rise by one for each record, and ids rise strictly with them; only this module assigns them. A failed write
leaves the log as it was, and the log refuses appends until a sync has put that state on the disk (`mending`). A failed
sync takes the log offline for good (`offline` says why), because the contents of the disk are unknown afterwards.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from broker.log import leader_epochs
from broker.log.index.txn_index import AbortedTransaction
from broker.log.non_blocking_reader import NonBlockingReader, NotCached, find_now
from broker.log.producer_state import ProducerState
from broker.log.recovery.checkpoint import LogPosition
from broker.log.search import BLOCKING, ReadMode, Search
from broker.log.segment import RELATIVE_OFFSET_MAX, Placed, Segment
from broker.log.segment_list import SegmentList
from broker.log.storage.port import Buffer, Storage, StorageError
from broker.now import Now
from broker.record.batch import LENGTH_END, NO_TIMESTAMP, PLACE, BatchHeader, read_header
from broker.record.control import Marker, encode_marker
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import IdRegion
from broker.wire.frame import FileRegion
from idgen.worker import Run

NO_TOPIC_ID = UUID(int=0)
LARGE_READ_BYTES = 128 * 1024  # in a smaller read, finding the end of a batch costs more than sending a useless piece
TOGETHER_RECORDS_MAX = 4096  # in one write, because that number of ids is nearly always available at once
EMPTY: FileRegion | bytes = b""
_record = tuple.__new__  # as ReadResult(...), at half its price

Rewrite = Callable[[memoryview, BatchHeader, Sequence[tuple[int, int]]], tuple[memoryview, BatchHeader]]


@contextmanager
def _answered() -> Iterator[None]:
    """Turn a StorageError into an ApiError, because an unreadable file is an answer to the client, not a fault."""
    try:
        yield
    except StorageError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


class IdSource(Protocol):
    """A source of ids: an IdWorker, or a substitute."""

    @property
    def max_batch(self) -> int:
        """Return the largest number of ids that one call may request."""
        ...

    def next_ids(self, n: int, now_ms: int, floor: int = -1) -> list[Run]: ...


class JournalPort(Protocol):
    """The journal that a log's batches are copied to (broker.log.journal)."""

    def add(self, log: "PartitionLog", first_offset: int, batches: Buffer, runs: Sequence[Run]) -> None:
        """Copy the batches of one write, from `first_offset` to the log's end, and their ids."""
        ...


class Appended(NamedTuple):
    """The place of a batch: its first and last offset, and its ids as runs (first id, count)."""

    base_offset: int
    last_offset: int
    runs: Sequence[tuple[int, int]]
    duplicate: bool = False
    timestamp_ms: int = NO_TIMESTAMP
    """The max timestamp of the original batch if this is a duplicate."""


AppendedTogether: TypeAlias = tuple[Sequence[tuple[int, int]], Sequence[Run]]
"""(base offset, last offset) of each batch of one write, and the ids of all of them as runs."""

NOTHING_APPENDED: AppendedTogether = (), ()

Staged: TypeAlias = tuple[memoryview, BatchHeader, *tuple[Any, ...]]
"""A batch that waits to be appended, its header, and any values of its owner."""


class ReadResult(NamedTuple):
    records: FileRegion | bytes
    ids: IdRegion | None = None
    aborted: tuple[tuple[int, int], ...] | None = None
    """(producer id, first offset) of aborted transactions; None unless committed records were requested."""


NOTHING = ReadResult(EMPTY)
NOTHING_COMMITTED = ReadResult(EMPTY, None, ())


class PartitionLog:
    """The log of one partition, with offsets log_start_offset .. log_end_offset - 1.

    `recovery.open_log` makes it, and finds its end.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        storage: Storage,
        config: TopicConfig,
        segments: SegmentList,
        flushed: LogPosition,
        producers: ProducerState,
        epochs: list[tuple[int, int]],
        topic_id: UUID,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self._topic_hex = topic_id.hex if topic_id != NO_TOPIC_ID else ""
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.config = config
        self.waiting_acks = config.waiting_acks
        self.journal: JournalPort | None = None
        self.ask_sync: Callable[[PartitionLog, bool], None] = lambda log, soon: None
        """Asks the log manager for a sync of the log, `soon` if a request waits for it."""
        self.on_offline: Callable[[PartitionLog], None] = lambda log: None
        """Notifies the log manager that the log went offline."""
        self.producers = producers
        self.epochs = epochs
        self.offline: str | None = None
        self.mending = False
        """A write failed and was undone; the log refuses appends until a sync succeeds."""
        self.flushed = flushed
        self.checkpointed = flushed
        """The log's position in the checkpoint on the disk, from which a start after a crash recovers."""
        self.durable_end_offset = flushed.offset
        """Offsets below it are on the disk: in the log's own files, or in the journal."""
        self.on_disk = object()
        """The purgatory's key for requests that wait for the disk, so that an append does not touch them."""
        self._journaled_ahead: tuple[int, int] | None = None
        self.unsynced_bytes = 0
        self.log_start_offset = flushed.log_start_offset
        self.last_id = flushed.last_id
        self.cleaned_offset = flushed.cleaned_offset
        """Below it, a compacted log has only the last record of each key, as of the cleaning."""
        self.uncleanable: str | None = None
        self.leader_epoch = epochs[-1][0] if epochs else 0
        self.unflushed_since_ms: int | None = None
        self._storage = storage
        self.segments = segments
        self.log_end_offset = segments.active.next_offset
        self.opened_at = self.log_end_offset
        self.bytes_in = 0  # appended since the log was opened
        self.bytes_out = 0  # fetched since the log was opened

    # --- positions -----------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Return the end of the offsets that consumers see.

        With one copy of the log, that is the log's end, or with `visible_after_flush` the end of the part on the disk.
        """
        return self.durable_end_offset if self.config.visible_after_flush else self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Return the end of the offsets that read_committed consumers see.

        That is the start of the first open transaction, or the high watermark if no transaction is open.
        """
        high_watermark = self.durable_end_offset if self.config.visible_after_flush else self.log_end_offset
        unstable = self.producers.first_unstable_offset(high_watermark)
        return high_watermark if unstable is None else max(min(unstable, high_watermark), self.log_start_offset)

    @property
    def unflushed(self) -> int:
        """Return the number of messages appended since the last acknowledged sync."""
        return self.log_end_offset - self.flushed.offset

    def _check_online(self) -> None:
        if self.offline is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is offline: {self.offline}")

    def take_offline(self, reason: str) -> None:
        """Refuse all reads and appends until a restart has checked the files."""
        self.offline = reason
        self.on_offline(self)

    def check_leader_epoch(self, epoch: int) -> None:
        """Raise ApiError if a client names another epoch than the leader's (KIP-320); -1 names none."""
        if epoch == self.leader_epoch or epoch == leader_epochs.NO_EPOCH:
            return
        if epoch < self.leader_epoch:
            said = f"{self.name}: epoch {epoch} is over, {self.leader_epoch} is on"
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, said)
        said = f"{self.name}: epoch {epoch} is to come, {self.leader_epoch} is on"
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH, said)

    # --- append --------------------------------------------------------------------------------------------------

    def append(
        self, batch: memoryview, header: BatchHeader, ids: IdSource, now: Now, rewrite: Rewrite | None = None
    ) -> Appended:
        """Append a batch that `broker.log.validation.batch` found valid.

        Its base offset and leader epoch are written into `batch`. `rewrite` finishes a batch that contains its own ids
        (broker.log.validation.topic_rules). Raise ApiError for a wrong sequence or a failed disk, and an error of
        `idgen.errors` if no id is available; the log is unchanged in each case.
        """
        if self.offline is not None:
            self._check_online()
        known = self.producers.check(header) if header.producer_id >= 0 else None
        if known is not None:
            first_runs = self.ids_of(known.base_offset, known.last_offset + 1)  # a deleted batch has no ids left
            return Appended(known.base_offset, known.last_offset, first_runs, True, known.timestamp_ms)
        if self.mending:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: a failed write is being undone; try again")
        runs = ids.next_ids(header.record_count, now.wall_ms, self.last_id)
        if rewrite is not None:
            batch, header = rewrite(batch, header, runs)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        self._write([(header, base_offset, batch)], runs, last_offset, header.size, header.max_timestamp, now)
        return Appended(base_offset, last_offset, runs)

    def append_batches(self, batches: "Sequence[Staged]", ids: IdSource, now: Now) -> AppendedTogether:
        """Append the first of these valid batches, and as many of the following ones as fit into the same write.

        Append nothing if the first batch is a duplicate or a failed write is being undone; the caller then passes that
        batch to `append`. Raise the errors of `append`; they leave the log unchanged.
        """
        if self.offline is not None:
            self._check_online()
        if self.mending:
            return NOTHING_APPENDED
        if len(batches) == 1:
            batch, header = batches[0][0], batches[0][1]
            if header.producer_id >= 0 and self.producers.check(header) is not None:
                return NOTHING_APPENDED
            base = self.log_end_offset
            last = base + header.last_offset_delta
            runs = ids.next_ids(header.record_count, now.wall_ms, self.last_id)
            size = header.batch_length + LENGTH_END
            self._write(((header, base, batch),), runs, last, size, header.max_timestamp, now)
            return ((base, last),), runs
        placed, size, newest, end = self._fitting(batches, min(ids.max_batch, TOGETHER_RECORDS_MAX))
        if not placed:
            return NOTHING_APPENDED
        runs = ids.next_ids(end - self.log_end_offset, now.wall_ms, self.last_id)
        self._write(placed, runs, end - 1, size, newest, now)
        return [(base, base + header.last_offset_delta) for header, base, _ in placed], runs

    def _fitting(self, batches: "Sequence[Staged]", records_max: int) -> tuple[list[Placed], int, int, int]:
        """Choose the batches of one write: the longest prefix that fits the segment and continues its producers.

        Return them with their size, their newest time, and the offset after them.
        """
        segment = self.segments.active
        room = self.config.segment_bytes - segment.size
        offset = self.log_end_offset
        offset_max = min(segment.base_offset + RELATIVE_OFFSET_MAX, offset + records_max)
        placed: list[Placed] = []
        size, newest = 0, NO_TIMESTAMP
        latest: dict[int, BatchHeader] = {}  # each producer's latest batch in this write
        for each in batches:
            batch, header = each[0], each[1]
            end = offset + header.last_offset_delta + 1
            after = size + header.batch_length + LENGTH_END
            if placed and (after > room or end > offset_max):
                break  # only the first batch of a write may begin a new segment
            if header.producer_id >= 0:
                if not self._continues(latest.get(header.producer_id), header, not placed):
                    break
                latest[header.producer_id] = header
            placed.append((header, offset, batch))
            size, offset = after, end
            if header.max_timestamp > newest:
                newest = header.max_timestamp
        return placed, size, newest, offset

    def _continues(self, before: BatchHeader | None, header: BatchHeader, is_first: bool) -> bool:
        """Return True if a producer's batch may follow `before` in one write, or follow the log if `before` is None.

        Raise ApiError if the first batch of a write has a wrong sequence. A later batch is judged when it is the first
        of a write, because the batches before it may change the result.
        """
        if before is not None:
            return self.producers.follows(before, header)
        try:
            return self.producers.check(header) is None
        except ApiError:
            if is_first:
                raise
            return False

    def _write(
        self, placed: Sequence[Placed], runs: Sequence[Run], last_offset: int, size: int, newest_ms: int, now: Now
    ) -> None:
        """Append batches, `size` bytes in all, and their ids to the log; if that fails, append none and raise."""
        epoch, place = self.leader_epoch, PLACE.pack_into
        by_producers = []
        for header, base_offset, batch in placed:
            place(batch, 0, base_offset, header.batch_length, epoch)
            if header.producer_id >= 0:
                by_producers.append((header, base_offset))
        try:
            segment = self._segment_for(size, newest_ms, last_offset)
            written = segment.append(placed, runs, self.config.index_interval_bytes)
        except Exception as error:
            self._undone(error)
            for header, _, batch in placed:  # restore the producer's bytes
                PLACE.pack_into(batch, 0, header.base_offset, header.batch_length, header.leader_epoch)
            if not isinstance(error, StorageError):
                raise
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        first_id, length = runs[-1]
        self.last_id = first_id + length - 1
        self.log_end_offset = segment.next_offset
        self.bytes_in += size
        self.unsynced_bytes += size
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = now.ms
        for header, base_offset in by_producers:
            self.producers.appended(header, base_offset, now.wall_ms)
        if self.journal is not None:
            self.journal.add(self, placed[0][1], written, runs)

    def _undone(self, error: Exception) -> None:
        """After a failed write, request a sync before the next write; go offline if the write could not be undone."""
        active = self.segments.active
        if active.broken:
            self.take_offline(f"{error}, and the write could not be undone")
        elif active.undone:
            active.undone, self.mending = False, True
            self.ask_sync(self, True)

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, ids: IdSource, now: Now
    ) -> Appended:
        """Append the marker that ends a producer's transaction.

        Without an open transaction the marker changes nothing, so the end can be retried. The index gets an aborted
        transaction before the log gets its marker, because recovery rebuilds the index from the log and not the log
        from the index. Raise the errors of `append`, and TRANSACTION_COORDINATOR_FENCED.
        """
        self._check_online()
        self.producers.check_marker(producer_id, producer_epoch, marker)
        batch = encode_marker(producer_id, producer_epoch, marker, now.wall_ms)
        header = read_header(batch)
        aborted = None if marker.commit else self.producers.aborted_at(producer_id, self.log_end_offset)
        with self._indexed(header, aborted):
            done = self.append(memoryview(batch), header, ids, now)
        self.producers.marked(header, done.base_offset, marker, now.wall_ms)
        self.producers.first_unstable_offset(self.high_watermark)  # to drop transactions whose marker consumers can see
        return done

    @contextmanager
    def _indexed(self, header: BatchHeader, aborted: AbortedTransaction | None) -> Iterator[None]:
        """Add an entry to the transaction index; remove it if adding it or the body of the `with` block fails."""
        if aborted is None:
            yield
            return
        with _answered():
            index = self._segment_for(header.size, header.max_timestamp, aborted.last_offset).aborted
        size = index.size
        try:
            with _answered():
                index.append(aborted)
            yield
        except Exception:
            try:
                index.keep_bytes(size)
            except StorageError as error:
                self.take_offline(f"{error}, and an aborted transaction that has not ended is in the index")
            raise

    def _segment_for(self, size: int, newest_ms: int, last_offset: int) -> Segment:
        active = self.segments.active
        # Message times give the age, as in Kafka, because by the clock each old message would roll a segment.
        aged = 0 <= active.first_timestamp_ms < newest_ms - self.config.roll_ms
        if active.has_room(size, last_offset, self.config.segment_bytes) and not aged:
            return active
        return self.roll()

    def roll(self) -> Segment:
        """Close the active segment and begin a new one at the log's end."""
        segments = self.segments
        if segments.active.base_offset == self.log_end_offset:
            return segments.active
        if segments.begin(self.log_end_offset):
            self.ask_sync(self, False)  # the closed segment's files can be closed once they are on the disk
        else:
            self._sync_rolled()
        return segments.active

    def _sync_rolled(self) -> None:
        """Sync the closed segments in the reactor thread, because too many wait for a sync with their files open."""
        try:
            for segment in self.unflushed_segments()[:-1]:
                segment.sync_whole()
            self._storage.sync_directory(self.name)
        except StorageError as error:
            self.take_offline(f"a sync failed: {error}")
            raise
        self.segments.close_before(self.segments.active.base_offset)

    # --- deletion ------------------------------------------------------------------------------------------------

    def advance_start(self, offset: int) -> bool:
        """Set the first offset that can be read; return False if the log begins there or later already.

        Raise ApiError OFFSET_OUT_OF_RANGE above the high watermark. The files stay until `drop_segments`.
        """
        if offset > self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} cannot begin at {offset}, its high watermark is {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs = leader_epochs.from_offset(self.epochs, offset)
        return True

    def drop_segments(self, number: int) -> tuple[Segment, ...]:
        """Remove the oldest segments from the list and begin the log after them; the caller removes their files.

        A log always has a segment: if all are removed, a new one begins. Raise StorageError if that fails.
        """
        dropped = self.segments.all[:number]
        if number == len(self.segments.all):
            self.roll()
        self.advance_start(self.segments.all[number].base_offset)
        self.segments.drop(dropped)
        return dropped

    def deleted(self) -> None:
        """Note that the log was deleted, and close all its files except those being sent.

        A connection or fetch session may refer to the log for a long time without using it.
        """
        self.offline = "it was deleted"
        self.segments.close_all()

    # --- read ----------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        at_least_one: bool,
        with_ids: bool = False,
        committed: bool = False,
        waits: bool = True,
    ) -> ReadResult:
        """Return batches of one segment, from the one with `offset` on, at most `max_bytes`; the last may be cut.

        `at_least_one`: return a first batch larger than `max_bytes` whole (KIP-74). `committed`: end at the last
        stable offset, and list the aborted transactions. Raise ApiError OFFSET_OUT_OF_RANGE; without `waits`, raise
        NotCached if the lookup would wait for the disk.
        """
        if self.offline is not None:
            self._check_online()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.name}; it holds {self.log_start_offset} to {self.log_end_offset}",
            )
        shown = self.high_watermark
        end = self.last_stable_offset if committed else shown
        nothing = NOTHING_COMMITTED if committed else NOTHING
        if offset >= end:
            return nothing
        try:  # the hot path: no context manager
            found = self._locate(offset, end, with_ids, waits)
            if found is None:
                return nothing
            segment, position, header = found
            end_position = segment.size
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
            ids = self._ids_within(segment, position, length, header) if with_ids else None
            if not committed:
                return _record(ReadResult, (_record(FileRegion, (segment.log, position, length)), ids, None))
            if end < self.log_end_offset:
                length = self._up_to(end, segment, position, length)
            aborted = self._aborted_within(offset, end, segment, position, length)
            return _record(ReadResult, (_record(FileRegion, (segment.log, position, length)), ids, aborted))
        except StorageError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def whole_batches(self, offset: int, records: FileRegion) -> FileRegion:
        """Return records read from `offset` on without the useless piece of a batch at their end.

        With batches of 600 kB and a limit of 1 MB, two bytes in five belong to such a piece. Return the records
        unchanged if the index does not give a batch boundary without waiting.
        """
        end = records.position + records.length
        segment = self.segments.all[bisect_right(self.segments.bases, offset) - 1]
        if records.length < LARGE_READ_BYTES or end == segment.size:
            return records
        try:
            if segment.log is not records.file:
                return records
            in_memory = offset >= self.opened_at and segment is self.segments.active
            offsets = segment.offsets if in_memory else NonBlockingReader(segment).offsets
            last = offsets.last_up_to(end)
        except (NotCached, StorageError):
            return records
        # A batch without an index entry starts at most `index.interval.bytes` after the last entry, so an end this
        # close is a batch boundary, such as the high watermark, or cuts off a small piece only.
        if end - last <= self.config.index_interval_bytes or last <= records.position:
            return records
        return FileRegion(records.file, records.position, last - records.position)

    @staticmethod
    def _up_to(offset: int, segment: Segment, position: int, length: int) -> int:
        """Return the length of a segment's region up to an offset, where a batch begins."""
        found = segment.find(offset) if offset < segment.next_offset else None
        return length if found is None else min(length, found[0] - position)

    def _aborted_within(
        self, offset: int, stable: int, segment: Segment, position: int, length: int
    ) -> tuple[tuple[int, int], ...]:
        """Return (producer id, first offset) of the aborted transactions in a region of a segment from `offset` on."""
        if not self.segments.aborting and not self.segments.active.has_aborted:  # nearly always
            return ()
        if next(self.segments.aborting_from(offset), None) is None:
            return ()
        end = min(self._end_of(segment, position, length), stable)
        return tuple((each.producer_id, each.first_offset) for each in self.aborted_transactions(offset, end))

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records or marker in first_offset .. end_offset - 1, by their markers.

        Raise ApiError if an index cannot be read.
        """
        found = []
        with _answered():
            for segment in self.segments.aborting_from(first_offset):
                for aborted in segment.aborted.ending_from(first_offset):
                    if aborted.first_offset < end_offset:
                        found.append(aborted)
                    if aborted.last_stable_offset >= end_offset:
                        return found
        return found

    def _locate(
        self, offset: int, end: int, with_ids: bool, waits: bool
    ) -> tuple[Segment, int, BatchHeader] | None:
        """Find the first batch with a record that ends at or after `offset` and begins below `end`.

        Return (segment, position, header), None if no batch ends there. `end` is the end of the visible offsets.
        """
        segments = self.segments.all
        index = bisect_right(self.segments.bases, offset) - 1
        found = None
        while found is None and index < len(segments):  # compaction may leave a segment's end empty
            segment = segments[index]
            index += 1
            # Batches that this process wrote to the newest segment are in memory, and most fetches request them.
            if waits or (offset >= self.opened_at and index == len(segments)):
                found = segment.find(offset)
            else:
                found = find_now(segment, offset, with_ids)
        if found is None:
            return None
        position, header = found
        if not header.record_count:
            return self._past_emptied(index - 1, position, header, end)
        return segment, position, header

    def _ids_within(self, segment: Segment, position: int, length: int, header: BatchHeader) -> IdRegion:
        """Return the ids of a region of a segment; `header` is that of its first batch."""
        whole = position + length == segment.size
        end = segment.next_offset if whole else self._end_of(segment, position, length)
        return IdRegion(segment.base_offset, segment.ids.region(header.base_offset, end))

    def _past_emptied(
        self, index: int, position: int, header: BatchHeader, end: int
    ) -> tuple[Segment, int, BatchHeader]:
        """Return the next batch with a record, because librdkafka takes an answer without records for a cut one.

        It gives up after some of these. If no such batch exists, return the batch that compaction emptied, because its
        header has the end of its offsets.
        """
        emptied = self.segments.all[index], position, header
        for segment in self.segments.all[index:]:
            for at, each in segment.batches(position if segment is emptied[0] else 0):
                if each.base_offset >= end:
                    return emptied
                if each.record_count:
                    return segment, at, each
        return emptied

    @staticmethod
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

    # --- lookups -------------------------------------------------------------------------------------------------

    def ids_of(self, first_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
        """Return the ids of first_offset .. end_offset - 1 as runs (first id, count), without deleted records."""
        found: tuple[tuple[int, int], ...] = ()
        first_offset = max(first_offset, self.log_start_offset)
        with _answered():
            for segment in self.segments.all[max(bisect_right(self.segments.bases, first_offset) - 1, 0) :]:
                if segment.base_offset >= end_offset:
                    break
                found += segment.ids.runs(first_offset, end_offset)
        return found

    def search(self) -> Search:
        """Return a snapshot of the log, for a search in this or another thread."""
        segments, start = self.segments, self.log_start_offset
        return Search(segments.all, segments.newest, start, segments.active.log.size, segments.counted)

    def offset_of_id(self, id: int, mode: ReadMode = BLOCKING) -> int:
        """Return the first offset whose id is not below `id`, the high watermark if consumers see no such id.

        Raise WouldBlock.
        """
        with _answered():
            return self.bounded(self.search().of_id(id, mode))

    def bounded(self, found: int | None) -> int:
        """Limit an offset found by its id to the offsets that consumers see; None becomes the high watermark."""
        return self.high_watermark if found is None else max(min(found, self.high_watermark), self.log_start_offset)

    def offset_of_time(self, timestamp_ms: int, mode: ReadMode = BLOCKING) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record not older than `timestamp_ms`, None if all are older.

        Raise WouldBlock or CorruptBatch.
        """
        with _answered():
            return self.search().of_time(timestamp_ms, mode)

    def offset_of_newest(self, mode: ReadMode = BLOCKING) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record with the largest timestamp in the log, None without times.

        Raise the errors of `offset_of_time`.
        """
        with _answered():
            found, self.segments.counted = self.search().of_newest(mode)
        return found

    # --- the disk ------------------------------------------------------------------------------------------------

    def position(self) -> LogPosition:
        """Return the log's position now; `flushed` gets this value when all of it is synced."""
        active = self.segments.active
        return LogPosition(
            self.log_end_offset,
            self.log_start_offset,
            self.last_id,
            active.base_offset,
            active.log.size,
            active.ids.file.size,
            active.max_timestamp_ms,
            active.max_timestamp_offset,
            len(self.producers),
            active.offsets.file.size,
            active.times.file.size,
            active.aborted.size,
            self._topic_hex,
            self.cleaned_offset,
            self.producers.first_open_offset(self.log_end_offset),
        )

    def is_at(self, known: LogPosition | None) -> bool:
        """Return True if `position` equals `known`; its other fields change only together with the compared ones."""
        active = self.segments.active
        return known is not None and (
            self.log_end_offset == known.offset
            and self.log_start_offset == known.log_start_offset
            and active.base_offset == known.segment
            and active.times.file.size == known.time_index_bytes
            and len(self.producers) == known.producers
            and self.cleaned_offset == known.cleaned_offset
            and self._topic_hex == known.topic_id
        )

    def synced(self, position: LogPosition) -> None:
        """Note that the log's own files are on the disk up to `position`."""
        rolled = position.segment != self.flushed.segment
        self.flushed = position
        if rolled:
            self.segments.close_before(position.segment)
        self.durable_end_offset = max(self.durable_end_offset, position.offset)
        ahead = self._journaled_ahead
        if ahead is not None and ahead[0] <= self.durable_end_offset:
            self.durable_end_offset = max(self.durable_end_offset, ahead[1])
            self._journaled_ahead = None

    def journaled(self, first_offset: int, end_offset: int) -> bool:
        """Note that the journal has these offsets on the disk.

        Return False if the offsets before them are not on the disk. The new offsets then count as durable when the
        log's own files are synced up to them.
        """
        if first_offset <= self.durable_end_offset:
            self.durable_end_offset = max(self.durable_end_offset, end_offset)
            return True
        ahead = self._journaled_ahead
        self._journaled_ahead = (ahead[0] if ahead and ahead[1] == first_offset else first_offset), end_offset
        return False

    def unflushed_segments(self) -> tuple[Segment, ...]:
        """Return the segments that may contain unsynced bytes."""
        return self.segments.unsynced_from(self.flushed.segment)

    def start_leader_epoch(self, epoch: int) -> None:
        """Begin a leader epoch: store its start, and write it into new batches."""
        started = leader_epochs.start(self.epochs, epoch, self.log_end_offset)
        if started is not self.epochs:
            self._storage.replace(f"{self.name}/{leader_epochs.FILE}", leader_epochs.encode(started))
            self.epochs = started
        self.leader_epoch = self.epochs[-1][0]
