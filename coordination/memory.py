"""A coordinator in memory, for tests and the simulation, with sessions that expire and answers that get lost.

`Ensemble` is the state that all sessions share (ZooKeeper's part); `MemoryCoordinator` is one client's session with it.
The faults are those that a ZooKeeper client meets: a cut connection, an expired session, and an operation that was
applied although its answer got lost.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from coordination.port import (
    ANY_VERSION,
    PERSISTENT,
    BadVersion,
    Changed,
    Children,
    ConnectionLost,
    Create,
    Delete,
    Event,
    Get,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Result,
    SessionEnded,
    SessionEstablished,
    SessionLost,
    SessionSuspended,
    Set,
    check_data,
    check_path,
    parent,
)


@dataclass
class Ensemble:
    """The tree of nodes, the living sessions, and the watches of each session."""

    nodes: dict[str, Node] = field(default_factory=lambda: {"/": Node(b"", 0, PERSISTENT)})
    sessions: set[int] = field(default_factory=set)
    _watches: dict[tuple[str, str], dict[int, Callable[[Event], None]]] = field(default_factory=dict)
    _last_session: int = 0

    def begin_session(self) -> int:
        self._last_session += 1
        self.sessions.add(self._last_session)
        return self._last_session

    def end_session(self, session_id: int) -> None:
        """End an expired or closed session: remove its watches and its ephemeral nodes."""
        self.sessions.discard(session_id)
        for watchers in self._watches.values():
            watchers.pop(session_id, None)
        for path in [path for path, node in self.nodes.items() if node.owner == session_id]:
            self._remove(path)

    def apply(self, session_id: int, operation: Operation, notify: Callable[[Event], None]) -> Result:
        """Carry out one operation for a living session; `notify` receives the events of the watch it sets."""
        check_path(operation.path)
        if session_id not in self.sessions:
            raise SessionLost(f"session {session_id} is over")
        match operation:
            case Create():
                self._create(session_id, operation)
            case Set(path, data, version):
                self._changeable(path, version)
                return self._set(path, check_data(data))
            case Delete(path, version):
                self._changeable(path, version)
                if self._children(path):
                    raise NotEmpty(path)
                self._remove(path)
            case Get(path, watch):
                self._watch("data", path, watch, session_id, notify)
                return self._node(path)
            case Children(path, watch):
                self._node(path)
                self._watch("children", path, watch, session_id, notify)
                return self._children(path)
        return None

    def _node(self, path: str) -> Node:
        if path not in self.nodes:
            raise NoNode(path)
        return self.nodes[path]

    def _changeable(self, path: str, version: int) -> None:
        at = self._node(path).version
        if version not in (at, ANY_VERSION):
            raise BadVersion(f"{path} is at version {at}, not {version}")

    def _children(self, path: str) -> tuple[str, ...]:
        prefix = path.rstrip("/") + "/"
        return tuple(sorted(p[len(prefix) :] for p in self.nodes if parent(p) == path and p != "/"))

    def _create(self, session_id: int, create: Create) -> None:
        if create.path in self.nodes:
            raise NodeExists(create.path)
        above = parent(create.path)
        if above not in self.nodes:
            self._create(session_id, Create(above))
        if self.nodes[above].owner != PERSISTENT:
            raise NoNode(f"{above} is ephemeral and can have no children")
        self.nodes[create.path] = Node(check_data(create.data), 0, session_id if create.ephemeral else PERSISTENT)
        self._changed(create.path, existence=True)

    def _set(self, path: str, data: bytes) -> int:
        node = self.nodes[path]
        self.nodes[path] = node._replace(data=data, version=node.version + 1)
        self._changed(path, existence=False)
        return node.version + 1

    def _remove(self, path: str) -> None:
        del self.nodes[path]
        self._changed(path, existence=True)

    def _watch(self, kind: str, path: str, watch: bool, session_id: int, notify: Callable[[Event], None]) -> None:
        if watch:
            self._watches.setdefault((kind, path), {})[session_id] = notify

    def _changed(self, path: str, existence: bool) -> None:
        fired = list(self._watches.pop(("data", path), {}).values())
        notices = [(notify, path) for notify in fired]
        if existence:
            notices += [(notify, parent(path)) for notify in self._watches.pop(("children", parent(path)), {}).values()]
        for notify, changed_path in notices:
            notify(Changed(changed_path))


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
            return self._ensemble.apply(self._session_id, operation, self._events.append)
        self.lose_answers -= 1
        try:
            self._ensemble.apply(self._session_id, operation, self._events.append)
        finally:
            raise ConnectionLost("the answer got lost")

    def take_events(self) -> list[Event]:
        events = [e for e in self._events if self._connected or not isinstance(e, Changed)]
        self._events[:] = [] if self._connected else [e for e in self._events if isinstance(e, Changed)]
        return events

    def cut(self) -> None:
        """Cut the connection; the session lives until `expire` is called."""
        self._connected = False
        self._events.append(SessionSuspended())

    def heal(self) -> None:
        """Restore the connection; report the end of a session that expired meanwhile, and begin a new one."""
        self._connected = True
        if self._session_id not in self._ensemble.sessions:
            self._events.append(SessionEnded())
            self._session_id = self._ensemble.begin_session()
        self._events.append(SessionEstablished(self._session_id))

    def expire(self) -> None:
        """End the session; a client that is cut off learns of it at `heal`, a connected one at once."""
        self._ensemble.end_session(self._session_id)
        if self._connected:
            self.heal()

    def close(self) -> None:
        self._ensemble.end_session(self._session_id)
        self._closed = True
