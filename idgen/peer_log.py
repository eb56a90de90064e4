"""Log lines about peers: one for each address and minute, so that hostile or broken peers cannot fill the log.

The first line of an address is written at once. The lines that follow within a minute are counted. When the minute
ends, one line says how many were left out, and gives the last of them; it is the line of the next minute. A table keeps
ADDRESSES_MAX addresses, and all others share one entry.

`PeerLines` decides which lines are written; `PeerLog` writes them, and has one timer for the counts.
"""

from collections.abc import Callable

from coordination.reactor import DelayedCall, Reactor

PERIOD_MS = 60_000
ADDRESSES_MAX = 1_000
"""Not a setting, because an entry takes some 300 bytes, and more lines a minute help no reader."""
OTHERS = "other addresses"


class _Minute:
    """The lines of one address since the last one that was written. `last` is the text of the last line left out."""

    __slots__ = ("began_ms", "left_out", "last")

    def __init__(self, began_ms: int) -> None:
        self.began_ms = began_ms
        self.left_out = 0
        self.last = ""


class PeerLines:
    """Decides which lines are written. Times are of a clock that does not fall."""

    def __init__(self, addresses_max: int = ADDRESSES_MAX) -> None:
        self._addresses_max = addresses_max
        self._minutes: dict[str, _Minute] = {}
        """By address, in the order in which their minutes end."""
        self._with_left_out = 0
        """The number of these with lines left out."""

    def __len__(self) -> int:
        return len(self._minutes)

    def note(self, address: str, line: str, now_ms: int) -> list[str]:
        """Take a line about a peer. Return the lines to write now."""
        lines = self.ended(now_ms)
        if address not in self._minutes and len(self._minutes) >= self._addresses_max:
            address = OTHERS
        minute = self._minutes.get(address)
        if minute is None:
            self._minutes[address] = _Minute(now_ms)
            return [*lines, line]
        self._with_left_out += not minute.left_out
        minute.left_out += 1
        minute.last = line
        return lines

    def ended(self, now_ms: int) -> list[str]:
        """Return a line for each address whose minute has ended and that had lines left out."""
        lines = []
        while self._minutes:
            address, minute = next(iter(self._minutes.items()))
            if now_ms < minute.began_ms + PERIOD_MS:
                break
            del self._minutes[address]
            if minute.left_out:
                self._with_left_out -= 1
                number = f"{minute.left_out} more such lines in the last minute"
                lines.append(f"{address}: {number}; the last: {minute.last}")
                self._minutes[address] = _Minute(now_ms)
        return lines

    def next_deadline_ms(self) -> int | None:
        """Return when `ended` may have lines next; None without any left out."""
        if not self._with_left_out:
            return None
        return next(minute.began_ms + PERIOD_MS for minute in self._minutes.values() if minute.left_out)


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
