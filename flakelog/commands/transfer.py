"""Parts of commands that move data: errors by cause, the plan, the report and its plot."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.exit_codes import (
    DataIsDamaged,
    DataIsLost,
    DataOfAnother,
    NobodyAnswers,
    PlaceUnusable,
    ProblemsFound,
)
from flakelog.commands.terminal import count_of, print_json, print_table

if TYPE_CHECKING:
    from flakelog.operations.replays import PlannedRange
    from spark_bridge.output.progress import Report


@contextmanager
def failures() -> Iterator[None]:
    """Turn the errors of a replay or a load into one line and the exit code of its cause."""
    from broker.record.batch import CorruptBatch
    from spark_bridge.load.ledger import LostData, OtherLayout, OtherLog
    from spark_bridge.load.load import LoadError
    from spark_bridge.load.rejections import TooManyRejected
    from spark_bridge.load.target_check import OtherTarget
    from spark_bridge.output.storage import StorageError
    from spark_bridge.reading.arrow_decode import MissingId
    from spark_bridge.reading.cluster import Unreachable
    from spark_bridge.reading.network import ClusterError
    from spark_bridge.reading.range_cursor import DataLoss
    from spark_bridge.reading.range_fetch import ReadFailed, Unanswered
    from spark_bridge.replay.publication import Damaged, Differs, LocationRefused
    from spark_bridge.replay.receipt import ReplayError
    from spark_bridge.selection.manifest import ManifestError
    from spark_bridge.selection.option_table import OptionError
    from spark_bridge.selection.record_file import DamagedRecord

    causes: Sequence[tuple[tuple[type[Exception], ...], type[click.ClickException]]] = (
        ((Unreachable, Unanswered), NobodyAnswers),
        ((DataLoss, MissingId, LostData), DataIsLost),
        ((CorruptBatch, DamagedRecord, TooManyRejected), DataIsDamaged),
        ((Differs, Damaged), ProblemsFound),
        ((LocationRefused, ManifestError, FileExistsError, OtherLog, OtherLayout, OtherTarget), DataOfAnother),
        ((OptionError,), click.UsageError),
        ((ReadFailed, ClusterError, ReplayError, LoadError), click.ClickException),
        ((StorageError, OSError), PlaceUnusable),
        ((ValueError,), click.ClickException),  # SelectionError, SchemaError
    )
    try:
        yield
    except Exception as error:
        for kinds, failure in causes:
            if isinstance(error, kinds):
                raise failure(str(error)) from None
        raise


def failure_of_task(text: str) -> click.ClickException:
    """Return the failure of a task in Spark, from the text of Spark's exception: its last line has the cause."""
    from spark_bridge.packages import explain

    line = explain(text)
    kind, _, message = line.partition(": ")
    cause = _TASK_CAUSES.get(kind.rpartition(".")[2])
    return cause(message) if cause else click.ClickException(line)


_TASK_CAUSES = {
    "Unanswered": NobodyAnswers,
    "DataLoss": DataIsLost,
    "MissingId": DataIsLost,
    "CorruptBatch": DataIsDamaged,
    "StorageError": PlaceUnusable,
    "CannotWrite": PlaceUnusable,
    "OSError": PlaceUnusable,
}


def print_plan(ranges: "Sequence[PlannedRange]", as_json: bool) -> None:
    """Print a plan: a table with a sum, or one object a line."""
    if as_json:
        for planned in ranges:
            print_json(planned._asdict())
        return
    print_table(("topic", "partition", "start", "end", "rows", "bytes (about)"), ranges)
    sizes = [planned.bytes for planned in ranges if planned.bytes is not None]
    size = f", about {size_of(sum(sizes))}" if sizes else ""
    rows = sum(planned.rows for planned in ranges)
    click.echo(f"{count_of(rows, 'row')} at most in {count_of(len(ranges), 'range')}{size}")


def figures_of(report: "Report") -> dict[str, Any]:
    """Return a report as JSON has it."""
    return {
        "rows": report.rows,
        "bytes": report.bytes,
        "files": report.files,
        "file_bytes": report.file_bytes,
        "seconds": round(report.seconds, 3),
        "rows_per_second": round(report.rows_per_second),
        "samples": [[round(sample.seconds, 3), sample.rows, sample.bytes] for sample in report.samples],
    }


def describe(report: "Report") -> str:
    """Return a report as one line of text."""
    speed = f"{report.rows_per_second:,.0f} rows/s, {size_of(report.bytes_per_second)}/s"
    written = f"{count_of(report.rows, 'row')}, {size_of(report.file_bytes)} in {report.seconds:.1f} s"
    return f"{written}; {speed} in memory"


def check_plot() -> None:
    """Raise UsageError if a plot cannot be made."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise click.UsageError(f"--plot needs matplotlib ({error}); pip install 'flakelog[demo]'") from None


def save_plot(report: "Report", path: Path, title: str) -> None:
    """Write a PNG with rows and bytes over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    rows = figure.add_subplot()
    size = rows.twinx()
    seconds = [sample.seconds for sample in report.samples]
    (rows_line,) = rows.plot(seconds, [sample.rows for sample in report.samples], color="tab:blue", label="rows")
    (size_line,) = size.plot(
        seconds, [sample.bytes / 1e6 for sample in report.samples], color="tab:orange", linestyle="--", label="MB"
    )
    rows.set(title=title, xlabel="seconds", ylabel="rows", ylim=(0, None), xlim=(0, None))
    size.set(ylabel="MB in memory", ylim=(0, None))
    rows.legend(handles=[rows_line, size_line], loc="upper left")
    figure.savefig(path, format="png", dpi=120)


def size_of(number: float) -> str:
    """Return bytes with a unit: 999 B, 1.5 kB, 12.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"


def now() -> float:
    return time.monotonic()
