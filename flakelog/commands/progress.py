"""Progress on stderr: on a terminal a bar after a second of work, in a file a line every few seconds."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from flakelog.commands.waiting import Patience

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_SECONDS = 1.0


class Step(Protocol):
    """A function that adds `steps` to the work done."""

    def __call__(self, steps: int = 1) -> None: ...


@contextmanager
def progress(work: str, total: int | None = None, in_bytes: bool = False) -> Iterator[Step]:
    """Show a bar (or, without a total, a count) after a second if stderr is a terminal; yield its `Step`.

    If stderr is no terminal, print a line every few seconds for work with a total. With `in_bytes` a step is a byte.
    """
    begun, done = time.monotonic(), 0
    bars: list[Progress] = []
    shown = sys.stderr.isatty()
    patience = Patience()
    if total is not None and not shown:
        unit = " bytes" if in_bytes else ""
        patience.begin_work(lambda: f"{work}: {done:,} of {total:,}{unit}")

    def step(steps: int = 1) -> None:
        nonlocal done
        done += steps
        if not shown:
            return
        if not bars:
            if time.monotonic() - begun < PATIENCE_SECONDS:
                return
            bars.append(_bar(work, total, in_bytes))
            bars[0].start()
        bars[0].update(bars[0].task_ids[0], completed=done)

    try:
        yield step
    finally:
        patience.close()
        for bar in bars:
            bar.stop()


def _bar(work: str, total: int | None, in_bytes: bool) -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(work, total=total)
    return bar
