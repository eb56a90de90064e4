"""SHELL (the reactor): why connections are closed, as lines of the log: one for each address and minute, with a count.

Connections over a limit count apart, so that they do not hide the lines of others.
"""

from collections.abc import Callable
from typing import Any

from broker.channel.connection import Connection
from idgen.peer_log import PeerLog


class CloseLog:
    """The closed connections of a server. `log` takes the lines."""

    def __init__(self, reactor: Any, now_ms: Callable[[], int], log: Callable[[str], None]) -> None:
        self.last: dict[str, str] = {}
        """The last line by the listener's name."""
        self._log = log
        self._refusals = PeerLog(reactor, now_ms, log)
        self._others = PeerLog(reactor, now_ms, log)
        self._refused: set[Connection] = set()
        """Connections over a limit of connections, until they are closed."""

    def refused(self, conn: Connection) -> None:
        """Note that a connection is over a limit of connections."""
        self._refused.add(conn)

    def note(self, conn: Connection, reason: str, has_own_line: bool) -> None:
        """Log why a connection is closed."""
        line = self.last[conn.listener] = f"connection of {conn.peer} closed: {reason}"
        if has_own_line:
            self._log(line)
        else:
            (self._refusals if conn in self._refused else self._others).note(conn.address, line)

    def note_refusal(self, key: str, line: str) -> None:
        """Log why no connection was made, for an address or a listener."""
        self._refusals.note(key, line)

    def forget(self, conn: Connection) -> None:
        self._refused.discard(conn)

    def stop(self) -> None:
        self._refusals.stop()
        self._others.stop()
