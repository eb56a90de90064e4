"""A coordinator in memory, for tests and the simulation, with sessions that expire and answers that get lost.

`Ensemble` is the state that all sessions share (ZooKeeper's part); `MemoryCoordinator` is one client's session with it.
The faults are those that a ZooKeeper client meets: a cut connection, an expired session, and an operation that was
applied although its answer got lost.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from coordination.port import (
    PERSISTENT,
    Changed,
    Children,
    ConnectionLost,
    Event,
    Get,
    Node,
    Operation,
    Result,
    SessionEnded,
    SessionEstablished,
    SessionLost,
    SessionSuspended,
    check_operation,
    parent,
)
from coordination.transaction import Transaction


@dataclass
class Ensemble:
    """The tree of nodes, the living sessions, and the watches of each session."""

    nodes: dict[str, Node] = field(default_factory=lambda: {"/": Node(b"", 0, PERSISTENT)})
    sessions: set[int] = field(default_factory=set)
    now_ms: int = 0  # of the ensemble's clock, which a test moves
    _watches: dict[tuple[str, str], dict[int, Callable[[Event], None]]] = field(default_factory=dict)
    _last_session: int = 0
    _last_number: int = 0  # of a transaction or a sequential node

    def begin_session(self) -> int:
        self._last_session += 1
        self.sessions.add(self._last_session)
        return self._last_session

    def end_session(self, session_id: int) -> None:
        """End an expired or closed session: remove its watches and its ephemeral nodes."""
        self.sessions.discard(session_id)
        for watchers in self._watches.values():
            watchers.pop(session_id, None)
        self._store({path: None for path, node in self.nodes.items() if node.owner == session_id})

    def apply(self, session_id: int, operation: Operation, notify: Callable[[Event], None]) -> Result:
        """Carry out one operation for a living session; `notify` receives the events of the watch it sets."""
        check_operation(operation)
        if session_id not in self.sessions:
            raise SessionLost(f"session {session_id} is over")
        transaction = Transaction(self, session_id, self._next_number, self.now_ms)
        match operation:
            case Get(path, watch):
                self._watch("data", path, watch, session_id, notify)
                return transaction.existing(path)
            case Children(path, watch):
                transaction.existing(path)
                self._watch("children", path, watch, session_id, notify)
                return transaction.names(path)
            case _:
                result = transaction.apply(operation)
                self._store(transaction.changes)
                return result

    def node(self, path: str) -> Node | None:
        return self.nodes.get(path)

    def names(self, path: str) -> Iterable[str]:
        prefix = path.rstrip("/") + "/"
        return [p[len(prefix) :] for p in self.nodes if p != "/" and parent(p) == path]

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _watch(self, kind: str, path: str, watch: bool, session_id: int, notify: Callable[[Event], None]) -> None:
        if watch:
            self._watches.setdefault((kind, path), {})[session_id] = notify

    def _store(self, changes: Mapping[str, Node | None]) -> None:
        """Store all changes of a transaction, then notify those who watch."""
        notices: list[tuple[Callable[[Event], None], Changed]] = []
        for path, node in changes.items():
            before = self.nodes.pop(path, None) if node is None else self.nodes.get(path)
            if node is not None:
                self.nodes[path] = node
            if node != before:
                notices += self._fire("data", path)
            if (before and before.czxid) != (node and node.czxid):
                notices += self._fire("children", parent(path))
        for notify, event in notices:
            notify(event)

    def _fire(self, kind: str, path: str) -> list[tuple[Callable[[Event], None], Changed]]:
        return [(notify, Changed(path)) for notify in self._watches.pop((kind, path), {}).values()]


class MemoryCoordinator:
    """A client's session, with faults on demand.

    `cut` and `heal` break and restore the connection, `expire` ends the session, and `lose_answers` and `lose_requests`
    make the next operations fail.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._session_id = ensemble.begin_session()
        self._events: list[Event] = [SessionEstablished(self._session_id)]
        self._connected = True
        self._closed = False
        self._wake: Callable[[], None] | None = None
        self.lose_answers = 0  # number of next operations that are applied but raise ConnectionLost
        self.lose_requests = 0  # number of next operations that are not applied and raise ConnectionLost

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def scope(self) -> str:
        return "memory"

    def wait_until_connected(self, timeout_ms: int) -> None:
        """Return at once, because memory is connected from the beginning."""

    def execute(self, operation: Operation) -> Result:
        if self._closed:
            raise SessionLost("this coordinator is closed")
        if not self._connected:
            raise ConnectionLost("the connection is cut")
        if self.lose_requests:
            self.lose_requests -= 1
            raise ConnectionLost("the request got lost")
        if not self.lose_answers:
            return self._ensemble.apply(self._session_id, operation, self._happened)
        self.lose_answers -= 1
        try:
            self._ensemble.apply(self._session_id, operation, self._happened)
        finally:
            raise ConnectionLost("the answer got lost")

    def take_events(self) -> list[Event]:
        events = [e for e in self._events if self._connected or not isinstance(e, Changed)]
        self._events[:] = [] if self._connected else [e for e in self._events if isinstance(e, Changed)]
        return events

    def on_wake(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def cut(self) -> None:
        """Cut the connection; the session lives until `expire` is called."""
        self._connected = False
        self._happened(SessionSuspended())

    def heal(self) -> None:
        """Restore the connection; report the end of a session that expired meanwhile, and begin a new one."""
        self._connected = True
        if self._session_id not in self._ensemble.sessions:
            self._happened(SessionEnded())
            self._session_id = self._ensemble.begin_session()
        self._happened(SessionEstablished(self._session_id))

    def expire(self) -> None:
        """End the session; a client that is cut off learns of it at `heal`, a connected one at once."""
        self._ensemble.end_session(self._session_id)
        if self._connected:
            self.heal()

    def close(self) -> None:
        self._ensemble.end_session(self._session_id)
        self._closed = True

    def _happened(self, event: Event) -> None:
        self._events.append(event)
        if self._wake is not None and (self._connected or not isinstance(event, Changed)):
            self._wake()
