"""The figures of a topology that a command runs: a live view on a terminal, and lines of the log."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from spout.figures.model import Snapshot

ANSWER_MS = 10_000  # longest wait for the figures of an engine whose thread a component may hold


class Followed(Protocol):
    """A topology that runs."""

    @property
    def ended(self) -> bool: ...

    def wait(self, *, timeout_ms: int | None = None) -> None: ...

    def snapshot(self, *, timeout_ms: int | None = None) -> "Snapshot": ...


def follow(running: Followed, show: "Callable[[Snapshot | None, Snapshot], None]", seconds: float) -> None:
    """Show the figures every `seconds` until the topology ends; 0: never. Log where a component holds the engine."""
    from twisted.logger import Logger

    from spout.reactor_thread import Blocked

    before = None
    while not running.ended:
        try:
            running.wait(timeout_ms=None if seconds == 0 else max(round(seconds * 1000), 1))
        except TimeoutError:
            try:
                after = running.snapshot(timeout_ms=ANSWER_MS)
            except Blocked as blocked:
                Logger("flakelog.topology").error("no progress: {reason}", reason=blocked)
                continue
            if not running.ended:
                show(before, after)
            before = after


def live_screen() -> Any:
    """Return a context that yields a function to show figures on the terminal's screen."""
    from rich.console import Console

    from flakelog.topology_view import screen_of

    return _Live(Console(stderr=True), screen_of)


class _Live:
    """The live view on a terminal; what the program prints meanwhile appears above it."""

    def __init__(self, console: Any, render: Callable[..., Any]) -> None:
        from rich.live import Live

        self._console = console
        self._render = render
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "Callable[[Snapshot | None, Snapshot], None]":
        self._live.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _show(self, before: "Snapshot | None", after: "Snapshot") -> None:
        width, height = self._console.size
        self._live.update(self._render(before, after, height, width), refresh=True)
