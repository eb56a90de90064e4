"""`flakelog bench`: measure how fast a broker takes and gives messages, and how fast an id service gives ids."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from math import isnan
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.command_config import given_id_tls, given_security, id_security_option
from flakelog.commands.completion import GroupType, TopicType
from flakelog.commands.exit_codes import Interrupted, NobodyAnswers, fail
from flakelog.commands.id import SERVER
from flakelog.commands.produce import CODECS
from flakelog.commands.terminal import client_of, count_of, json_option, print_json, servers_option
from flakelog.commands.waiting import answer_seconds, timeout_option

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from broker.client.core import TopicInfo
    from flakelog.bench.load import Sizes
    from flakelog.bench.meter import Figures

IDS_SECONDS = 10.0  # long enough that the lead of a worker, half a second of ids, hardly shows
KEYS_MAX = 1_000_000  # keys are in memory
VALUE_BYTES_MAX = 999_000  # a Producer refuses messages of more than 1,000,000 bytes, key and overhead included
SECONDS_MAX = 86_400.0
PER_SECOND_MAX = 1e9


class PositiveType(click.FloatRange):
    """A number above 0 and up to a limit; click's own range lets nan pass."""

    def __init__(self, most: float) -> None:
        super().__init__(0, most, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        return number


class SizesType(click.ParamType["Sizes"]):
    """Sizes of values on the command line: "100", or "20..180"."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "Sizes":
        from flakelog.bench.load import parse_sizes

        try:
            return parse_sizes(value, VALUE_BYTES_MAX)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group()
def bench() -> None:
    """Measure a broker or an id service, as Kafka's performance tools do.

    Figures go to stdout; every five seconds a line on stderr has those of the last seconds. Ctrl-C ends a run with the
    figures so far. A MB has 1,000,000 bytes, those of keys and values; Kafka's tools mean 1,048,576.
    """


# --- produce ---------------------------------------------------------------------------------------------------------


@bench.command()
@click.argument("topic", type=TopicType())
@click.option("--count", type=click.IntRange(1), help="Send so many messages.")
@click.option("--seconds", type=PositiveType(SECONDS_MAX), help="Send for so long. With --count: until one of both.")
@click.option(
    "--size", "sizes", type=SizesType(), default="100", show_default=True, metavar="BYTES|FROM..TO",
    help="Bytes of a value; of a range each size is as likely.",
)  # fmt: skip
@click.option("--keys", type=click.IntRange(1, KEYS_MAX), help="Messages have so many keys by turns. [default: no key]")
@click.option("--throughput", type=PositiveType(PER_SECOND_MAX), help="At most so many messages a second.")
@click.option(
    "--acks", type=click.Choice(("all", "1", "0")), default="all", show_default=True,
    help="Who acknowledges a message: all in-sync replicas, the leader, or no broker.",
)  # fmt: skip
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option(
    "--batch-messages", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True,
    help="Most messages of a batch.",
)  # fmt: skip
@click.option(
    "--linger-ms", type=click.IntRange(0, 900_000), default=5, show_default=True, help="How long a batch waits to fill."
)
@servers_option
@json_option
def produce(
    topic: str,
    count: int | None,
    seconds: float | None,
    sizes: "Sizes",
    keys: int | None,
    throughput: float | None,
    acks: str,
    compression: str,
    batch_messages: int,
    linger_ms: int,
    servers: str,
    as_json: bool,
) -> None:
    """Send random letters to TOPIC, which must exist, and measure it, as kafka-producer-perf-test does.

    The messages stay in TOPIC, so name one without data of yours. A latency is the time from the producer's call to
    the acknowledgement; without --throughput most of it is the wait in the producer's queue.
    """
    from broker.client.errors import ClientError
    from broker.client.producer import Producer
    from flakelog.bench.load import Limit, make_values
    from flakelog.bench.produce import ProduceRun

    if count is None and seconds is None:
        raise click.UsageError("say how much to send: --count, --seconds, or both")
    values = make_values(sizes, random.randint, _letters)
    named = [None] if keys is None else [b"key-%d" % number for number in range(keys)]
    timeout_ms = max(int(answer_seconds() * 1000), linger_ms + 1)  # librdkafka demands more than linger.ms
    with client_of(servers) as client:
        _existing(client, topic)
        producer = Producer(
            servers, acks=acks, compression=compression, batch_size=batch_messages, queue_time_ms=linger_ms,
            timeout_ms=timeout_ms, enqueue_timeout_ms=0, security=client.core.security,
        )  # fmt: skip
        with producer:
            run = ProduceRun(producer, topic, Limit(count, seconds), _teller("messages"))
            with _shown(run.figures, "messages", as_json, topic=topic):
                try:
                    run.run(values, named, throughput)
                except (KeyboardInterrupt, ClientError):
                    run.end_now()
                    raise
        if run.failure is not None:
            _refuse(servers, f"{count_of(run.figures().things, 'message')} acknowledged, then: {run.failure}")


def _letters(number: int) -> bytes:
    from flakelog.bench.load import LETTERS

    return bytes(random.choices(LETTERS, k=number))


def _refuse(servers: str, reason: str) -> None:
    from flakelog.operations.cluster import why_not_acknowledged

    why, is_unreachable = why_not_acknowledged(servers, given_security())
    if is_unreachable:
        raise NobodyAnswers(f"{reason}; {why}")
    fail(reason)


def _existing(client: "Client", topic: str) -> "TopicInfo":
    """Return a topic that there is; a measurement makes none."""
    from broker.client.errors import BrokerError
    from broker.wire.errors import ErrorCode

    try:
        return client.topic(topic)
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        fail(f"there is no topic {topic}; make it by: flakelog topic create {topic}")


# --- consume ---------------------------------------------------------------------------------------------------------


@bench.command()
@click.argument("topic", type=TopicType())
@click.option("--count", type=click.IntRange(1), help="Read so many messages. [default: up to the end there is now]")
@click.option(
    "--from", "start", type=click.Choice(("earliest", "latest")), default="earliest", show_default=True,
    help="Where to begin. latest waits for new messages, and needs --count.",
)  # fmt: skip
@click.option("--group", "-G", type=GroupType(), metavar="NAME", help="Read as a member of it. [default: no group]")
@servers_option
@json_option
def consume(
    topic: str, count: int | None, start: str, group: str | None, servers: str, as_json: bool
) -> None:
    """Read TOPIC and measure it, as kafka-consumer-perf-test does.

    With --group, a member joins that group and reads where it is; it commits nothing. The figures have the time until
    the group gives partitions, which the first message shows. A run of --count ends when nothing comes for --timeout.
    """
    from broker.client.consumer import Consumer
    from broker.client.consumer_config import ConsumerConfig
    from broker.client.core import LATEST
    from broker.client.offset_spec import parse_offset_spec
    from flakelog.bench.consume import ConsumeRun
    from flakelog.bench.load import Limit

    if start == "latest" and count is None:
        raise click.UsageError("--from latest begins at the end: say by --count how many messages to wait for")
    with client_of(servers) as client:
        partitions = [(topic, number) for number in range(_existing(client, topic).partitions)]
        ends = client.run(client.core.list_offsets(partitions, LATEST)) if count is None else None
        spec, config = parse_offset_spec(start), ConsumerConfig(auto_commit_interval_ms=None)
        security = client.core.security
        with closing(Consumer(servers, [topic], group=group, start=spec, config=config, security=security)) as consumer:
            run = ConsumeRun(consumer, Limit(count), ends, _teller("messages"))
            with _shown(run.figures, "messages", as_json, lambda: _first_message(run.first_s), topic=topic):
                done = run.run(answer_seconds())
    if not done:
        came = count_of(run.figures().things, "message")
        fail(f"no message came for {answer_seconds():g} s (--timeout) after {came}")


def _first_message(seconds: float | None) -> dict[str, float | None]:
    return {"first_message_seconds": None if seconds is None else round(seconds, 3)}


# --- ids -------------------------------------------------------------------------------------------------------------


@bench.command()
@click.option("--count", type=click.IntRange(1), help="Ask for so many ids.")
@click.option("--seconds", type=PositiveType(SECONDS_MAX), help=f"Ask for so long. [default: {IDS_SECONDS:g}]")
@click.option("--batch", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Ids of a request.")
@click.option(
    "--connections", type=click.IntRange(1, 1_000), default=1, show_default=True,
    help="Connections; each has one request outstanding.",
)  # fmt: skip
@click.option(
    "--server", envvar="FLAKELOG_IDS", show_envvar=True, default=SERVER, show_default=True, metavar="HOST:PORT,...",
    help="The id service, or several of one kind.",
)  # fmt: skip
@id_security_option
@timeout_option
@json_option
def ids(
    count: int | None, seconds: float | None, batch: int, connections: int, server: str, as_json: bool
) -> None:
    """Ask an id service for ids, and measure it. A latency is that of one request.

    A worker gives at most 4,096 ids a millisecond by the default layout. It may be ahead of the clock, so a run of
    less than a few seconds can show more than it keeps up.
    """
    import asyncio

    from flakelog.bench.ids import IdRun
    from flakelog.bench.load import Limit
    from idgen.client.core import IdServiceError, IdServiceUnreachable

    seconds = IDS_SECONDS if count is None and seconds is None else seconds
    addresses = [address.strip() for address in server.split(",")]
    run = IdRun(addresses, batch, connections, Limit(count, seconds), _teller("ids"), given_id_tls())
    try:
        with _shown(run.figures, "ids", as_json, has_bytes=False):
            asyncio.run(run.run(int(answer_seconds() * 1000)))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--server") from None
    except IdServiceError as error:
        fail(f"the id service at {server} refuses: {error}")
    except IdServiceUnreachable as error:
        why = "; ".join(error.problems)
        reason = f"no id service answers at {why}; start one with: flakelog server, or flakelog idgen"
        raise NobodyAnswers(reason) from None


# --- what all three show ---------------------------------------------------------------------------------------------


def _teller(noun: str) -> "Callable[[Figures], None]":
    """Return a function that prints the figures of the last seconds on stderr."""

    def tell(figures: "Figures") -> None:
        percentiles = figures.latency_ms() if figures.latencies.number else {}
        latency = (
            f", latency {percentiles['average']:,.2f} ms average, {percentiles['max']:,.2f} ms max"
            if percentiles
            else ""
        )
        click.echo(_line(figures, noun) + latency, err=True)

    return tell


@contextmanager
def _shown(
    figures: "Callable[[], Figures]",
    noun: str,
    as_json: bool,
    more: Callable[[], dict[str, Any]] = dict,
    has_bytes: bool = True,
    **named: str,
) -> Iterator[None]:
    """Print the figures of the block at its end, whatever ends it, unless nothing was done."""
    try:
        yield
    except KeyboardInterrupt as cause:
        _show(figures(), noun, as_json, named | more(), has_bytes)
        raise Interrupted(cause, f"after {figures().things:,} {noun}") from None
    except BaseException:
        if figures().things:
            _show(figures(), noun, as_json, named | more(), has_bytes)
        raise
    _show(figures(), noun, as_json, named | more(), has_bytes)


def _show(figures: "Figures", noun: str, as_json: bool, more: dict[str, Any], has_bytes: bool) -> None:
    latency = figures.latency_ms() if figures.latencies.number else {}
    if as_json:
        print_json(more | figures.described(noun, has_bytes=has_bytes) | ({"latency_ms": latency} if latency else {}))
        return
    click.echo(f"{_line(figures, noun)}, in {figures.seconds:.3f} s")
    if latency:
        click.echo("latency: " + ", ".join(f"{name} {latency_ms:,.2f} ms" for name, latency_ms in latency.items()))
    first = more.get("first_message_seconds")
    if first is not None:
        click.echo(f"first message after {first:.3f} s")


def _line(figures: "Figures", noun: str) -> str:
    parts = [f"{figures.things:,} {noun}", f"{figures.things_per_second:,.0f} {noun}/s"]
    if figures.bytes:
        parts.append(f"{figures.mb_per_second:,.2f} MB/s")
    return ", ".join(parts)
