"""`flakelog load`: the new messages of a topic as files or rows of a table, each message once."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.client.offset_spec import AtId, AtTime, Earliest
from flakelog.commands import transfer
from flakelog.commands.arguments import Whole
from flakelog.commands.command_config import CONFIG_FILE, given_properties, read_properties
from flakelog.commands.exit_codes import ProblemsFound, with_exit_codes
from flakelog.commands.load_report import LoadReport, show_plan, show_target, show_verification
from flakelog.commands.terminal import client_of, count_of, json_option, print_json, servers_option, typed_time
from flakelog.commands.waiting import answer_seconds
from flakelog.machine import raise_file_limit

if TYPE_CHECKING:
    from spark_bridge.load.decoding import Decoding
    from spark_bridge.load.job import LoadJob

FORMATS = ("parquet", "delta", "iceberg", "topic")


class SinceType(click.ParamType[Earliest | AtTime | AtId | None]):
    """`earliest`, a time, or `id:` and a number, as a position in the log; None for `last`, after the last load."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value == "last":
            return None if value == "last" else value
        if value == "earliest":
            return Earliest()
        kind, _, number = value.partition(":")
        if kind == "id":
            return AtId(Whole(0).convert(number, param, ctx))
        try:
            since_ms = typed_time(value.removeprefix("@"))  # `consume --from` writes times with @
        except ValueError as error:
            self.fail(f"{error}; or give last, earliest, or id:NUMBER", param, ctx)
        if since_ms > time.time() * 1000:  # until then come messages that must not be loaded
            self.fail(f"{value} is still to come; give a time that has passed", param, ctx)
        return AtTime(since_ms)


