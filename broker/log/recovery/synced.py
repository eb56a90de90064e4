"""The part of a log below the checkpoint, opened and checked without reading all of it.

It was synced, so it must exist: segments without a gap, each with ids up to the end of its batches, and a last segment
with at least the bytes and exactly the last id that the checkpoint names. Otherwise `LogDamaged` names the file, and
nothing is changed. The offset and time index are not data: if one is missing or cannot be right, both are rewritten
from the headers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

from broker.log.checkpoint import LogPosition
from broker.log.closed_segment import ClosedSegment, OpenSegments, closed
from broker.log.index.id_index import IdIndex
from broker.log.index.txn_index import TXN_CHECK, TXN_INDEX
from broker.log.recovery.clean_stop import Noted
from broker.log.segment import ID_INDEX, LOG, Segment, file_name, remove_files
from broker.log.storage.port import Storage
from broker.record.batch import NO_TIMESTAMP
from broker.wire.id_entries import ENTRY_BYTES


class LogDamaged(Exception):
    """Data that the checkpoint says was synced is missing or different."""


def offsets_of(names: Iterable[str], suffix: str) -> list[int]:
    """Return the offsets in the names of files with this suffix, ascending."""
    digits = -len(suffix)
    return sorted([int(name[:digits]) for name in names if name.endswith(suffix) and name[:digits].isdecimal()])


def _not_below(log_start_offset: int, bases: list[int], newest: int) -> list[int]:
    """Return the bases without those of deleted segments, because a crash can leave all or some of their files."""
    first = max((base for base in {*bases, newest} if base <= log_start_offset), default=0)
    return [base for base in bases if base >= first]


class Synced:
    """The directory of a log as the checkpoint describes it: `checkpointed`, or None if it says nothing useful.

    `sizes` are the files in the directory, `noted` the facts of the segments as of a clean stop, and `among` the
    registry that bounds the open files of closed segments.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        index_interval_bytes: int,
        position: LogPosition | None,
        topic_id: UUID,
        sizes: Mapping[str, int],
        noted: Noted,
        among: OpenSegments,
    ) -> None:
        self.storage = storage
        self.name = name
        self.sizes = sizes
        self.noted = noted
        self.among = among
        self.index_interval_bytes = index_interval_bytes
        # A deleted topic's log may have had this name, and the checkpoint describes that log until it is rewritten.
        is_other = position is not None and position.topic_id not in ("", topic_id.hex)
        if is_other and position is not None and self._is_described_by(position):
            raise LogDamaged(
                f"the checkpoint has these records as those of the topic with id {UUID(position.topic_id)}, and the "
                f"metadata gives the topic the id {topic_id}. Put back the metadata that belongs to this data"
            )
        self.checkpointed = None if is_other else position
        self.aborted_known = True
        """False if an index of aborted transactions cannot be right."""
        self.missing_first: str | None = None
        """Says that the file is missing with which the checkpoint's empty log began: a truncation removed it, or it was
        lost."""
        self.headless_id_bytes = 0
        """Bytes of the ids that were beside that file."""

    def segments(self) -> list[Segment]:
        """Return the opened segments up to the checkpoint's. The caller still checks the last one past it."""
        bases = offsets_of(self.sizes, LOG)
        position = self.checkpointed = self._begun_anew(self.checkpointed, bases)
        if position is None:
            return [self.open(bases[0]) if bases else Segment(self.storage, self.name, 0, create=True)]
        bases = _not_below(position.log_start_offset, bases, position.segment)
        if position.segment not in bases:
            path = f"{self.name}/{file_name(position.segment, LOG)}"
            is_gone = file_name(position.segment, LOG) not in self.sizes and position.offset not in bases
            # Retention removes a segment only once the checkpoint names another one, and a truncation to the log's
            # start lowers the checkpoint to 0 bytes before it does.
            if position.offset > position.log_start_offset or (is_gone and position.log_bytes):
                raise LogDamaged(f"there is no file {path}, though it was synced")
            if is_gone:
                self.missing_first = f"there is no file {path}"
                self.headless_id_bytes = self.sizes.get(file_name(position.segment, ID_INDEX), 0)
            self.checkpointed = replace(
                position,
                segment=position.offset,
                log_bytes=0,
                id_bytes=0,
                index_bytes=0,
                time_index_bytes=0,
                txn_index_bytes=0,
            )
            if file_name(position.offset, LOG) not in self.sizes:
                # A power cut in a truncation may have left an index of the lost segment.
                remove_files(self.storage, self.name, position.offset)
            return [self._create(position.offset)]
        bases = [base for base in bases if base <= position.segment and not self._is_left_over(base, position)]
        if bases[0] > position.log_start_offset:
            raise self._gap(position.log_start_offset, bases[0])
        before: list[Segment] = [self._closed(base, following) for base, following in pairwise(bases)]
        last = self.open(position.segment)
        self._check_last(last, position)
        return [*before, last]

    def _begun_anew(self, position: LogPosition | None, bases: Iterable[int]) -> LogPosition | None:
        """Return the position of an empty log in the segment that its first batch has begun since then, below the
        position's (`PartitionLog.begin_segment_at`).

        A segment of deleted records may lie there too. Its ids are not above the last one.
        """
        if position is None or position.log_bytes or position.segment != position.offset:
            return position
        base = max((base for base in bases if base < position.segment), default=None)
        if base is None or self.sizes.get(file_name(position.segment, LOG)):
            return position
        name = file_name(base, ID_INDEX)
        first = IdIndex(self.storage.open(f"{self.name}/{name}"), base).entry(0) if name in self.sizes else None
        if first is None or first.first_id <= position.last_id:
            return position
        return replace(position, segment=base)

    def _is_described_by(self, position: LogPosition) -> bool:
        """Return True if the directory has the last id of a checkpoint's entry; ids are unique, so this is its log."""
        for base in reversed([offset for offset in offsets_of(self.sizes, ID_INDEX) if offset <= position.segment]):
            ids = IdIndex(self.storage.open(f"{self.name}/{file_name(base, ID_INDEX)}"), base)
            number = position.id_bytes // ENTRY_BYTES if base == position.segment else len(ids)
            if number:
                last = ids.entry(number - 1)
                return last is not None and (last.offset + last.length, last.first_id + last.length - 1) == (
                    position.offset,
                    position.last_id,
                )
        return False

    def _closed(self, base: int, next_offset: int) -> ClosedSegment:
        """Return a segment before the checkpoint's, closed: trusted if a clean stop noted it, otherwise checked."""
        facts = self.noted.get(base)
        if facts is not None and facts.next_offset == next_offset:
            if all(self.sizes.get(name) == size for name, size in facts.sizes.items()):
                trusted = ClosedSegment(self.storage, self.name, facts, self.among)
                if facts.txn_index_bytes and not trusted.aborted.is_sound(base, next_offset):
                    self.aborted_known = False
                return trusted
        segment = self.open(base)
        self._check_sealed(segment, next_offset)
        return closed(self.storage, segment, self.among)

    def _is_left_over(self, base: int, position: LogPosition) -> bool:
        """Return True if a failed roll left this segment: it is empty, though a later one follows."""
        names = (file_name(base, suffix) for suffix in (LOG, ID_INDEX))
        return base < position.segment and not any(self.sizes.get(name) for name in names)

    def open(self, base: int) -> Segment:
        """Open a segment, even one past the checkpoint. Raise LogDamaged if its ids were synced and are missing."""
        position = self.checkpointed
        if file_name(base, ID_INDEX) not in self.sizes:
            if position is not None and (base < position.segment or (base == position.segment and position.id_bytes)):
                raise LogDamaged(f"there is no file {self.name}/{file_name(base, ID_INDEX)}, though it was synced")
            return self._create(base)  # its name did not reach the disk; batches without ids cannot be kept
        return Segment(self.storage, self.name, base, sizes=self.sizes)

    def _create(self, base: int) -> Segment:
        """Create a segment in the place of a lost one, and sync its names, so that they are not lost again."""
        segment = Segment(self.storage, self.name, base, create=True)
        self.storage.sync_directory(self.name)
        return segment

    def _gap(self, first: int, end: int) -> LogDamaged:
        return LogDamaged(f"{self.name}: the segment with offsets {first} to {end - 1} is gone, though it was synced")

    def _check_sealed(self, segment: Segment, next_offset: int) -> None:
        """Check a segment before the checkpoint's: log and ids must reach the next one. Rewrite damaged indexes."""
        segment.first_timestamp_ms = self._first_timestamp(segment)
        number = len(segment.ids)
        last = segment.ids.entry(number - 1) if number else None
        ids_end = last.offset + last.length if last else segment.base_offset
        indexed = self._indexed(segment)
        log_end, position, newest_ms = self._end(segment, int(segment.offsets[-1][1]) if indexed else 0)
        if (log_end, position) != (next_offset, segment.size):
            indexed = False
            log_end, position, newest_ms = self._end(segment, 0)
        indexed = indexed and newest_ms <= (segment.times[-1][0] if len(segment.times) else NO_TIMESTAMP)
        if position != segment.size or log_end < ids_end:
            raise LogDamaged(f"{segment.log.path} at byte {position}: its ids go on to offset {ids_end}")
        if ids_end < log_end:
            raise LogDamaged(f"{segment.ids.file.path} ends at offset {ids_end}, its log at {log_end}")
        if log_end != next_offset:
            raise self._gap(log_end, next_offset)
        if not indexed:
            segment.index_anew(self.storage, self.index_interval_bytes, segment.size, sealed=True)
        segment.next_offset = next_offset
        if not self._is_aborted_sound(segment, next_offset):
            self.aborted_known = False
        if len(segment.times):
            segment.max_timestamp_ms, relative = segment.times[-1]
            segment.max_timestamp_offset = segment.base_offset + relative

    def _is_aborted_sound(self, segment: Segment, next_offset: int) -> bool:
        """Return True if the index of aborted transactions is sound; most segments have none, and no files for it."""
        names = (file_name(segment.base_offset, suffix) for suffix in (TXN_INDEX, TXN_CHECK))
        return self.sizes.keys().isdisjoint(names) or segment.aborted.is_sound(segment.base_offset, next_offset)

    @staticmethod
    def _indexed(segment: Segment) -> bool:
        """Return True if both indexes exist and the last time entry can be the segment's newest time."""
        newest = segment.times[-1][0] if len(segment.times) else NO_TIMESTAMP
        return len(segment.offsets) > 0 and newest >= segment.first_timestamp_ms

    @staticmethod
    def _end(segment: Segment, position: int) -> tuple[int, int, int]:
        """Return (offset, position) after the last batch, and the newest time, walking from a batch at `position`."""
        offset, newest_ms = segment.base_offset, NO_TIMESTAMP
        for at, header in segment.batches(position):
            if header.base_offset < offset:
                break
            offset, position = header.last_offset + 1, at + header.size
            if header.record_count:
                newest_ms = max(newest_ms, header.max_timestamp)
        return offset, position, newest_ms

    def _check_last(self, segment: Segment, position: LogPosition) -> None:
        """Check the checkpoint's own segment: it must have the synced bytes, and its ids must end with the last id."""
        for file, size in ((segment.log, position.log_bytes), (segment.ids.file, position.id_bytes)):
            if file.size < size:
                raise LogDamaged(f"{file.path} has {file.size} bytes, {size} were synced")
        if position.id_bytes:
            entry = segment.ids.entry(position.id_bytes // ENTRY_BYTES - 1)
            last = entry and (entry.offset + entry.length, entry.first_id + entry.length - 1)
            if last != (position.offset, position.last_id):
                raise LogDamaged(f"{segment.ids.file.path} at byte {position.id_bytes}: not what was synced")
        if segment.offsets.file.size < position.index_bytes or segment.times.file.size < position.time_index_bytes:
            segment.index_anew(self.storage, self.index_interval_bytes, position.log_bytes)
        else:
            segment.offsets.keep_bytes(position.index_bytes)
            segment.times.keep_bytes(position.time_index_bytes)
        segment.aborted.keep_bytes(min(position.txn_index_bytes, segment.aborted.size))
        if segment.aborted.size < position.txn_index_bytes or not self._is_aborted_sound(segment, position.offset):
            self.aborted_known = False
        segment.next_offset = position.offset
        segment.max_timestamp_ms, segment.max_timestamp_offset = (
            position.max_timestamp_ms,
            position.max_timestamp_offset,
        )
        segment.first_timestamp_ms = self._first_timestamp(segment)

    @staticmethod
    def _first_timestamp(segment: Segment) -> int:
        for _, header in segment.batches():
            if header.record_count:
                return header.max_timestamp
        return -1
