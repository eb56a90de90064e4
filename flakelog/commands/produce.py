"""`flakelog produce`: send lines of stdin or of files as messages.

librdkafka sends them, because of its throughput, and because it tries on while a server is away. It takes up to a
second to get an idempotent producer's id. So our own client sends a small input, and with --show-ids any input, because
it receives the ids.
"""

import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import click

from flakelog.commands.arguments import PARTITION
from flakelog.commands.command_config import given_security
from flakelog.commands.completion import TopicType
from flakelog.commands.exit_codes import Interrupted, NobodyAnswers, ends_at_sigterm, fail
from flakelog.commands.produce_input import (
    EscapedType,
    Framing,
    HeaderType,
    Input,
    Line,
    Target,
    known_size,
    read_lines,
    read_whole,
)
from flakelog.commands.progress import progress
from flakelog.commands.terminal import client_of, count_of, json_option, print_json, servers_option
from flakelog.commands.waiting import answer_seconds

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from flakelog.operations.rights import Right

Show = Callable[[int, int, int | None], object]
"""Prints partition, offset and id of a message; the id is None if the broker has no ids."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command()
@click.argument("topic", type=TopicType())
@click.argument("files", nargs=-1, type=click.File("rb"), metavar="[FILE]...")
@click.option("--key-separator", "-K", type=EscapedType(), metavar="TEXT", help="Lines are KEY TEXT VALUE.")
@click.option(
    "--delimiter",
    "-D",
    type=EscapedType(),
    default="\\n",
    show_default=True,
    metavar="TEXT",
    help="What ends a message in the input.",
)
@click.option(
    "--header",
    "-H",
    "headers",
    type=HeaderType(),
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of each message; repeatable. NAME alone is a null header, NAME= an empty one.",
)
@click.option("--null", "-Z", "nulls", is_flag=True, help="Empty keys and values are null: tombstones.")
@click.option("--whole", is_flag=True, help="Each FILE is the value of one message.")
@click.option("--partition", type=PARTITION, help="Everything to this one. [default: by key, or spread]")
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("--show-ids", is_flag=True, help="Print partition, offset and id of each message.")
@servers_option
@json_option
def produce(
    topic: str,
    files: tuple[BinaryIO, ...],
    key_separator: bytes | None,
    delimiter: bytes,
    headers: tuple[tuple[str, bytes | None], ...],
    nulls: bool,
    whole: bool,
    partition: int | None,
    compression: str,
    show_ids: bool,
    servers: str,
    as_json: bool,
) -> None:
    """Send each line of the FILEs, or of stdin, to TOPIC, creating it if needed, and wait until all are acknowledged.

    While no acknowledgement comes, it says why, and tries on for --timeout. TEXT may have \\n, \\t, \\r, \\0 and \\xHH.
    """
    if whole and (key_separator is not None or not files):
        raise click.UsageError("--whole is for FILEs without keys: give FILEs, and no --key-separator")
    begun = time.monotonic()
    sources = list(files) or [sys.stdin.buffer]
    if not files and sys.stdin.isatty():
        click.echo("reading messages from the terminal, one a line; Ctrl-D ends them", err=True)
    framing = Framing(delimiter, key_separator, nulls)
    size = known_size(sources)
    needed = _needed(topic)
    with ends_at_sigterm(), client_of(servers, needed) as client, progress(f"to {topic}", size, in_bytes=True) as step:
        target = Target(topic, _partitions(client, topic, partition), partition, compression, list(headers))
        lines = Input(read_whole(sources, framing, step) if whole else read_lines(sources, framing, step))
        if show_ids or lines.is_small:
            show = partial(_show, as_json=as_json) if show_ids else None
            messages = _send_directly(client, target, lines, show)
        else:
            messages = _send(servers, target, lines)
    seconds = time.monotonic() - begun
    if as_json and not show_ids:
        print_json({"topic": topic, "messages": messages, "seconds": round(seconds, 3)})
    elif not as_json:
        rate = f", {messages / seconds:,.0f}/s" if messages >= 1000 else ""
        click.echo(f"{count_of(messages, 'message')} to {topic} in {seconds:.1f} s{rate}", err=show_ids)


def _partitions(client: "Client", topic: str, partition: int | None) -> int:
    """Return the topic's number of partitions; create a missing topic with the broker's defaults."""
    from broker.client.errors import BrokerError
    from broker.wire.errors import ErrorCode

    try:
        partitions = client.topic(topic).partitions
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        client.create_topic(topic)
        partitions = client.topic(topic).partitions
        click.echo(f"made topic {topic}: {count_of(partitions, 'partition')}", err=True)
    if partition is not None and partition >= partitions:
        fail(f"{topic} has partitions 0 to {partitions - 1}, not {partition}")
    return partitions


# --- through librdkafka ------------------------------------------------------------------------------------------


def _send(servers: str, target: Target, chunks: Input) -> int:
    from flakelog.commands.delivery import Delivery

    delivery = Delivery(servers, target, answer_seconds(), given_security())
    try:
        try:
            for lines in chunks:
                delivery.send(lines)
                if delivery.failed:
                    break
        except click.ClickException:  # an invalid line; those before it were sent
            delivery.flush()
            raise
        delivery.flush()
    except KeyboardInterrupt as cause:
        delivery.end_now()
        raise Interrupted(cause, delivery.counts()) from None
    if delivery.failed:
        why, unreachable = delivery.why() if delivery.timed_out else (delivery.reason, False)
        raise (NobodyAnswers if unreachable else click.ClickException)(f"{delivery.counts()}: {why}")
    return delivery.acknowledged


# --- through our own client --------------------------------------------------------------------------------------


def _send_directly(client: "Client", target: Target, chunks: Input, show: "Show | None") -> int:
    from broker.client.errors import BrokerError, ClientError, Unreachable
    from broker.record.compression import Codec
    from broker.wire.errors import ErrorCode
    from flakelog.operations.cluster import full_disk
    from flakelog.operations.rights import remedy
    from flakelog.produce import send

    headers, codec = tuple(target.headers), Codec[target.compression.upper()]
    sent = acknowledged = 0
    turn = random.randrange(target.partitions)
    try:
        for lines in chunks:
            sent += len(lines)
            turn += bool(lines)
            for partition, some in _by_partition(target, lines, turn).items():
                now_ms = time.time_ns() // 1_000_000
                for message in send(client, target.topic, partition, some, now_ms, headers, codec):
                    if show is not None:
                        show(*message)
                acknowledged += len(some)
    except KeyboardInterrupt as cause:
        raise Interrupted(cause, _counts(acknowledged, sent)) from None
    except ClientError as error:
        kind = NobodyAnswers if isinstance(error, Unreachable) else click.ClickException
        is_disk = isinstance(error, BrokerError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR
        why = (full_disk(client) if is_disk else "") or str(error)
        if isinstance(error, BrokerError):
            why += remedy(error, _needed(target.topic))
        raise kind(f"{_counts(acknowledged, sent)}: {why}") from None
    return sent


def _needed(topic: str) -> "list[Right]":
    from broker.security.authorization.acl import Operation
    from flakelog.operations.rights import needed_for_topics

    return needed_for_topics(Operation.WRITE, [topic])


def _counts(acknowledged: int, sent: int) -> str:
    return f"{count_of(acknowledged, 'message')} acknowledged, {sent - acknowledged:,} not"


def _show(partition: int, offset: int, id: int | None, as_json: bool) -> None:
    if as_json:
        id_str = None if id is None else str(id)
        print_json({"partition": partition, "offset": offset, "id": id, "id_str": id_str})
    else:
        click.echo(f"{partition}  {offset}  {id if id is not None else '-'}")


def _by_partition(target: Target, lines: list[Line], turn: int) -> dict[int, list[Line]]:
    """Group lines by the partition that they go to."""
    from flakelog.produce import partition_of

    by_partition: defaultdict[int, list[Line]] = defaultdict(list)
    for line in lines:
        chosen = target.partition
        by_partition[partition_of(line.key, target.partitions, turn) if chosen is None else chosen].append(line)
    return by_partition
