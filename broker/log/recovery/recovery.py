"""Recovery of a log: finds the log's end when it is opened.

The part below the checkpoint was synced and is trusted (broker.log.recovery.synced). Past it, recovery checks every
batch: its length against the file, its offset and leader epoch against the previous one, its CRC, and that the next
entries of the id index are valid, rising ids for exactly its offsets. So gaps between offsets, which a follower copies
from its leader, need no trust. The log ends before the first batch that fails a check. Recovery cuts both
files there and removes the segments after it. A record never gets a second id, so a batch whose ids are lost is lost
with them; it was not synced.

Then recovery reads the journal (broker.log.journal). It appends the journal's batches past the log's end with the ids
they were given, and verifies that those in the checked part match the log.

Recovery does not cut damage *below* the checkpoint, because those messages were synced. It raises `LogDamaged` with the
file's name; the partition stays offline until an operator looks at it.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID

from broker.log import leader_epochs, producer_state
from broker.log.checkpoint import LogPosition
from broker.log.closed_segment import ClosedSegment, OpenSegments, closed
from broker.log.compaction.swap import finish_swaps
from broker.log.durability import Durability
from broker.log.io_jobs import RemoveFiles
from broker.log.journal import Entry
from broker.log.partition_log import NO_TOPIC_ID, PartitionLog
from broker.log.producer_state import ProducerState
from broker.log.recovery import batch_epochs, stored_epochs
from broker.log.recovery.clean_stop import Noted
from broker.log.recovery.id_walk import IdWalk
from broker.log.recovery.report import RecoveryReport
from broker.log.recovery.shorter_entry import finish_shortening, shorten
from broker.log.recovery.synced import LogDamaged, Synced, offsets_of
from broker.log.segment import CLEANED, DELETED, ID_INDEX, LOG, SUFFIXES, SWAP, Placed, Segment, file_name, remove_files
from broker.log.segment_list import SegmentList
from broker.log.storage.port import TEMPORARY, Storage, StorageError
from broker.record.batch import BatchHeader, CorruptBatch, verify
from broker.record.control import decode_marker
from broker.settings.config import BrokerConfig, TopicConfig
from broker.wire.id_entries import ENTRY_BYTES

__all__ = ["LogDamaged", "RecoveryReport", "open_log"]


def open_log(
    storage: Storage,
    topic: str,
    partition: int,
    config: TopicConfig,
    broker: BrokerConfig,
    checkpointed: LogPosition | None,
    topic_id: UUID = NO_TOPIC_ID,
    journal: Sequence[Entry] = (),
    is_uncut: bool = False,
    noted: Noted | None = None,
    open_segments: OpenSegments | None = None,
    leader_epoch: int = 0,
) -> tuple[PartitionLog, RecoveryReport]:
    """Open the log in directory `topic-partition`, or make it.

    `checkpointed` is its position in the checkpoint. `journal` has the journal's batches of this log, by offset.
    `noted` has the facts of its segments as of a clean stop. `open_segments` is the registry of all logs' open
    segments; a log that is opened alone gets its own. `leader_epoch` is the partition's by the metadata.

    `is_uncut` says that the last process left no cut unsynced. Otherwise it may have undone its last write without a
    sync, so the files that appends will extend are synced first.

    Raise LogDamaged if synced data is damaged, StorageError if a file cannot be read.
    """
    among = OpenSegments(broker.max_open_segments) if open_segments is None else open_segments
    recovery = _Recovery(
        storage, topic, partition, config, broker, checkpointed, topic_id, noted or {}, among, leader_epoch
    )
    return recovery.run(journal, is_uncut)


class _Recovery:
    def __init__(
        self,
        storage: Storage,
        topic: str,
        partition: int,
        config: TopicConfig,
        broker: BrokerConfig,
        checkpointed: LogPosition | None,
        topic_id: UUID,
        noted: Noted,
        among: OpenSegments,
        leader_epoch: int,
    ) -> None:
        self.storage = storage
        self.leader_epoch = leader_epoch
        self.batch_epoch = 0
        """The leader epoch of the last good batch."""
        self.noted = noted
        self.among = among
        self.sizes: dict[str, int] = {}
        """Sizes of the files in the directory, once unfinished deletions and swaps are complete."""
        self.topic_id = topic_id
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.config = config
        self.broker = broker
        self.checkpointed = checkpointed
        self.report = RecoveryReport()
        self.producers = ProducerState(broker.max_producers_per_partition)
        self.last_id = -1
        self.epochs: list[tuple[int, int]] = []
        self.epochs_stored = True

    def run(self, journal: Sequence[Entry], is_uncut: bool) -> tuple[PartitionLog, RecoveryReport]:
        self.sizes = self._sizes()
        if not self.sizes:  # it may be there without files
            self.storage.make_directory(self.name)
        synced = Synced(
            self.storage,
            self.name,
            self.config.index_interval_bytes,
            self.checkpointed,
            self.topic_id,
            self.sizes,
            self.noted,
            self.among,
        )
        segments, self.checkpointed = synced.segments(), synced.checkpointed
        if synced.missing_first is not None:
            self.report.without_batches(synced.headless_id_bytes, synced.missing_first)
        self.last_id = self.checkpointed.last_id if self.checkpointed else -1
        start = max(self.checkpointed.log_start_offset if self.checkpointed else 0, segments[0].base_offset)
        self.epochs, self.report.epochs_fault = stored_epochs.read(
            self.storage, self.name, self.sizes, self.checkpointed, start
        )
        self._load_producers(segments, synced.aborted_known)
        if self.checkpointed is not None and self.checkpointed.offset:
            self.batch_epoch = max(leader_epochs.epoch_of(self.epochs, self.checkpointed.offset - 1), 0)
        self._recover_tail(segments, synced)
        self._sync_cuts(segments[-1], is_uncut)
        self._take_journal(journal, segments)
        self._remove_snapshots()
        self._cut_epochs(segments[-1].next_offset)
        checkpointed = self.checkpointed
        if self.epochs:  # the file of epochs may have the start that a checkpoint was to have
            start = max(start, min(self.epochs[0][1], segments[-1].next_offset))
        epochs = leader_epochs.from_offset(self.epochs, start)
        if checkpointed is None:
            base = segments[0].base_offset
            checkpointed = LogPosition(base, start, -1, base, 0, 0, -1, base, 0)
        log = PartitionLog(
            self.topic,
            self.partition,
            self.storage,
            self.config,
            SegmentList(self.storage, self.name, segments, self.among),
            Durability(checkpointed, is_named=self.checkpointed is not None, epochs_stored=self.epochs_stored),
            self.producers,
            epochs,
            self.topic_id,
        )
        log.log_start_offset = start
        log.last_id = self.last_id
        return log, self.report

    def _sync_cuts(self, last: Segment, is_uncut: bool) -> None:
        """Sync the files and names that appends will extend: a cut of the last process may not be on the disk.

        Without such a cut, nothing is written at a place that was written before, so a power cut cannot mix old and new
        bytes. Files that end at the checkpoint are on the disk then. Longer ones have unsynced bytes: the next
        checkpoint syncs them, or their closing does.
        """
        checkpointed = (
            self.checkpointed
            if self.checkpointed is not None and self.checkpointed.segment == last.base_offset
            else None
        )
        synced = (checkpointed.id_bytes, checkpointed.log_bytes) if checkpointed else (0, 0)
        if self.sizes and not is_uncut:  # it may have removed segments past the end, and they must not come back
            self.storage.sync_directory(self.name)
        for file, size in zip((last.ids.file, last.log), synced, strict=True):
            if not is_uncut:
                file.sync()
            elif file.size > size:
                file.note_unsynced()

    def _sizes(self) -> dict[str, int]:
        """Complete the deletions, swaps and shortenings that the previous process began. Return the files' sizes."""
        sizes = self.storage.sizes(self.name)
        retired = [f"{self.name}/{name}" for name in sizes if name.endswith((DELETED, TEMPORARY))]
        if retired:
            RemoveFiles(self.storage, self.name, tuple(retired)).run()
        swapping = any(name.endswith((CLEANED, SWAP)) for name in sizes)
        if swapping:
            finish_swaps(self.storage, self.name)
        shortening = finish_shortening(self.storage, self.name, sizes)
        return self.storage.sizes(self.name) if retired or swapping or shortening else sizes

    def _cut_epochs(self, end_offset: int) -> None:
        """Drop the leader epochs of the cut part, also from the file. Write a file that could not be right anew."""
        epochs = leader_epochs.cut(self.epochs, end_offset)
        if epochs is not self.epochs or self.report.epochs_fault is not None:
            self.epochs = epochs
            self.storage.replace(f"{self.name}/{leader_epochs.FILE}", leader_epochs.encode(epochs))
            self.epochs_stored = True

    def _names(self, suffix: str) -> list[int]:
        return offsets_of(self.sizes, suffix)

    # --- producers -----------------------------------------------------------------------------------------------

    def _load_producers(self, segments: list[Segment], aborted_known: bool) -> None:
        """Load the snapshot at the checkpoint. Without one, replay the headers of all batches below the checkpoint.

        If an index of aborted transactions may be wrong, replay the headers as well, because that rewrites the index.
        Do so too if the file of leader epochs cannot be right.
        """
        checkpointed = self.checkpointed
        replays = not aborted_known or self.report.epochs_fault is not None
        if checkpointed is None or (checkpointed.producers == 0 and not replays):
            return
        path = f"{self.name}/{file_name(checkpointed.offset, producer_state.SUFFIX)}"
        try:
            if replays:
                self._replay(segments, checkpointed)
                self.producers = ProducerState(self.broker.max_producers_per_partition)
            if checkpointed.producers:
                file = self.storage.open(path)
                self.producers.load(file.read(0, file.size), checkpointed.offset)
        except (StorageError, ValueError):
            self.producers = ProducerState(self.broker.max_producers_per_partition)
            self._replay(segments, checkpointed)

    def _replay(self, segments: list[Segment], checkpointed: LogPosition) -> None:
        """Replay the headers of all batches below the checkpoint, and rewrite the indexes of aborted transactions."""
        end_offset = segments[0].base_offset
        if self.report.epochs_fault is not None:
            self.epochs, self.batch_epoch = [], 0
        for number, segment in enumerate(segments):
            segment.aborted.begin_rebuild()
            end = checkpointed.log_bytes if segment.base_offset == checkpointed.segment else segment.size
            try:
                for position, header in segment.batches(end=end):
                    self._check_replayed_epoch(segment, position, header)
                    self._note(segment, position, header, end_offset)
                    end_offset = header.last_offset + 1
            except CorruptBatch as error:
                raise LogDamaged(f"{segment.log.path}: {error}") from None
            segment.aborted.end_rebuild()
            if isinstance(segment, ClosedSegment):
                facts = segment.facts._replace(txn_index_bytes=segment.aborted.size)
                self.among.forget(segment)
                segments[number] = ClosedSegment(self.storage, self.name, facts, self.among)
        if self.report.epochs_fault is not None:  # a cleaner may have removed the last batch of that epoch
            self.epochs = leader_epochs.start(self.epochs, checkpointed.leader_epoch, checkpointed.offset - 1)

    def _check_replayed_epoch(self, segment: Segment, position: int, header: BatchHeader) -> None:
        """Check an epoch that is to be stored anew. Raise LogDamaged if it cannot be right either."""
        if self.report.epochs_fault is None:
            return
        fault = self._epoch_fault(segment, position, header)
        if fault is not None:
            raise LogDamaged(f"{self.report.epochs_fault}; and {segment.log.path} at byte {position}: {fault}")
        self.batch_epoch = header.leader_epoch

    def _note(self, segment: Segment, position: int, header: BatchHeader, end_offset: int) -> None:
        """Apply a batch of the log to the state of its producer, and note its leader epoch if that is a new one.

        Index the transaction if the batch aborts one. `end_offset` is the end of the batch before; a new epoch begins
        there (`PartitionLog.note_epoch`).
        """
        epochs = leader_epochs.start(self.epochs, header.leader_epoch, min(header.base_offset, end_offset))
        if epochs is not self.epochs:
            self.epochs, self.epochs_stored = epochs, False
        marker = decode_marker(segment.log.read(position, header.size)) if header.is_control else None
        if marker is None:
            self.producers.appended(header, header.base_offset)
            return
        aborted = None if marker.commit else self.producers.aborted_at(header.producer_id, header.base_offset)
        if aborted is not None:
            segment.aborted.append(aborted)
        self.producers.marked(header, header.base_offset, marker)

    def _remove_snapshots(self) -> None:
        """Remove snapshots that the checkpoint does not name, because their own checkpoint was never written."""
        for offset in self._names(producer_state.SUFFIX):
            if self.checkpointed is None or offset != self.checkpointed.offset:
                self.storage.remove(f"{self.name}/{file_name(offset, producer_state.SUFFIX)}")

    # --- the tail past the checkpoint ----------------------------------------------------------------------------

    def _recover_tail(self, segments: list[Segment], synced: Synced) -> None:
        position = self.checkpointed
        last = segments[-1]
        sound = self._recover(last, position.log_bytes, position.id_bytes) if position else self._recover_whole(last)
        for base in self._names(LOG):
            if sound and segments[-1].size and last.base_offset < base == segments[-1].next_offset:
                segments[-1] = self._close(segments[-1])
                segments.append(synced.open(base))
                sound = self._recover_whole(segments[-1])
        self._remove_others({segment.base_offset for segment in segments}, segments[-1].next_offset)

    def _close(self, segment: Segment) -> Segment:
        """Close a segment that is recovered to its end; there may be too many to keep open until a sync."""
        segment.seal()
        segment.sync_whole()
        return closed(self.storage, segment, self.among)

    def _remove_others(self, kept: set[int], end_offset: int) -> None:
        """Remove segments past the end, single files of segments whose other names did not reach the disk, and
        leftovers of segments below the log's start."""
        others = set().union(*map(self._names, SUFFIXES)) - kept
        if not others:
            return
        logs = set(self._names(LOG)) - kept
        self.storage.cutting()
        for base in others:
            remove_files(self.storage, self.name, base)
        # Sync before any append, so that these files cannot reappear when the log reaches their offsets.
        self.storage.sync_directory(self.name)
        ids_bytes = {base: self.sizes.get(file_name(base, ID_INDEX), 0) for base in others - logs if base > max(kept)}
        headless = [base for base, size in ids_bytes.items() if size >= ENTRY_BYTES]
        removed = [base for base in logs if base > min(kept)]
        missing = f"there is no file {self.name}/{file_name(min(headless, default=end_offset), LOG)}"
        bytes_removed = sum(self.sizes[file_name(base, LOG)] for base in removed)
        self.report.removed(len(removed) + len(headless), bytes_removed, missing)

    def _recover_whole(self, segment: Segment) -> bool:
        segment.offsets.keep(0)
        segment.times.keep(0)
        segment.aborted.keep_bytes(0)
        return self._recover(segment, 0, 0)

    def _recover(self, segment: Segment, log_bytes: int, id_bytes: int) -> bool:
        """Check a segment from a good position on, and cut it at the first bad batch. Return True if all are good."""
        ids = IdWalk(segment.ids, id_bytes // ENTRY_BYTES, self.last_id)
        position = log_bytes
        reason: str | None = "it ends in the middle of a batch"
        for at, header in segment.batches(log_bytes):
            reason = self._fault(segment, at, header) or self._epoch_fault(segment, at, header)
            if reason is None and not ids.take(header):
                reason = "its ids are not in the id index"
            if reason is not None:
                break
            self.report.batches_read += 1
            end_offset = segment.next_offset
            segment.passed(at, ((header, header.base_offset),), self.config.index_interval_bytes)
            self._note(segment, at, header, end_offset)
            position, self.batch_epoch = at + header.size, header.leader_epoch
            reason = "it ends in the middle of a batch"
        sound = position == segment.size
        if not sound:
            self.report.bytes_cut += segment.size - position
            self.report.reason = f"{segment.log.path} at byte {position}: {reason}"
        self.last_id = ids.last_id
        begun = ids.begun
        ids_bytes = ids.number * ENTRY_BYTES if begun is None else segment.ids.file.size
        spare_bytes = segment.ids.file.size - ids.number * ENTRY_BYTES
        if sound and spare_bytes:
            self.report.without_batches(spare_bytes, f"{segment.log.path} ends at byte {position}, its ids go on")
        for file in segment.cut(position, ids_bytes):
            file.sync()
        if begun is not None:
            shorten(self.storage, self.name, segment.ids, ids.number, begun)
        return sound

    def _epoch_fault(self, segment: Segment, position: int, header: BatchHeader) -> str | None:
        newest_epoch = max(self.leader_epoch, self.epochs[-1][0] if self.epochs else 0)
        return batch_epochs.fault_of(segment, position, header, self.batch_epoch, newest_epoch)

    def _fault(self, segment: Segment, position: int, header: BatchHeader) -> str | None:
        # A follower copies the gaps that its leader's cleaner has left, and a cleaned log may have lost its checkpoint.
        # The ids tell which offsets the next batch has, so a wrong offset is found by them.
        offset = header.base_offset
        begins_within = not position and segment.base_offset <= offset < segment.next_offset <= header.last_offset
        if offset < segment.next_offset and not begins_within:
            return f"offset {offset} stands where {segment.next_offset} belongs"
        count, number = header.record_count, header.last_offset_delta + 1
        if number < 1 or not 0 <= count <= number:
            return f"{count} records with a last offset delta of {header.last_offset_delta}"
        try:
            batch = segment.log.read(position, header.size)
            verify(batch, header)
            if header.is_control:
                decode_marker(batch)
        except CorruptBatch as error:
            return str(error)
        return None

    # --- the journal ---------------------------------------------------------------------------------------------

    def _take_journal(self, journal: Sequence[Entry], segments: list[Segment]) -> None:
        """Append the batches that only the journal has. Stop at a gap, because batches past it were never answered."""
        synced_to = max(self.checkpointed.offset if self.checkpointed else 0, segments[0].base_offset)
        for entry in journal:
            offset = entry.header.base_offset
            if offset == segments[-1].next_offset:
                self._restore(entry, segments)
            elif offset > segments[-1].next_offset:
                return
            elif offset >= synced_to:
                self._compare(entry, next(s for s in reversed(segments) if s.base_offset <= offset))

    def _restore(self, entry: Entry, segments: list[Segment]) -> None:
        header, batch = entry.header, entry.batch()
        if entry.runs[0][0] <= self.last_id:
            raise LogDamaged(f"{entry.file.path}: its ids for offset {header.base_offset} of {self.name} do not rise")
        if not segments[-1].has_room(header.size, header.last_offset, self.config.segment_bytes):
            segments[-1] = self._close(segments[-1])
            self.storage.sync_directory(self.name)  # as PartitionLog.roll does
            segments.append(Segment(self.storage, self.name, header.base_offset, create=True))
        position = segments[-1].size
        placed: Placed = (header, header.base_offset, memoryview(batch))
        segments[-1].append([placed], entry.runs, self.config.index_interval_bytes)
        self._note(segments[-1], position, header, header.base_offset)
        first_id, length = entry.runs[-1]
        self.last_id = first_id + length - 1
        self.report.from_journal += 1

    def _compare(self, entry: Entry, segment: Segment) -> None:
        offset, end = entry.header.base_offset, entry.header.last_offset + 1
        located = segment.find(offset)
        if (
            located is None
            or located[1] != entry.header
            or _joined(segment.ids.runs(offset, end)) != _joined(entry.runs)
        ):
            raise LogDamaged(f"{segment.log.path}: offset {offset} is not what {entry.file.path} says was written")


def _joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join runs whose ids are consecutive.

    With a single worker number, the first id of a millisecond follows the last id of the previous one. An id index may
    store such runs as one entry, while the journal has them separately.
    """
    joined: list[tuple[int, int]] = []
    for first_id, length in runs:
        if joined and sum(joined[-1]) == first_id:
            joined[-1] = joined[-1][0], joined[-1][1] + length
        else:
            joined.append((first_id, length))
    return joined
