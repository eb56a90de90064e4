"""Finding out where a log ends, when it is opened.

What the checkpoint covers was synced and is taken as it is. Past it every batch is looked at: its length against the
file, its offset against the one before, its CRC, and that the id index has valid entries for just its offsets, ids
rising. The log ends before the first batch for which any of this fails; both files are cut there, segments after it are
removed. A log is never stamped again, so a batch whose ids were lost is lost with them: it was not synced.

Damage *below* the checkpoint is not cut away: those messages were on the disk. `LogDamaged` names the file; the
partition stays offline until somebody looks.
"""

from dataclasses import dataclass

from broker.config import BrokerConfig, TopicConfig
from broker.log import leader_epochs, producer_state
from broker.log.checkpoint import LogPosition
from broker.log.partition_log import PartitionLog
from broker.log.producer_state import ProducerState
from broker.log.segment import ID_INDEX, LOG, SUFFIXES, Segment, file_name
from broker.log.storage import Storage, StorageError
from broker.record.batch import BatchHeader, CorruptBatch, verify
from broker.wire.id_entries import ENTRY_BYTES


class LogDamaged(Exception):
    """Data that the checkpoint says was synced is not there, or not what it was."""


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log had to do, for the log line."""

    batches_read: int = 0
    bytes_cut: int = 0
    segments_removed: int = 0
    reason: str | None = None

    @property
    def cut(self) -> bool:
        return bool(self.bytes_cut or self.segments_removed)


def open_log(
    storage: Storage, topic: str, partition: int, config: TopicConfig, broker: BrokerConfig, known: LogPosition | None
) -> tuple[PartitionLog, RecoveryReport]:
    """The log in directory `topic-partition`, made if there is none; `known`: its place in the checkpoint.

    LogDamaged where what was synced is damaged, StorageError where a file cannot be read.
    """
    return _Recovery(storage, topic, partition, config, broker, known).run()


class _Recovery:
    def __init__(
        self,
        storage: Storage,
        topic: str,
        partition: int,
        config: TopicConfig,
        broker: BrokerConfig,
        known: LogPosition | None,
    ) -> None:
        self.storage = storage
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.config = config
        self.broker = broker
        self.known = known
        self.report = RecoveryReport()
        self.producers = ProducerState(broker.max_producers_per_partition)
        self.last_id = known.last_id if known else -1

    def run(self) -> tuple[PartitionLog, RecoveryReport]:
        self.storage.make_directory(self.name)
        segments = self._trusted()
        self._load_producers(segments)
        self._recover_tail(segments)
        known = self.known
        start = max(known.log_start_offset if known else 0, segments[0].base_offset)
        if known is None:
            first = segments[0]
            known = LogPosition(first.base_offset, start, -1, first.base_offset, 0, 0, -1, first.base_offset, 0)
        log = PartitionLog(
            self.topic,
            self.partition,
            self.storage,
            self.config,
            self.broker,
            segments,
            known,
            self.producers,
            self._epochs(),
        )
        log.log_start_offset = start
        log.last_id = self.last_id
        return log, self.report

    # --- what the checkpoint covers ------------------------------------------------------------------------------

    def _bases(self) -> list[int]:
        names = self.storage.list(self.name)
        return [int(name[: -len(LOG)]) for name in names if name.endswith(LOG) and name[: -len(LOG)].isdigit()]

    def _trusted(self) -> list[Segment]:
        """The segments up to the checkpoint's, opened; the last one is still to be looked at from there on."""
        bases = self._bases()
        known = self.known
        if known is None:
            return [self._first(bases)]
        if known.segment not in bases:
            if known.offset > known.log_start_offset:
                raise LogDamaged(f"{self.name}/{file_name(known.segment, LOG)} is gone, though it was synced")
            return [self._create(known.segment)]
        segments = [self._open(base) for base in bases if base <= known.segment]
        for segment, following in zip(segments, segments[1:], strict=False):
            self._check_sealed(segment, following.base_offset)
        last = segments[-1]
        for file, size in ((last.log, known.log_bytes), (last.ids.file, known.id_bytes)):
            if file.size < size:
                raise LogDamaged(f"{file.path} has {file.size} bytes, {size} were synced")
        last.next_offset = known.offset
        last.max_timestamp_ms, last.max_timestamp_offset = known.max_timestamp_ms, known.max_timestamp_offset
        last.first_timestamp_ms = self._first_timestamp(last)
        return segments

    def _first(self, bases: list[int]) -> Segment:
        """Nothing is known: begin at the first segment there is, and look at all of it."""
        return self._open(bases[0]) if bases else self._create(0)

    def _open(self, base: int) -> Segment:
        if not self.storage.exists(f"{self.name}/{file_name(base, ID_INDEX)}"):
            if self.known is not None and base < self.known.segment:
                raise LogDamaged(f"{self.name}/{file_name(base, ID_INDEX)} is gone, though it was synced")
            return self._create(base)  # its name did not reach the disk; without ids the batches cannot be kept
        return Segment(self.storage, self.name, base)

    def _create(self, base: int) -> Segment:
        return Segment(self.storage, self.name, base, create=True)

    def _check_sealed(self, segment: Segment, next_offset: int) -> None:
        """A segment before the checkpoint's: its ids must reach the next one; its times stand in its index."""
        number = len(segment.ids)
        last = segment.ids.entry(number - 1) if number else None
        if segment.size and (last is None or last.offset + last.length != next_offset):
            raise LogDamaged(f"{segment.ids.file.path}: its last entry is damaged")
        segment.next_offset = next_offset
        if len(segment.times):
            segment.max_timestamp_ms, relative = segment.times[-1]
            segment.max_timestamp_offset = segment.base_offset + relative
        segment.first_timestamp_ms = self._first_timestamp(segment)

    @staticmethod
    def _first_timestamp(segment: Segment) -> int:
        for _, header in segment.batches():
            return header.max_timestamp
        return -1

    # --- producers -----------------------------------------------------------------------------------------------

    def _load_producers(self, segments: list[Segment]) -> None:
        """The snapshot at the checkpoint; without one, the headers of all that the checkpoint covers."""
        known = self.known
        if known is None or known.producers == 0:
            return
        path = f"{self.name}/{file_name(known.offset, producer_state.SUFFIX)}"
        try:
            file = self.storage.open(path)
            self.producers.load(file.read(0, file.size))
        except (StorageError, ValueError):
            for segment in segments:
                end = known.log_bytes if segment.base_offset == known.segment else segment.size
                for _, header in segment.batches(end=end):
                    self.producers.appended(header, header.base_offset)

    # --- what lies past it ---------------------------------------------------------------------------------------

    def _recover_tail(self, segments: list[Segment]) -> None:
        known = self.known
        last = segments[-1]
        if known is None or last.base_offset != known.segment:
            sound = self._recover(last, 0, 0)
        else:
            sound = self._recover(last, known.log_bytes, known.id_bytes)
        for base in self._bases():
            if base <= last.base_offset:
                continue
            if sound and base == segments[-1].next_offset:
                segments[-1].seal()
                segments.append(self._open(base))
                sound = self._recover(segments[-1], 0, 0)
            else:
                self._remove(base)

    def _remove(self, base: int) -> None:
        self.report.segments_removed += 1
        for suffix in SUFFIXES:
            self.storage.remove(f"{self.name}/{file_name(base, suffix)}")

    def _recover(self, segment: Segment, log_bytes: int, id_bytes: int) -> bool:
        """Walk a segment from a position known to be good; True when it is good to its end."""
        segment.offsets.drop_from(log_bytes)
        segment.times.drop_after(max(segment.next_offset - 1 - segment.base_offset, 0))
        number = id_bytes // ENTRY_BYTES
        position = log_bytes
        reason: str | None = "it ends in the middle of a batch"
        for at, header in segment.batches(log_bytes):
            reason = self._fault(segment, at, header)
            entries = None if reason else self._entries_of(segment, number, header)
            if entries is None:
                reason = reason or "its ids are not in the id index"
                break
            number += entries
            self.report.batches_read += 1
            segment.passed(at, header, header.last_offset, self.config.index_interval_bytes)
            self.producers.appended(header, header.base_offset)
            position = at + header.size
            reason = "it ends in the middle of a batch"
        sound = position == segment.size
        if not sound:
            self.report.bytes_cut += segment.size - position
            self.report.reason = f"{segment.log.path} at byte {position}: {reason}"
            segment.log.truncate(position)
        segment.ids.keep(number * ENTRY_BYTES)
        return sound

    @staticmethod
    def _fault(segment: Segment, position: int, header: BatchHeader) -> str | None:
        if header.base_offset != segment.next_offset:
            return f"offset {header.base_offset} stands where {segment.next_offset} belongs"
        if header.record_count != header.last_offset_delta + 1 or header.record_count < 1:
            return f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        try:
            verify(segment.log.read(position, header.size), header)
        except CorruptBatch as error:
            return str(error)
        return None

    def _entries_of(self, segment: Segment, number: int, header: BatchHeader) -> int | None:
        """How many entries from `number` on hold just the ids of this batch, rising; None where they do not."""
        offset, end, last_id = header.base_offset, header.last_offset + 1, self.last_id
        entries = 0
        while offset < end:
            entry = segment.ids.entry(number + entries)
            if entry is None or entry.offset != offset or offset + entry.length > end or entry.first_id <= last_id:
                return None
            offset += entry.length
            last_id = entry.first_id + entry.length - 1
            entries += 1
        self.last_id = last_id
        return entries

    def _epochs(self) -> list[tuple[int, int]]:
        path = f"{self.name}/{leader_epochs.FILE}"
        if not self.storage.exists(path):
            return []
        file = self.storage.open(path)
        try:
            return leader_epochs.decode(file.read(0, file.size))
        except ValueError as error:
            raise LogDamaged(f"{path}: {error}") from None
