"""Appends to a follower's log: batches that its leader has, byte for byte, with the leader's offsets, epochs and ids.

    fetch answer -> check all of it -> parts, one write each -> ids, log, indexes -> producers, epochs -> journal

A batch is taken as it is, because a client may read it from either replica and must find the same. The checks compare
what lies outside a batch's CRC with the rest of the answer and with this log: offsets with the ids and the log's end,
epochs with those before, ids with the last one. The leader's cleaner may have left gaps between offsets. The ids tell a
gap from a damaged offset, because each offset of a batch has an id, and an offset in a gap has none.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from crc32c import crc32c

from broker.log.index.txn_index import AbortedTransaction
from broker.log.leader_epochs import NO_EPOCH
from broker.log.log_appender import indexed, segment_for, write
from broker.log.partition_log import PartitionLog
from broker.log.producer_state import aborted_by
from broker.log.segment import RELATIVE_OFFSET_MAX, Copied, Placed
from broker.log.storage.port import StorageError
from broker.now import Now
from broker.record.batch import (
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
)
from broker.record.control import Marker, decode_marker
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import IdRegion
from broker.wire.frame import FileRegion
from broker.wire.id_entries import ENTRY_BYTES, IdEntry, read_entries, read_entry, seed_of
from coordination.errors import FlakelogError
from idgen.worker import IdRun

_record = tuple.__new__  # as BatchHeader(...) and IdEntry(...), at half the price


class CopyRefused(FlakelogError):
    """A fetch answer that cannot continue the log; nothing of it was appended. The message names the reason."""


class IdsBelowFloor(CopyRefused):
    """A fetch answer that could continue a log without records, if the log knew an earlier last id: `last_id`.

    Another leader told the id that the log knows, of records that were never committed. All ids of committed records
    before the log's end are below the answer's, because a leader stamps above them (rule I1).
    """

    def __init__(self, reason: str, last_id: int) -> None:
        super().__init__(reason)
        self.last_id = last_id


class _Answer(NamedTuple):
    """The whole batches of a fetch answer, after the checks."""

    batches: Sequence[Placed]
    markers: Mapping[int, Marker | None]
    """The marker in each control batch, by the batch's offset; None if it has none."""
    spans: Sequence[tuple[int, int]]
    """The offsets of the batches as ranges (first, end). Between two ranges is a gap."""
    is_dense: bool
    """Each offset from the log's end on has a record."""
    has_producers: bool


class _Part(NamedTuple):
    """The batches of one write: the number of the batch after them, their bytes, last offset and newest time."""

    following: int
    size: int
    last_offset: int
    newest_ms: int


def append_copied(
    log: PartitionLog, records: bytes | bytearray | memoryview, ids: IdRegion | None, now: Now
) -> int:
    """Append the whole batches of a fetch answer with their ids, and return their number. The last may be cut off.

    All batches are checked before the first is written. So an answer that is refused leaves the log as it was, even if
    some of its batches are good: the fetcher asks for them again. Raise CopyRefused for that.

    A failed write raises ApiError. Earlier writes of the same answer stay, because all of the answer is good.

    The caller moves the log's start and its high watermark afterwards, and answers the requests that wait for the log.
    """
    if log.offline is not None:
        log.check_online()
    if log.durability.mending:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name}: a failed write is being undone; try again")
    if not len(records):
        return 0
    view = memoryview(records)
    answer = _checked(log, view)
    entries = _checked_ids(log, ids, answer.spans)
    if answer.spans[0][0] < log.log_end_offset:
        _begin_segment_at(log, answer.spans[0][0])
    if len(answer.batches) == 1 and not answer.markers:
        part = _sole_part(answer.batches[0])
        _append(log, answer, answer.batches, part, Copied(view[: part.size], entries), now)
        return 1
    number = position = 0
    while number < len(answer.batches):
        part = _next_part(log, answer.batches, number)
        batches = answer.batches[number : part.following]
        ids_here = entries
        if part.following < len(answer.batches):
            ids_here, entries = _split(entries, part.last_offset + 1)
        _append(log, answer, batches, part, Copied(view[position : position + part.size], ids_here), now)
        number, position = part.following, position + part.size
    return number


