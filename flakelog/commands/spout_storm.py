"""`flakelog spout storm`: write the Flux YAML of a topology; and the local cluster of `flakelog spout run --storm`."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from flakelog.commands.arguments import INT32_MAX, Whole
from flakelog.commands.command_config import CONFIG_FILE, read_readable
from flakelog.commands.exit_codes import fail
from flakelog.commands.http_site import HttpSite
from flakelog.commands.spout_view import follow, live_screen
from flakelog.commands.topology_name import TOPOLOGY, load_topology

if TYPE_CHECKING:
    from broker.client.security.client_security import Security
    from flakelog.storm.flux import Launch
    from flakelog.storm.local_cluster import LocalCluster
    from spout.figures.model import Snapshot
    from spout.figures.topology_reader import PublishedFigures
    from spout.topology import Plan

REFRESH_SECONDS = 4.0  # of the live view: each task publishes twice in this time, so rates are steady
DRAIN = "flakelog.topology.drain.ms"
DRAIN_MS = 2_000  # default in a local cluster; Storm waits all of it, even with nothing in flight


class Flux(NamedTuple):
    """A topology for Storm: its plan, Storm's configuration of it, and the YAML with both."""

    plan: "Plan"
    config: Mapping[str, Any]
    text: str


@click.command()
@click.argument("name", metavar="MODULE:TOPOLOGY")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="The file to write; - is stdout.",
)
@click.option(
    "--python",
    default="python3",
    show_default=True,
    metavar="PROGRAM",
    help="The Python on the workers: a name on their PATH, or an absolute path.",
)
@click.option(
    "--environment",
    default="",
    metavar="KEY",
    help="The key of a PEX file in Storm's blobstore with the code and its packages, which each worker then gets.",
)
@click.option(
    "--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable in the environment of each component."
)
@click.option("--workers", type=Whole(1, INT32_MAX), default=1, show_default=True, help="Storm's worker processes.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A properties file with topology.* and flakelog.spout.*.",
)
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A setting, over file and code.")
@click.option(
    "--command-config",
    type=CONFIG_FILE,
    metavar="FILE",
    help="Properties of a Kafka client, for TLS and logins of all spouts and sinks. Secrets are references such as "
    "${file:FILE:KEY}, which each worker reads.",
)
def storm(
    name: str,
    out: Path,
    python: str,
    environment: str,
    variables: tuple[str, ...],
    workers: int,
    config: Path | None,
    assignments: tuple[str, ...],
    command_config: Path | None,
) -> None:
    """Write the topology at MODULE:TOPOLOGY as Flux YAML, from which Apache Storm starts it on a cluster.

    Each task is a process on a worker: `PROGRAM -m spout.multilang MODULE:TOPOLOGY COMPONENT`. So MODULE is a module's
    name, and the workers have it installed beside flakelog, or get both as a PEX file (--environment).

    Exit codes: 0 written, 1 the file cannot be written or PyYAML is missing, 2 wrong usage, or a topology that cannot
    run inside Storm.
    """
    from flakelog.storm.flux import Launch

    module = name.rpartition(":")[0]
    if module.endswith(".py") or "/" in module:
        reason = f"{module} is a file of this machine: give a module's name, which the workers have installed"
        raise click.BadParameter(reason, param_hint=TOPOLOGY)
    launch = Launch(name, python, environment, dict(_variable(variable) for variable in variables))
    security = {} if command_config is None else read_readable(command_config)
    text = flux_of(name, launch, workers, config, assignments, {}, security, for_cluster=True).text
    if str(out) == "-":
        click.echo(text, nl=False)
        return
    try:
        out.write_text(text)
    except OSError as error:
        fail(f"{out} cannot be written: {error.strerror}")


def flux_of(
    name: str,
    launch: "Launch",
    workers: int,
    config: Path | None,
    assignments: tuple[str, ...],
    environment: Mapping[str, str],
    security: Mapping[str, str],
    *,
    for_cluster: bool = False,
) -> Flux:
    """Return a topology with the given settings for Storm; BadParameter if it cannot run there.

    `security` has the properties of its clients, without secrets.
    """
    from flakelog.storm.cluster import check_for_cluster
    from flakelog.storm.flux import flux_document, flux_yaml, storm_config
    from flakelog.topology_settings import collect_topology
    from idgen.settings import InvalidSetting
    from spout.topology import TopologyError
    from spout.topology_source import ConfiguredTopology

    try:
        texts = collect_topology(config, assignments, environment)
        settings = storm_config(texts, workers, security)
    except (InvalidSetting, OSError) as error:
        raise click.BadParameter(str(error), param_hint="--set or --config") from None
    try:
        plan = ConfiguredTopology(load_topology(name), texts, security or None).plan()
        for warning in check_for_cluster(plan) if for_cluster else ():
            click.echo(f"Warning: {warning}", err=True)
        return Flux(plan, settings, flux_yaml(flux_document(plan, launch, settings)))
    except (TopologyError, InvalidSetting) as error:
        raise click.BadParameter(str(error), param_hint=TOPOLOGY) from None
    except ModuleNotFoundError as error:
        if error.name != "yaml":
            raise
        fail("Flux YAML needs PyYAML; try: pip install 'flakelog[storm]'")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is no NAME=VALUE", param_hint="--env")
    return name, value


