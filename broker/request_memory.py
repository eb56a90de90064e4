"""`queued.max.request.bytes`: how much memory requests that are not whole yet may claim, over all connections.

As Kafka's: a request claims its whole size when its length is known, and is let in while there is any room at all, so
that the total can be past the limit by one request, and none is too large to come in. Where there is no room its
connection is not read from until there is; in turn, so that nobody is overtaken.
"""

from broker.connection import Connection


class RequestMemory:
    """`settle` after each read of a connection, `leave` when it is gone."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._claims: dict[Connection, tuple[int, int]] = {}  # (which frame of the connection, its bytes)
        self._waiting: dict[Connection, tuple[int, int]] = {}
        self.claimed_bytes = 0

    def settle(self, conn: Connection) -> None:
        """What the connection keeps now, after it was read from."""
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
