"""`flakelog mirror`: copy the topics of one or several clusters into another, until SIGTERM or Ctrl-C."""

import asyncio
import logging
import re
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import Addresses, Seconds
from flakelog.commands.exit_codes import NobodyAnswers, with_exit_codes
from flakelog.commands.terminal import count_of, json_option, print_json, print_line

if TYPE_CHECKING:
    from broker.client.mirror.figures import MirrorFigures
    from broker.client.mirror.mirror import Mirror

LINE_SECONDS = 10.0


class TopicPattern(click.ParamType[re.Pattern[str]]):
    """A regular expression of whole names of topics."""

    name = "regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> re.Pattern[str]:
        try:
            return re.compile(value)
        except re.error as error:
            self.fail(f"{value!r} is no regular expression: {error}", param, ctx)


@click.command()
@click.option(
    "--from", "sources", required=True, multiple=True, type=Addresses(), metavar="HOST:PORT,...",
    help="Brokers of a source. Give it again for another source.",
)  # fmt: skip
@click.option(
    "--to", "target", required=True, type=Addresses(), metavar="HOST:PORT,...", help="Brokers of the target."
)
@click.option("--topics", type=TopicPattern(), metavar="REGEX", help="Copy the topics whose whole name matches.")
@click.option("--all", "all_topics", is_flag=True, help="Copy all topics but the internal ones.")
@click.option(
    "--prefix",
    "prefixes",
    multiple=True,
    metavar="TEXT",
    help="Put this before the names of topics at the target. With several sources, give one for each, in their order.",
)
@click.option(
    "--name",
    default="mirror",
    show_default=True,
    help="The name of the mirror. Mirrors of one name share the work, and go on where one of them was killed.",
)
@click.option(
    "--instance",
    metavar="NAME",
    help="A name of this process that survives a restart. Then a mirror that was killed goes on at once when it is "
    "started again; else after 10 s.",
)
@click.option(
    "--exactly-once",
    is_flag=True,
    help="Copy in transactions of the target: readers of committed records see no record twice, whatever is killed.",
)
@click.option("--source-id", is_flag=True, help="Keep the source's id of a record as the header flakelog-source-id.")
@click.option(
    "--two-way",
    is_flag=True,
    help="Two mirrors in opposite directions: copy no record into a cluster where it has been. A header of each record "
    "names its clusters.",
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Go on after records that the source lost before they were copied, and with a topic that was made again.",
)
@click.option(
    "--every",
    type=Seconds(),
    default=LINE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How often a line of figures is printed; 0: never.",
)
@json_option
def mirror(
    sources: tuple[str, ...],
    target: str,
    topics: re.Pattern[str] | None,
    all_topics: bool,
    prefixes: tuple[str, ...],
    every: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Copy topics from one or several clusters into another, until SIGTERM or Ctrl-C.

    Keys, headers, times, partitions, the order in them and the compression stay; ids are the target's own. A source
    and a target may be Flakelog or Apache Kafka. A mirror that was killed goes on where the target has acknowledged,
    and copies a few records again.
    """
    from broker.client.mirror.mirror import Mirror
    from broker.client.mirror.settings import EVERY_TOPIC, ClusterSettings, MirrorSettings

    if all_topics == (topics is not None):
        raise click.UsageError("give --topics REGEX or --all")
    if len(set(sources)) < len(sources):
        raise click.UsageError("two --from have the same brokers; mirrors of one cluster share its topics by --name")
    if prefixes and len(prefixes) != len(sources):
        raise click.UsageError(f"give one --prefix for each --from: {len(prefixes)} for {len(sources)}")
    try:
        mirrors = [
            Mirror(
                MirrorSettings(
                    source=ClusterSettings(servers=source),
                    target=ClusterSettings(servers=target),
                    topics=EVERY_TOPIC if topics is None else topics,
                    prefix=prefix,
                    **options,
                )
            )
            for source, prefix in zip(sources, prefixes or [""] * len(sources), strict=True)
        ]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    asyncio.run(_run(mirrors, every, as_json))


mirror.help = with_exit_codes(mirror.help)


async def _run(mirrors: "Sequence[Mirror]", every: float, as_json: bool) -> None:
    from broker.client.errors import ClientError, Unreachable
    from broker.client.mirror.names import check_targets

    def stop() -> None:
        for one in mirrors:
            one.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        topics_by_source = {one.settings.source.servers: (one.settings.prefix, await one.open()) for one in mirrors}
        check_targets(topics_by_source)
        names = sorted(prefix + name for prefix, topics in topics_by_source.values() for name in topics)
        print_line(f"copying {count_of(len(names), 'topic')}: {', '.join(names[:20]) or 'none yet'}", err=True)
        lines = asyncio.create_task(_print_lines(mirrors, every, as_json))
        try:
            async with asyncio.TaskGroup() as tasks:
                for one in mirrors:
                    tasks.create_task(one.run())
        finally:
            lines.cancel()
            _print_figures(mirrors, as_json)
    except* Unreachable as errors:
        raise NobodyAnswers(str(errors.exceptions[0])) from None
    except* ClientError as errors:
        raise click.ClickException(str(errors.exceptions[0])) from None


async def _print_lines(mirrors: "Sequence[Mirror]", every: float, as_json: bool) -> None:
    while every:
        await asyncio.sleep(every)
        _print_figures(mirrors, as_json)


def _print_figures(mirrors: "Sequence[Mirror]", as_json: bool) -> None:
    for one in mirrors:
        figures = one.figures()
        if as_json:
            print_json(_fields(one, figures))
        else:
            print_line(_line(one, figures), err=True)


def _line(one: "Mirror", figures: "MirrorFigures") -> str:
    rate = figures.records / figures.seconds if figures.seconds else 0.0
    stopped = "".join(f"; {topic} is stopped: {reason}" for topic, reason in sorted(figures.stopped.items()))
    return (
        f"{one.settings.source.servers}: {figures.records:,} records copied, {rate:,.0f} a second, "
        f"{figures.lag:,} behind{stopped}"
    )


def _fields(one: "Mirror", figures: "MirrorFigures") -> dict[str, Any]:
    return {
        "from": one.settings.source.servers,
        "to": one.settings.target.servers,
        "group": one.group,
        "seconds": round(figures.seconds, 3),
        "records": figures.records,
        "bytes": figures.bytes,
        "lag": figures.lag,
        "partitions": [
            {"topic": topic, "partition": number, "copied": row.copied, "end": row.end, "lag": row.lag}
            for (topic, number), row in sorted(figures.partitions.items())
        ],
        "stopped": dict(figures.stopped),
    }
