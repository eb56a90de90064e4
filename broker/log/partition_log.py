"""The log of one partition: its state, which appends and reads share, and its life from opening to deletion.

    broker.log.log_appender   appends batches and markers
    broker.log.log_reader     reads regions of files, and looks up offsets by id and time
    broker.log.segment_list   the segments
    broker.log.durability     how much of the log is on the disk

A failed sync takes the log offline for good (`offline` says why), because the contents of the disk are unknown
afterwards. A deleted log is freed with its last reference, so no object that it holds may refer to it.
"""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from broker.log import leader_epochs
from broker.log.checkpoint import LogPosition
from broker.log.durability import Durability
from broker.log.newest_write import NewestWrite
from broker.log.producer_state import ProducerState
from broker.log.segment import Segment
from broker.log.segment_list import SegmentList
from broker.log.storage.port import Buffer, Storage, StorageError
from broker.record.records import LONG_MAX
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from idgen.worker import IdRun

NO_TOPIC_ID = UUID(int=0)


class JournalPort(Protocol):
    """The journal that a log's batches are copied to (broker.log.journal)."""

    def add(self, log: "PartitionLog", first_offset: int, batches: Buffer, runs: Sequence[IdRun]) -> None:
        """Copy the batches of one write, from `first_offset` to the log's end, and their ids."""
        ...


class SchedulerPort(Protocol):
    """The scheduler of a log's syncs (broker.log.sync_scheduler)."""

    def ask(self, log: "PartitionLog", soon: bool) -> None:
        """Ask for a sync of the log, `soon` if a request waits for it."""
        ...

    def went_offline(self, log: "PartitionLog") -> None:
        """Note that the log went offline."""
        ...

    def write_failed(self, error: Exception) -> None:
        """Note a write that failed, because the disk may be full."""
        ...


