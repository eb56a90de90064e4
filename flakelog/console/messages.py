"""Messages of a topic: a page of them from a place on, one of them, and one by its id.

A page holds a limited number of messages and of unpacked bytes. Batches are unpacked one by one until the page is full,
so that a batch which unpacks to gigabytes costs no more than its share.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from broker.client.blocking import BlockingClient
from broker.client.log_record import LogRecord
from broker.client.records import PoisonBatch, read_records
from broker.record.batch import walk
from broker.record.compression import Codec
from broker.services.context import BrokerServices
from broker.wire.fetch import FetchedPartition
from flakelog.console.text import BODY_CHARACTERS, Shown, parse_time, shown, visible
from flakelog.console.visit import BadField

NEWEST, OLDEST, OFFSET, TIME, ID = "newest", "oldest", "offset", "time", "id"
STARTS = (NEWEST, OLDEST, OFFSET, TIME, ID)
PARTITIONS_MAX = 32  # of a page over all partitions; each needs a request or two
FETCHES_MAX = 20  # of a partition for one page; only transactions' markers need more than one
HEADERS_SHOWN = 50  # of a message on a page
WHOLE_CHARACTERS = 65_536  # of a value on the message's own page; the rest can be downloaded
ONE_BYTES_MAX = 16 << 20  # that the batch of one message unpacks to
CANDIDATES_MAX = 5_000  # partitions that are asked for an id in one request


class Limits(NamedTuple):
    """The limits of a page: messages, and bytes, unpacked."""

    records: int
    bytes: int


class Span(NamedTuple):
    """A partition's first offset and the end of what consumers see."""

    start: int
    end: int


class Query(NamedTuple):
    """The messages asked for. `partition` is None for all; `value` is an offset, Unix ms or an id, by `start`."""

    topic: str
    partition: int | None
    start: str
    value: int = 0
    text: str = ""


