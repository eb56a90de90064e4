"""`queued.max.request.bytes`: the memory that incomplete requests may claim, over all connections.

A request claims its whole size when its length is known, and is admitted while there is any room, as in Kafka. The
total can exceed the limit by one request, so that no request is too large to be admitted. Without room its connection
is not read until there is some. Connections are admitted in order, so none is overtaken.

`flakelog.queued.request.ms`: a peer that sends part of a request and stops must give its claim back. In each such
period a request must receive a part of its bytes, so that a peer that sends byte by byte gives it back too.
"""

import math

from broker.channel.connection import Connection

PROGRESS_PARTS = 32  # a request must be whole after this many periods at the latest


class RequestMemory:
    """Memory claims by connection. Call `settle` after each read of a connection, and `leave` when it is closed.

    `most_bytes` is the limit, -1 for no limit. `period_ms` is the time in which each request must make progress.
    """

    def __init__(self, most_bytes: int, period_ms: int) -> None:
        self._most_bytes = most_bytes if most_bytes > 0 else math.inf
        self.period_ms = period_ms
        self._claims: dict[Connection, tuple[int, int]] = {}  # (which frame of the connection, its bytes)
        self._waiting: dict[Connection, tuple[int, int]] = {}
        self._seen: dict[Connection, tuple[int, int]] = {}  # (which frame, its received bytes), at the last check
        self._check_ms: int | None = None
        self.claimed_bytes = 0

    def __contains__(self, conn: Connection) -> bool:
        """Return True if the connection has or awaits a claim."""
        return conn in self._claims or conn in self._waiting

    def settle(self, conn: Connection) -> list[Connection]:
        """Update the claim of a connection after a read. Return the connections that are admitted now."""
        claim = conn.decoder.begun
        if claim == self._claims.get(conn):
            return []
        self._release(conn)
        if claim is not None:
            self._waiting[conn] = claim
            conn.wait_for_memory(True)
        admitted = self._let_in()
        if conn in self._waiting:
            conn.decoder.shrink()
        return admitted

    def leave(self, conn: Connection) -> list[Connection]:
        """Forget a connection. Return the connections that are admitted now."""
        self._waiting.pop(conn, None)
        self._release(conn)
        return self._let_in()

    def _release(self, conn: Connection) -> None:
        self.claimed_bytes -= self._claims.pop(conn, (0, 0))[1]

    def _let_in(self) -> list[Connection]:
        admitted = []
        while self._waiting and self.claimed_bytes < self._most_bytes:
            conn = next(iter(self._waiting))
            claim = self._claims[conn] = self._waiting.pop(conn)
            self.claimed_bytes += claim[1]
            conn.decoder.grow()
            conn.wait_for_memory(False)
            admitted.append(conn)
        return admitted

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """Return when `take_stuck` is due, on the monotonic clock; None without claims."""
        if not self._claims:
            self._check_ms = None
        elif self._check_ms is None:
            self._check_ms = now_ms + self.period_ms
        return self._check_ms

    def take_stuck(self, now_ms: int) -> list[Connection]:
        """Return the connections whose request received too little since the last check; close them.

        A connection that was not read for a part of that time has no fault.
        """
        if self._check_ms is None or now_ms < self._check_ms:
            return []
        self._check_ms = now_ms + self.period_ms
        before, self._seen, stuck = self._seen, {}, []
        for conn, (number, size) in self._claims.items():
            paused, conn.was_paused = conn.was_paused, False
            if not conn.wants_data:
                continue
            received = conn.decoder.received_bytes
            last = None if paused else before.get(conn)
            if last is not None and last[0] == number and (received - last[1]) * PROGRESS_PARTS < size:
                stuck.append(conn)
            else:
                self._seen[conn] = number, received
        return stuck
