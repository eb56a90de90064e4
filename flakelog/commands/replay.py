"""`flakelog replay`: an exact range of topics as Parquet files, with the manifest and the proof beside them.

Exit codes are those of flakelog.commands.transfer; `flakelog replay --help` lists them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands import transfer
from flakelog.commands.command_config import given_properties
from flakelog.commands.exit_codes import fail, with_exit_codes
from flakelog.commands.read_progress import ReadProgress
from flakelog.commands.replay_range import range_of, range_options
from flakelog.commands.terminal import client_of, count_of, json_option, print_json, servers_option
from flakelog.commands.waiting import answer_seconds, waiting_for

if TYPE_CHECKING:
    from spark_bridge.output.progress import Report
    from spark_bridge.output.storage import Storage
    from spark_bridge.replay.receipt import Receipt
    from spark_bridge.selection.manifest import Manifest

ARROW, SPARK = "arrow", "spark"
THREADS_MAX = 64


@dataclass(frozen=True)
class ReplayOptions:
    """The options that do not select the range."""

    servers: str
    engine: str
    on_poison: str
    compacted: bool
    threads: int
    single_writer: bool
    as_json: bool
    plot: Path | None


@dataclass(frozen=True)
class Selection:
    """The rows to replay: the path or URI of a manifest, or the isolation and other options of the Data Source."""

    manifest: str | None
    isolation: str | None
    options: dict[str, str]


@click.command()
@click.argument("topics", nargs=-1)
@servers_option
@click.option("--out", metavar="PLACE", help="A directory, or a URI such as s3://bucket/flights, for the files.")
@range_options
@click.option(
    "--manifest",
    metavar="FILE",
    help="Read just what this manifest of an earlier replay names, and nothing else: a path, or a URI.",
)
@click.option(
    "--on-poison",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What to do with a batch that cannot be decoded.",
)
@click.option(
    "--compacted",
    is_flag=True,
    help="Offsets may be missing: for a topic that was compacted once. One that is compacted now needs no option.",
)
@click.option(
    "--engine",
    type=click.Choice([ARROW, SPARK]),
    default=ARROW,
    show_default=True,
    help="What reads and writes: threads of this process, or Spark's tasks. The files are the same.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, THREADS_MAX),
    default=4,
    show_default=True,
    help="Ranges that are written at once, with --engine arrow.",
)
@click.option(
    "--single-writer",
    is_flag=True,
    help="No other run writes to PLACE; for a store without an exclusive create.",
)
@click.option("--plan", is_flag=True, help="Show what would be read, and write nothing.")
@click.option("--verify", metavar="PLACE", help="Check the files of an earlier replay against its receipt, and end.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.png",
    help="Draw rows and bytes over time.",
)
@json_option
def replay(
    topics: tuple[str, ...],
    servers: str,
    out: str | None,
    manifest: str | None,
    on_poison: str,
    compacted: bool,
    engine: str,
    threads: int,
    single_writer: bool,
    plan: bool,
    verify: str | None,
    plot: Path | None,
    as_json: bool,
    isolation: str | None,
    **chosen: Any,
) -> None:
    """Write TOPICS to Parquet files: all messages, or a range by id, by time or by offsets.

    The range is fixed first and written to a manifest beside the files (OUT.manifest.json, or _manifest.json in a
    store). Then exactly this range is read, or the replay fails. A second run with the same manifest must write the
    same bytes, which is checked. Times are ISO 8601 or Unix ms.
    """
    _require_arrow()
    if verify is not None:
        if topics or manifest or out or plan:
            raise click.UsageError("--verify checks an earlier replay; give no topics, manifest, --out or --plan")
        _verify(verify, as_json)
        return
    given = [value for value in (isolation, *chosen.values()) if value not in (None, ()) and value is not False]
    if manifest is not None and given:
        raise click.UsageError("a manifest says what is read; give no range, columns, headers or isolation beside it")
    if manifest is not None and topics:
        raise click.UsageError("give topics or --manifest, not both: a manifest names its topics")
    if manifest is None and not topics and not chosen["offsets"]:
        raise click.UsageError("give topics, or --manifest")
    if manifest is not None and "://" not in manifest and not Path(manifest).is_file():
        raise click.UsageError(f"--manifest: there is no file {manifest}")
    if out is None and not plan:
        raise click.UsageError("give --out, or --plan to see what would be read")
    if plot is not None:
        transfer.check_plot()
    if engine == SPARK:
        _require_spark()
    run = ReplayOptions(servers, engine, on_poison, compacted, threads, single_writer, as_json, plot)
    with transfer.failures():
        selection = Selection(manifest, isolation, {} if manifest is not None else range_of(topics, **chosen))
        if plan:
            _show_plan(run, out, selection)
        else:
            assert out is not None
            _replay(run, out, selection)


replay.help = with_exit_codes(replay.help)


def _require_arrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        fail(f"a replay needs pyarrow ({error}); try: pip install 'flakelog[arrow]'")


def _require_spark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        fail(f"--engine spark needs Spark ({error}); try: pip install 'flakelog[spark]'")


def _manifest(run: ReplayOptions, out: "Storage | None", selection: Selection) -> "Manifest":
    """Return the manifest of a file, or a new one of what the options select now. Nothing is written."""
    from spark_bridge.output.storage import read_file
    from spark_bridge.replay.planning import DEFAULT_ISOLATION, isolation_of, make_manifest
    from spark_bridge.selection.manifest import ManifestError, load
    from spark_bridge.selection.option_table import options_of

    if selection.manifest is not None:
        try:
            return load(read_file(selection.manifest))
        except ManifestError as error:
            raise ManifestError(f"{selection.manifest}: {error}") from None
    earlier = None if out is None or selection.isolation is not None else isolation_of(out)
    isolation = selection.isolation or earlier or DEFAULT_ISOLATION
    if earlier not in (None, DEFAULT_ISOLATION):
        click.echo(f"{out} was begun with --isolation {earlier}, and keeps it", err=True)
    with client_of(run.servers) as client:
        client.topics()  # report a missing broker now, and not after the patience of a read
    servers = {"kafka.bootstrap.servers": run.servers, "kafka.isolation.level": isolation}
    return make_manifest(servers | options_of(given_properties()) | selection.options)


def _show_plan(run: ReplayOptions, out: str | None, selection: Selection) -> None:
    from flakelog.operations.replays import plan
    from spark_bridge.output.storage import Storage

    manifest = _manifest(run, None if out is None else Storage.at(out), selection)
    with client_of(run.servers) as client:
        transfer.print_plan(plan(client, manifest), run.as_json)


def _verify(location: str, as_json: bool) -> None:
    from spark_bridge.output.storage import Storage
    from spark_bridge.replay import publication

    with transfer.failures():
        storage = Storage.at(location)
        receipt = publication.verify(storage)
    if as_json:
        print_json({"out": str(storage), **_figures(receipt)})
    else:
        click.echo(f"{storage} is as it was written: {_in_words(receipt)}")


def _replay(run: ReplayOptions, out: str, selection: Selection) -> None:
    from spark_bridge.output.storage import Storage
    from spark_bridge.replay.planning import keep_manifest
    from spark_bridge.replay.publication import check_out, check_place

    output = Storage.at(out)
    check_place(output, single_writer=run.single_writer)
    manifest = _manifest(run, output, selection)
    check_out(output, manifest, single_writer=run.single_writer)
    if selection.manifest is None:
        keep_manifest(output, manifest)
    receipt, report = (_by_spark if run.engine == SPARK else _by_arrow)(run, manifest, output)
    for batch in receipt.poison:
        click.echo(f"left out {batch}", err=True)
    missing = manifest.offsets - receipt.rows - receipt.poison_offsets
    if run.compacted and missing > 0:
        cause = "compaction removed it, or the offset is a transaction's marker"
        click.echo(f"{count_of(missing, 'offset')} of the range without a message: {cause}", err=True)
    if run.plot is not None:
        transfer.save_plot(report, run.plot, f"replay to {output}")
    if run.as_json:
        print_json({"out": str(output), **_figures(receipt), "report": transfer.figures_of(report)})
    else:
        click.echo(_in_words(receipt, f" in {output}{'' if '://' in out else '/'}"))
        click.echo(transfer.describe(report), err=True)


def _by_arrow(run: ReplayOptions, manifest: "Manifest", output: "Storage") -> "tuple[Receipt, Report]":
    from spark_bridge.output.progress import Progress
    from spark_bridge.replay.arrow_job import replay as run_replay

    bar, progress = ReadProgress(), Progress(transfer.now())
    bar.begin("replay", manifest.offsets)

    def read(rows: int, size: int) -> None:
        bar.add(rows, size)
        progress.read(rows, size, transfer.now())

    try:
        receipt = run_replay(
            run.servers,
            manifest,
            output,
            on_poison=run.on_poison,
            compacted=run.compacted,
            threads=run.threads,
            single_writer=run.single_writer,
            request_timeout_ms=int(answer_seconds() * 1000),
            security=given_properties(),
            on_batch=lambda batch: read(batch.num_rows, batch.nbytes),
            on_written=lambda within, file: progress.wrote(file.bytes),
            on_wait=bar.wait,
        )
    finally:
        bar.end()
    return receipt, progress.report(transfer.now())


def _by_spark(run: ReplayOptions, manifest: "Manifest", output: "Storage") -> "tuple[Receipt, Report]":
    from pyspark.errors import PySparkException
    from rich.console import Console

    from coordination.java import JavaNotFound
    from spark_bridge.output.progress import Progress
    from spark_bridge.replay.job import replay_manifest
    from spark_bridge.session import spark_session

    console = Console(stderr=True)
    progress = Progress(transfer.now())
    try:
        with console.status("starting Spark"), waiting_for("Spark to start"):
            spark = spark_session("flakelog-replay")
        try:
            with console.status("replaying"), waiting_for("Spark to replay"):
                receipt = replay_manifest(
                    spark,
                    run.servers,
                    manifest,
                    output,
                    run.on_poison,
                    compacted=run.compacted,
                    single_writer=run.single_writer,
                    security=given_properties(),
                )
        finally:
            spark.stop()
    except JavaNotFound as error:
        fail(str(error))
    except PySparkException as error:
        raise transfer.failure_of_task(str(error)) from None
    progress.read(receipt.rows, 0, transfer.now())  # tasks elsewhere report no bytes
    return receipt, progress.report(transfer.now())


def _figures(receipt: "Receipt") -> dict[str, Any]:
    figures = {"rows": receipt.rows, "files": len(receipt.files), "checksum": receipt.checksum}
    return figures | {"poison_batches": len(receipt.poison), "poison_offsets": receipt.poison_offsets}


def _in_words(receipt: "Receipt", where: str = "") -> str:
    words = f"{count_of(receipt.rows, 'message')} in {count_of(len(receipt.files), 'file')}{where}"
    if receipt.poison:
        words += f", without {count_of(receipt.poison_offsets, 'offset')} of batches that cannot be decoded"
    return words