# --- checks ----------------------------------------------------------------------------------------------------------


def _checked(log: PartitionLog, view: memoryview) -> _Answer:
    """Return the whole batches of an answer. Raise CopyRefused at the first that cannot continue the log."""
    batches: list[Placed] = []
    markers: dict[int, Marker | None] = {}
    spans: list[tuple[int, int]] = []
    epoch, epoch_max = log.epochs[-1][0] if log.epochs else NO_EPOCH, log.leader_epoch
    span_start = end = log.log_end_offset
    position, size = 0, len(view)
    is_dense, has_producers = True, False
    unpack = HEADER.unpack_from
    while size - position >= HEADER_BYTES:
        header = _record(BatchHeader, unpack(view, position))
        base, length, batch_epoch, magic, crc, attributes, delta, _, _, producer_id, _, _, count = header
        following = position + length + LENGTH_END
        if following > size:
            break
        is_batch = magic == MAGIC and length >= HEADER_BYTES - LENGTH_END
        if not is_batch or crc32c(view[position + CRC_START : following]) != crc:
            raise _refused(log, f"the batch at byte {position} of {size} is damaged, or not of magic {MAGIC}")
        if batch_epoch != epoch:
            if not epoch < batch_epoch <= epoch_max:
                raise _refused(log, f"offset {base} has leader epoch {batch_epoch}; it must be {epoch} to {epoch_max}")
            epoch = batch_epoch
        if base != end:
            if base < end and (batches or not _begins_within(log, base + delta)):
                raise _refused(log, f"offset {base} stands where {end} belongs")
            if base + delta - end > RELATIVE_OFFSET_MAX:
                raise _refused(log, f"offset {base} is more than {RELATIVE_OFFSET_MAX} past {end}")
            if batches:
                spans.append((span_start, end))
            span_start, is_dense = base, False
        if count != delta + 1 or not count:
            if delta < 0 or not 0 <= count <= delta + 1:
                raise _refused(log, f"offset {base} has {count} records with a last offset delta of {delta}")
            is_dense = False
        if attributes & CONTROL_BIT:
            markers[base] = _marker_in(log, view[position:following], base)
        if producer_id > NO_PRODUCER_ID:
            has_producers = True
        batches.append((header, base, view))
        end, position = base + delta + 1, following
    if not batches:
        raise _refused(log, f"there is no whole batch in {size} bytes")
    spans.append((span_start, end))
    return _Answer(batches, markers, spans, is_dense, has_producers)


def _refused(log: PartitionLog, reason: str) -> CopyRefused:
    return CopyRefused(f"{log.name}: the leader's batches cannot be appended: {reason}")


def _begins_within(log: PartitionLog, last_offset: int) -> bool:
    """Return True if an empty log ends within a batch, because a leader has deleted the records before.

    A power cut can lower that leader's start again, so the batch need not begin below the start that it has now.
    """
    return log.is_empty and log.log_end_offset <= last_offset


def _marker_in(log: PartitionLog, batch: memoryview, offset: int) -> Marker | None:
    try:
        return decode_marker(batch)
    except CorruptBatch as error:
        raise _refused(log, f"the control batch at offset {offset} has no sound marker: {error}") from None