@click.command()
@click.argument("topic")
@servers_option
@click.option(
    "--to",
    required=True,
    metavar="URI",
    help="A directory or a URI: s3://bucket/flights, iceberg://CATALOG/NAMESPACE.TABLE, kafka://HOST:PORT/TOPIC.",
)
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), help="The kind of destination.  [default: parquet, or by --to]"
)
@click.option("--record", metavar="URI", help="The directory that keeps the record of loads into a topic.")
@click.option(
    "--to-config",
    type=CONFIG_FILE,
    metavar="FILE",
    help="Properties of a Kafka client for TLS and the login of the cluster of --to, for loads into a topic.",
)
@click.option(
    "--since",
    type=SinceType(),
    default="last",
    show_default=True,
    metavar="last|earliest|TIME|id:ID",
    help="Where to begin. All but `last` need a new place; `last` takes everything into a new place.",
)
@click.option(
    "--partition-by", metavar="day|hour|COLUMN", help="Directories by the record's timestamp (UTC), or by a column."
)
@click.option("--columns", metavar="NAME,...", help="The columns to write. Default: all but the headers.")
@click.option("--decode", type=click.Choice(["json", "avro"]), help="Make columns of the values.")
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    metavar="[ID=]FILE",
    help="The Avro record schema of the columns (.avsc). For values with a schema registry's prefix, also ID=FILE for "
    "each id.",
)
@click.option(
    "--max-rejected",
    type=click.IntRange(0),
    metavar="N",
    help="With --decode: stop, and publish nothing of a load, once more than N of its messages do not decode. The next "
    "run takes them again.  [default: no limit]",
)
@click.option("--headers", is_flag=True, help="Write the headers of messages too.")
@click.option("--file-rows", type=click.IntRange(1), metavar="N", help="Most rows of a file.  [default: 1,000,000]")
@click.option(
    "--file-bytes",
    type=click.IntRange(1),
    metavar="N",
    help="About the most bytes of keys and values in a file.  [default: 256 MiB]",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="With read_committed, messages of aborted transactions stay out, and open ones wait for the next load.",
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
@click.option("--accept-loss", is_flag=True, help="Go on after messages that the log lost before a load took them.")
@click.option(
    "--start-over",
    is_flag=True,
    help="Begin a new chain of loads in a place whose table, topic or files are not those of the earlier loads. What a "
    "table that was put back still has of them stays: remove it, or give --since after it.",
)
@click.option("--single-writer", is_flag=True, help="Promise that no other load into this place runs at the same time.")
@click.option("--threads", type=click.IntRange(1, 64), default=4, show_default=True, help="Files written at once.")
@click.option("--every", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Load again and again.")
@click.option("--plan", "only_plan", is_flag=True, help="Show what a load would read, and write nothing.")
@click.option(
    "--verify", "only_verify", is_flag=True, help="Check all loads of the place, and what the target has of them."
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.png",
    help="Draw rows and bytes over time.",
)
@json_option
def load(
    only_plan: bool, only_verify: bool, every: float | None, plot: Path | None, as_json: bool, **options: Any
) -> None:
    """Load the messages of TOPIC that came since the last load, each once.

    The load is planned and saved in URI/_flakelog first. If it is killed, the next run finishes it before it plans
    another; two runs at once share it. Only files of finished loads are seen.
    """
    if only_plan and only_verify:
        raise click.UsageError("give --plan or --verify, not both")
    if (every is not None or plot is not None) and (only_plan or only_verify):
        raise click.UsageError("--every and --plot are for loads; --plan and --verify do not load")
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise click.ClickException(f"a load needs pyarrow ({error}); try: pip install 'flakelog[arrow]'") from None
    from spark_bridge.load.ledger import Since

    if plot is not None:
        transfer.check_plot()
    raise_file_limit()  # with --partition-by, a part has an open file for each value
    with transfer.failures():
        job = _job(**options)
        if not only_verify:
            with client_of(options["servers"]) as client:  # a server that is not there is missed soon
                client.run(client.core.nodes())
        if only_plan:
            show_plan(job.plan(), as_json)
        elif only_verify:
            verification = job.verify()
            show_verification(verification, as_json)
            if verification.problems:
                raise ProblemsFound(count_of(len(verification.problems), "problem"))
        else:
            _load(job, plot, as_json)
            job = replace(job, options=replace(job.options, start_over=False, since=Since()))  # the place has begun
            while every is not None:
                time.sleep(every)
                _load(job, plot, as_json)


load.help = with_exit_codes(load.help)


def _job(
    *,
    topic: str,
    servers: str,
    to: str,
    kind: str | None,
    record: str | None,
    to_config: Path | None,
    decode: str | None,
    schemas: tuple[str, ...],
    max_rejected: int | None,
    since: Earliest | AtTime | AtId | None,
    partition_by: str | None,
    columns: str | None,
    headers: bool,
    file_rows: int | None,
    file_bytes: int | None,
    isolation: str,
    on_poison: str,
    compacted: bool,
    accept_loss: bool,
    start_over: bool,
    single_writer: bool,
    threads: int,
) -> "LoadJob":
    from spark_bridge.load.decoding import READ_COLUMNS
    from spark_bridge.load.destination import Destination, format_of
    from spark_bridge.load.job import LoadJob
    from spark_bridge.load.ledger import FILE_BYTES, FILE_ROWS, LoadOptions, Since
    from spark_bridge.load.load import Layout
    from spark_bridge.load.topic_sink import COLUMNS as TOPIC_COLUMNS
    from spark_bridge.reading.row import choose
    from spark_bridge.reading.settings import ReadSettings

    kind = format_of(to, kind)
    names = [column.strip() for column in columns.split(",")] if columns else None
    try:
        chosen = choose(names, include_headers=headers)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--columns") from None
    decoding = None
    if decode is not None:
        decoding = _decoding(decode, schemas, names, headers)
        chosen = READ_COLUMNS
    elif schemas or max_rejected is not None:
        given = "--schema says how values are decoded" if schemas else "--max-rejected counts values that do not decode"
        raise click.UsageError(f"{given}; give --decode json or avro with it")
    elif kind == "topic" and names is None and not headers:
        chosen = TOPIC_COLUMNS
    options = LoadOptions(
        topic,
        Since(since),
        chosen,
        Layout(kind, partition_by, None if decoding is None else decoding.to_dict()),
        isolation == "read_committed",
        file_rows or FILE_ROWS,
        file_bytes or FILE_BYTES,
        accept_loss,
        start_over,
        max_rejected,
    )
    security = () if to_config is None else tuple(read_properties(to_config).items())
    destination = Destination(to, kind, record, security)
    settings = ReadSettings(
        compacted=compacted or None,
        skip_poison=on_poison == "skip",
        request_timeout_ms=int(answer_seconds() * 1000),
        security=tuple(given_properties().items()),
    )
    return LoadJob(servers, destination, options, single_writer, threads, settings)


def _decoding(
    format: str, schemas: tuple[str, ...], columns: list[str] | None, headers: bool
) -> "Decoding":
    """Read the schemas. Raise UsageError, or SchemaError."""
    from spark_bridge.load.decoding import Decoding

    plain: list[str] = []
    writers: dict[int, str] = {}
    for schema in schemas:
        id, named, path = schema.partition("=")
        by_id = bool(named) and id.isascii() and id.isdigit()
        try:
            text = Path(path if by_id else schema).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(f"{schema}: {error}", param_hint="--schema") from None
        if by_id:
            writers[int(id)] = text
        else:
            plain.append(text)
    if len(plain) != 1:
        raise click.UsageError(f"--decode needs one --schema FILE, the schema of the columns; got {len(plain)}")
    if headers:
        raise click.UsageError("headers are not kept beside decoded values; leave --headers out")
    kept = {} if columns is None else {"columns": tuple(columns)}
    try:
        return Decoding(format, plain[0], writers or None, **kept)
    except ImportError as error:
        needed = f"--decode {format} needs fastavro ({error})"
        raise click.ClickException(f"{needed}; try: pip install 'flakelog[avro]'") from None


def _load(job: "LoadJob", plot: Path | None, as_json: bool) -> None:
    with LoadReport() as progress:
        outcome = job.run(progress, progress.read)
    for receipt in outcome.receipts:
        for batch in receipt.poison:
            click.echo(f"left out {batch}", err=True)
    for range_ in outcome.lost:
        click.echo(f"lost, and accepted: {range_} ({count_of(range_.offsets, 'offset')})", err=True)
    figures, report = progress.figures(outcome), progress.report()
    if figures["rejected"]:
        example = "" if outcome.rejected is None else f", such as {outcome.rejected}"
        apart = f"kept apart in _flakelog/{job.options.topic}/rejected/"
        click.echo(f"{count_of(figures['rejected'], 'message')} did not decode, {apart}{example}", err=True)
    if plot is not None:
        transfer.save_plot(report, plot, f"load of {job.options.topic}")
    if as_json:
        print_json({"topic": job.options.topic, "to": str(job.destination), **figures})
    elif not outcome.receipts:
        click.echo(f"no new messages of {job.options.topic} since the last load")
    else:
        files = count_of(figures["files"], "file")
        rejected = f"{count_of(figures['rejected'], 'message')} rejected, " if figures["rejected"] else ""
        click.echo(f"{rejected}{count_of(figures['rows'], 'message')} in {files} in {job.destination}")
        show_target(outcome)
        if job.options.since.start is not None and not outcome.loads[-1].parts:
            click.echo(f"--since names a place after all messages of {job.options.topic}: the next load begins there")
        click.echo(transfer.describe(report), err=True)
