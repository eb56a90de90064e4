"""The promises of a coordinator, and its operations as values.

A core never calls a coordinator. It hands out operations and receives their results; a generator that yields the
operations is the simplest such core (see `run`). A shell carries the operations out on ZooKeeper, a directory or
memory, so the same core runs under Twisted, in a plain program and in the simulation. Data and versions are ZooKeeper's
(https://zookeeper.apache.org/doc/current/zookeeperProgrammers.html), as far as all three can keep them:

- A node has data, a version that each Set raises by one (0 when created), and children, which do not affect its
  version.
- Set and Delete name the version that the caller has seen. If two of them name the same version, one fails with
  BadVersion.
- An acknowledged change is never lost, whichever process stops. An ephemeral node lasts until its session ends, unless
  it is deleted.
- ConnectionLost means that the outcome is unknown: applied, not applied, or applied later. Read before you assume.
- A watch fires once, after the change can be read; it does not say how many changes there were meanwhile.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from coordination.errors import FlakelogError

ANY_VERSION = -1
PERSISTENT = 0  # the `owner` of a node that is not ephemeral
MAX_DATA_BYTES = 1_000_000  # ZooKeeper's jute.maxbuffer is 1 MiB, which includes names and headers

T = TypeVar("T")


@dataclass(frozen=True)
class Create:
    """A request to create a node, and missing parents as empty persistent nodes. Result: None.

    Raises NodeExists. An ephemeral node belongs to the session that created it and can have no children: creating one
    below it raises NoNode.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True)
class Get:
    """A request for a node's data and version. Result: Node. Raises NoNode.

    With `watch`, one Changed(path) follows when its data or existence next changes.
    """

    path: str
    watch: bool = False


@dataclass(frozen=True)
class Set:
    """A request to replace the data of a node whose version is `version`. Result: the new version.

    Raises NoNode or BadVersion.
    """

    path: str
    data: bytes
    version: int


@dataclass(frozen=True)
class Delete:
    """A request to remove a node whose version is `version`. Result: None. Raises NoNode, BadVersion or NotEmpty."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True)
class Children:
    """A request for the names of a node's children. Result: a sorted tuple. Raises NoNode.

    With `watch`, one Changed(path) follows when the set of names next changes.
    """

    path: str
    watch: bool = False


Operation = Create | Get | Set | Delete | Children


class Node(NamedTuple):
    """A node's data and version; `owner` is the session of an ephemeral node, otherwise PERSISTENT (0)."""

    data: bytes
    version: int
    owner: int


Result = Node | tuple[str, ...] | int | None


class CoordinationError(FlakelogError):
    """An operation that failed; the base class of the errors below."""


class NodeExists(CoordinationError):
    """Create found a node at its path."""


class NoNode(CoordinationError):
    """No node exists at the path."""


class BadVersion(CoordinationError):
    """The node is at another version than the operation named, because another client has changed it."""


class NotEmpty(CoordinationError):
    """Delete found a node that has children."""


class ConnectionLost(CoordinationError):
    """No answer came: the operation may have been carried out, may still be, or may never be."""


class SessionLost(ConnectionLost):
    """No answer came, and the session has ended: its ephemeral nodes are removed or will be soon."""


class CoordinatorUnavailable(CoordinationError):
    """The coordinator cannot be used at all from here; the message says how to fix it."""


@dataclass(frozen=True)
class Changed:
    """A watched node or set of children has changed, or may have: a lost session causes this event too."""

    path: str


@dataclass(frozen=True)
class SessionSuspended:
    """The coordinator does not answer; the session may or may not be alive."""


@dataclass(frozen=True)
class SessionEnded:
    """The session has ended, with its ephemeral nodes and watches. A new session begins automatically."""


@dataclass(frozen=True)
class SessionEstablished:
    """The session is connected: for the first time, again, or as a new session, which `session_id` tells."""

    session_id: int


Event = Changed | SessionSuspended | SessionEnded | SessionEstablished


class Coordinator(Protocol):
    """A session with a coordinator.

    `execute` blocks, up to a deadline; it may be called from any thread.
    """

    @property
    def session_id(self) -> int:
        """The id of the present session, which is the `owner` of the ephemeral nodes it creates."""

    @property
    def scope(self) -> str:
        """The place where all clients see the same nodes, as text: 'directory /var/lib/x', 'zookeeper a:2181/x'."""

    def wait_until_connected(self, timeout_ms: int) -> None:
        """Block until operations are possible; after `timeout_ms`, close and raise CoordinatorUnavailable."""

    def execute(self, operation: Operation) -> Result:
        """Carry out one operation; raise the CoordinationErrors it names, SessionLost or ConnectionLost."""

    def take_events(self) -> list[Event]:
        """Return the events since the last call. The call is cheap: make it about once a second, or when woken."""

    def close(self) -> None:
        """End the session; its ephemeral nodes are removed when this returns, if the coordinator can be reached."""


def check_path(path: str) -> str:
    """Return the path if it is '/', or '/a/b' with names that every coordinator can keep; else raise ValueError."""
    names = path.split("/")
    good = path == "/" or (path.startswith("/") and all(_is_name(name) for name in names[1:]))
    if not good:
        raise ValueError(f"{path!r} is no node's path: '/name/name', no name empty, '.', '..' or with a leading '.'")
    return path


def _is_name(name: str) -> bool:
    return bool(name) and not name.startswith(".") and name.isprintable() and len(name.encode()) <= 200


def check_data(data: bytes) -> bytes:
    """Return the data; raise ValueError if it is more than a node can hold."""
    if len(data) > MAX_DATA_BYTES:
        raise ValueError(f"{len(data)} bytes for one node; it holds at most {MAX_DATA_BYTES}")
    return data


def parent(path: str) -> str:
    """Return '/a/b' for '/a/b/c', '/' for '/a'."""
    return path.rpartition("/")[0] or "/"


def child(path: str, name: str) -> str:
    """Return '/a/b' for '/a' and 'b'."""
    return check_path(f"{path.rstrip('/')}/{name}")


def run(coordinator: Coordinator, procedure: Generator[Operation, Any, T]) -> T:
    """Carry out a procedure, blocking, and return its return value.

    The procedure is sent the results of the operations it yields; coordination errors are thrown into it.
    """
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
