"""`flakelog consume`: read a topic's messages, with their ids, in the order of their arrival."""

import base64
import heapq
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.exit_codes import fail
from flakelog.commands.start import Span, Start, StartType, find_start
from flakelog.commands.terminal import client_of, describe_id, iso, json_option, layout_options, servers_option

if TYPE_CHECKING:
    from broker.client.blocking import BlockingClient
    from broker.client.records import LogRecord, PoisonBatch
    from idgen.layout import Layout

FOLLOW_WAIT_MS = 250  # the longest that a round of fetches over all partitions waits for new messages

Found = tuple[int, "LogRecord"]  # partition, record


@click.command()
@click.argument("topic")
@click.option("--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; repeatable.")
@click.option(
    "--from",
    "start",
    type=StartType(),
    default="earliest",
    show_default=True,
    metavar="PLACE",
    help="earliest, latest, an offset, @TIME (@2013-01-01T12:00Z, @Unix-ms), or id:ID: the first id not below it.",
)
@click.option("--count", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--follow", "-f", is_flag=True, help="At the end wait for more, until Ctrl-C.")
@click.option("--committed", is_flag=True, help="None of transactions that were aborted, or are open.")
@click.option("--key-separator", metavar="TEXT", help="Print KEY TEXT VALUE.")
@click.option("--show-ids", is_flag=True, help="Print partition, offset, id and its time before each value.")
@servers_option
@json_option
@layout_options
def consume(
    topic: str,
    partitions: tuple[int, ...],
    start: Start,
    count: int | None,
    follow: bool,
    committed: bool,
    key_separator: str | None,
    show_ids: bool,
    servers: str,
    as_json: bool,
    layout: "Layout",
) -> None:
    """Print the messages of TOPIC, and with --follow new ones as they come.

    Partitions are merged by the messages' ids, which is the order in which they reached the log. A batch whose records
    cannot be decoded is skipped, and named on stderr.
    """
    out = sys.stdout.buffer
    with client_of(servers) as client, suppress(KeyboardInterrupt):
        client.on_poison = _warn
        spans = _spans(client, topic, partitions, start, committed)
        for partition, record in islice(_records(client, topic, spans, follow, committed), count):
            if as_json:
                line = json.dumps(_described(topic, partition, record, layout), ensure_ascii=False).encode()
            else:
                line = _line(partition, record, layout if show_ids else None, key_separator)
            out.write(line + b"\n")
            if follow:
                out.flush()


def _warn(batch: "PoisonBatch") -> None:
    click.echo(f"skipped {batch}", err=True)


def _spans(
    client: "BlockingClient", topic: str, partitions: tuple[int, ...], start: Start, committed: bool
) -> list[Span]:
    there = client.topic(topic).partitions
    for each in partitions:
        if each >= there:
            fail(f"{topic} has partitions 0 to {there - 1}, not {each}")
    chosen = sorted(set(partitions)) or range(there)
    if start.kind == "offset" and len(chosen) > 1:
        raise click.UsageError(f"{topic} has {there} partitions, each with offsets of its own: name one by --partition")
    return [find_start(client, topic, partition, start, committed) for partition in chosen]


def _records(
    client: "BlockingClient", topic: str, spans: list[Span], follow: bool, committed: bool
) -> Iterator[Found]:
    """Yield the existing records, merged; with `follow`, poll for new ones forever after."""
    yield from heapq.merge(*(span_records(client, topic, span, committed) for span in spans), key=_age)
    positions = {span.partition: max(span.offset, span.end) for span in spans}
    while follow:
        found = []
        for partition, offset in positions.items():
            records, positions[partition] = client.fetch(
                topic, partition, offset, max_wait_ms=FOLLOW_WAIT_MS // len(positions), committed=committed
            )
            found += [(partition, record) for record in records]
        yield from sorted(found, key=_age)


def span_records(client: "BlockingClient", topic: str, span: Span, committed: bool) -> Iterator[Found]:
    """Yield a partition's records up to the end it had at the start."""
    offset = span.offset
    while offset < span.end:
        records, following = client.fetch(topic, span.partition, offset, committed=committed)
        for record in records:
            if record.offset < span.end:
                yield span.partition, record
        if following == offset:
            fail(f"{topic}-{span.partition} answers nothing at offset {offset}, though it goes to {span.end}")
        offset = following


def _age(found: Found) -> int:
    """Return the sort key for merging: the record's id, because ids are k-sorted, or its timestamp if it has no id."""
    record = found[1]
    return record.timestamp_ms if record.id is None else record.id


def _line(partition: int, record: "LogRecord", layout: "Layout | None", key_separator: str | None) -> bytes:
    where = b""
    if layout is not None:
        when = None if record.id is None else iso(layout.unpack(record.id).time_ms)
        where = f"{partition}  {record.offset}  {record.id or '-'}  {when or '-'}  ".encode()
    key = b"" if key_separator is None else (record.key or b"") + key_separator.encode()
    return where + key + (record.value or b"")


def _described(topic: str, partition: int, record: "LogRecord", layout: "Layout") -> dict[str, Any]:
    """Return a record as data for JSON.

    `id_time` is the time in the id; `timestamp` is the producer's or, with LogAppendTime, the log's.
    """
    described: dict[str, Any] = {"topic": topic, "partition": partition, "offset": record.offset}
    if record.id is not None:
        parts = describe_id(record.id, layout)
        described |= {"id": parts["id"], "id_str": parts["id_str"], "id_time": parts["time"]}
    described["timestamp"] = iso(record.timestamp_ms)
    described |= _text("key", record.key) | _text("value", record.value)
    described["headers"] = [{"name": name, **_text("value", value)} for name, value in record.headers]
    return described


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as text under `name`, or as base64 under `<name>_base64` if they are not UTF-8."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}