def run_locally(
    name: str,
    config: Path | None,
    assignments: tuple[str, ...],
    security: Mapping[str, str],
    site: HttpSite,
    line_seconds: float,
) -> None:
    """Run a topology in a local Storm cluster until SIGTERM or Ctrl-C, and show its figures meanwhile.

    `security` has the properties of its clients, without secrets.
    """
    from flakelog.storm.flux import Launch
    from flakelog.storm.jars import StormNotFound, find_storm
    from flakelog.storm.local_cluster import ClusterEnded, LocalCluster

    where, _, topology = name.rpartition(":")
    if where.endswith(".py") or "/" in where:
        name = f"{Path(where).resolve()}:{topology}"  # a worker of this machine has this machine's files
    flux = flux_of(name, Launch(name, sys.executable), 1, config, assignments, os.environ, security)
    published = _published_at(flux)
    if published is None and site.port is not None:
        reason = "figures come from the topic __flakelog_topologies: they need a LogSpout and flakelog.topology.publish"
        raise click.BadParameter(reason, param_hint="--http-port")
    try:
        storm = find_storm(say=lambda line: click.echo(line, err=True))
    except StormNotFound as error:
        fail(str(error))
    signal.signal(signal.SIGTERM, _interrupt)
    figures = None if published is None else _figures(flux.plan, *published)
    live = figures is not None and sys.stderr.isatty()
    with TemporaryDirectory(prefix="flakelog-storm-") as directory, _log(live) as log:
        file = Path(directory, "topology.yaml")
        file.write_text(flux.text)
        with LocalCluster(storm, file, log=log) as cluster:
            try:
                _run_until_stopped(_Run(cluster, figures), site, live, line_seconds, _drain_seconds(flux.config))
            except ClusterEnded as error:
                fail(f"{error}; see the log above")
            except KeyboardInterrupt:  # before it was ready, or a second time
                raise SystemExit(130) from None


class _Run(NamedTuple):
    """A local cluster with the figures of its topology: a flakelog.commands.spout_view.Followed."""

    cluster: "LocalCluster"
    figures: "PublishedFigures | None"

    @property
    def ended(self) -> bool:
        return self.cluster.ended

    def wait(self, *, timeout_ms: int | None = None) -> None:
        self.cluster.wait(None if timeout_ms is None else timeout_ms / 1000)

    def snapshot(self, *, timeout_ms: int | None = None) -> "Snapshot":
        assert self.figures is not None, "nothing is shown without figures"
        return self.figures.snapshot()


def _run_until_stopped(run: _Run, site: HttpSite, live: bool, line_seconds: float, drain_seconds: int) -> None:
    from flakelog.topology_site import make_site
    from flakelog.topology_view import line_of

    def write(before: "Snapshot | None", after: "Snapshot") -> None:
        click.echo(line_of(before, after), err=True)

    if run.figures is not None:
        run.figures.start()
        site.serve(partial(make_site, run.figures.snapshot), _in_reactor)
    seconds = REFRESH_SECONDS if live else line_seconds if run.figures is not None else 0
    click.echo(run.cluster.start())
    try:
        with live_screen() if live else nullcontext(write) as show:
            follow(run, show, seconds)
    except KeyboardInterrupt:
        run.cluster.stop(drain_seconds)
        return
    code = run.cluster.wait()
    fail(f"a component's process ended, so the local cluster ended (exit code {code}); see the log above")


def _published_at(flux: Flux) -> "tuple[str, Security] | None":
    """Return the servers where the topology publishes its figures, with their security; None if it publishes none."""
    from spout.figures.collect import clusters_of

    clusters = clusters_of(flux.plan) if flux.config.get("flakelog.topology.publish", True) else {}
    return next(iter(clusters.items()), None)


def _figures(plan: "Plan", servers: str, security: "Security") -> "PublishedFigures":
    from spout.figures.topology_reader import PublishedFigures

    return PublishedFigures(plan, servers, f"local-{os.getpid()}", security=security)


def _drain_seconds(config: Mapping[str, Any]) -> int:
    """Return how long tuples in flight may take at a stop, in the whole seconds that Storm knows."""
    return -(-int(config.get(DRAIN, DRAIN_MS)) // 1000)


def _in_reactor(work: Any) -> Any:
    """Call `work(reactor)` in the reactor's thread, which this starts."""
    from spout.reactor_thread import call, ensure_running
    from spout.runner import installed_reactor

    reactor = installed_reactor()
    ensure_running(reactor)
    return call(reactor, lambda: work(reactor))


@contextmanager
def _log(live: bool) -> Iterator[IO[str] | None]:
    """Yield a file for Storm's log, None for standard error. Beside a live view, its lines appear above the view."""
    if not live:
        yield None
        return
    reader, writer = os.pipe()

    def copy() -> None:
        with open(reader, errors="replace") as lines:
            for line in lines:
                print(line, end="", file=sys.stderr)

    threading.Thread(target=copy, name="flakelog-storm-log", daemon=True).start()
    with open(writer, "w") as log:
        yield log


def _interrupt(*_: Any) -> NoReturn:
    """Raise KeyboardInterrupt, so that SIGTERM stops the cluster as Ctrl-C does."""
    raise KeyboardInterrupt