class Row(NamedTuple):
    """A message on a page. In place of a batch that is not shown, `wrong` says why."""

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
    """

    query: Query
    rows: Sequence[Row]
    spans: Mapping[int, Span]
    partitions: int
    before: int | None
    following: int | None
    positions: Mapping[int, int]


def query_of(topic: str, partition: str, start: str, value: str) -> Query:
    """Return the query that a form describes. Raise BadField."""
    if start not in STARTS:
        raise BadField(f"messages begin at {', '.join(STARTS)}, not at {start[:40]!r}")
    if partition and not (partition.isascii() and partition.isdigit() and len(partition) < 10):
        raise BadField(f"{partition[:40]!r} is no partition; give a number")
    number = int(partition) if partition else None
    value = value.strip().replace(",", "") if start in (OFFSET, ID) else value.strip()
    if start in (NEWEST, OLDEST):
        return Query(topic, number, start)
    if start == TIME:
        try:
            return Query(topic, number, start, parse_time(value), value)
        except ValueError as error:
            raise BadField(str(error)) from None
    if not (value.isascii() and value.isdigit() and len(value) <= 19 and int(value) < 1 << 63):
        raise BadField(f"{value[:40]!r} is no {start}; give a number from 0 to 2**63 - 1")
    return Query(topic, number if number is not None or start != OFFSET else 0, start, int(value), value)


def spans_of(services: BrokerServices, topic: str) -> dict[int, Span]:
    """Return the offsets of each partition that is there."""
    known = services.metadata.topic(topic)
    logs = (services.logs.find(topic, number) for number in range(0 if known is None else len(known.partitions)))
    return {log.partition: Span(log.log_start_offset, log.high_watermark) for log in logs if log is not None}


def read_page(client: BlockingClient, query: Query, spans: Mapping[int, Span], limits: Limits) -> MessagePage:
    """Return a page of messages. Raise ClientError or WireError."""
    asked = [query.partition] if query.partition is not None else _busiest(spans)
    count = max(limits.records // max(len(asked), 1), 1)
    budget = max(limits.bytes // max(len(asked), 1), 1)
    rows: list[Row] = []
    positions = {number: span.end for number, span in spans.items()}
    before = following = None
    for number in asked:
        span = spans.get(number, Span(0, 0))
        at = _place(client, query, number, span, count)
        found, positions[number] = read_partition(client, query.topic, number, at, count, budget, limits.bytes)
        rows += found
        if query.partition is not None:
            before = max(span.start, at - count) if at > span.start else None
            following = positions[number] if positions[number] < span.end else None
    rows.sort(key=lambda each: (each.id or each.timestamp_ms, each.partition, each.offset))
    if query.partition is not None:
        rows.sort(key=lambda each: each.offset)
    if query.start == NEWEST:
        rows.reverse()
    return MessagePage(query, rows, spans, len(spans), before, following, positions)


def read_partition(
    client: BlockingClient, topic: str, partition: int, offset: int, count: int, max_bytes: int, max_unpacked: int
) -> tuple[list[Row], int]:
    """Return at most `count` messages of a partition from an offset on, and the offset after them.

    A first batch is unpacked up to `max_unpacked` bytes, or named if it is larger; the next ones up to `max_bytes`.
    """
    rows: list[Row] = []
    for _ in range(FETCHES_MAX):
        steps = client.core.fetch(topic, partition, offset, max_bytes=max_bytes, max_wait_ms=0)
        before, offset = offset, _take(rows, client.run(steps), offset, count, max_bytes, max_unpacked)
        if rows or offset == before:
            break
    return rows, offset


def _take(rows: list[Row], fetched: FetchedPartition, offset: int, count: int, max_bytes: int, max_first: int) -> int:
    """Add rows of the fetched batches; return the offset after them."""
    assert isinstance(fetched.records, (bytes, bytearray, memoryview)), "a client has bytes"
    data = memoryview(fetched.records)
    left = max_bytes
    for position, header in walk(data):
        end = max(header.last_offset, header.base_offset) + 1
        if header.is_control or end <= offset:
            offset = max(offset, end)
            continue
        batch = replace(fetched, records=data[position : position + header.size])
        read = read_records(batch, offset, left if rows else max(max_first, 1))
        if read.poison and rows:
            break  # it may fit the next page
        rows += [_poison_row(each) for each in read.poison]
        for record in read.records:
            if len(rows) >= count:
                return record.offset
            rows.append(row_of(fetched.partition, record))
            left -= len(record.key or b"") + len(record.value or b"")
        offset = max(offset, end)
        if left <= 0 or len(rows) >= count:
            break
    return offset


def read_partition_records(
    client: BlockingClient, topic: str, partition: int, offset: int, bytes_max: int
) -> list[LogRecord]:
    """Return the messages of a partition from an offset to its end, as far as they fit into `bytes_max`.

    Batches that cannot be read are skipped. Raise ClientError or WireError.
    """
    found: list[LogRecord] = []
    left = bytes_max
    while left > 0:
        fetched = client.run(client.core.fetch(topic, partition, offset, max_bytes=1 << 20, max_wait_ms=0))
        read = read_records(fetched, offset, ONE_BYTES_MAX)
        if read.next_offset == offset:
            break
        found += read.records
        offset = read.next_offset
        left -= sum(len(each.value or b"") + len(each.key or b"") for each in read.records) + 1
    return found


def read_one(client: BlockingClient, topic: str, partition: int, offset: int) -> LogRecord | PoisonBatch | None:
    """Return the message at an offset, or its batch if that cannot be read, None if the offset has no message.

    Raise ClientError or WireError.
    """
    fetched = client.run(client.core.fetch(topic, partition, offset, max_bytes=1, max_wait_ms=0))
    read = read_records(fetched, offset, ONE_BYTES_MAX)
    if read.poison:
        return read.poison[0]
    return read.records[0] if read.records and read.records[0].offset == offset else None


def candidates(services: BrokerServices, id: int) -> list[tuple[str, int]]:
    """Return the partitions that may hold an id, because their last id is not below it."""
    found = [log for log in services.logs.all() if log.last_id >= id and log.log_end_offset > log.log_start_offset]
    return [(log.topic, log.partition) for log in sorted(found, key=lambda log: log.last_id)[:CANDIDATES_MAX]]


def find_id(client: BlockingClient, places: Iterable[tuple[str, int]], id: int) -> tuple[str, int, int] | None:
    """Return (topic, partition, offset) of the message with exactly this id, None if no message has it.

    A partition has it if the first offset at or after the id differs from that of the next id.
    """
    places = list(places)
    if not places:
        return None
    here = client.run(client.core.list_offsets(places, id, by_id=True))
    beyond = client.run(client.core.list_offsets(places, id + 1, by_id=True))
    for (topic, partition), offset in here.items():
        if offset is not None and offset != beyond[topic, partition]:
            return topic, partition, offset
    return None


def row_of(partition: int, record: LogRecord, characters: int = BODY_CHARACTERS) -> Row:
    """Return a message as a page shows it."""
    headers = [(visible(name[:200]), shown(value, characters)) for name, value in record.headers[:HEADERS_SHOWN]]
    codec = Codec(record.codec).name.lower() if record.codec else ""
    key, value = shown(record.key, characters), shown(record.value, characters)
    return Row(partition, record.offset, record.id, record.timestamp_ms, key, value, headers, codec)


def _poison_row(batch: PoisonBatch) -> Row:
    nothing, reason = shown(None), batch.reason[:300]
    place = batch.partition, batch.base_offset, batch.first_id, -1
    return Row(*place, nothing, nothing, (), "", reason, batch.last_offset)


def _place(client: BlockingClient, query: Query, partition: int, span: Span, count: int) -> int:
    match query.start:
        case "oldest":
            return span.start
        case "offset":
            return min(max(query.value, span.start), span.end)
        case "time":
            return client.find_offset(query.topic, partition, query.value)
        case "id":
            return client.find_id(query.topic, partition, query.value)
    return max(span.start, span.end - count)


def _busiest(spans: Mapping[int, Span]) -> list[int]:
    """Return the partitions of a page over all: those with messages, at most PARTITIONS_MAX."""
    filled = [number for number, span in spans.items() if span.end > span.start]
    return sorted(filled)[:PARTITIONS_MAX]


# --- the live tail ---------------------------------------------------------------------------------------------------


class Tail(NamedTuple):
    """New messages, newest first, the offsets after them, and how many were left out because there were too many."""

    rows: Sequence[Row]
    positions: Mapping[int, int]
    left_out: int


def read_tail(
    client: BlockingClient, topic: str, positions: Mapping[int, int], spans: Mapping[int, Span], limits: Limits
) -> Tail:
    """Return the messages after `positions`, or the newest of them if there are more than a page holds."""
    new = [number for number, at in positions.items() if number in spans and spans[number].end > at]
    count = max(limits.records // max(len(new), 1), 1)
    rows: list[Row] = []
    left_out, after = 0, dict(positions)
    for number in new[: limits.records]:
        at = max(positions[number], spans[number].end - count, spans[number].start)
        left_out += at - positions[number]
        share = max(limits.bytes // len(new), 1)
        found, end = read_partition(client, topic, number, at, count, share, limits.bytes)
        rows += found
        left_out += max(spans[number].end - end, 0)
        after[number] = max(end, spans[number].end)
    rows.sort(key=lambda each: (each.id or each.timestamp_ms, each.partition, each.offset), reverse=True)
    return Tail(rows, after, left_out)


def positions_text(positions: Mapping[int, int]) -> str:
    """Return positions as "0-15.1-7", for an address and for Last-Event-ID."""
    return ".".join(f"{number}-{at}" for number, at in sorted(positions.items())[:PARTITIONS_MAX])


def parse_positions(text: str) -> dict[int, int]:
    """Parse the text of positions. Raise BadField."""
    found = {}
    for each in filter(None, text.split(".")[:PARTITIONS_MAX]):
        number, _, at = each.partition("-")
        if not all(part.isascii() and part.isdigit() and len(part) <= 19 for part in (number, at)):
            raise BadField(f"{each[:40]!r} is no position; give PARTITION-OFFSET")
        found[int(number)] = int(at)
    return found
