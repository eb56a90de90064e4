"""`flakelog spout run`: run a topology from Python code until SIGTERM or Ctrl-C."""

import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import Seconds
from flakelog.commands.command_config import given_readable, given_security, security_option
from flakelog.commands.exit_codes import fail
from flakelog.commands.http_site import HttpSite, http_options
from flakelog.commands.spout_view import follow, live_screen
from flakelog.commands.topology_name import TOPOLOGY, load_topology

if TYPE_CHECKING:
    from spout.figures.model import Snapshot
    from spout.run import BackgroundRun

REFRESH_SECONDS = 1.0  # of the live view: figures change faster than a person reads
LINE_SECONDS = 10.0


@click.command()
@click.argument("name", metavar=TOPOLOGY)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A properties file with topology.* and flakelog.spout.*.",
)
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A setting, over environment, file and code."
)
@click.option(
    "--instance",
    metavar="NAME",
    help="A name of this process that survives a restart: a restart within session.timeout.ms keeps its partitions of "
    "its groups, and a second process of the name ends the first. It is the setting flakelog.topology.instance.",
)
@security_option
@http_options
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="Lines for people, or a JSON object a line.",
)
@click.option(
    "--every",
    type=Seconds(),
    default=LINE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How often the log has a line of figures, where there is no live view; 0: never.",
)
@click.option(
    "--storm",
    "in_storm",
    is_flag=True,
    help="Run it in a local Apache Storm cluster, for development. This needs a JDK and Maven, which brings Storm's "
    "jars once, 170 MB, and lists them in ~/.cache/flakelog ($XDG_CACHE_HOME/flakelog).",
)
def run(
    name: str,
    config: Path | None,
    assignments: tuple[str, ...],
    instance: str | None,
    site: HttpSite,
    log_format: str,
    every: float,
    in_storm: bool,
) -> None:
    """Run the topology at MODULE:TOPOLOGY until SIGTERM or Ctrl-C.

    MODULE is a module's name or the path of a .py file; TOPOLOGY is a Topology in it, or a function that returns one.
    On a terminal, rates, latency, failures and lag are shown live; elsewhere the log on stderr has a line of them now
    and then. The first signal lets tuples in flight complete and stores the progress; a second one stops at once, and
    so does the first one if a component blocks for longer than flakelog.topology.drain.ms.

    Exit codes: 0 stopped cleanly, 1 the topology failed or a port is taken, 2 wrong usage, 130 and 143 stopped at once
    by SIGINT or SIGTERM, 9 another process of the same --instance has taken over, and the code of a sys.exit in a
    component.
    """
    if instance is not None:
        assignments = (*assignments, _assignment_of(instance))
    if in_storm:
        if click.get_current_context().get_parameter_source("log_format") is not click.core.ParameterSource.DEFAULT:
            reason = "the log of --storm is Storm's, in text for people"
            raise click.BadParameter(reason, param_hint="--log-format")
        from flakelog.commands.spout_storm import run_locally

        run_locally(name, config, assignments, given_readable(), site, every)
        return
    topology, topology_config = _topology(name, config, assignments)
    from flakelog import server_log
    from spout.error_text import error_text
    from spout.process_end import exit_within_seconds
    from spout.run import run_until_stopped
    from spout.work import exit_code

    if log_format == "json":
        server_log.begin("json")
    live = log_format == "text" and sys.stderr.isatty()
    with _screen(live) as show:

        def watch(running: "BackgroundRun") -> None:
            # Imported here, because it installs Twisted's default reactor unless the run has installed another.
            from flakelog.topology_site import make_site

            try:
                site.serve(partial(make_site, running.runner.snapshot), running.call)
            except click.ClickException:
                running.stop()
                running.wait()
                raise
            follow(running, show, REFRESH_SECONDS if live else every)

        try:
            run_until_stopped(topology, config=topology_config, watch=watch)
        except (SystemExit, KeyboardInterrupt) as error:
            exit_within_seconds(exit_code(error))  # threads of the user may still work
            if isinstance(error, SystemExit):
                raise
            raise SystemExit(130) from None
        except click.ClickException:
            raise
        except BaseException as error:  # the runner has logged it with its traceback
            fail(f"the topology failed: {error_text(error)}")


def _assignment_of(instance: str) -> str:
    """Return --instance as a --set; BadParameter if it is no name."""
    from broker.client.group_config import instance_fault
    from spout.config import INSTANCE_CHARACTERS_MAX

    wanted = instance_fault(instance, INSTANCE_CHARACTERS_MAX)
    if wanted is not None:
        raise click.BadParameter(f"{instance!r} {wanted}", param_hint="--instance")
    return f"flakelog.topology.instance={instance}"


def _topology(name: str, config: Path | None, assignments: tuple[str, ...]) -> tuple[Any, Any]:
    """Return the topology and its configuration; BadParameter if one cannot work."""
    from flakelog.topology_settings import collect_topology
    from idgen.settings import InvalidSetting, from_properties
    from spout.config import TopologyConfig
    from spout.topology import TopologyError
    from spout.topology_source import ConfiguredTopology

    try:
        texts = collect_topology(config, assignments, os.environ)
        topology_config = from_properties(TopologyConfig, texts)
    except (InvalidSetting, OSError) as error:
        raise click.BadParameter(str(error), param_hint="--set, --config or the environment") from None
    try:
        topology = ConfiguredTopology(load_topology(name), texts, given_security())
        topology.plan()
    except (TopologyError, InvalidSetting) as error:
        raise click.BadParameter(str(error), param_hint=TOPOLOGY) from None
    return topology, topology_config


def _screen(live: bool) -> Any:
    """Return a context that yields a function to show figures: on the terminal's screen, or as a line of the log."""
    from twisted.logger import Logger

    from flakelog.topology_view import facts_of, line_of

    if not live:
        log = Logger("flakelog.topology")

        def write(before: "Snapshot | None", after: "Snapshot") -> None:
            log.info("{text}", text=line_of(before, after), facts=facts_of(before, after))

        return nullcontext(write)
    return live_screen()
