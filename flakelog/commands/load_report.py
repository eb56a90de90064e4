"""What `flakelog load` shows: the plan, the progress, the outcome and the verification."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.read_progress import ReadProgress
from flakelog.commands.terminal import count_of, print_json, print_table

if TYPE_CHECKING:
    from spark_bridge.load.driver import Outcome
    from spark_bridge.load.job import Plan
    from spark_bridge.load.load import Load
    from spark_bridge.load.receipt import Receipt
    from spark_bridge.load.verify import Verification
    from spark_bridge.reading.offset_range import OffsetRange


def show_plan(plan: "Plan | None", as_json: bool) -> None:
    """Print the files that a load would write: partition, offsets, most rows, bytes of the log as far as estimated."""
    parts = () if plan is None else plan.load.parts
    rows: list[dict[str, int | None]] = [
        {"partition": one.partition, "start": one.start, "end": one.end, "rows": one.offsets, "bytes": None}
        for one in parts
    ]
    for row, one in zip(rows, parts, strict=True):
        row["bytes"] = None if plan is None else plan.bytes_of(one)
    if as_json:
        head: dict[str, Any] = {"load": None} if plan is None else {"load": plan.load.number, "resumed": plan.resumed}
        lost = [] if plan is None else [one.to_dict() for one in plan.load.lost]
        print_json({**head, "rows": sum(one.offsets for one in parts), "parts": rows, "lost": lost})
        return
    if plan is None:
        click.echo("no new messages since the last load")
        return
    print_table(["partition", "start", "end", "rows", "bytes"], [list(row.values()) for row in rows])
    what = "finish load" if plan.resumed else "load"
    total = count_of(sum(one.offsets for one in parts), "message")
    click.echo(f"{what} {plan.load.number}: at most {total} in {count_of(len(parts), 'part')}")


def show_verification(found: "Verification", as_json: bool) -> None:
    if as_json:
        names = ("loads", "rows", "files", "bytes", "unfinished", "problems")
        print_json({name: getattr(found, name) for name in names} | {"lost": [one.to_dict() for one in found.lost]})
        return
    for problem in found.problems:
        click.echo(problem)
    for one in found.lost:
        click.echo(f"lost, and accepted: {one} ({count_of(one.offsets, 'offset')})")
    if found.unfinished is not None:
        click.echo(f"load {found.unfinished} is unfinished; the next run finishes it")
    files = f"{count_of(found.files, 'file')} of {count_of(found.loads, 'load')}"
    click.echo(f"{count_of(found.rows, 'message')} in {files}")


class LoadReport:
    """The Watcher of a load: a bar on stderr, and the figures of the report."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self.progress = ReadProgress()

    def __enter__(self) -> "LoadReport":
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.end()

    # --- Watcher ----------------------------------------------------------------------------------------------------

    def begins(self, load: "Load", unread: "Sequence[OffsetRange]") -> None:
        self.progress.begin(f"load {load.number}", sum(one.offsets for one in unread))

    def ends(self, load: "Load", receipt: "Receipt") -> None:
        self.progress.end()

    def abandons(self, load: "Load", reason: str) -> None:
        self.progress.end()
        click.echo(f"load {load.number} is abandoned: {reason}", err=True)

    # --- figures ----------------------------------------------------------------------------------------------------

    def figures(self, outcome: "Outcome") -> dict[str, Any]:
        files = [file for receipt in outcome.receipts for file in receipt.files.values()]
        return {
            "loads": [load.number for load in outcome.loads],
            "rows": outcome.rows,
            "rejected": sum(receipt.rejected_rows for receipt in outcome.receipts),
            "files": len(files),
            "bytes": sum(file.bytes for file in files),
            "bytes_read": self.progress.bytes,
            "poison_batches": sum(len(receipt.poison) for receipt in outcome.receipts),
            "abandoned": [load.number for load in outcome.abandoned],
            "seconds": round(time.monotonic() - self._begun, 3),
        }
