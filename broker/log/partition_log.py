"""One partition's log: batches and their ids in, regions of files out.

    append    validate (broker.log.validation.batch) -> duplicate? -> ids -> place -> roll? -> idindex, log, indexes
    read      bisect over the segments -> offset index -> region, for read_committed up to the last stable offset

Offsets rise by one a record, ids strictly with them; both numbers are taken here and nowhere else. A failed write
leaves the log as it was, and it takes nothing more until the disk has that too (`mending`). A failed sync takes the log
offline for good (`offline` says why): what the disk then holds nobody knows.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from broker.log import leader_epochs
from broker.log.closed_segment import ClosedSegment, OpenSegments, closed
from broker.log.index.txn_index import AbortedTransaction
from broker.log.non_blocking_reader import NonBlockingReader, NotCached, find_now
from broker.log.producer_state import ProducerState
from broker.log.recovery.checkpoint import LogPosition
from broker.log.search import BLOCKING, NOT_COUNTED, ReadMode, Search
from broker.log.segment import RELATIVE_OFFSET_MAX, Placed, Segment, remove_files
from broker.log.storage.port import Buffer, Storage, StorageError
from broker.now import Now
from broker.record.batch import LENGTH_END, NO_TIMESTAMP, PLACE, BatchHeader, read_header
from broker.record.control import Marker, encode_marker
from broker.settings.config import BrokerConfig, TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import IdRegion
from broker.wire.frame import FileRegion
from idgen.worker import Run

NO_TOPIC_ID = UUID(int=0)
LARGE_READ_BYTES = 128 * 1024  # below it, looking where a batch ends costs more than to send a piece too much
TOGETHER_RECORDS_MAX = 4096  # in one write: so many ids are to be had at once nearly always
NO_OFFSET = -1
EMPTY: FileRegion | bytes = b""
_record = tuple.__new__  # as ReadResult(...), at half its price

Rewrite = Callable[[memoryview, BatchHeader, Sequence[tuple[int, int]]], tuple[memoryview, BatchHeader]]


@contextmanager
def _answered() -> Iterator[None]:
    """A file that cannot be read is an answer to the client, not a fault of the engine."""
    try:
        yield
    except StorageError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


class IdSource(Protocol):
    """What stamps: an IdWorker, or whatever stands for one."""

    @property
    def max_batch(self) -> int:
        """The most ids one call can ask for."""
        ...

    def next_ids(self, n: int, now_ms: int, floor: int = -1) -> list[Run]: ...


class JournalPort(Protocol):
    """The journal that a log's batches are copied to (broker.log.journal)."""

    def add(self, log: "PartitionLog", first_offset: int, batches: Buffer, runs: Sequence[Run]) -> None:
        """Copy one write's batches, which begin at `first_offset` and end at the log's end, and their ids."""
        ...


class Appended(NamedTuple):
    """Where a batch stands: its offsets, both inclusive, and its ids as runs (first id, how many)."""

    base_offset: int
    last_offset: int
    runs: Sequence[tuple[int, int]]
    duplicate: bool = False
    timestamp_ms: int = NO_TIMESTAMP
    """Of a duplicate: the max timestamp of the batch it repeats."""


AppendedTogether: TypeAlias = tuple[Sequence[tuple[int, int]], Sequence[Run]]
"""(base offset, last offset) of each batch of one write, and the ids of all of them as runs."""

NOTHING_APPENDED: AppendedTogether = (), ()

Staged: TypeAlias = tuple[memoryview, BatchHeader, *tuple[Any, ...]]
"""A batch that waits to be appended, its header, and anything of its owner's."""


class ReadResult(NamedTuple):
    records: FileRegion | bytes
    ids: IdRegion | None = None
    aborted: tuple[tuple[int, int], ...] | None = None
    """(producer id, first offset) of aborted transactions, for who asked for what is committed."""


