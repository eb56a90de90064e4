"""`flakelog produce`: send each line of stdin as a message.

librdkafka sends them, because of its throughput; with --show-ids our own client does, because it receives the ids.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from zlib import crc32

import click

from flakelog.commands.progress import Step, progress
from flakelog.commands.terminal import client_of, count_of, fail, json_option, print_json, servers_option

if TYPE_CHECKING:
    from broker.client.blocking import BlockingClient

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CHUNK_BYTES = 64 * 1024  # lines that arrive together are sent together, up to about this size per batch
LINE_BYTES_MAX = 16 << 20  # a longer line is not text; the broker's own limit, message.max.bytes, is far below


class Line(NamedTuple):
    key: bytes | None
    value: bytes


class Target(NamedTuple):
    """The destination of the lines; if `partition` is None, the key selects it."""

    topic: str
    partitions: int
    partition: int | None
    compression: str


@click.command()
@click.argument("topic")
@click.option("--key-separator", metavar="TEXT", help="Lines are KEY TEXT VALUE. [default: no keys]")
@click.option("--partition", type=click.IntRange(0), help="Everything to this one. [default: by key, or spread]")
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("--show-ids", is_flag=True, help="Print partition, offset and id of each message.")
@servers_option
@json_option
def produce(
    topic: str,
    key_separator: str | None,
    partition: int | None,
    compression: str,
    show_ids: bool,
    servers: str,
    as_json: bool,
) -> None:
    """Send each line of stdin to TOPIC, creating it if needed, and wait until all are acknowledged."""
    begun = time.monotonic()
    with client_of(servers) as client, progress(f"to {topic}") as step:
        target = Target(topic, _partitions(client, topic, partition), partition, compression)
        lines = _lines(sys.stdin.buffer, key_separator)
        if show_ids:
            messages = _send_and_show(client, target, lines, step, as_json)
        else:
            messages = _send(servers, target, lines, step)
    seconds = time.monotonic() - begun
    if as_json and not show_ids:
        print_json({"topic": topic, "messages": messages, "seconds": round(seconds, 3)})
    elif not as_json:
        rate = f", {messages / seconds:,.0f}/s" if messages >= 1000 else ""
        click.echo(f"{count_of(messages, 'message')} to {topic} in {seconds:.1f} s{rate}", err=show_ids)


def _partitions(client: "BlockingClient", topic: str, partition: int | None) -> int:
    """Return the topic's number of partitions; create a missing topic with the broker's defaults."""
    from broker.client.errors import BrokerError
    from broker.wire.errors import ErrorCode

    try:
        partitions = client.topic(topic).partitions
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        client.create_topic(topic, -1)
        partitions = client.topic(topic).partitions
        click.echo(f"made topic {topic}: {count_of(partitions, 'partition')}", err=True)
    if partition is not None and partition >= partitions:
        fail(f"{topic} has partitions 0 to {partitions - 1}, not {partition}")
    return partitions


# --- lines -------------------------------------------------------------------------------------------------------


def _lines(source: BinaryIO, key_separator: str | None) -> Iterator[list[Line]]:
    """Yield lists of lines, one for each chunk that could be read at once. Lines before an invalid one are yielded."""
    separator = None if key_separator is None else key_separator.encode()
    number = 0
    for texts in _texts(source):
        lines: list[Line] = []
        for text in texts:
            number += 1
            line = _line(text, separator)
            if line is None:
                yield lines
                fail(f"line {number} has no {key_separator!r} between a key and a value; those before it were sent")
            lines.append(line)
        yield lines


def _texts(source: BinaryIO) -> Iterator[list[bytes]]:
    rest = b""
    while chunk := _some(source):
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            fail(f"a line is longer than {LINE_BYTES_MAX >> 20} MiB")
        yield whole
    if rest:
        yield [rest]


def _some(source: Any) -> bytes:
    """Return the bytes that can be read without waiting for a full chunk."""
    chunk: bytes = source.read1(CHUNK_BYTES)
    return chunk


def _line(text: bytes, separator: bytes | None) -> Line | None:
    text = text.removesuffix(b"\r")
    if separator is None:
        return Line(None, text)
    key, found, value = text.partition(separator)
    return Line(key, value) if found else None


# --- through librdkafka ------------------------------------------------------------------------------------------


def _send(servers: str, target: Target, chunks: Iterator[list[Line]], step: Step) -> int:
    from confluent_kafka import KafkaException, Producer

    failures: list[str] = []
    sent = 0

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(error.str())
        step()

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "compression.type": target.compression,
            "enable.idempotence": True,
            "linger.ms": 5,
            "log_level": 0,  # `delivered` receives the errors that matter
        }
    )
    where = {} if target.partition is None else {"partition": target.partition}
    try:
        for lines in chunks:
            for line in lines:
                _enqueue(producer, target.topic, line, where, delivered)
                sent += 1
            producer.poll(0)
            if failures:
                break
    except KafkaException as error:
        failures.append(error.args[0].str())
    finally:
        producer.flush()
    if failures:
        fail(f"{len(failures)} of {count_of(sent, 'message')} not acknowledged: {failures[0]}")
    return sent


def _enqueue(producer: Any, topic: str, line: Line, where: dict[str, int], delivered: Any) -> None:
    """Queue one message in librdkafka; wait while its queue is full."""
    while True:
        try:
            producer.produce(topic, line.value, line.key, on_delivery=delivered, **where)
            return
        except BufferError:
            producer.poll(0.1)


# --- through our own client --------------------------------------------------------------------------------------


def _send_and_show(
    client: "BlockingClient", target: Target, chunks: Iterator[list[Line]], step: Step, as_json: bool
) -> int:
    sent = 0
    for turn, lines in enumerate(chunks):
        for partition, some in _by_partition(target, lines, turn).items():
            for offset, id in _produce(client, target, partition, some):
                if as_json:
                    id_str = None if id is None else str(id)
                    print_json({"partition": partition, "offset": offset, "id": id, "id_str": id_str})
                else:
                    click.echo(f"{partition}  {offset}  {id if id is not None else '-'}")
        sent += len(lines)
        step(len(lines))
    return sent


def _by_partition(target: Target, lines: list[Line], turn: int) -> dict[int, list[Line]]:
    """Group lines by partition, as librdkafka does by default.

    The CRC-32 of the key selects the partition; lines without a key go to one partition, which changes with `turn`.
    """
    found: defaultdict[int, list[Line]] = defaultdict(list)
    for line in lines:
        if target.partition is not None:
            number = target.partition
        else:
            number = (turn if line.key is None else crc32(line.key)) % target.partitions
        found[number].append(line)
    return found


def _produce(
    client: "BlockingClient", target: Target, partition: int, lines: list[Line]
) -> Iterator[tuple[int, int | None]]:
    """Yield (offset, id) of each line; the id is None if the broker has no ids."""
    from broker.record.compression import Codec
    from broker.record.records import Record, encode_batch

    now_ms = time.time_ns() // 1_000_000
    records = [Record(delta, 0, line.key, line.value) for delta, line in enumerate(lines)]
    batch = encode_batch(records, base_timestamp_ms=now_ms, codec=Codec[target.compression.upper()])
    result = client.produce(target.topic, partition, batch)
    ids = [first + i for first, count in result.runs for i in range(count)]
    for delta in range(len(lines)):
        yield result.base_offset + delta, ids[delta] if ids else None
