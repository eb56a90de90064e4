"""`python -m benchmarks [ROW...]`: print the figures of each row beside its peers': least - median - most."""

import json
import os
import platform
import sys
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import (
    apache,
    arrow_reads,
    big_log,
    bulk,
    clients,
    compaction,
    consumers,
    defaults,
    flooder,
    follower_append,
    ids,
    manager,
    many_brokers,
    mirrors,
    multilang,
    python_clients,
    rebalances,
    replicas,
    secured,
    single,
    spark_reads,
    spark_streams,
    stalls,
    startup,
    topologies,
)
from benchmarks.brokers import checkouts, compile_packages, tree_of
from benchmarks.measure import QUICK, SERIOUS, Result, Row, Scale, Spread, measure
from benchmarks.native import Unavailable
from tests.compat.server_process import ROOT

PLAIN_WIDTH = 160  # of tables that go to a file
MODULES = bulk, defaults, single, clients, flooder, consumers, python_clients, ids, startup, big_log, stalls, compaction
MODULES += manager, topologies, multilang, arrow_reads, spark_reads, spark_streams, many_brokers
MODULES += follower_append, replicas, mirrors, secured, rebalances
ROWS = {row.name: row for module in MODULES for row in module.ROWS}


CHECKOUT = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _cell(spread: Spread, runs: int) -> str:
    return _text(spread.median) if runs == 1 else " - ".join(map(_text, spread))


def _table(row: Row, result: Result, runs: int) -> Table:
    units = list(dict.fromkeys(unit for spreads in result.values() for unit in spreads))
    table = Table("", box=SIMPLE_HEAD)
    for unit in units:
        table.add_column(unit, justify="right")
    for contender, spreads in result.items():
        table.add_row(contender, *(_cell(spreads[unit], runs) if unit in spreads else "" for unit in units))
    return table


def _machine() -> dict[str, str | int]:
    return {"python": platform.python_version(), "system": platform.platform(), "cpus": os.cpu_count() or 0}


def _run(rows: list[Row], scale: Scale, as_json: bool) -> tuple[dict[str, Result], dict[str, str]]:
    results: dict[str, Result] = {}
    skipped: dict[str, str] = {}
    out = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    progress = Console(stderr=True)
    for row in rows:
        try:
            with progress.status(row.name) as status:
                results[row.name] = measure(row, scale, status.update)
        except Unavailable as error:
            skipped[row.name] = str(error)
            progress.print(f"{row.name}: skipped: {error}")
            continue
        if not as_json:
            out.print(f"[bold]{row.name}[/]: {row.about}")
            out.print(_table(row, results[row.name], scale.runs))
    return results, skipped


@click.command()
@click.argument("names", metavar="[ROW]...", nargs=-1, type=click.Choice(list(ROWS)))
@click.option("--runs", type=click.IntRange(1), default=SERIOUS.runs, show_default=True, help="Counted runs of each.")
@click.option("--warm-up", type=click.IntRange(0), default=SERIOUS.warm_up, show_default=True, help="Runs before them.")
@click.option("--kafka/--no-kafka", default=None, help="Measure Apache Kafka. Default: if installed, unless --quick.")
@click.option("--quick", is_flag=True, help="One tiny run of each: shows that it works, says nothing of speed.")
@click.option("--against", type=CHECKOUT, metavar="DIR", help="Measure the servers of another checkout too, in pairs.")
@click.option("--log-gb", type=click.IntRange(1), default=SERIOUS.log_gb, show_default=True, help="Log of `stalls`.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def main(
    names: tuple[str, ...],
    runs: int,
    warm_up: int,
    kafka: bool | None,
    quick: bool,
    against: Path | None,
    log_gb: int,
    as_json: bool,
) -> None:
    """Measure ROWs, by default all of them. benchmarks/README.md explains them."""
    if not sys.platform.startswith("linux"):
        raise click.ClickException("the benchmarks read /proc, so they need Linux")
    if against is not None:
        compile_packages(ROOT)
        compile_packages(against)
    scale = (QUICK if quick else SERIOUS._replace(runs=runs, warm_up=warm_up))._replace(against=against, log_gb=log_gb)
    if kafka is not None:
        scale = scale._replace(kafka=kafka)
    if scale.kafka and apache.why_not() is not None:
        click.echo(f"Apache Kafka is not measured: {apache.why_not()}", err=True)
    results, skipped = _run([ROWS[name] for name in names or ROWS], scale, as_json)
    if as_json:
        spreads = {
            row: {who: {unit: spread._asdict() for unit, spread in units.items()} for who, units in result.items()}
            for row, result in results.items()
        }
        trees = {who: tree_of(root)._asdict() for who, root in checkouts(scale).items()}
        report = {"machine": _machine(), "trees": trees, "runs": scale.runs, "rows": spreads, "skipped": skipped}
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
