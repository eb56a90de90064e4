"""`flakelog replay`: an exact range of topics as Parquet files, with the manifest and the proof beside them."""

from pathlib import Path
from typing import Any

import click

from flakelog.commands.terminal import NobodyAnswers, TimeType, client_of, fail, json_option, print_json, servers_option


@click.command()
@click.argument("topics", nargs=-1)
@servers_option
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="A directory for the Parquet files."
)
@click.option("--from-id", type=int, metavar="ID", help="The first id.")
@click.option("--to-id", type=int, metavar="ID", help="The id to end before.")
@click.option("--from-time", type=TimeType(), metavar="TIME", help="Messages with a timestamp not before it.")
@click.option("--to-time", type=TimeType(), metavar="TIME", help="Messages with a timestamp before it.")
@click.option(
    "--manifest",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Read just what this manifest of an earlier replay names, and nothing else.",
)
@click.option(
    "--on-poison",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What to do with a batch that cannot be decoded.",
)
@click.option("--headers", is_flag=True, help="Write the headers of messages too.")
@json_option
def replay(
    topics: tuple[str, ...],
    servers: str,
    out: Path,
    from_id: int | None,
    to_id: int | None,
    from_time: int | None,
    to_time: int | None,
    manifest: Path | None,
    on_poison: str,
    headers: bool,
    as_json: bool,
) -> None:
    """Write TOPICS to Parquet with Spark: all messages, or a range by id or by time.

    The range is fixed first and written to OUT.manifest.json. Tasks read exactly this range, or fail. A second run with
    the same manifest must write the same bytes, which is checked. Times are ISO 8601 or Unix ms.
    """
    if (manifest is None) == (not topics):
        raise click.UsageError("give topics, or --manifest")
    bounds = {"startingId": from_id, "endingId": to_id, "startingTimestamp": from_time, "endingTimestamp": to_time}
    options = {name: str(value) for name, value in bounds.items() if value is not None}
    if headers:
        options["includeHeaders"] = "true"
    if manifest is not None and options:
        raise click.UsageError("a manifest says what is read; give no range and no --headers beside it")
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        fail(f"a replay needs Spark ({error}); try: pip install 'flakelog[spark]'")
    with client_of(servers) as client:
        client.topics()  # report a missing broker now, not after the ten seconds that Spark takes to start
    options |= {"kafka.bootstrap.servers": servers, "subscribe": ",".join(topics)}
    receipt = _run(servers, out, manifest, options, on_poison)
    for batch in receipt.poison:
        click.echo(f"left out {batch}", err=True)
    if as_json:
        figures = {"rows": receipt.rows, "files": len(receipt.files), "checksum": receipt.checksum}
        print_json({"out": str(out), **figures, "poison_batches": len(receipt.poison)})
    else:
        click.echo(f"{receipt.rows:,} messages in {len(receipt.files)} files in {out}/")


def _run(servers: str, out: Path, manifest: Path | None, options: dict[str, str], on_poison: str) -> Any:
    from pyspark.errors import PySparkException
    from rich.console import Console

    from coordination.java import JavaNotFound
    from spark_bridge.reading.cluster import Unreachable
    from spark_bridge.reading.network import ClusterError
    from spark_bridge.replay.job import check_out, make_manifest
    from spark_bridge.replay.job import replay as run
    from spark_bridge.replay.job import save_manifest
    from spark_bridge.replay.receipt import ReplayError
    from spark_bridge.selection.manifest import ManifestError, load
    from spark_bridge.selection.options import OptionError
    from spark_bridge.selection.selector import SelectionError
    from spark_bridge.session import spark_session

    console = Console(stderr=True)
    try:
        if manifest is None:
            planned = make_manifest(options)
            check_out(out, planned)
            out.parent.mkdir(parents=True, exist_ok=True)
            manifest = out.with_name(out.name + ".manifest.json")
            save_manifest(planned, manifest)
        else:
            check_out(out, load(manifest.read_bytes()))
        with console.status("starting Spark"):
            spark = spark_session("flakelog-replay")
        try:
            with console.status("replaying"):
                return run(spark, servers, manifest, out, on_poison=on_poison)
        finally:
            spark.stop()
    except Unreachable as error:
        raise NobodyAnswers(str(error)) from None
    except (ManifestError, OptionError, SelectionError, ReplayError, ClusterError) as error:
        fail(str(error))
    except (JavaNotFound, OSError) as error:
        fail(str(error))
    except PySparkException as error:
        fail(_last_line(str(error)))


def _last_line(text: str) -> str:
    """Return the last line of the traceback from Spark, which has the exception a task raised."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(" ")]
    return lines[-1] if lines else text
