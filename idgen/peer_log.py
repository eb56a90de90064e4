"""The log of a port's peers: writes what `PeerLines` lets through, and has one timer for the counts."""

from collections.abc import Callable

from coordination.reactor import DelayedCall, Reactor
from idgen.peer_lines import PERIOD_MS, PeerLines


class PeerLog:
    """Writes lines about peers with `write`. `now_ms` is a clock that does not fall."""

    def __init__(self, reactor: Reactor, now_ms: Callable[[], int], write: Callable[[str], object]) -> None:
        self._reactor = reactor
        self._now_ms = now_ms
        self._write = write
        self._lines = PeerLines()
        self._timer: DelayedCall | None = None

    def note(self, address: str, line: str) -> None:
        """Write a line about a peer at this address, unless the address had one within a minute."""
        self._write_all(self._lines.note(address, line, self._now_ms()))

    def stop(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def _end(self) -> None:
        self._timer = None
        self._write_all(self._lines.ended(self._now_ms()))

    def _write_all(self, lines: list[str]) -> None:
        for line in lines:
            self._write(line)
        if self._timer is None and (deadline_ms := self._lines.next_deadline_ms()) is not None:
            wait_ms = min(max(deadline_ms - self._now_ms(), 1), PERIOD_MS)
            self._timer = self._reactor.callLater(wait_ms / 1000, self._end)
