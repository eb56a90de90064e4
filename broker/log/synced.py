"""What the checkpoint covers of a log, opened and looked over without reading it all.

It was synced, so it must be there: segments without a gap, each with ids as far as its batches go, the last one with as
many bytes and the very last id that the checkpoint names. Else `LogDamaged` names the file, and nothing is changed. The
offset and time index are no data: where one is gone or cannot be right, both are written anew from the headers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

from broker.log.checkpoint import LogPosition
from broker.log.clean_stop import Noted
from broker.log.closed_segment import ClosedSegment, OpenSegments, closed
from broker.log.segment import ID_INDEX, LOG, Segment, file_name
from broker.log.storage import Storage
from broker.record.batch import NO_TIMESTAMP
from broker.wire.id_entries import ENTRY_BYTES


class LogDamaged(Exception):
    """Data that the checkpoint says was synced is not there, or not what it was."""


def offsets_of(names: Iterable[str], suffix: str) -> list[int]:
    """The offsets that files of this kind are named by, ascending."""
    return sorted(int(n[: -len(suffix)]) for n in names if n.endswith(suffix) and n[: -len(suffix)].isdecimal())


def _not_below(log_start_offset: int, bases: list[int], newest: int) -> list[int]:
    """Without the segments that were deleted: a crash can leave their files, all of them or some."""
    first = max((base for base in {*bases, newest} if base <= log_start_offset), default=0)
    return [base for base in bases if base >= first]


class Synced:
    """One log's directory as the checkpoint knows it: `known`, or None where it says nothing of use.

    `sizes`: the files that are there. `noted`: what a clean stop said of the segments. `among`: what bounds the files
    of those that are closed.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        index_interval_bytes: int,
        known: LogPosition | None,
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
        # A deleted topic's log may have had the name: the checkpoint speaks of it until it is written again.
        self.known = known if known is None or known.topic_id in ("", topic_id.hex) else None
        self.aborted_known = True
        """False where an index of aborted transactions cannot be right."""

    def segments(self) -> list[Segment]:
        """The segments up to the checkpoint's, opened; the last one is still to be looked at from there on."""
        bases = offsets_of(self.sizes, LOG)
        known = self.known
        if known is None:
            return [self.open(bases[0]) if bases else self._create(0)]
        bases = _not_below(known.log_start_offset, bases, known.segment)
        if known.segment not in bases:
            if known.offset > known.log_start_offset:
                raise LogDamaged(f"there is no file {self.name}/{file_name(known.segment, LOG)}, though it was synced")
            self.known = replace(
                known,
                segment=known.offset,
                log_bytes=0,
                id_bytes=0,
                index_bytes=0,
                time_index_bytes=0,
                txn_index_bytes=0,
            )
            return [self._create(known.offset)]
        bases = [base for base in bases if base <= known.segment and not self._is_left_over(base, known)]
        if bases[0] > known.log_start_offset:
            raise self._gap(known.log_start_offset, bases[0])
        before: list[Segment] = [self._closed(base, following) for base, following in pairwise(bases)]
        last = self.open(known.segment)
        self._check_last(last, known)
        return [*before, last]

    def _closed(self, base: int, next_offset: int) -> ClosedSegment:
        """A segment before the checkpoint's: as it was noted, or looked at, and not kept open."""
        facts = self.noted.get(base)
        if facts is not None and facts.next_offset == next_offset:
            if all(self.sizes.get(name) == size for name, size in facts.sizes.items()):
                return ClosedSegment(self.storage, self.name, facts, self.among)
        segment = self.open(base)
        self._check_sealed(segment, next_offset)
        return closed(self.storage, segment, self.among)

    def _is_left_over(self, base: int, known: LogPosition) -> bool:
        """Whether it is of a roll that failed: a segment gets a younger one only when it has something in it."""
        names = (file_name(base, suffix) for suffix in (LOG, ID_INDEX))
        return base < known.segment and not any(self.sizes.get(name) for name in names)

    def open(self, base: int) -> Segment:
        """A segment, also one past the checkpoint; LogDamaged where its ids were synced and are gone."""
        known = self.known
        if not self.storage.exists(f"{self.name}/{file_name(base, ID_INDEX)}"):
            if known is not None and (base < known.segment or (base == known.segment and known.id_bytes)):
                raise LogDamaged(f"there is no file {self.name}/{file_name(base, ID_INDEX)}, though it was synced")
            return self._create(base)  # its name did not reach the disk; without ids the batches cannot be kept
        return Segment(self.storage, self.name, base)

    def _create(self, base: int) -> Segment:
        """Its names are synced: a log whose first segment can vanish would begin in the middle."""
        segment = Segment(self.storage, self.name, base, create=True)
        self.storage.sync_directory(self.name)
        return segment

    def _gap(self, first: int, end: int) -> LogDamaged:
        return LogDamaged(f"{self.name}: the segment with offsets {first} to {end - 1} is gone, though it was synced")

    def _check_sealed(self, segment: Segment, next_offset: int) -> None:
        """A segment before the checkpoint's: log and ids must reach the next one. Damaged indexes are written anew."""
        segment.first_timestamp_ms = self._first_timestamp(segment)
        number = len(segment.ids)
        last = segment.ids.entry(number - 1) if number else None
        ids_end = last.offset + last.length if last else segment.base_offset
        indexed = self._indexed(segment)
        log_end, position = self._end(segment, int(segment.offsets[-1][1]) if indexed else 0)
        if (log_end, position) != (next_offset, segment.size):
            indexed = False
            log_end, position = self._end(segment, 0)
        if position != segment.size or log_end < ids_end:
            raise LogDamaged(f"{segment.log.path} at byte {position}: its ids go on to offset {ids_end}")
        if ids_end < log_end:
            raise LogDamaged(f"{segment.ids.file.path} ends at offset {ids_end}, its log at {log_end}")
        if log_end != next_offset:
            raise self._gap(log_end, next_offset)
        if not indexed:
            segment.index_anew(self.storage, self.index_interval_bytes, segment.size, sealed=True)
        segment.next_offset = next_offset
        if not segment.aborted.is_sound(segment.base_offset, next_offset):
            self.aborted_known = False
        if len(segment.times):
            segment.max_timestamp_ms, relative = segment.times[-1]
            segment.max_timestamp_offset = segment.base_offset + relative

    @staticmethod
    def _indexed(segment: Segment) -> bool:
        """Whether there are indexes, and the time index ends with a time that can be the segment's newest."""
        newest = segment.times[-1][0] if len(segment.times) else NO_TIMESTAMP
        return len(segment.offsets) > 0 and newest >= segment.first_timestamp_ms

    @staticmethod
    def _end(segment: Segment, position: int) -> tuple[int, int]:
        """(offset, position) after the last batch, walking from one at `position`."""
        offset = segment.base_offset
        for at, header in segment.batches(position):
            if header.base_offset < offset:
                break
            offset, position = header.last_offset + 1, at + header.size
        return offset, position

    def _check_last(self, segment: Segment, known: LogPosition) -> None:
        """The checkpoint's own segment: there must be as much as was synced, and it must end with the last id."""
        for file, size in ((segment.log, known.log_bytes), (segment.ids.file, known.id_bytes)):
            if file.size < size:
                raise LogDamaged(f"{file.path} has {file.size} bytes, {size} were synced")
        if known.id_bytes:
            entry = segment.ids.entry(known.id_bytes // ENTRY_BYTES - 1)
            last = entry and (entry.offset + entry.length, entry.first_id + entry.length - 1)
            if last != (known.offset, known.last_id):
                raise LogDamaged(f"{segment.ids.file.path} at byte {known.id_bytes}: not what was synced")
        if segment.offsets.file.size < known.index_bytes or segment.times.file.size < known.time_index_bytes:
            segment.index_anew(self.storage, self.index_interval_bytes, known.log_bytes)
        else:
            segment.offsets.keep_bytes(known.index_bytes)
            segment.times.keep_bytes(known.time_index_bytes)
        segment.aborted.keep_bytes(min(known.txn_index_bytes, segment.aborted.size))
        sound = segment.aborted.is_sound(segment.base_offset, known.offset)
        if segment.aborted.size < known.txn_index_bytes or not sound:
            self.aborted_known = False
        segment.next_offset = known.offset
        segment.max_timestamp_ms, segment.max_timestamp_offset = known.max_timestamp_ms, known.max_timestamp_offset
        segment.first_timestamp_ms = self._first_timestamp(segment)

    @staticmethod
    def _first_timestamp(segment: Segment) -> int:
        for _, header in segment.batches():
            if header.record_count:
                return header.max_timestamp
        return -1