class PartitionLog:
    """The log of one partition, with offsets log_start_offset .. log_end_offset - 1.

    `recovery.open_log` makes it, and finds its end.
    """

    __slots__ = (
        "topic", "topic_id", "_topic_hex", "partition", "name", "config", "waiting_acks", "journal", "scheduler",
        "producers", "epochs", "offline", "durability", "log_start_offset", "last_id", "cleaned_offset",
        "uncleanable", "leader_epoch", "_storage", "segments", "log_end_offset", "opened_at", "trusted_from",
        "replicated_to", "has_copies", "newest_write", "bytes_in", "bytes_out", "messages_copied", "bytes_copied",
        "bytes_replicated", "__weakref__",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        storage: Storage,
        config: TopicConfig,
        segments: SegmentList,
        durability: Durability,
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
        self.scheduler: SchedulerPort | None = None
        self.producers = producers
        self.epochs = epochs
        self.offline: str | None = None
        self.durability = durability
        flushed = durability.flushed
        self.log_start_offset = flushed.log_start_offset
        self.last_id = flushed.last_id
        self.cleaned_offset = flushed.cleaned_offset
        """Below it, a compacted log has only the last record of each key, as of the cleaning."""
        self.uncleanable: str | None = None
        self.leader_epoch = epochs[-1][0] if epochs else 0
        self._storage = storage
        self.segments = segments
        self.log_end_offset = segments.active.next_offset
        self.opened_at = self.log_end_offset
        self.trusted_from = LONG_MAX
        """Reads from here on need no verification; never below `opened_at`."""
        self.replicated_to = LONG_MAX
        """Offsets below it are on every replica in sync; LONG_MAX while no other replica counts."""
        self.has_copies = False
        """True if other brokers have copies. They may begin to count while a request waits."""
        self.newest_write: NewestWrite | None = None
        """The newest write of this broker as the leader, if it is small, until all replicas in sync have it."""
        # These count since the log was opened.
        self.bytes_in = 0  # appended, those copied too
        self.bytes_out = 0  # fetched by consumers
        self.messages_copied = 0  # appended as the leader has them
        self.bytes_copied = 0
        self.bytes_replicated = 0  # fetched by followers

    @property
    def messages_in(self) -> int:
        """Return how many messages this broker has appended as the leader, since the log was opened."""
        return self.log_end_offset - self.opened_at - self.messages_copied

    # --- positions -----------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Return the end of the offsets that consumers see.

        Without other replicas that is the log's end, or with `visible_after_flush` the end of the part on the disk.
        With other replicas it is at most `replicated_to`.
        """
        end = self.durability.end_offset if self.config.visible_after_flush else self.log_end_offset
        return end if end <= self.replicated_to else self.replicated_to

    @property
    def last_stable_offset(self) -> int:
        """Return the end of the offsets that read_committed consumers see.

        That is the start of the first open transaction, or the high watermark if no transaction is open.
        """
        return self.readable_ends[1]

    @property
    def readable_ends(self) -> tuple[int, int]:
        """Return the high watermark and the last stable offset."""
        high_watermark = self.high_watermark
        unstable = self.producers.first_unstable_offset(high_watermark)
        if unstable is None:
            return high_watermark, high_watermark
        return high_watermark, max(min(unstable, high_watermark), self.log_start_offset)

    def move_replicated_to(self, offset: int) -> None:
        """Set `replicated_to`. This is the only method that moves the high watermark for the sake of other replicas.

        It calls nobody: the caller answers the requests that wait for the log. The log's start is always replicated,
        because records are deleted below the high watermark only. So a stored offset below the start becomes the start.
        """
        self.replicated_to = max(offset, self.log_start_offset)
        if offset >= self.log_end_offset:
            self.newest_write = None

    @property
    def is_empty(self) -> bool:
        """Return True if the log has no batch, not even one that was deleted and whose file is still there."""
        return self.log_start_offset == self.log_end_offset and not self.segments.size

    @property
    def unflushed(self) -> int:
        """Return the number of messages appended since the last acknowledged sync."""
        return self.log_end_offset - self.durability.flushed.offset

    def check_online(self) -> None:
        """Raise ApiError if the log is offline."""
        if self.offline is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is offline: {self.offline}")

    def take_offline(self, reason: str) -> None:
        """Refuse all reads and appends until a restart has checked the files."""
        self.offline = reason
        if self.scheduler is not None:
            self.scheduler.went_offline(self)

    def ask_sync(self, *, soon: bool) -> None:
        """Ask for a sync of the log, `soon` if a request waits for it."""
        if self.scheduler is not None:
            self.scheduler.ask(self, soon)

    def failed_write(self, error: Exception) -> None:
        """After a failed write, ask for a sync before the next one; go offline if the write could not be undone."""
        if self.scheduler is not None:
            self.scheduler.write_failed(error)
        if self.offline is not None:
            return  # no partition of a read-only disk is online
        active = self.segments.active
        if active.broken:
            self.take_offline(f"{error}, and the write could not be undone")
        elif active.undone:
            active.undone, self.durability.mending = False, True
            self.ask_sync(soon=True)

    def failed_read(self, error: StorageError) -> None:
        """Go offline if a file cannot be read, as Kafka takes a directory offline at the first error of its disk.

        Without that, each read would fail for ever while the partition keeps its leader. A lack of descriptors or
        memory passes, and the next read may succeed.
        """
        if error.is_of_file and self.offline is None:
            self.take_offline(str(error))

    def check_leader_epoch(self, epoch: int) -> None:
        """Raise ApiError if a client names another epoch than the leader's (KIP-320); -1 names none."""
        if epoch == self.leader_epoch or epoch == leader_epochs.NO_EPOCH:
            return
        if epoch < self.leader_epoch:
            reason = f"{self.name}: epoch {epoch} is over, {self.leader_epoch} is on"
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, reason)
        reason = f"{self.name}: epoch {epoch} is to come, {self.leader_epoch} is on"
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH, reason)

    def roll(self) -> Segment:
        """Close the active segment and begin a new one at the log's end."""
        segments = self.segments
        if segments.active.base_offset == self.log_end_offset:
            return segments.active
        if not self.durability.is_named:
            self._sync_names()
        if segments.begin(self.log_end_offset):
            self.ask_sync(soon=False)  # the closed segment's files can be closed once they are on the disk
        else:
            self._sync_rolled()
        return segments.active

    def begin_segment_at(self, offset: int) -> None:
        """Let the only segment of an empty log begin at a lower offset. The log's start and end stay.

        The first batch of a follower's log may begin below the log's start, because the leader has deleted the records
        before the start and not the whole batch. Raise StorageError, with the log unchanged.
        """
        if offset >= self.segments.active.base_offset:
            return  # a write of that batch has failed before, or older records were deleted
        self.segments.begin_anew(offset, self.log_end_offset)
        self.durability.is_named = False

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
        self.durability.is_named = True

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
        """Return the log's position now; `Durability.flushed` gets this value when all of it is synced."""
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
            leader_epochs.epoch_of(self.epochs, self.log_end_offset - 1),
        )

    def is_at(self, checkpointed: LogPosition | None) -> bool:
        """Return True if `position` equals `checkpointed`; its other fields change only with the compared ones."""
        active = self.segments.active
        return checkpointed is not None and (
            self.log_end_offset == checkpointed.offset
            and self.log_start_offset == checkpointed.log_start_offset
            and active.base_offset == checkpointed.segment
            and active.times.file.size == checkpointed.time_index_bytes
            and len(self.producers) == checkpointed.producers
            and self.cleaned_offset == checkpointed.cleaned_offset
            and self._topic_hex == checkpointed.topic_id
        )

    def synced(self, position: LogPosition, *, mends: bool = False, stores_epochs: bool = False) -> None:
        """Note that the log's own files are on the disk up to `position`, and what else the sync has done."""
        rolled = position.segment != self.durability.flushed.segment
        self.durability.synced(position, mends=mends, stores_epochs=stores_epochs)
        if rolled:
            self.segments.close_before(position.segment)

    def unflushed_segments(self) -> tuple[Segment, ...]:
        """Return the segments that may contain unsynced bytes."""
        return self.segments.unsynced_from(self.durability.flushed.segment)

    def start_leader_epoch(self, epoch: int) -> None:
        """Begin a leader epoch at the log's end, and write it into new batches.

        The file of epochs follows with the next checkpoint. Past the checkpoint, recovery finds epochs in the batches.
        """
        self.note_epoch(epoch, self.log_end_offset)
        self.leader_epoch = self.epochs[-1][0]

    def note_epoch(self, epoch: int, offset: int) -> None:
        """Note that a leader epoch begins at an offset, if it is newer than all before. `leader_epoch` stays.

        A copied epoch begins where the batch before its first one ends. The leader's cleaner may have removed older
        batches of the epoch there. An earlier leader may have others at these offsets, and must be told to drop them.
        """
        started = leader_epochs.start(self.epochs, epoch, offset)
        if started is not self.epochs:
            self.epochs, self.durability.epochs_stored = started, False

    def follow(self, epoch: int) -> None:
        """Fence requests by the leader epoch that another broker leads in, without an entry for it in `epochs`.

        A follower names the newest epoch of `epochs` to its leader (rule T1 of the cluster), and that one must have
        begun: its entry begins with its first batch.
        """
        self.leader_epoch = epoch

    def know_last_id(self, id: int) -> None:
        """Keep the last id of the log's leader if it is greater, because an empty log has no batch with it."""
        if id > self.last_id:
            self.last_id = id
