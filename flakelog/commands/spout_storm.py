"""`flakelog spout storm`: write the Flux YAML of a topology; and the local cluster of `flakelog spout run --storm`."""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

import click

from flakelog.commands.exit_codes import fail

if TYPE_CHECKING:
    from flakelog.storm.flux import Launch
    from flakelog.storm.local_cluster import LocalCluster

STOP_SECONDS = 2  # for tuples in flight at a stop of a local cluster; later ones come again at the next start


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
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Storm's worker processes.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A properties file with topology.* and flakelog.spout.*.",
)
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A setting, over file and code.")
def storm(
    name: str,
    out: Path,
    python: str,
    environment: str,
    variables: tuple[str, ...],
    workers: int,
    config: Path | None,
    assignments: tuple[str, ...],
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
        said = f"{module} is a file of this machine: give a module's name, which the workers have installed"
        raise click.BadParameter(said, param_hint="MODULE:TOPOLOGY")
    launch = Launch(name, python, environment, dict(_variable(each) for each in variables))
    text = flux_of(name, launch, workers, config, assignments, {}, for_cluster=True)
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
    *,
    for_cluster: bool = False,
) -> str:
    """Return the Flux YAML of a topology with the given settings; BadParameter if it cannot run inside Storm."""
    from flakelog.settings import collect_topology
    from flakelog.storm.cluster import check_for_cluster
    from flakelog.storm.config import storm_config
    from flakelog.storm.flux import flux_document, flux_yaml
    from idgen.settings import InvalidSetting, from_properties
    from spout.config import SpoutConfig
    from spout.topology import TopologyError
    from spout.topology_source import ConfiguredTopology, NoTopology, find_topology

    try:
        texts = collect_topology(config, assignments, environment)
        from_properties(SpoutConfig, texts)
        settings = storm_config(texts, workers)
    except (InvalidSetting, OSError) as error:
        raise click.BadParameter(str(error), param_hint="--set or --config") from None
    try:
        plan = ConfiguredTopology(find_topology(name), texts).plan()
        for warning in check_for_cluster(plan) if for_cluster else ():
            click.echo(f"Warning: {warning}", err=True)
        return flux_yaml(flux_document(plan, launch, settings))
    except (NoTopology, TopologyError, InvalidSetting) as error:
        raise click.BadParameter(str(error), param_hint="MODULE:TOPOLOGY") from None
    except ModuleNotFoundError as error:
        if error.name != "yaml":
            raise
        fail("Flux YAML needs PyYAML; try: pip install 'flakelog[storm]'")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is no NAME=VALUE", param_hint="--env")
    return name, value


def run_locally(name: str, config: Path | None, assignments: tuple[str, ...]) -> None:
    """Run a topology in a local Storm cluster until SIGTERM or Ctrl-C."""
    from flakelog.storm.flux import Launch
    from flakelog.storm.jars import StormNotFound, find_storm
    from flakelog.storm.local_cluster import ClusterEnded, LocalCluster

    where, _, topology = name.rpartition(":")
    if where.endswith(".py") or "/" in where:
        name = f"{Path(where).resolve()}:{topology}"  # a worker of this machine has this machine's files
    text = flux_of(name, Launch(name, sys.executable), 1, config, assignments, os.environ)
    try:
        storm = find_storm(say=lambda line: click.echo(line, err=True))
    except StormNotFound as error:
        fail(str(error))
    signal.signal(signal.SIGTERM, _interrupt)
    with TemporaryDirectory(prefix="flakelog-storm-") as directory:
        file = Path(directory, "topology.yaml")
        file.write_text(text)
        with LocalCluster(storm, file) as cluster:
            try:
                _run_until_stopped(cluster)
            except ClusterEnded as error:
                fail(f"{error}; see the log above")
            except KeyboardInterrupt:  # before it was ready, or a second time
                raise SystemExit(130) from None


def _run_until_stopped(cluster: "LocalCluster") -> None:
    click.echo(cluster.start())
    try:
        code = cluster.wait()
    except KeyboardInterrupt:
        cluster.stop(STOP_SECONDS)
        return
    fail(f"a component's process ended, so the local cluster ended (exit code {code}); see the log above")


def _interrupt(*_: Any) -> NoReturn:
    """Raise KeyboardInterrupt, so that SIGTERM stops the cluster as Ctrl-C does."""
    raise KeyboardInterrupt
