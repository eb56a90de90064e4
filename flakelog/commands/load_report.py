"""What `flakelog load` shows: the plan, the progress, the outcome and the verification."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands import transfer
from flakelog.commands.read_progress import ReadProgress
from flakelog.commands.terminal import count_of, print_json, print_table

if TYPE_CHECKING:
    from spark_bridge.load.driver import Outcome
    from spark_bridge.load.job import Plan
    from spark_bridge.load.load import Load
    from spark_bridge.load.receipt import Receipt
    from spark_bridge.load.verify import Verification
    from spark_bridge.output.progress import Report
    from spark_bridge.reading.offset_range import OffsetRange


def show_plan(plan: "Plan | None", as_json: bool) -> None:
    """Print the files that a load would write: partition, offsets, most rows, bytes of the log as far as estimated."""
    parts = () if plan is None else plan.load.parts
    rows: list[dict[str, int | None]] = [
        {"partition": part.partition, "start": part.start, "end": part.end, "rows": part.offsets, "bytes": None}
        for part in parts
    ]
    for row, part in zip(rows, parts, strict=True):
        row["bytes"] = None if plan is None else plan.bytes_of(part)
    if as_json:
        head: dict[str, Any] = {"load": None} if plan is None else {"load": plan.load.number, "resumed": plan.resumed}
        lost = [] if plan is None else [range_.to_dict() for range_ in plan.load.lost]
        print_json({**head, "rows": sum(part.offsets for part in parts), "parts": rows, "lost": lost})
        return
    if plan is None:
        click.echo("no new messages since the last load")
        return
    print_table(["partition", "start", "end", "rows", "bytes"], [list(row.values()) for row in rows])
    action = "finish load" if plan.resumed else "load"
    total = count_of(sum(part.offsets for part in parts), "message")
    click.echo(f"{action} {plan.load.number}: at most {total} in {count_of(len(parts), 'part')}")


def show_verification(verification: "Verification", as_json: bool) -> None:
    if as_json:
        names = ("loads", "rows", "target_rows", "files", "bytes", "unfinished", "problems", "notes")
        print_json(
            {name: getattr(verification, name) for name in names}
            | {"lost": [range_.to_dict() for range_ in verification.lost]}
        )
        return
    for problem in verification.problems:
        click.echo(problem)
    for note in verification.notes:
        click.echo(f"note: {note}")
    for range_ in verification.lost:
        click.echo(f"lost, and accepted: {range_} ({count_of(range_.offsets, 'offset')})")
    if verification.unfinished is not None:
        click.echo(f"load {verification.unfinished} is unfinished; the next run finishes it")
    files = f"{count_of(verification.files, 'file')} of {count_of(verification.loads, 'load')}"
    click.echo(f"record: {count_of(verification.rows, 'message')} in {files}")
    click.echo(
        "target: "
        + ("it is not there" if verification.target_rows is None else count_of(verification.target_rows, "row"))
    )


def show_target(outcome: "Outcome") -> None:
    """Print the rows of the target, if its metadata has their number."""
    if outcome.target_rows is None:
        return
    before = outcome.rows_before_chain
    kept = f", {before:,} of them from before this new chain of loads" if before else ""
    click.echo(f"target: {count_of(outcome.target_rows, 'row')} in total{kept}")


class LoadReport:
    """The Watcher of a load: a bar on stderr, and the figures of the report."""

    def __init__(self) -> None:
        from spark_bridge.output.progress import Progress

        self._bar = ReadProgress()
        self._progress = Progress(transfer.now())

    def __enter__(self) -> "LoadReport":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.end()

    def read(self, rows: int, size: int) -> None:
        """Count rows that were read, and their bytes in memory. Any thread may call this."""
        self._bar.add(rows, size)
        self._progress.read(rows, size, transfer.now())

    # --- Watcher ----------------------------------------------------------------------------------------------------

    def begins(self, load: "Load", unread: "Sequence[OffsetRange]") -> None:
        self._bar.begin(f"load {load.number}", sum(range_.offsets for range_ in unread))

    def ends(self, load: "Load", receipt: "Receipt") -> None:
        self._bar.end()
        for file in receipt.files.values():
            self._progress.wrote(file.bytes)

    def withdrawn(self, load: "Load") -> None:
        self._bar.end()

    # --- figures ----------------------------------------------------------------------------------------------------

    def report(self) -> "Report":
        return self._progress.report(transfer.now())

    def figures(self, outcome: "Outcome") -> dict[str, Any]:
        files = [file for receipt in outcome.receipts for file in receipt.files.values()]
        return {
            "loads": [load.number for load in outcome.loads],
            "rows": outcome.rows,
            "target_rows": outcome.target_rows,
            "rows_before_chain": outcome.rows_before_chain,
            "rejected": sum(receipt.rejected_rows for receipt in outcome.receipts),
            "files": len(files),
            "bytes": sum(file.bytes for file in files),
            "bytes_read": self._progress.bytes,
            "poison_batches": sum(len(receipt.poison) for receipt in outcome.receipts),
            "lost": [range_.to_dict() for range_ in outcome.lost],
            "report": transfer.figures_of(self.report()),
        }
