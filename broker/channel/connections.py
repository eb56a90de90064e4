"""The open connections of an engine, and what the shell shall do with them: send, stop reading, close."""

from collections import OrderedDict

from broker.channel.connection import Connection
from broker.channel.connection_limits import ConnectionLimits
from broker.channel.ports import ChannelServices
from broker.now import Now
from broker.wire.frame import Part

ACTIVE_STEP_MS = 1_000  # activity is noted this often at most, so a silent connection is closed as much later


class Connections:
    """The open connections by their last activity, the oldest first.

    Other parts of the engine append to `answered` (connections with replies to be sent) and `stalled` (connections that
    may have stopped to want data).
    """

    def __init__(self, services: ChannelServices) -> None:
        self._services = services
        self._metrics = services.metrics
        self._limits = ConnectionLimits(services.listener_limits)
        self._open: OrderedDict[Connection, None] = OrderedDict()
        self.answered: list[Connection] = []
        self.stalled: list[Connection] = []
        self._closes: list[Connection] = []
        idle_ms = services.config.connections_max_idle_ms
        self.active_step_ms = min(ACTIVE_STEP_MS, idle_ms // 100)
        self._idle_ms = idle_ms + self.active_step_ms

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, conn: Connection) -> bool:
        return conn in self._open

    def opened(self, peer: str, now: Now, listener: str) -> Connection:
        """Add a connection of a peer ("host:port") to a listener; close it at once if it exceeds a connection limit."""
        config = self._services.config
        conn = Connection(
            peer, config.socket_request_max_bytes, config.max_inflight_requests, config.max_queued_bytes, listener
        )
        conn.active_ms = now.ms
        self._metrics.connections_opened += 1
        self._open[conn] = None
        if listener not in self._services.protected_listeners:
            refusal = self._limits.opened(conn.address, config, now.ms, listener)
            if refusal is not None:
                self.close(conn, refusal)
        return conn

    def accept_pause_ms(self, listener: str, now: Now) -> int:
        """Return how long the shell shall accept no connection there because they come too fast; 0 nearly always."""
        if listener in self._services.protected_listeners:
            return 0
        return self._limits.pause_ms(self._services.config, now.ms, listener)

    def note_active(self, conn: Connection, now: Now) -> None:
        if conn in self._open:
            conn.active_ms = now.ms
            self._open.move_to_end(conn)

    def close(self, conn: Connection, reason: str) -> None:
        """Let the shell close a connection after its replies are sent."""
        if conn.close(reason):
            self._closes.append(conn)

    def closed(self, conn: Connection) -> None:
        """Forget a closed connection."""
        if self._open.pop(conn, self) is None and conn.listener not in self._services.protected_listeners:
            self._limits.closed(conn.address, conn.listener)

    def next_deadline_ms(self) -> int | None:
        """Return when `close_idle` is due, on the monotonic clock; None without connections."""
        return next(iter(self._open)).active_ms + self._idle_ms if self._open else None

    def close_idle(self, now: Now) -> None:
        """Close connections that were silent for `connections.max.idle.ms`."""
        while self._open:  # no copy of them all, because each fetch that expires causes a tick
            conn = next(iter(self._open))
            if conn.active_ms + self._idle_ms > now.ms:
                break
            half = " in the middle of a frame" if conn.decoder.in_frame else ""
            idle_ms = self._services.config.connections_max_idle_ms
            self.close(conn, f"silent for {idle_ms} ms{half} (connections.max.idle.ms)")
            self.note_active(conn, now)

    # --- for the shell -------------------------------------------------------------------------------------------

    def take_replies(self) -> list[tuple[Connection, list[Part]]]:
        """Return the replies to send, for each connection in the order of its requests."""
        if not self.answered:
            return []
        answered, self.answered = self.answered, []
        replies = []
        for conn in answered:
            if conn.out:
                replies.append((conn, conn.out))
                conn.out = []
        return replies

    def take_closes(self) -> list[Connection]:
        """Return the connections to close after their replies are sent; `close_reason` says why."""
        closes, self._closes = self._closes, []
        return closes

    def take_stalled(self) -> list[Connection]:
        """Return connections that the shell shall stop reading from while they want no data (`wants_data`).

        A connection that waited for its turn to log in is returned once more when its login may begin.
        """
        stalled, self.stalled = self.stalled, []
        return stalled
