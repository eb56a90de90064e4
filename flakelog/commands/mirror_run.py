"""`flakelog mirror run`: copy the topics of one or several clusters into another, until SIGTERM or Ctrl-C."""

import asyncio
import logging
import re
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import Addresses, Seconds
from flakelog.commands.command_config import CONFIG_FILE, read_security
from flakelog.commands.exit_codes import NobodyAnswers, with_exit_codes
from flakelog.commands.http_site import HttpSite, http_options
from flakelog.commands.terminal import count_of, json_option, print_json, print_line

if TYPE_CHECKING:
    from broker.client.mirror.figures import MirrorFigures
    from broker.client.mirror.mirror import Mirror
    from broker.client.security.client_security import ClientSecurity

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
@click.option(
    "--from-config", "source_configs", multiple=True, type=CONFIG_FILE, metavar="FILE",
    help="Properties of a Kafka client for the source's TLS and login; with several sources, one for each or for all.",
)  # fmt: skip
@click.option(
    "--to-config", "target_config", type=CONFIG_FILE, metavar="FILE",
    help="Properties of a Kafka client for the target's TLS and login.",
)  # fmt: skip
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
    "--settings-every",
    type=Seconds(),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How often the settings of topics are copied again, as MirrorMaker 2 does; 0: only when a topic is made.",
)
@click.option(
    "--every",
    type=Seconds(),
    default=LINE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How often a line of figures is printed; 0: never.",
)
@http_options
@json_option
def run(
    sources: tuple[str, ...],
    target: str,
    source_configs: tuple[Path, ...],
    target_config: Path | None,
    topics: re.Pattern[str] | None,
    all_topics: bool,
    prefixes: tuple[str, ...],
    settings_every: float,
    every: float,
    site: HttpSite,
    as_json: bool,
    **options: Any,
) -> None:
    """Copy topics from one or several clusters into another, until SIGTERM or Ctrl-C.

    Keys, headers, times, partitions, the order in them and the compression stay; ids are the target's own. A source
    and a target may be Flakelog or Apache Kafka. A mirror that was killed goes on where the target has acknowledged,
    and copies a few records again.
    """
    from broker.client.mirror.mirror import Mirror
    from broker.client.mirror.names import TargetNames
    from broker.client.mirror.settings import EVERY_TOPIC, ClusterSettings, MirrorSettings

    if all_topics == (topics is not None):
        raise click.UsageError("give --topics REGEX or --all")
    if len(set(sources)) < len(sources):
        raise click.UsageError("two --from have the same brokers; mirrors of one cluster share its topics by --name")
    if prefixes and len(prefixes) != len(sources):
        raise click.UsageError(f"give one --prefix for each --from: {len(prefixes)} for {len(sources)}")
    if len(source_configs) > 1 and len(source_configs) != len(sources):
        raise click.UsageError(f"give one --from-config for each --from, or one: {len(source_configs)} are given")
    to = ClusterSettings(servers=target, security=None if target_config is None else read_security(target_config))
    names = TargetNames()
    try:
        mirrors = [
            Mirror(
                MirrorSettings(
                    source=ClusterSettings(servers=source, security=security),
                    target=to,
                    topics=EVERY_TOPIC if topics is None else topics,
                    prefix=prefix,
                    settings_ms=round(settings_every * 1000),
                    **options,
                ),
                names,
            )
            for source, prefix, security in zip(
                sources, prefixes or [""] * len(sources), _securities(source_configs, len(sources)), strict=True
            )
        ]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    asyncio.run(_run(mirrors, site, every, as_json))


def _securities(files: tuple[Path, ...], sources: int) -> "list[ClientSecurity | None]":
    """Return the security of each source."""
    return [read_security(file) for file in files] * (sources if len(files) == 1 else 1) or [None] * sources


run.help = with_exit_codes(run.help)


async def _run(mirrors: "Sequence[Mirror]", site: HttpSite, every: float, as_json: bool) -> None:
    from broker.client.errors import ClientError, Unreachable
    from broker.client.mirror.names import check_sources

    def stop() -> None:
        for mirror in mirrors:
            mirror.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        topics_by_source = {
            mirror.settings.source.servers: (mirror.settings.prefix, await mirror.open()) for mirror in mirrors
        }
        check_sources({mirror.settings.source.servers: mirror.source_id for mirror in mirrors})
        names = sorted(prefix + name for prefix, topics in topics_by_source.values() for name in topics)
        print_line(f"copying {count_of(len(names), 'topic')}: {', '.join(names[:20]) or 'none yet'}", err=True)
        _serve(mirrors, site)
        screen = _Lines(mirrors, as_json)
        lines = asyncio.create_task(screen.follow(every))
        try:
            async with asyncio.TaskGroup() as tasks:
                for mirror in mirrors:
                    tasks.create_task(mirror.run())
        finally:
            lines.cancel()
            screen.show()
    except* Unreachable as errors:
        raise NobodyAnswers(str(errors.exceptions[0])) from None
    except* ClientError as errors:
        raise click.ClickException(str(errors.exceptions[0])) from None


def _serve(mirrors: "Sequence[Mirror]", site: HttpSite) -> None:
    """Serve health and metrics on the loop that runs, with Twisted's reactor for asyncio."""
    if site.port is None:
        return
    from twisted.internet import asyncioreactor

    asyncioreactor.install(asyncio.get_running_loop())  # type: ignore[no-untyped-call]
    from twisted.internet import reactor

    from flakelog.mirror_site import make_site

    def take() -> "dict[str, MirrorFigures]":
        return {mirror.settings.source.servers: mirror.figures() for mirror in mirrors}

    site.serve(partial(make_site, take), lambda work: work(reactor))


class _Lines:
    """The figures of mirrors as lines: for people on stderr, or as JSON."""

    def __init__(self, mirrors: "Sequence[Mirror]", as_json: bool) -> None:
        self._mirrors = mirrors
        self._as_json = as_json
        self._before: dict[str, MirrorFigures] = {}

    async def follow(self, every: float) -> None:
        """Show the figures each `every` seconds; 0 shows none."""
        while every:
            await asyncio.sleep(every)
            self.show()

    def show(self) -> None:
        """Show the figures now; rates are those since the last time."""
        from broker.client.mirror.document import fields_of

        for mirror in self._mirrors:
            source, after = mirror.settings.source.servers, mirror.figures()
            fields = fields_of(mirror.settings, mirror.group, self._before.get(source), after)
            self._before[source] = after
            if self._as_json:
                print_json(fields)
            else:
                print_line(line_of(fields), err=True)


def line_of(fields: dict[str, Any]) -> str:
    """Return the figures of a mirror as a line."""
    from broker.client.mirror.figures import PAUSED

    behind = "lag unknown" if fields["lag"] is None else f"{fields['lag']:,} behind"
    paused = "paused, " if fields["state"] == PAUSED else ""
    errors = f", {count_of(fields['errors'], 'error')}" if fields["errors"] else ""
    stopped = "".join(f"; {topic} is stopped: {reason}" for topic, reason in sorted(fields["stopped"].items()))
    return (
        f"{fields['from']}: {paused}{fields['records']:,} records copied, {fields['records_per_s']:,.0f} a second, "
        f"{behind}{errors}{stopped}"
    )