def _checked_ids(log: PartitionLog, ids: IdRegion | None, spans: Sequence[tuple[int, int]]) -> list[IdEntry]:
    """Return the ids of all offsets in `spans`, as few entries. Raise CopyRefused unless they are exactly those.

    The answer's entries may begin before the first batch and end after the last one, because an entry can have the ids
    of several batches. An offset between two batches, or between the log's end and the first, must have no id.
    """
    if ids is None:
        raise _refused(log, "there are no ids. The leader must be a Flakelog broker, because ids are never made again")
    data = ids.entries
    if isinstance(data, FileRegion):
        data = data.file.read(data.position, data.length)
    if len(data) == ENTRY_BYTES:  # nearly always, if the batches are small
        only = read_entry(data, 0, ids.base_offset, seed_of(ids.base_offset))
        if only is not None and _is_for(only, log, spans):
            return [only]
    entries = iter(read_entries(data, ids.base_offset))
    taken: list[IdEntry] = []
    offset = entry_end = first_id = -1
    before, last_id = log.log_end_offset, log.last_id
    for start, end in spans:
        at = start
        before = min(before, start)  # the first batch of an empty log may begin below its end
        while entry_end <= before:
            offset, entry_end, first_id = _next_entry(log, entries, at)
        if max(offset, before) < start:
            raise _refused(log, f"offset {max(offset, before)} has an id and no batch")
        while True:
            if offset > at:
                raise _refused(log, f"there is no id for offset {at}")
            id = first_id + at - offset
            if id <= last_id:
                refused = _refused(log, f"the id of offset {at} is {id}, and {last_id} was given before")
                has_records = taken or log.log_start_offset < log.log_end_offset
                raise refused if has_records else IdsBelowFloor(str(refused), id - 1)
            length = min(entry_end, end) - at
            last_id = id + length - 1
            if taken and taken[-1][0] + taken[-1][1] == at and taken[-1][2] + taken[-1][1] == id:
                taken[-1] = IdEntry(taken[-1][0], taken[-1][1] + length, taken[-1][2])
            else:
                taken.append(_record(IdEntry, (at, length, id)))
            at += length
            if at == end:
                break
            offset, entry_end, first_id = _next_entry(log, entries, at)
            if offset < at:
                raise _refused(log, f"offset {offset} has two ids")
        before = end
    return taken


def _is_for(entry: IdEntry, log: PartitionLog, spans: Sequence[tuple[int, int]]) -> bool:
    """Return True if an answer goes on at the log's end, and this entry has exactly its ids."""
    span = entry.offset, entry.offset + entry.length
    return spans[0] == span and len(spans) == 1 and span[0] == log.log_end_offset and entry.first_id > log.last_id


def _next_entry(log: PartitionLog, entries: Iterator[IdEntry], at: int) -> tuple[int, int, int]:
    """Return (offset, end, first id) of the next entry. A damaged entry ends `entries`."""
    entry = next(entries, None)
    if entry is None:
        raise _refused(log, f"there is no id for offset {at}, or the entry with it is damaged")
    return entry.offset, entry.offset + entry.length, entry.first_id


# --- writes ----------------------------------------------------------------------------------------------------------


def _sole_part(batch: Placed) -> _Part:
    """Return the only batch of an answer as its part. Its write finds the segment."""
    header, base_offset, _ = batch
    size = header.batch_length + LENGTH_END
    return _Part(1, size, base_offset + header.last_offset_delta, max(header.max_timestamp, NO_TIMESTAMP))


def _next_part(log: PartitionLog, batches: Sequence[Placed], number: int) -> _Part:
    """Return the batches from `number` on that fit into one segment, by the settings of this log and not the leader's.

    Begin a new segment if the first of them needs one. Raise ApiError if that fails.
    """
    first = batches[number][0]
    try:
        segment = segment_for(log, first.size, first.max_timestamp, first.last_offset)
    except StorageError as error:
        log.failed_write(error)
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    room = log.config.segment_bytes - segment.size
    offset_max = segment.base_offset + RELATIVE_OFFSET_MAX
    first_ms, roll_ms = segment.first_timestamp_ms, log.config.roll_ms
    size, end, newest_ms, following = 0, first.base_offset, NO_TIMESTAMP, number
    for header, base, _ in batches[number:] if number else batches:
        after = size + header.batch_length + LENGTH_END
        last_offset, time_ms = base + header.last_offset_delta, header.max_timestamp
        if size and (after > room or last_offset > offset_max or 0 <= first_ms < time_ms - roll_ms):
            break
        if time_ms > newest_ms:
            newest_ms = time_ms
        if first_ms < 0 and header.record_count:
            first_ms = time_ms
        size, end, following = after, last_offset + 1, following + 1
    return _Part(following, size, end - 1, newest_ms)


