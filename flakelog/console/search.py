"""A search for a text in keys, values and headers: slice after slice of a range; each returns the remainder.

The text is plain, in UTF-8, and upper and lower case differ. It is looked for in the bytes as they were sent. A batch
is decoded only if its unpacked bytes have the text, so that a search is about as fast as reading.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.client.blocking import Client
from broker.client.log_record import Record
from broker.client.records import read_records
from broker.record.batch import BatchHeader, verify
from broker.record.records import records_data
from broker.wire.fetch import FetchedPartition
from coordination.errors import quoted
from flakelog.console.messages import (
    NEWEST,
    ONE_BYTES_MAX,
    PARTITIONS_MAX,
    UNREADABLE,
    PartitionBounds,
    Query,
    Row,
    batches_of,
    offset_in,
    query_of,
    row_of,
    wrong_row,
)
from flakelog.console.visit import BadField, Fields, PageTimeout
from flakelog.visible_text import visible

TEXT_BYTES_MAX = 1_000
SLICE_BYTES = 4 << 20  # that a slice reads: a fraction of a second, and then other pages have their turn
UNPACKED_BYTES = 4 * SLICE_BYTES  # that a slice may unpack, beside its last batch
FETCH_BYTES = 1 << 20
HITS_SHOWN = 3  # of a message
AROUND_BYTES = 48  # that are shown on each side of a hit


class Search(NamedTuple):
    """A text, and the range to search it in: from `start` in one partition or in all to `end`; NEWEST is the log's end.
    """

    text: str
    start: Query
    end: Query


class Remainder(NamedTuple):
    """The rest of a partition to search, from `offset` to `end`. The partitions with higher numbers come after it."""

    partition: int
    offset: int
    end: int


class Hit(NamedTuple):
    """A part of a message that has the text, with what stands around it."""

    part: str
    before: str
    text: str
    after: str


class Match(NamedTuple):
    """A message with the text, or in its place what could not be searched, as `row.wrong`."""

    row: Row
    hits: Sequence[Hit] = ()


class Slice(NamedTuple):
    """The matches of a part of a range. `remainder` is the next part, None if all was searched.

    `bytes` counts those of batches as the log has them.
    """

    matches: Sequence[Match]
    remainder: Remainder | None
    bytes: int
    messages: int


def search_of(topic: str, fields: Fields) -> Search:
    """Return the search that a form describes. Raise BadField."""
    text = fields.exact("text")
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise BadField(f"the text has {len(text.encode()):,} bytes; search for at most {TEXT_BYTES_MAX:,}")
    partition = fields.text("partition")
    start = query_of(topic, partition, fields.text("start", "oldest"), fields.text("value"))
    end = query_of(topic, partition, fields.text("end", NEWEST), fields.text("end_value"))
    only = int(partition) if partition else None  # without a partition, an offset counts in each of them
    return Search(text, start._replace(partition=only), end)


def parse_remainder(text: str) -> Remainder | None:
    """Parse PARTITION-OFFSET-END, or nothing. Raise BadField."""
    if not text:
        return None
    numbers = text.split("-")
    if len(numbers) != 3 or not all(number.isascii() and number.isdigit() and len(number) <= 19 for number in numbers):
        raise BadField(f"{quoted(text)} is no place of a search; give PARTITION-OFFSET-END")
    return Remainder(*map(int, numbers))


def progress(search: Search, remainder: Remainder | None, spans: Mapping[int, PartitionBounds]) -> int:
    """Return how much of the topic, or of its partition, a search has passed, in percent of offsets."""
    numbers = _numbers(search, spans)
    whole = sum(spans[number].end - spans[number].start for number in numbers)
    if remainder is None or not whole:
        return 100
    passed = sum(spans[number].end - spans[number].start for number in numbers if number < remainder.partition)
    here = spans.get(remainder.partition, PartitionBounds(0, 0))
    return min(100 * (passed + max(min(remainder.offset, here.end) - here.start, 0)) // whole, 100)


def search_slice(
    client: Client, search: Search, remainder: Remainder | None, spans: Mapping[int, PartitionBounds], matches_max: int
) -> Slice:
    """Search a part of the range: the remainder of an earlier slice, or the beginning of the range.

    If the page's time is over, return the part that was searched by then. Raise ClientError or WireError.
    """
    reading = _Reading(client, search, matches_max)
    after = -1 if remainder is None else remainder.partition
    todo = [number for number in _numbers(search, spans) if number > after]
    try:
        for _ in range(PARTITIONS_MAX):
            if remainder is None:
                if not todo:
                    break
                remainder = reading.begin(todo[0], spans[todo.pop(0)])
            remainder = reading.read(remainder)
            if reading.is_full():
                break
    except PageTimeout:
        if reading.at is None or not reading.bytes:
            raise
        remainder = reading.at
    if remainder is None and todo and reading.at is not None:  # the next slice begins with the next partition
        remainder = reading.at._replace(offset=reading.at.end)
    return Slice(reading.matches, remainder, reading.bytes, reading.messages)


def _numbers(search: Search, spans: Mapping[int, PartitionBounds]) -> list[int]:
    only = search.start.partition
    return sorted(number for number, span in spans.items() if span.end > span.start and only in (None, number))


class _Reading:
    """The reading of one slice."""

    def __init__(self, client: Client, search: Search, matches_max: int) -> None:
        self._client = client
        self._search = search
        self._needle = search.text.encode()
        self._matches_max = matches_max
        self.matches: list[Match] = []
        self.bytes = self.messages = self._unpacked = 0
        self.at: Remainder | None = None
        """The remainder after all that was searched."""

    def is_full(self) -> bool:
        is_much = self.bytes >= SLICE_BYTES or self._unpacked >= UNPACKED_BYTES
        return is_much or len(self.matches) >= self._matches_max

    def begin(self, number: int, span: PartitionBounds) -> Remainder:
        """Return the part of a partition that lies in the range; one that cannot be read is a match that says so."""
        start, end = self._search.start, self._search.end
        try:
            first = offset_in(self._client, start, number, span)
            last = span.end if end.start == NEWEST else offset_in(self._client, end, number, span)
        except UNREADABLE as error:
            self._wrong(number, span.start, str(error))
            first = last = span.end
        return Remainder(number, max(first, span.start), min(last, span.end))

    def read(self, remainder: Remainder) -> Remainder | None:
        """Search a remainder; return its unsearched part, None at the partition's end."""
        topic, number = self._search.start.topic, remainder.partition
        self.at = remainder
        try:
            while remainder.offset < remainder.end and not self.is_full():
                before = remainder.offset
                steps = self._client.core.fetch(topic, number, before, max_bytes=FETCH_BYTES, max_wait_ms=0)
                for header, batch in batches_of(self._client.run(steps), remainder.end):
                    remainder = self.at = remainder._replace(offset=self._take(header, batch, remainder))
                    if self.is_full():
                        break
                if remainder.offset == before:
                    return None
        except UNREADABLE as error:  # of a damaged length, it is not known where the next batch begins
            self._wrong(number, remainder.offset, str(error))
            return None
        return remainder if remainder.offset < remainder.end else None

    def _take(self, header: BatchHeader, batch: FetchedPartition, remainder: Remainder) -> int:
        """Search a batch; return the offset after the last message that was searched."""
        after = max(remainder.offset, header.last_offset + 1, header.base_offset + 1)
        self.bytes += header.size
        if header.is_control or header.last_offset < remainder.offset:
            return after
        data = batch.records
        assert isinstance(data, memoryview), "batches_of gives views"
        try:
            verify(data, header)
            unpacked = bytes(records_data(data, header, 0, ONE_BYTES_MAX))
            self._unpacked += len(unpacked)
            if self._needle not in unpacked:
                return self._passed(header, remainder, after)
            read = read_records(batch, remainder.offset, ONE_BYTES_MAX)
        except UNREADABLE as error:
            self._wrong(remainder.partition, header.base_offset, str(error), header.last_offset)
            return after
        for poison in read.poison:
            self._wrong(remainder.partition, header.base_offset, poison.reason, header.last_offset)
        for record in read.records:
            hits = self._hits(record) if record.offset < remainder.end else []
            if hits:
                self.matches.append(Match(row_of(remainder.partition, record), hits))
                if self.is_full():
                    return self._passed(header, remainder, record.offset + 1)
        return self._passed(header, remainder, after)

    def _passed(self, header: BatchHeader, remainder: Remainder, after: int) -> int:
        """Count the messages of a batch up to an offset, and return it; compaction leaves fewer than offsets."""
        self.messages += min(after - max(remainder.offset, header.base_offset), header.record_count)
        return after

    def _hits(self, record: Record) -> list[Hit]:
        parts = [("key", record.key), ("value", record.value)]
        for name, value in record.headers:
            parts += [(f"header {name[:60]}", value), ("header's name", name.encode())]
        return [self._hit(part, data) for part, data in parts if data and self._needle in data][:HITS_SHOWN]

    def _hit(self, part: str, data: bytes) -> Hit:
        at = data.index(self._needle)
        end = at + len(self._needle)
        before = ("…" if at > AROUND_BYTES else "") + _text(data[max(at - AROUND_BYTES, 0) : at])
        after = _text(data[end : end + AROUND_BYTES]) + ("…" if len(data) > end + AROUND_BYTES else "")
        return Hit(visible(part), before, visible(self._search.text), after)

    def _wrong(self, partition: int, offset: int, why: str, last_offset: int = -1) -> None:
        self.matches.append(Match(wrong_row(partition, offset, why, last_offset)))


def _text(data: bytes) -> str:
    """Return bytes on one line; those that are no UTF-8, as at a cut character, are left out."""
    return visible(data.decode(errors="ignore").replace("\n", " "))
