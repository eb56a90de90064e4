"""`queued.max.request.bytes`: the memory that incomplete requests may claim, over all connections.

A request claims its whole size when its length is known, and is admitted while there is any room, as in Kafka. The
total can exceed the limit by one request, so that no request is too large to be admitted. Without room its connection
is not read until there is some. Connections are admitted in order, so none is overtaken.
"""

from broker.engine.connection import Connection


class RequestMemory:
    """Memory claims by connection. Call `settle` after each read of a connection, and `leave` when it is closed."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._claims: dict[Connection, tuple[int, int]] = {}  # (which frame of the connection, its bytes)
        self._waiting: dict[Connection, tuple[int, int]] = {}
        self.claimed_bytes = 0

    def settle(self, conn: Connection) -> None:
        """Update the claim of a connection after a read."""
        claim = conn.decoder.begun
        if claim == self._claims.get(conn):
            return
        self._release(conn)
        if claim is not None:
            self._waiting[conn] = claim
            conn.starve(True)
        self._let_in()

    def leave(self, conn: Connection) -> None:
        self._waiting.pop(conn, None)
        self._release(conn)
        self._let_in()

    def _release(self, conn: Connection) -> None:
        self.claimed_bytes -= self._claims.pop(conn, (0, 0))[1]

    def _let_in(self) -> None:
        while self._waiting and self.claimed_bytes < self._most_bytes:
            conn = next(iter(self._waiting))
            claim = self._claims[conn] = self._waiting.pop(conn)
            self.claimed_bytes += claim[1]
            conn.starve(False)
