"""Messages of a topic: a page of them from a place on, one of them, and one by its id.

A page holds a limited number of messages and of unpacked bytes. Batches are unpacked one by one until the page is full,
so that a batch which unpacks to gigabytes costs no more than its share. A damaged batch, or a partition that is
offline, is a row that says so, among the messages that can be read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from broker.client.blocking import Client
from broker.client.errors import BrokerError, MissingId
from broker.client.log_record import Record
from broker.client.offset_spec import AtId, AtOffset, AtTime, parse_value
from broker.client.records import PoisonBatch, read_records
from broker.record.batch import BatchHeader, CorruptBatch, walk
from broker.record.compression import Codec
from broker.services.context import BrokerServices
from broker.wire.errors import WireError
from broker.wire.fetch import FetchedPartition, IdRegion
from broker.wire.id_entries import ENTRY_BYTES, read_entries
from coordination.errors import quoted
from flakelog.console.text import BODY_CHARACTERS, Shown, shown
from flakelog.console.visit import BadField, PageTimeout
from flakelog.visible_text import visible

NEWEST, OLDEST, OFFSET, TIME, ID = "newest", "oldest", "offset", "time", "id"
STARTS = (NEWEST, OLDEST, OFFSET, TIME, ID)
PARTITIONS_MAX = 100  # on a page over all partitions, because each needs a request or two
UNREADABLE = (BrokerError, MissingId, CorruptBatch, WireError)  # shown beside other partitions
FETCHES_MAX = 20  # of a partition for one page; only transactions' markers need more than one
HEADERS_SHOWN = 50  # of a message on a page
WHOLE_CHARACTERS = 65_536  # of a value on the message's own page; the rest can be downloaded
ONE_BYTES_MAX = 16 << 20  # that the batch of one message unpacks to
CANDIDATES_MAX = 5_000  # partitions that are asked for an id in one request


class Limits(NamedTuple):
    """The limits of a page: messages, and bytes, unpacked."""

    records: int
    bytes: int


class PartitionBounds(NamedTuple):
    """A partition's first offset, the end of what consumers see, and its last id, which tells when that was written."""

    start: int
    end: int
    last_id: int = 0


class Query(NamedTuple):
    """The messages asked for. `partition` is None for all; `value` is an offset, Unix ms or an id, by `start`."""

    topic: str
    partition: int | None
    start: str
    value: int = 0
    text: str = ""


class Row(NamedTuple):
    """A message on a page. In place of a batch or a partition that is not shown, `wrong` says why.

    `last_offset` is that of such a batch, -1 if it is not known.
    """

    partition: int
    offset: int
    id: int | None
    timestamp_ms: int
    key: Shown
    value: Shown
    headers: Sequence[tuple[str, Shown]]
    codec: str
    wrong: str = ""
    last_offset: int = -1


class MessagePage(NamedTuple):
    """A page of messages. `following` and `before` are offsets of pages of one partition, None without one.

    `positions` are the offsets after the last ones shown, by partition, from which a live tail continues.
    `partitions_left_out` counts those with messages that a page over all partitions has no room for, `partitions_late`
    those that were not read when the page's time was over.
    """

    query: Query
    rows: Sequence[Row]
    spans: Mapping[int, PartitionBounds]
    before: int | None
    following: int | None
    positions: Mapping[int, int]
    partitions_left_out: int = 0
    partitions_late: int = 0
    wrong: str = ""


def query_of(topic: str, partition: str, start: str, value: str) -> Query:
    """Return the query that a form describes. Raise BadField."""
    if start not in STARTS:
        raise BadField(f"messages begin at {', '.join(STARTS)}, not at {quoted(start)}")
    if partition and not (partition.isascii() and partition.isdigit() and len(partition) < 10):
        raise BadField(f"{quoted(partition)} is no partition; give a number")
    number = int(partition) if partition else None
    value = value.strip().replace(",", "") if start in (OFFSET, ID) else value.strip()
    if start in (NEWEST, OLDEST):
        return Query(topic, number, start)
    try:
        spec = parse_value(start, value)
    except ValueError as error:
        raise BadField(str(error)) from None
    match spec:
        case AtTime(int(bound)) | AtId(bound):
            return Query(topic, number, start, bound, value)
        case AtOffset(offset):
            return Query(topic, number or 0, start, offset, value)
    raise AssertionError(f"{start} has no value")


def spans_of(services: BrokerServices, topic: str) -> dict[int, PartitionBounds]:
    """Return the offsets of each partition that is there."""
    described = services.metadata.topic(topic)
    partitions = 0 if described is None else len(described.partitions)
    logs = (services.logs.find(topic, number) for number in range(partitions))
    return {
        log.partition: PartitionBounds(log.log_start_offset, log.high_watermark, log.last_id)
        for log in logs
        if log is not None
    }