def _begin_segment_at(log: PartitionLog, offset: int) -> None:
    try:
        log.begin_segment_at(offset)
    except StorageError as error:
        log.failed_write(error)
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


def _split(entries: list[IdEntry], end: int) -> tuple[list[IdEntry], list[IdEntry]]:
    """Return the ids of the offsets below `end`, and the others."""
    number = bisect_left(entries, end, key=itemgetter(0))
    if number == len(entries) and entries[-1].offset + entries[-1].length <= end:
        return entries, []
    below, rest = entries[:number], entries[number:]
    offset, length, first_id = below[-1]
    if offset + length > end:
        below[-1] = IdEntry(offset, end - offset, first_id)
        rest.insert(0, IdEntry(end, offset + length - end, first_id + end - offset))
    return below, rest


def _append(
    log: PartitionLog, answer: _Answer, batches: Sequence[Placed], part: _Part, copied: Copied, now: Now
) -> None:
    """Write one part, and let the states of producers, transactions and leader epochs follow it."""
    first_offset = log.log_end_offset
    _, length, first_id = copied.ids[-1]
    arguments = (), part.last_offset, first_id + length - 1, part.size, part.newest_ms, now, copied
    if answer.markers:
        with indexed(log, _aborted(log, batches, answer.markers), part.size, part.newest_ms, part.last_offset):
            write(log, batches, *arguments)
    else:
        write(log, batches, *arguments)
    log.messages_copied += log.log_end_offset - first_offset
    log.bytes_copied += part.size
    if batches[-1][0].leader_epoch > (log.epochs[-1][0] if log.epochs else NO_EPOCH):
        end = first_offset
        for header, base, _ in batches:
            log.note_epoch(header.leader_epoch, max(min(base, end), log.log_start_offset))
            end = base + header.last_offset_delta + 1
    if answer.has_producers:
        _note_producers(log, batches, answer.markers, now)
    if log.journal is None:
        return
    if answer.is_dense:
        log.journal.add(log, first_offset, copied.data, [IdRun(id, length) for _, length, id in copied.ids])
    else:
        # Recovery takes a gap in the journal for lost batches and ends there, because the journal counts a batch's ids
        # by its records. So the log's own files must reach the disk before anything in this answer counts as durable.
        log.ask_sync(soon=True)


def _aborted(
    log: PartitionLog, batches: Sequence[Placed], markers: Mapping[int, Marker | None]
) -> list[AbortedTransaction]:
    """Return the transactions that these batches abort, which are indexed before the batches are in the log."""
    aborted = []
    first_offsets = log.producers.open_transactions()
    for header, base, _ in batches:
        marker = markers.get(base)
        if marker is not None:
            entry = None if marker.commit else aborted_by(first_offsets, header.producer_id, base)
            if entry is not None:
                aborted.append(entry)
            first_offsets.pop(header.producer_id, None)
        elif header.is_transactional and not header.is_control:
            first_offsets.setdefault(header.producer_id, base)
    return aborted


def _note_producers(
    log: PartitionLog, batches: Sequence[Placed], markers: Mapping[int, Marker | None], now: Now
) -> None:
    """Apply the batches to the states of their producers, as the leader's `append` and `append_marker` do."""
    producers, wall_ms = log.producers, now.wall_ms
    for header, base, _ in batches:
        if header.producer_id > NO_PRODUCER_ID:
            marker = markers.get(base) if markers else None
            if marker is None:
                producers.appended(header, base, wall_ms)
            else:
                producers.marked(header, base, marker, wall_ms)
    if markers:
        producers.first_unstable_offset(log.high_watermark)  # to drop transactions whose marker consumers can see
