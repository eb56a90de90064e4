"""What a coordinator promises, and the operations it is asked for, as values.

A core never talks to a coordinator: it hands out operations and is handed results (a generator that yields them is the
easiest such core, see `run`). A shell carries them out on ZooKeeper, a directory, or memory; so one core runs under
Twisted, in a plain program and in the simulation. Data and versions are ZooKeeper's
(https://zookeeper.apache.org/doc/current/zookeeperProgrammers.html), as far as all three can keep them:

- A node has data, a version that each Set raises by one (0 when created), and children, which make no part of it.
- Set and Delete name the version they have seen. Of two that name the same one, one fails with BadVersion.
- What was answered stays, whatever stops. Ephemeral nodes go when their session ends, and only then.
- ConnectionLost means the outcome is unknown: applied, not applied, or applied later. Ask before you assume.
- A watch fires once, after the change can be read; how often the node changed meanwhile is not told.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

ANY_VERSION = -1
PERSISTENT = 0  # the `owner` of a node that no session's end removes
MAX_DATA_BYTES = 1_000_000  # ZooKeeper's jute.maxbuffer is 1 MiB, names and headers included

T = TypeVar("T")


@dataclass(frozen=True)
class Create:
    """Make a node, and its parents as empty persistent nodes where they are missing. Answer: None.

    NodeExists. An ephemeral node belongs to the session that made it and can have no children.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True)
class Get:
    """Answer: Node. NoNode. With `watch`, one Changed(path) when its data or existence next changes."""

    path: str
    watch: bool = False


@dataclass(frozen=True)
class Set:
    """Replace the data of a node whose version is `version`. Answer: the new version. NoNode, BadVersion."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True)
class Delete:
    """Remove a node whose version is `version`. Answer: None. NoNode, BadVersion, NotEmpty."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True)
class Children:
    """Answer: the names of a node's children, a sorted tuple. NoNode. `watch` as for Get, on the set of names."""

    path: str
    watch: bool = False


Operation = Create | Get | Set | Delete | Children


class Node(NamedTuple):
    """A node's data and version; `owner` is the session it is ephemeral to, PERSISTENT (0) if none."""

    data: bytes
    version: int
    owner: int


Result = Node | tuple[str, ...] | int | None


class CoordinationError(Exception):
    """An operation that was not carried out as asked."""


class NodeExists(CoordinationError):
    """Create found a node at its path."""


class NoNode(CoordinationError):
    """There is no node at the path."""


class BadVersion(CoordinationError):
    """The node is not at the version named: someone else has changed it."""


class NotEmpty(CoordinationError):
    """A node with children is not removed."""


class ConnectionLost(CoordinationError):
    """No answer came: whether the operation was, or will be, carried out is unknown."""


class SessionLost(ConnectionLost):
    """No answer came, and the session has ended: its ephemeral nodes are gone or about to go."""


class CoordinatorUnavailable(CoordinationError):
    """The coordinator cannot be used at all from here; the message says what would be right."""


@dataclass(frozen=True)
class Changed:
    """A watched node or set of children has changed (or may have: after a lost session too)."""

    path: str


@dataclass(frozen=True)
class SessionSuspended:
    """The coordinator does not answer; whether the session lives is unknown."""


@dataclass(frozen=True)
class SessionEnded:
    """The session is over: its ephemeral nodes and watches are gone. A new one is made by itself."""


@dataclass(frozen=True)
class SessionEstablished:
    """Connected: for the first time, again, or with a new session (its id says which)."""

    session_id: int


Event = Changed | SessionSuspended | SessionEnded | SessionEstablished


class Coordinator(Protocol):
    """One session with whatever coordinates. `execute` blocks, within a deadline; it may be called from any thread."""

    @property
    def session_id(self) -> int:
        """The present session; the `owner` of the ephemeral nodes it makes."""

    @property
    def scope(self) -> str:
        """Where its nodes are the same for everyone, for people: 'directory /var/lib/x', 'zookeeper a:2181/x'."""

    def wait_until_connected(self, timeout_ms: int) -> None:
        """Block until it can be asked; CoordinatorUnavailable, and all is closed, if that takes longer."""

    def execute(self, operation: Operation) -> Result:
        """Carry out one operation; raises the CoordinationErrors it names, SessionLost or ConnectionLost."""

    def take_events(self) -> list[Event]:
        """What has happened since the last call. Cheap: meant to be asked about once a second, or when woken."""

    def close(self) -> None:
        """End the session: its ephemeral nodes are gone when this returns, if the coordinator can be reached."""


def check_path(path: str) -> str:
    """The path, if it is a good one: '/', or '/a/b' with names all coordinators can keep. ValueError."""
    names = path.split("/")
    good = path == "/" or (path.startswith("/") and all(_is_name(name) for name in names[1:]))
    if not good:
        raise ValueError(f"{path!r} is no node's path: '/name/name', no name empty, '.', '..' or with a leading '.'")
    return path


def _is_name(name: str) -> bool:
    return bool(name) and not name.startswith(".") and name.isprintable() and len(name.encode()) <= 200


def check_data(data: bytes) -> bytes:
    """The data, unless it is more than a node holds. ValueError."""
    if len(data) > MAX_DATA_BYTES:
        raise ValueError(f"{len(data)} bytes for one node; it holds at most {MAX_DATA_BYTES}")
    return data


def parent(path: str) -> str:
    """'/a/b' of '/a/b/c', '/' of '/a'."""
    return path.rpartition("/")[0] or "/"


def child(path: str, name: str) -> str:
    """'/a/b' of '/a' and 'b'."""
    return check_path(f"{path.rstrip('/')}/{name}")


def run(coordinator: Coordinator, procedure: Generator[Operation, Any, T]) -> T:
    """Carry out a procedure, blocking: results are sent in, coordination errors thrown in; its return value."""
    try:
        operation = next(procedure)
        while True:
            try:
                result = coordinator.execute(operation)
            except CoordinationError as error:
                operation = procedure.throw(error)
            else:
                operation = procedure.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value