def starts_of(services: BrokerServices, topic: str, bytes_max: int) -> dict[int, int]:
    """Return for each partition the start of its newest segments that have at most `bytes_max` in all."""
    starts = {}
    for number, span in spans_of(services, topic).items():
        bytes_left, start = bytes_max, span.end
        for segment in reversed(services.logs.get(topic, number).segments.all):
            bytes_left -= segment.size
            if bytes_left < 0:
                break
            start = segment.base_offset
        starts[number] = max(start, span.start)
    return starts


def read_page(client: Client, query: Query, spans: Mapping[int, PartitionBounds], limits: Limits) -> MessagePage:
    """Return a page of messages. Raise ClientError."""
    filled = _filled(spans, query.start)
    numbers = [query.partition] if query.partition is not None else filled[:PARTITIONS_MAX]
    share = _share(limits, len(numbers))
    rows: list[Row] = []
    positions = {number: span.end for number, span in spans.items()}
    before = following = None
    late = 0
    for done, number in enumerate(numbers):
        span = spans.get(number, PartitionBounds(0, 0))
        try:
            at, rows_read, positions[number] = _read_span(client, query, number, span, share, limits.bytes)
        except PageTimeout:
            if not rows:
                raise
            late = len(numbers) - done
            break
        rows += rows_read
        if query.partition is not None:
            before = max(span.start, at - share.records) if at > span.start else None
            following = positions[number] if positions[number] < span.end else None
    rows.sort(key=lambda row: (row.id or row.timestamp_ms, row.partition, row.offset))
    if query.partition is not None:
        rows.sort(key=lambda row: row.offset)
    if query.start == NEWEST:
        rows.reverse()
    left_out = 0 if query.partition is not None else len(filled) - len(numbers)
    return MessagePage(query, rows, spans, before, following, positions, left_out, late)


