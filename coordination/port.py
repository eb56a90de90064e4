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
- A watch fires once, after the change can be read; it does not say how many changes there were meanwhile. It may fire
  without a change, as after a lost connection.
- A Multi is carried out whole or not at all, also if a process or the power fails in the middle of it.
- A node's `czxid` is the number of the transaction that created it. A later transaction has a higher number, whatever
  the path, and also after a restart of everything or a power cut.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from coordination.errors import FlakelogError

ANY_VERSION = -1
PERSISTENT = 0  # the `owner` of a node that is not ephemeral
MAX_DATA_BYTES = 1_000_000  # ZooKeeper's jute.maxbuffer is 1,048,575 bytes, which includes names and headers
MAX_MULTI_BYTES = 1_040_000  # of all operations of a Multi; the same jute.maxbuffer, less the header of the request
OPERATION_BYTES = 80  # what an operation of a Multi takes beside path and data, most of it for the ACL of a Create
MAX_NAME_BYTES = 249  # of a node: Kafka's longest name of a topic; a file name has up to 255 bytes
RESERVED_NAMES = frozenset({".", "..", ".node", ".new"})  # no node's names: a directory has files of these names
SEQUENCE_DIGITS = 10

T = TypeVar("T")


@dataclass(frozen=True)
class Create:
    """A request to create a node, and missing parents as empty persistent nodes. Result: the path of the node.

    Raises NodeExists. An ephemeral node belongs to the session that created it and can have no children: creating one
    below it raises NoNode. With `sequential`, the name of the node is that of `path` and ten digits. The digits rise
    with each sequential node of a parent and never repeat, so the names sort in the order of creation.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


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


@dataclass(frozen=True)
class Check:
    """A part of a Multi: the node must be at `version`. Result: None. Raises NoNode or BadVersion."""

    path: str
    version: int


@dataclass(frozen=True)
class Multi:
    """A request to carry out all operations, in order, or none. Result: a tuple of their results.

    An operation sees what the earlier ones did. A Create makes no missing parents; it raises NoNode. The error of the
    first operation that fails is raised, and its `index` is the position of that operation. A Multi without operations
    and one of more than MAX_MULTI_BYTES are ValueErrors.
    """

    operations: "tuple[Check | Create | Set | Delete, ...]"


Operation = Create | Get | Set | Delete | Children | Multi


class Node(NamedTuple):
    """A node's data and version; `owner` is the session of an ephemeral node, otherwise PERSISTENT (0).

    `czxid` is the number of the transaction that created the node. It is 0 if an older version of Flakelog created it
    in a directory. `mtime_ms` is the time at which the node was created or set last, by ZooKeeper's own clock. It is 0
    in a directory, which keeps no times.
    """

    data: bytes
    version: int
    owner: int
    czxid: int = 0
    mtime_ms: int = 0


Written = str | int | None  # the result of a part of a Multi
Result = Node | tuple[str, ...] | tuple[Written, ...] | Written


class CoordinationError(FlakelogError):
    """An operation that failed; the base class of the errors below."""

    index: int | None = None  # the position of the operation in its Multi; None outside a Multi


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
    """The coordinator cannot be used from here, or has refused the operation and would again; the message says why."""


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
    """The session is connected: for the first time, again, or as a new session, which `session_id` tells.

    `timeout_ms` is the session timeout that the server grants, which may differ from the requested one. It is None for
    a coordinator that grants each request.
    """

    session_id: int
    timeout_ms: int | None = field(default=None, compare=False)


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

    def on_wake(self, wake: Callable[[], None]) -> None:
        """Call `wake`, in any thread, when take_events may have something new. It must return at once.

        Watches still need a take_events about once a second, because a wake-up may get lost.
        """

    def close(self) -> None:
        """End the session; its ephemeral nodes are removed when this returns, if the coordinator can be reached."""


@runtime_checkable
class Asynchronous(Protocol):
    """A coordinator that answers by callback in its own thread, as ZooKeeper's does."""

    request_timeout_ms: int

    @property
    def scope(self) -> str:
        """The place, as Coordinator has it."""

    def begin(self, operation: Operation, done: Callable[[Result | CoordinationError], object]) -> None:
        """Send the operation; `done` is called with the result or the error."""


def check_path(path: str) -> str:
    """Return the path if it is '/', or '/a/b' with names that every coordinator can keep; else raise ValueError."""
    names = path.split("/")
    good = path == "/" or (path.startswith("/") and all(_is_name(name) for name in names[1:]))
    if not good:
        wanted = f"each name printable, 1 to {MAX_NAME_BYTES} bytes, none of {', '.join(sorted(RESERVED_NAMES))}"
        raise ValueError(f"{path!r} is no node's path: '/name/name', {wanted}")
    return path


def _is_name(name: str) -> bool:
    return name.isprintable() and name not in RESERVED_NAMES and 0 < len(name.encode()) <= MAX_NAME_BYTES


def check_data(data: bytes) -> bytes:
    """Return the data; raise ValueError if it is more than a node can hold."""
    if len(data) > MAX_DATA_BYTES:
        raise ValueError(f"{len(data)} bytes for one node; it holds at most {MAX_DATA_BYTES}")
    return data


def check_operation(operation: Operation) -> None:
    """Raise ValueError for a path, data or a Multi that a coordinator cannot keep."""
    if not isinstance(operation, Multi):
        return _check_part(operation)
    if not operation.operations:
        raise ValueError("a Multi without operations")
    size = 0
    for part in operation.operations:
        if not isinstance(part, (Check, Create, Set, Delete)):
            raise ValueError(f"{type(part).__name__} is no part of a Multi")
        _check_part(part)
        size += OPERATION_BYTES + len(part.path.encode()) + len(getattr(part, "data", b""))
    if size > MAX_MULTI_BYTES:
        raise ValueError(f"{size} bytes for one Multi; it holds at most {MAX_MULTI_BYTES}")


def _check_part(operation: Check | Create | Get | Set | Delete | Children) -> None:
    check_path(operation.path)
    if isinstance(operation, (Create, Set)):
        check_data(operation.data)
    if isinstance(operation, Create) and operation.sequential:
        check_path(sequential_path(operation.path, 0))


def sequential_path(path: str, number: int) -> str:
    """Return the path of a sequential node: '/a/b0000000007' for '/a/b' and 7."""
    return f"{path}{number:0{SEQUENCE_DIGITS}}"


def described(operation: Operation | Check) -> str:
    """Return an operation as errors name it: 'Create /a', or 'Multi of 3 (Check /a, ...)'."""
    if not isinstance(operation, Multi):
        return f"{type(operation).__name__} {operation.path}"
    first = operation.operations[0]
    return f"Multi of {len(operation.operations)} ({type(first).__name__} {first.path}, ...)"


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
