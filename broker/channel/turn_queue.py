"""The queue of an engine's turns: which connections have requests, and whose turn it is.

Turns are fair. While other connections have requests, a connection with a backlog gets one request a turn, and then
waits BACKLOG_WAITS times as long as that took.
"""

from broker.channel.connection import Connection
from broker.channel.connections import Connections
from broker.channel.request_memory import RequestMemory

ROUNDS_MAX = 32  # requests of one connection in a turn
CONTENDED_NS = 10_000_000  # a backlog leaves room for this long after other connections had requests
BACKLOG_WAITS = 19  # so that one connection with a backlog takes about a twentieth of the time
BACKLOG_BYTES = 64 * 1024  # a connection is not read while more bytes of its requests wait to be executed


class TurnQueue:
    """The connections with requests to execute. `arrived` are those of the next turn; append to it with `queued` set.

    `memory` limits the incomplete requests.
    """

    def __init__(self, connections: Connections, memory: RequestMemory) -> None:
        self.arrived: list[Connection] = []
        self._backlog: list[Connection] = []
        """Connections with requests that earlier turns have left."""
        self._contended_ns = -CONTENDED_NS
        """When a turn last found both connections with a backlog and connections without one."""
        self._connections = connections
        self._memory = memory

    @property
    def has_work(self) -> bool:
        """True if requests are left for another turn."""
        return bool(self.arrived or self._backlog)

    def take(self, now_ns: int) -> tuple[list[Connection], list[Connection], int]:
        """Choose the connections of a turn. Return them, those with a backlog that wait, and the most rounds."""
        queue, self.arrived = self.arrived, []
        if not self._backlog:
            return queue, [], ROUNDS_MAX
        backlog, self._backlog = self._backlog, []
        if queue:
            self._contended_ns = now_ns
        elif now_ns - self._contended_ns > CONTENDED_NS:
            return backlog, [], ROUNDS_MAX
        due = [conn for conn in backlog if conn.due_ns <= now_ns]
        if not queue:
            return (due, [conn for conn in backlog if conn.due_ns > now_ns], 1) if due else (backlog, [], 1)
        rounds_max = ROUNDS_MAX if len(queue) + len(due) > 1 else 1
        return due + queue, [conn for conn in backlog if conn.due_ns > now_ns], rounds_max

    def leave(self, waiting: list[Connection], unfinished: list[Connection], due_ns: int) -> None:
        """End a turn: keep the connections that waited in it, and those that it left unfinished until `due_ns`."""
        for conn in unfinished:
            conn.due_ns = max(conn.due_ns, due_ns)
        self._backlog = waiting + unfinished
        for conn in self._backlog:
            self.keep_for_later(conn)

    def park(self, conn: Connection) -> None:
        """Take a connection that may not execute its next request out of the queue; `resume` puts it back."""
        conn.queued = False
        self.keep_for_later(conn)

    def keep_for_later(self, conn: Connection) -> None:
        """Keep the requests of a connection for another turn."""
        if conn not in self._connections:
            return  # it is closed, so its requests are dropped
        conn.unread()
        conn.decoder.pause()
        self.settle(conn)
        conn.backlogged = conn.decoder.unread_bytes > BACKLOG_BYTES
        if not conn.wants_data:
            self._connections.stalled.append(conn)

    def resume(self, conn: Connection) -> None:
        """Queue a connection that was parked, if it may execute its next request now."""
        if not conn.readable or conn.queued:
            return
        if conn.frame is not None or conn.decoder.unread_bytes or conn.decoder.partial is not None:
            conn.queued = True
            self.arrived.append(conn)

    def settle(self, conn: Connection) -> None:
        """Update the memory that a connection's incomplete request claims."""
        if conn.decoder.partial is not None or conn in self._memory:
            for admitted in self._memory.settle(conn):
                if admitted is not conn:
                    self.resume(admitted)
            if not conn.wants_data:
                self._connections.stalled.append(conn)

    def closed(self, conn: Connection) -> None:
        """Free the memory that a closed connection's incomplete request claims."""
        if conn in self._memory:
            for admitted in self._memory.leave(conn):
                self.resume(admitted)