def _share(limits: Limits, partitions: int) -> Limits:
    """Return the limits of each of some partitions on a page."""
    return Limits(max(limits.records // max(partitions, 1), 1), max(limits.bytes // max(partitions, 1), 1))


def _read_span(
    client: Client, query: Query, partition: int, span: PartitionBounds, share: Limits, max_unpacked: int
) -> tuple[int, list[Row], int]:
    """Return where a page begins in a partition, its rows, and the offset after them."""
    at = span.start
    try:
        if query.start == NEWEST:
            return read_newest(client, query.topic, partition, span, share, max_unpacked)
        at = offset_in(client, query, partition, span)
        return at, *read_partition(client, query.topic, partition, at, share, max_unpacked)
    except UNREADABLE as error:
        return at, [wrong_row(partition, at, str(error))], span.end


def read_newest(
    client: Client, topic: str, partition: int, span: PartitionBounds, limits: Limits, max_unpacked: int
) -> tuple[int, list[Row], int]:
    """Return (offset, messages, offset after them): the newest messages of a span that fit into the limits.

    Batches can only be read forwards. So if the last 100 messages do not fit, fewer of them are read again.
    """
    count = limits.records
    while True:
        at = max(span.start, span.end - count)
        rows, after = read_partition(client, topic, partition, at, Limits(count, limits.bytes), max_unpacked)
        if after >= span.end or count == 1:
            return at, rows, after
        count = max(min(len(rows), count // 2), 1)


def read_partition(
    client: Client, topic: str, partition: int, offset: int, limits: Limits, max_unpacked: int
) -> tuple[list[Row], int]:
    """Return the messages of a partition from an offset on, within limits, and the offset after them.

    A first batch is unpacked up to `max_unpacked` bytes, or named if it is larger; the next ones up to `limits.bytes`.
    """
    rows: list[Row] = []
    for _ in range(FETCHES_MAX):
        steps = client.core.fetch(topic, partition, offset, max_bytes=limits.bytes, max_wait_ms=0)
        before, offset = offset, _take(rows, client.run(steps), offset, limits, max_unpacked)
        if rows or offset == before:
            break
    return rows, offset


def _take(rows: list[Row], fetched: FetchedPartition, offset: int, limits: Limits, max_first: int) -> int:
    """Add rows of the fetched batches; return the offset after them."""
    bytes_left = limits.bytes
    try:
        for header, batch in batches_of(fetched):
            end = max(header.last_offset, header.base_offset) + 1
            if header.is_control or end <= offset:
                offset = max(offset, end)
                continue
            try:
                read = read_records(batch, offset, bytes_left if rows else max(max_first, 1))
            except (CorruptBatch, MissingId) as error:
                rows.append(wrong_row(fetched.partition, header.base_offset, str(error), end - 1))
                offset = end
                continue
            if read.poison and rows:
                break  # it may fit the next page
            rows += [_poison_row(poison) for poison in read.poison]
            for record in read.records:
                if len(rows) >= limits.records:
                    return record.offset
                rows.append(row_of(fetched.partition, record))
                bytes_left -= size_of(record)
            offset = max(offset, end)
            if bytes_left <= 0 or len(rows) >= limits.records:
                break
    except CorruptBatch as error:  # it is not known where the next batch begins
        rows.append(wrong_row(fetched.partition, offset, str(error)))
    return offset


def batches_of(fetched: FetchedPartition, end: int = 1 << 63) -> Iterator[tuple[BatchHeader, FetchedPartition]]:
    """Yield the header of each batch that begins before an offset, and an answer with this batch and its ids alone.

    Raise CorruptBatch at a damaged length.
    """
    assert isinstance(fetched.records, (bytes, bytearray, memoryview)), "a client has bytes"
    data, ids = memoryview(fetched.records), None if fetched.ids is None else _IdSlices(fetched.ids)
    for position, header in walk(data):
        if header.base_offset >= end:
            break
        region = None if ids is None else ids.take(header)
        yield header, replace(fetched, records=data[position : position + header.size], ids=region)


class _IdSlices:
    """The ids in an answer, for one batch after the other, so that a batch does not parse the ids of all others."""

    def __init__(self, region: IdRegion) -> None:
        assert isinstance(region.entries, (bytes, bytearray)), "a client has bytes"
        self._base_offset, self._data = region.base_offset, region.entries
        self._entries = read_entries(region.entries, region.base_offset)
        self._entry = next(self._entries, None)
        self._index = 0
        """The index of `_entry`. Entries before it end before the next batch."""

    def take(self, header: BatchHeader) -> IdRegion:
        """Return the entries of a batch. Call it for each batch, in order."""
        self._skip_to(header.base_offset)
        first = self._index
        self._skip_to(max(header.last_offset, header.base_offset) + 1)
        is_shared = self._entry is not None and self._entry.offset <= header.last_offset
        stop = self._index + is_shared
        return IdRegion(self._base_offset, self._data[first * ENTRY_BYTES : stop * ENTRY_BYTES])

    def _skip_to(self, offset: int) -> None:
        while self._entry is not None and self._entry.offset + self._entry.length <= offset:
            self._entry = next(self._entries, None)
            self._index += 1


def size_of(record: Record) -> int:
    """Return the bytes of a message, its headers included."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def read_partition_records(
    client: Client, topic: str, partition: int, offset: int, bytes_max: int, end: int = 1 << 63
) -> tuple[list[Record], int]:
    """Return the messages of a partition from an offset on that fit into `bytes_max`, and the offset after them.

    Stop before the offset `end`. Skip batches that cannot be read. Raise ClientError or WireError.
    """
    kept: list[Record] = []
    bytes_left = bytes_max
    while bytes_left > 0 and offset < end:
        fetched = client.run(client.core.fetch(topic, partition, offset, max_bytes=1 << 20, max_wait_ms=0))
        before = offset
        for records, offset in _readable(fetched, offset, end):
            kept += [record for record in records if record.offset < end]
            bytes_left -= sum(map(size_of, records)) + 1
            if bytes_left <= 0:
                break
        if offset == before:
            break
    return kept, min(offset, end)


def _readable(fetched: FetchedPartition, offset: int, end: int) -> Iterator[tuple[list[Record], int]]:
    """Yield the messages of each batch from `offset` on that begins before `end`, and the offset after them.

    A batch that cannot be read has none.
    """
    with suppress(CorruptBatch):
        for header, batch in batches_of(fetched, end):
            records: list[Record] = []
            with suppress(CorruptBatch, MissingId):
                records = read_records(batch, offset, ONE_BYTES_MAX).records
            offset = max(offset, header.last_offset + 1, header.base_offset + 1)
            yield records, offset


def read_one(client: Client, topic: str, partition: int, offset: int) -> Record | PoisonBatch | None:
    """Return the message at an offset, or its batch if that cannot be read, None if the offset has no message.

    Raise ClientError or WireError.
    """
    fetched = client.run(client.core.fetch(topic, partition, offset, max_bytes=1, max_wait_ms=0))
    read = read_records(fetched, offset, ONE_BYTES_MAX)
    if read.poison:
        return read.poison[0]
    return read.records[0] if read.records and read.records[0].offset == offset else None


def candidates(services: BrokerServices, id: int, sees_topic: Callable[[str], bool]) -> list[tuple[str, int]]:
    """Return the partitions of topics that may be seen and may hold an id, because their last id is not below it."""
    logs = [
        log
        for log in services.logs.all()
        if log.last_id >= id and log.log_end_offset > log.log_start_offset and sees_topic(log.topic)
    ]
    return [(log.topic, log.partition) for log in sorted(logs, key=lambda log: log.last_id)[:CANDIDATES_MAX]]


def find_id(client: Client, partitions: Iterable[tuple[str, int]], id: int) -> tuple[str, int, int] | None:
    """Return (topic, partition, offset) of the message with exactly this id, None if no message has it.

    A partition has it if the first offset at or after the id differs from that of the next id.
    """
    partitions = list(partitions)
    if not partitions:
        return None
    here = client.run(client.core.list_offsets(partitions, id, by_id=True))
    beyond = client.run(client.core.list_offsets(partitions, id + 1, by_id=True))
    for (topic, partition), offset in here.items():
        if offset is not None and offset != beyond[topic, partition]:
            return topic, partition, offset
    return None


def row_of(partition: int, record: Record, characters: int = BODY_CHARACTERS) -> Row:
    """Return a message as a page shows it."""
    headers = [(visible(name[:200]), shown(value, characters)) for name, value in record.headers[:HEADERS_SHOWN]]
    codec = Codec(record.codec).name.lower() if record.codec else ""
    key, value = shown(record.key, characters), shown(record.value, characters)
    return Row(partition, record.offset, record.id, record.timestamp_ms, key, value, headers, codec)


def _poison_row(batch: PoisonBatch) -> Row:
    return wrong_row(batch.partition, batch.base_offset, batch.reason, batch.last_offset)


def wrong_row(partition: int, offset: int, why: str, last_offset: int = -1) -> Row:
    nothing = shown(None)
    return Row(partition, offset, None, -1, nothing, nothing, (), "", why[:300], last_offset)


def offset_in(client: Client, query: Query, partition: int, span: PartitionBounds) -> int:
    match query.start:
        case "offset":
            return min(max(query.value, span.start), span.end)
        case "time":
            return client.find_offset(query.topic, partition, query.value)
        case "id":
            return client.find_id(query.topic, partition, query.value)
    return span.start


def _filled(spans: Mapping[int, PartitionBounds], start: str) -> list[int]:
    """Return the partitions with messages, by number, or for the newest messages by the time of the last one."""
    filled = [number for number, span in spans.items() if span.end > span.start]
    return sorted(filled, key=lambda number: (-spans[number].last_id if start == NEWEST else 0, number))


# --- the live tail ---------------------------------------------------------------------------------------------------


class Tail(NamedTuple):
    """New messages, newest first, the offsets after them, and how many were left out because there were too many."""

    rows: Sequence[Row]
    positions: Mapping[int, int]
    left_out: int


def read_tail(
    client: Client, topic: str, positions: Mapping[int, int], spans: Mapping[int, PartitionBounds], limits: Limits
) -> Tail:
    """Return the messages after `positions`, or the newest of them if there are more than a page holds."""
    new = [number for number, at in positions.items() if number in spans and spans[number].end > at]
    share = _share(limits, len(new))
    rows: list[Row] = []
    left_out, after = 0, dict(positions)
    for number in new[: limits.records]:
        end = spans[number].end
        span = PartitionBounds(max(positions[number], spans[number].start), end)
        after[number] = end
        try:
            at, rows_read, following = read_newest(client, topic, number, span, share, limits.bytes)
        except UNREADABLE as error:
            rows.append(wrong_row(number, span.start, str(error)))
            continue
        rows += rows_read
        left_out += at - positions[number] + max(end - following, 0)
        after[number] = max(following, end)
    rows.sort(key=lambda row: (row.id or row.timestamp_ms, row.partition, row.offset), reverse=True)
    return Tail(rows, after, left_out)


def positions_text(positions: Mapping[int, int]) -> str:
    """Return positions as "0-15.1-7", for an address and for Last-Event-ID."""
    return ".".join(f"{number}-{at}" for number, at in sorted(positions.items())[:PARTITIONS_MAX])


def parse_positions(text: str) -> dict[int, int]:
    """Parse the text of positions. Raise BadField."""
    positions = {}
    for pair in filter(None, text.split(".")[:PARTITIONS_MAX]):
        number, _, at = pair.partition("-")
        if not all(part.isascii() and part.isdigit() and len(part) <= 19 for part in (number, at)):
            raise BadField(f"{quoted(pair)} is no position; give PARTITION-OFFSET")
        positions[int(number)] = int(at)
    return positions