NOTHING = ReadResult(EMPTY)
NOTHING_COMMITTED = ReadResult(EMPTY, None, ())


class PartitionLog:
    """Offsets log_start_offset .. log_end_offset - 1. Made by `recovery.open_log`, which finds where it ends."""

    def __init__(
        self,
        topic: str,
        partition: int,
        storage: Storage,
        config: TopicConfig,
        broker: BrokerConfig,
        segments: Sequence[Segment],
        flushed: LogPosition,
        producers: ProducerState,
        epochs: list[tuple[int, int]],
        topic_id: UUID,
        open_segments: OpenSegments,
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
        """Has the log synced, `soon` where somebody waits for it; the log manager's."""
        self.on_offline: Callable[[PartitionLog], None] = lambda log: None
        """Told when the log takes itself offline; the log manager's."""
        self.producers = producers
        self.epochs = epochs
        self.offline: str | None = None
        self.mending = False
        """A write failed and was undone; until a sync has passed nothing is appended."""
        self.flushed = flushed
        self.checkpointed = flushed
        """What the checkpoint on the disk says: a start after a crash sees the log so."""
        self.durable_end_offset = flushed.offset
        """Offsets below it are on the disk: in the log's own files, or in the journal."""
        self.on_disk = object()
        """Stands for the log in the purgatory where the disk is waited for: an append says nothing to who does."""
        self._journaled_ahead: tuple[int, int] | None = None
        self.unsynced_bytes = 0
        self.log_start_offset = flushed.log_start_offset
        self.last_id = flushed.last_id
        self.cleaned_offset = flushed.cleaned_offset
        """Below it each key of a compacted log has its last record only, as of the time it was cleaned."""
        self.uncleanable: str | None = None
        self.leader_epoch = epochs[-1][0] if epochs else 0
        self.unflushed_since_ms: int | None = None
        self._storage = storage
        self._open_segments = open_segments
        self._broker = broker
        self._take(tuple(segments))
        self._dropped: tuple[Segment, ...] = ()
        self.log_end_offset = self._segments[-1].next_offset
        self.opened_at = self.log_end_offset
        self.bytes_in = 0  # appended since it was opened
        self.bytes_out = 0  # fetched since

    # --- positions -----------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Consumers see offsets below it: with one copy of the log its end, or what of it is on the disk."""
        return self.durable_end_offset if self.config.visible_after_flush else self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """read_committed consumers see offsets below it: the first of an open transaction, else the high watermark."""
        high_watermark = self.durable_end_offset if self.config.visible_after_flush else self.log_end_offset
        unstable = self.producers.first_unstable_offset(high_watermark)
        return high_watermark if unstable is None else max(min(unstable, high_watermark), self.log_start_offset)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """A snapshot: a roll or a deletion makes a new tuple, and whoever reads this one is not disturbed."""
        return self._segments

    @property
    def size(self) -> int:
        return self._bytes_before + self._segments[-1].size

    @property
    def unflushed(self) -> int:
        """Messages appended since the last sync that was acknowledged."""
        return self.log_end_offset - self.flushed.offset

    def _check_online(self) -> None:
        if self.offline is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is offline: {self.offline}")

    def take_offline(self, reason: str) -> None:
        """Nothing is read or appended any more, until a restart has looked at the files."""
        self.offline = reason
        self.on_offline(self)

    def check_leader_epoch(self, epoch: int) -> None:
        """KIP-320: a client that names an epoch must name the leader's; -1 names none. ApiError."""
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
        """Append a batch that `broker.log.validation.batch` found valid; its base offset and leader epoch are written
        into `batch`.

        `rewrite`: the batch is to hold its ids (broker.log.validation.topic_rules), so it is finished when it has them.
        ApiError for a wrong sequence or a disk that failed, an error of `idgen.errors` where no id is to be had; in
        each case the log is as it was.
        """
        if self.offline is not None:
            self._check_online()
        known = self.producers.check(header) if header.producer_id >= 0 else None
        if known is not None:
            first_runs = self.ids_of(known.base_offset, known.last_offset + 1)  # those of a deleted batch are gone
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
        """Append as many batches as one write can hold, from the first on; each is valid as `append` asks.

        Nothing is appended if the first batch is a duplicate or a failed write is being undone: `append` takes it then.
        Errors as of `append`; the log is unchanged then.
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
        """Choose the batches of one write: those from the first on that fit the segment and continue their producers.

        Return them with their size, their newest time, and the offset after them.
        """
        segment = self._segments[-1]
        room = self.config.segment_bytes - segment.size
        offset = self.log_end_offset
        offset_max = min(segment.base_offset + RELATIVE_OFFSET_MAX, offset + records_max)
        placed: list[Placed] = []
        size, newest = 0, NO_TIMESTAMP
        latest: dict[int, BatchHeader] = {}  # of each producer, its latest batch in this write
        for each in batches:
            batch, header = each[0], each[1]
            end = offset + header.last_offset_delta + 1
            after = size + header.batch_length + LENGTH_END
            if placed and (after > room or end > offset_max):
                break  # the first may begin a new segment
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
        """Return True if a producer's batch may follow `before` in one write, or what the log has if that is None.

        ApiError for the first batch of a write, if its sequence is wrong. For any later one that is found when its
        turn comes, because what comes before it may change the answer.
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
        """Batches, `size` bytes together, and the ids of all to the end of the log: all of them, or ApiError."""
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
            for header, _, batch in placed:  # as they came
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
        """After a failed write: wait for a sync before the next one, or stop where the log is not as it was."""
        active = self._segments[-1]
        if active.broken:
            self.take_offline(f"{error}, and the write could not be undone")
        elif active.undone:
            active.undone, self.mending = False, True
            self.ask_sync(self, True)

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, ids: IdSource, now: Now
    ) -> Appended:
        """End a producer's transaction here; where none is open the marker changes nothing (an end that is retried).

        An abort is put into the index before its marker is in the log: recovery makes the index again from the log,
        never the other way round. Errors as of `append`, and TRANSACTION_COORDINATOR_FENCED.
        """
        self._check_online()
        self.producers.check_marker(producer_id, producer_epoch, marker)
        batch = encode_marker(producer_id, producer_epoch, marker, now.wall_ms)
        header = read_header(batch)
        aborted = None if marker.commit else self.producers.aborted_at(producer_id, self.log_end_offset)
        with self._indexed(header, aborted):
            done = self.append(memoryview(batch), header, ids, now)
        self.producers.marked(header, done.base_offset, marker, now.wall_ms)
        self.producers.first_unstable_offset(self.high_watermark)  # lets go of what is decided
        return done

    @contextmanager
    def _indexed(self, header: BatchHeader, aborted: AbortedTransaction | None) -> Iterator[None]:
        """An entry of the transaction index, taken back where it or what is done under it fails."""
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
        active = self._segments[-1]
        # As in Kafka the age is told by the messages' times: with the clock's, each old message would roll a segment.
        aged = 0 <= active.first_timestamp_ms < newest_ms - self.config.roll_ms
        if active.has_room(size, last_offset, self.config.segment_bytes) and not aged:
            return active
        return self.roll()

    def roll(self) -> Segment:
        """Close the active segment and begin a new one at the log's end."""
        active = self._segments[-1]
        if active.base_offset == self.log_end_offset:
            return active
        active.seal()
        try:
            segment = Segment(self._storage, self.name, self.log_end_offset, create=True)
        except StorageError:
            remove_files(self._storage, self.name, self.log_end_offset)
            raise
        self._follow(segment)
        self._open_segments.unsynced += 1
        if self._open_segments.unsynced > self._open_segments.limit:
            self._sync_rolled()
        else:
            self.ask_sync(self, False)  # once it is on the disk, its files can be closed
        return segment

    def _sync_rolled(self) -> None:
        """Too many segments wait for a sync with their files open: so does the writer then."""
        try:
            for segment in self.unflushed_segments()[:-1]:
                segment.sync_whole()
            self._storage.sync_directory(self.name)
        except StorageError as error:
            self.take_offline(f"a sync failed: {error}")
            raise
        self._close_before(self._segments[-1].base_offset)

    def _take(self, segments: tuple[Segment, ...]) -> None:
        """Have these segments, and know of all but the last, which do not change, what is asked for often: there may be
        ten thousand of them."""
        self._segments = segments
        before = segments[:-1]
        self._bases = [each.base_offset for each in segments]
        self._newest = list(accumulate((each.max_timestamp_ms for each in before), max))
        self._bytes_before = sum(each.size for each in before)
        self._counted = NOT_COUNTED
        self._aborting = [each.base_offset for each in before if each.has_aborted]

    def _follow(self, segment: Segment) -> None:
        """`_take` with one more."""
        last = self._segments[-1]
        self._segments = (*self._segments, segment)
        self._bases.append(segment.base_offset)
        self._newest.append(max((last.max_timestamp_ms, *self._newest[-1:])))
        self._bytes_before += last.size
        if last.has_aborted:
            self._aborting.append(last.base_offset)

    # --- what goes -----------------------------------------------------------------------------------------------

    def advance_start(self, offset: int) -> bool:
        """Nobody reads below `offset` any more; False where the log begins there or later anyhow.

        ApiError OFFSET_OUT_OF_RANGE above the high watermark. The files stay until `drop_segments`.
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
        """Take the oldest segments from the list and begin the log after them; their files are the caller's to remove.

        A log never is without a segment: where all go, a new one is begun. StorageError where that fails.
        """
        dropped = self._segments[:number]
        if number == len(self._segments):
            self.roll()
        self.advance_start(self._segments[number].base_offset)
        self._dropped += dropped
        self._take(self._segments[number:])
        self._forget(dropped)
        return dropped

    def _forget(self, gone: Sequence[Segment]) -> None:
        for segment in gone:
            if isinstance(segment, ClosedSegment):
                self._open_segments.forget(segment)
            else:
                self._open_segments.unsynced -= 1

    def deleted(self) -> None:
        """The log is gone as a whole, and no file of it stays open but for what is being sent: who still knows it, a
        connection or a fetch session, may be silent for long."""
        self.offline, self._dropped = "it was deleted", ()
        self._forget(self._segments[:-1])
        gone = tuple(closed(self._storage, each, self._open_segments) for each in self._segments)
        for segment in gone:
            segment.close_files()
        self._take(gone)

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Put one segment in the place of several that follow each other; offsets and ids stay what they are."""
        at = self._segments.index(old[0])
        new = closed(self._storage, new, self._open_segments)
        self._take((*self._segments[:at], new, *self._segments[at + len(old) :]))
        self._forget(old)

    def _close_before(self, offset: int) -> None:
        """Segments below it are whole on the disk: they are opened by who reads them."""
        first = synced = bisect_left(self._bases, offset)
        while first and not isinstance(self._segments[first - 1], ClosedSegment):
            first -= 1
        self._open_segments.unsynced -= synced - first
        whole = [closed(self._storage, each, self._open_segments) for each in self._segments[first:synced]]
        self._segments = (*self._segments[:first], *whole, *self._segments[synced:])

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
        """Whole batches from the one that holds `offset` on, at most `max_bytes` of one segment; the last may be cut.

        `at_least_one`: a first batch larger than that is returned whole (KIP-74). `committed`: what lies below the
        last stable offset, and which transactions in it were aborted. ApiError OFFSET_OUT_OF_RANGE; NotCached where
        the disk is not to be waited for (`waits`), and the place would have to be looked for there.
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
                end_position = hidden[0]  # batches that are not on the disk are not shown yet
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
        """What was read from `offset` on, without the piece of a batch at its end that nobody can use: with batches of
        600 kB and a limit of a megabyte two bytes in five are such. All of it where the index does not say at once."""
        end = records.position + records.length
        segment = self._segments[bisect_right(self._bases, offset) - 1]
        if records.length < LARGE_READ_BYTES or end == segment.size:
            return records
        try:
            if segment.log is not records.file:
                return records
            in_memory = offset >= self.opened_at and segment is self._segments[-1]
            offsets = segment.offsets if in_memory else NonBlockingReader(segment).offsets
            last = offsets.last_up_to(end)
        except (NotCached, StorageError):
            return records
        # No further from the entry a batch may begin that has none: what ends there ends between two batches, as at the
        # high watermark, or with a small piece.
        if end - last <= self.config.index_interval_bytes or last <= records.position:
            return records
        return FileRegion(records.file, records.position, last - records.position)

    @staticmethod
    def _up_to(offset: int, segment: Segment, position: int, length: int) -> int:
        """Return as much of the length of a segment's region as lies below an offset, where a batch begins."""
        found = segment.find(offset) if offset < segment.next_offset else None
        return length if found is None else min(length, found[0] - position)

    def _aborted_within(
        self, offset: int, stable: int, segment: Segment, position: int, length: int
    ) -> tuple[tuple[int, int], ...]:
        """Return (producer id, first offset) of the aborted transactions in a region of a segment from `offset` on."""
        if not self._aborting and not self._segments[-1].has_aborted:  # nearly always
            return ()
        if next(self._aborting_from(offset), None) is None:
            return ()
        end = min(self._end_of(segment, position, length), stable)
        return tuple((each.producer_id, each.first_offset) for each in self.aborted_transactions(offset, end))

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records or their marker in first_offset .. end_offset - 1, by their markers.

        ApiError where an index cannot be read.
        """
        found = []
        with _answered():
            for segment in self._aborting_from(first_offset):
                for aborted in segment.aborted.ending_from(first_offset):
                    if aborted.first_offset < end_offset:
                        found.append(aborted)
                    if aborted.last_stable_offset >= end_offset:
                        return found
        return found

    def _aborting_from(self, offset: int) -> Iterator[Segment]:
        """The segments from the one with `offset` on in which transactions were aborted."""
        first = self._bases[max(bisect_right(self._bases, offset) - 1, 0)]
        for number in range(bisect_left(self._aborting, first), len(self._aborting)):
            yield self._segments[bisect_left(self._bases, self._aborting[number])]
        if self._segments[-1].has_aborted:
            yield self._segments[-1]

    def _locate(
        self, offset: int, end: int, with_ids: bool, waits: bool
    ) -> tuple[Segment, int, BatchHeader] | None:
        """Where the first batch with a record is that ends at or after `offset`, of those below `end`: what lies past
        that is not for who reads."""
        index = bisect_right(self._bases, offset) - 1
        found = None
        while found is None and index < len(self._segments):  # compaction may leave a segment's end empty
            segment = self._segments[index]
            index += 1
            # What this process has written to the newest segment is in memory: most fetches ask for that.
            if waits or (offset >= self.opened_at and index == len(self._segments)):
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
        """The next batch with a record: librdkafka takes an answer without any for one that was cut, and gives up in
        the end. Where there is none, the batch that compaction has emptied: it says how far its offsets went."""
        emptied = self._segments[index], position, header
        for segment in self._segments[index:]:
            for at, each in segment.batches(position if segment is emptied[0] else 0):
                if each.base_offset >= end:
                    return emptied
                if each.record_count:
                    return segment, at, each
        return emptied

    @staticmethod
    def _end_of(segment: Segment, position: int, length: int) -> int:
        """The offset after the last batch that begins in a stretch of the segment."""
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
        """The ids of first_offset .. end_offset - 1 as runs (first id, how many); of what has been deleted, none."""
        found: tuple[tuple[int, int], ...] = ()
        first_offset = max(first_offset, self.log_start_offset)
        with _answered():
            for segment in self._segments[max(bisect_right(self._bases, first_offset) - 1, 0) :]:
                if segment.base_offset >= end_offset:
                    break
                found += segment.ids.runs(first_offset, end_offset)
        return found

    def search(self) -> Search:
        """The log as it is now, to be searched in this thread or in another."""
        end_position = self._segments[-1].log.size
        return Search(self._segments, self._newest, self.log_start_offset, end_position, self._counted)

    def offset_of_id(self, id: int, mode: ReadMode = BLOCKING) -> int:
        """The first offset whose id is not below `id`; the high watermark where consumers see none. WouldBlock."""
        with _answered():
            return self.bounded(self.search().of_id(id, mode))

    def bounded(self, found: int | None) -> int:
        """What was found by its id, as far as consumers see the log."""
        return self.high_watermark if found is None else max(min(found, self.high_watermark), self.log_start_offset)

    def offset_of_time(self, timestamp_ms: int, mode: ReadMode = BLOCKING) -> tuple[int, int] | None:
        """(offset, its timestamp) of the first record not older than `timestamp_ms`; None where all are. WouldBlock,
        CorruptBatch."""
        with _answered():
            return self.search().of_time(timestamp_ms, mode)

    def offset_of_newest(self, mode: ReadMode = BLOCKING) -> tuple[int, int] | None:
        """(offset, its timestamp) of the first record with the largest timestamp of those that are left; None where
        none has a time. Errors as of `offset_of_time`."""
        with _answered():
            found, self._counted = self.search().of_newest(mode)
        return found

    # --- the disk ------------------------------------------------------------------------------------------------

    def position(self) -> LogPosition:
        """Where the log ends now; what `flushed` becomes when all of it is synced."""
        active = self._segments[-1]
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
        """Whether `position` would say the same: whatever else it has changes with one of these."""
        active = self._segments[-1]
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
        """The log's own files are on the disk up to `position`."""
        rolled = position.segment != self.flushed.segment
        self.flushed = position
        if rolled:
            self._close_before(position.segment)
        self.durable_end_offset = max(self.durable_end_offset, position.offset)
        ahead = self._journaled_ahead
        if ahead is not None and ahead[0] <= self.durable_end_offset:
            self.durable_end_offset = max(self.durable_end_offset, ahead[1])
            self._journaled_ahead = None

    def journaled(self, first_offset: int, end_offset: int) -> bool:
        """The journal has these offsets on the disk. False where what is before them is not: then they count as soon as
        the log's own files are synced up to them."""
        if first_offset <= self.durable_end_offset:
            self.durable_end_offset = max(self.durable_end_offset, end_offset)
            return True
        ahead = self._journaled_ahead
        self._journaled_ahead = (ahead[0] if ahead and ahead[1] == first_offset else first_offset), end_offset
        return False

    def unflushed_segments(self) -> tuple[Segment, ...]:
        """The segments that may hold what is not on the disk yet."""
        # Until a checkpoint says that the log begins after them, recovery still goes through those that were dropped.
        self._dropped = tuple(segment for segment in self._dropped if segment.base_offset >= self.flushed.segment)
        unflushed = self._dropped + self._segments[bisect_left(self._bases, self.flushed.segment) :]
        return tuple(segment for segment in unflushed if not isinstance(segment, ClosedSegment))

    def start_leader_epoch(self, epoch: int) -> None:
        """This broker leads the partition as of `epoch`; batches are stamped with it and its start is written down."""
        started = leader_epochs.start(self.epochs, epoch, self.log_end_offset)
        if started is not self.epochs:
            self._storage.replace(f"{self.name}/{leader_epochs.FILE}", leader_epochs.encode(started))
            self.epochs = started
        self.leader_epoch = self.epochs[-1][0]
