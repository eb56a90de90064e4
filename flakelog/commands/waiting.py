"""The time that a command waits for a server: the option --timeout, and a line on stderr while it waits long.

No command is silent for more than about 5 s. Without --timeout a server has CONTACT_SECONDS for its first answer, and
ANSWER_SECONDS for each later one, because some work takes long, such as the deletion of many topics. Meanwhile a line
every SAY_SECONDS says what the command waits for.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import Seconds
from flakelog.commands.exit_codes import NobodyAnswers
from flakelog.visible_text import visible

if TYPE_CHECKING:
    from coordination.port import Coordinator

ANSWER_SECONDS = 30.0  # Kafka's request.timeout.ms
CONTACT_SECONDS = 4.0  # any server answers a greeting at once; the rest of the 5 s is for Python's start
SAY_SECONDS = 4.4  # more than CONTACT_SECONDS, at whose end there is an error to show
LOOK_SECONDS = 0.25

_KEY = "flakelog.timeout"
Command = Callable[..., Any]


def _keep(context: click.Context, parameter: click.Parameter, value: float | None) -> None:
    if value is not None:
        context.meta[_KEY] = value


def timeout_option(command: Command) -> Command:
    """Add --timeout, which `answer_seconds` and `contact_seconds` return."""
    option = click.option(
        "--timeout",
        type=Seconds(0, 86_400, above_least=True),
        metavar="SECONDS",
        callback=_keep,
        expose_value=False,
        help=f"The longest wait for an answer.  [default: {CONTACT_SECONDS:g} for the first, then {ANSWER_SECONDS:g}]",
    )
    made: Command = option(command)
    return made


def answer_seconds() -> float:
    """Return the longest wait for an answer of a server that has answered before."""
    return _given(ANSWER_SECONDS)


def contact_seconds() -> float:
    """Return the longest wait for a server's first answer."""
    return _given(CONTACT_SECONDS)


def _given(default: float) -> float:
    context = click.get_current_context(silent=True)
    return default if context is None else float(context.meta.get(_KEY, default))


@contextmanager
def waiting_for(awaited: str) -> Iterator[None]:
    """Say on stderr what the block waits for, if that takes long."""
    patience = Patience()
    patience.begin(lambda: awaited)
    try:
        yield
    finally:
        patience.close()


def greet(session: "Coordinator", where: str) -> None:
    """Wait until a ZooKeeper answers a session that was opened without waiting. Raise NobodyAnswers."""
    from coordination.port import CoordinatorUnavailable

    try:
        with waiting_for(f"ZooKeeper at {where}"):
            session.wait_until_connected(int(contact_seconds() * 1000))
    except CoordinatorUnavailable as error:
        raise NobodyAnswers(str(error)) from None


class Patience:
    """Says on stderr what the command waits for or works at, every SAY_SECONDS of one wait or work."""

    def __init__(self) -> None:
        self._line: Callable[[], str] | None = None
        self._since = self._reported_at = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, awaited: Callable[[], str]) -> None:
        """Begin to wait for `awaited()`, which is called only when there is something to say."""
        self._begin(lambda: f"waiting for {awaited()}")

    def begin_work(self, how_far: Callable[[], str]) -> None:
        """Begin work whose progress is `how_far()`, for stderr that is no terminal and so has no bar."""
        self._begin(how_far)

    def _begin(self, line: Callable[[], str]) -> None:
        self._since = self._reported_at = time.monotonic()
        self._line = line
        if self._thread is None:
            self._thread = threading.Thread(target=self._report_waits, name="patience", daemon=True)
            self._thread.start()

    @property
    def is_begun(self) -> bool:
        """Return True while something is waited for."""
        return self._line is not None

    def end(self) -> None:
        """End the wait, or the work."""
        self._line = None

    def close(self) -> None:
        self._over.set()

    def _report_waits(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            line, now = self._line, time.monotonic()
            if line is not None and now - self._reported_at >= SAY_SECONDS:
                self._reported_at = now
                click.echo(visible(f"{line()}, {now - self._since:.0f} s now"), err=True)
