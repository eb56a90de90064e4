"""Progress on stderr of work that reads many messages: a bar on a terminal, in a file a line every few seconds."""

import sys
import threading
import time
from typing import TYPE_CHECKING

from flakelog.commands.progress import PATIENCE_SECONDS
from flakelog.commands.waiting import Patience
from flakelog.visible_text import visible

if TYPE_CHECKING:
    from rich.progress import Progress


class ReadProgress:
    """Counts rows and bytes, and shows them in a bar after a second if stderr is a terminal, or else in lines.

    Threads may call `add` and `wait` at the same time.
    """

    def __init__(self) -> None:
        self.rows = self.bytes = 0
        self._lock = threading.Lock()
        self._shown = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._bar: Progress | None = None
        self._work, self._total, self._before = "", 0, 0
        self._reason = ""
        """Why nothing is read now."""
        self._patience = None if self._shown else Patience()

    def begin(self, work: str, rows: int) -> None:
        """Begin a piece of work with at most `rows` rows."""
        self.end()
        with self._lock:
            self._work, self._total, self._before, self._reason = work, rows, self.rows, ""
            self._begun = time.monotonic()
        if self._patience is not None:
            self._patience.begin_work(lambda: self.how_far)

    @property
    def how_far(self) -> str:
        """Return how much of the work is done, and what it waits for."""
        read = f"{self._work}: {self.rows - self._before:,} of at most {self._total:,} messages"
        return f"{read}; waiting: {self._reason}" if self._reason else read

    def add(self, rows: int, size: int) -> None:
        with self._lock:
            self.rows += rows
            self.bytes += size
            self._reason = ""
            self._show()

    def wait(self, reason: str) -> None:
        """Show why nothing is read, until the next `add`."""
        with self._lock:
            self._reason = reason
            self._show()

    def _show(self) -> None:
        if not self._shown or time.monotonic() - self._begun < PATIENCE_SECONDS:
            return
        if self._bar is None:
            self._bar = _bar(self._work, self._total)
            self._bar.start()
        work = f"{self._work}, waiting: {visible(self._reason)}" if self._reason else self._work
        amount = f"{self.bytes / (1 << 20):,.0f} MiB"
        read = self.rows - self._before
        self._bar.update(self._bar.task_ids[0], completed=read, amount=amount, description=work)

    def end(self) -> None:
        """Remove the bar."""
        if self._patience is not None:
            self._patience.end()
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None


def _bar(work: str, total: int) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(work, total=total, amount="")
    return bar
