"""The log of one partition: its state, which appends and reads share, and its life from opening to deletion.

    broker.log.log_appender   appends batches and markers
    broker.log.log_reader     reads regions of files, and looks up offsets by id and time
    broker.log.segment_list   the segments

A failed sync takes the log offline for good (`offline` says why), because the contents of the disk are unknown
afterwards. A deleted log is freed with its last reference, so no object that it holds may refer to it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from broker.log import leader_epochs
from broker.log.checkpoint import LogPosition
from broker.log.producer_state import ProducerState
from broker.log.segment import Segment
from broker.log.segment_list import SegmentList
from broker.log.storage.port import Buffer, Storage, StorageError
from broker.record.records import LONG_MAX
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from idgen.worker import Run

NO_TOPIC_ID = UUID(int=0)


class JournalPort(Protocol):
    """The journal that a log's batches are copied to (broker.log.journal)."""

    def add(self, log: "PartitionLog", first_offset: int, batches: Buffer, runs: Sequence[Run]) -> None:
        """Copy the batches of one write, from `first_offset` to the log's end, and their ids."""
        ...


class PartitionLog:
    """The log of one partition, with offsets log_start_offset .. log_end_offset - 1.

    `recovery.open_log` makes it, and finds its end.
    """

    __slots__ = (
        "topic", "topic_id", "_topic_hex", "partition", "name", "config", "waiting_acks", "journal", "ask_sync",
        "on_offline", "on_failed_write", "producers", "epochs", "offline", "mending", "flushed", "checkpointed",
        "durable_end_offset", "on_disk", "_journaled_ahead", "unsynced_bytes", "log_start_offset", "last_id",
        "cleaned_offset", "uncleanable", "leader_epoch", "unflushed_since_ms", "_storage", "segments",
        "log_end_offset", "opened_at", "trusted_from", "bytes_in", "bytes_out", "epochs_stored", "is_named",
        "__weakref__",
    )  # fmt: skip

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
        self.on_failed_write: Callable[[Exception], None] = lambda error: None
        """Tells the log manager of a write that failed, because the disk may be full."""
        self.producers = producers
        self.epochs = epochs
        self.epochs_stored = True
        """False if an epoch was begun that is not in the file yet. The next sync for a checkpoint writes it."""
        self.is_named = False
        """True once the names of its first files are on the disk. The first sync does that."""
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
        self.trusted_from = LONG_MAX
        """Reads from here on need no verification; never below `opened_at`."""
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

    def check_online(self) -> None:
        """Raise ApiError if the log is offline."""
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

    def roll(self) -> Segment:
        """Close the active segment and begin a new one at the log's end."""
        segments = self.segments
        if segments.active.base_offset == self.log_end_offset:
            return segments.active
        if not self.is_named:
            self._sync_names()
        if segments.begin(self.log_end_offset):
            self.ask_sync(self, False)  # the closed segment's files can be closed once they are on the disk
        else:
            self._sync_rolled()
        return segments.active

    def _sync_names(self) -> None:
        """Sync the names of a log that was never synced, before it gets a second segment.

        A power cut may keep the names of one segment and lose those of another. Without its first segment, the log
        would begin in the middle, and recovery would not take the journal's earlier messages.
        """
        try:
            self._storage.sync_directory(self.name)
        except StorageError as error:
            self.take_offline(f"a sync failed: {error}")
            raise
        self.is_named = True

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
        if number == len(self.segments.all):
            self.roll()
        self.advance_start(self.segments.all[number].base_offset)
        return self.segments.drop(number)

    def deleted(self) -> None:
        """Note that the log was deleted, and close all its files except those being sent.

        A connection or fetch session may refer to the log for a long time without using it.
        """
        self.offline = "it was deleted"
        self.segments.close_all()

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
        self.is_named = True
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
        """Begin a leader epoch at the log's end, and write it into new batches.

        The file of epochs follows with the next checkpoint. Past the checkpoint, recovery finds epochs in the batches.
        """
        started = leader_epochs.start(self.epochs, epoch, self.log_end_offset)
        if started is not self.epochs:
            self.epochs, self.epochs_stored = started, False
        self.leader_epoch = self.epochs[-1][0]
