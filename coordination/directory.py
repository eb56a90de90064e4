"""SHELL (files, flock, a clock for its deadline): a coordinator for one machine, in a directory.

    <directory>/.lock             locked exclusively during each operation, so that operations are serialized
    <directory>/sessions/<id>     locked exclusively while the session's process lives; the kernel releases the lock at
                                  kill -9 and at power loss, so an ephemeral node never outlives its session
    <directory>/nodes, /packed    the nodes (coordination/stored_nodes.py)
    <directory>/transactions      the number of the last transaction (coordination/transaction_numbers.py)
    <directory>/wake/<id>         the socket of a session that asked for wake-ups (coordination/wake_ups.py)

An operation is acknowledged when its changes are synced. So an acknowledged change survives a power cut, and a Multi is
never half-written. take_events checks the watches of the nodes that a wake-up named. Once a second it checks all of
them, because the kernel reports no end of another session. It never waits for the lock, because its caller may be a
reactor's thread: while another process holds the lock, the watches wait for the next call.
Locks of files are not reliable on network file systems, so such a directory is refused if it can be recognised.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

from coordination.port import (
    Changed,
    Children,
    ConnectionLost,
    CoordinationError,
    CoordinatorUnavailable,
    Create,
    Event,
    Get,
    Multi,
    Node,
    Operation,
    Result,
    SessionEstablished,
    SessionLost,
    Set,
    check_operation,
    child,
    described,
    parent,
)
from coordination.stored_nodes import StoredNodes
from coordination.transaction import Transaction, Tree
from coordination.transaction_numbers import TransactionNumbers
from coordination.wake_ups import WakeUps, wake_all, wake_for

LOCK_TIMEOUT_MS = 5_000  # operations take ms; a process stopped while holding the lock must not block others forever
LOCK_RETRY_S = 0.002
LOOK_RETRY_S = 0.01  # the pause before watches are checked that found the lock taken
LOOK_S = 0.9  # take_events is called about once a second
PACKED_MIN = 8  # a group of fewer writes is faster in files of their own
NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 cifs smb3 smbfs afs ceph fuse.ceph lustre glusterfs fuse.glusterfs fuse.sshfs beegfs gpfs ocfs2 gfs2 9p "
    "virtiofs coda davfs fuse.s3fs fuse.gcsfuse fuse.rclone fuse.juicefs fuse.davfs2 vboxsf prl_fs orangefs".split()
)


class _LockTaken(ConnectionLost):
    """Another session holds the lock of the directory."""


class DirectoryCoordinator:
    """A session in a directory, which is created if missing.

    Raises CoordinatorUnavailable if the directory cannot be used. With `allow_network`, the caller vouches for the
    locks of a network file system.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        allow_network: bool = False,
    ) -> None:
        self._root = Path(directory).absolute()
        self._lock_timeout_ms = lock_timeout_ms
        self._watches: dict[tuple[str, str], object] = {}
        self._events: list[Event] = []
        self._session_fd = -1
        self._nodes = StoredNodes(self._root, self._is_alive)
        self._numbers = TransactionNumbers(self._root)
        self._wake_ups: WakeUps | None = None
        self._look_s = 0.0  # when all watches are checked next
        self._overdue: set[tuple[str, str]] = set()  # watches to check as soon as possible
        self._locked_since_s: float | None = None  # since when the watches cannot be checked
        if not allow_network:
            refuse_network_file_system(self._root)
        try:
            (self._root / "nodes").mkdir(parents=True, exist_ok=True)
            (self._root / "sessions").mkdir(exist_ok=True)
            with self._exclusive():
                self._begin_session()
        except (OSError, ConnectionLost) as error:
            raise CoordinatorUnavailable(f"directory {self._root} cannot keep worker numbers: {error}") from error
        _sessions.add(self)

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def scope(self) -> str:
        return f"directory {self._root}"

    def wait_until_connected(self, timeout_ms: int) -> None:
        """Return at once, because a directory is connected from the beginning."""

    def execute(self, operation: Operation) -> Result:
        check_operation(operation)
        self._check_open()
        transaction = self._transaction(self._nodes)
        try:
            with self._exclusive():
                result = self._apply(operation, transaction)
                self._storing(operation)(transaction.changes)
        except OSError as error:
            raise ConnectionLost(f"{described(operation)} in {self._root}: {error}") from error
        self._wake_others(transaction.changes)
        return result

    def execute_all(self, operations: Sequence[Operation]) -> list[Result | Exception]:
        """Carry out the operations in order; return the result of each, or its error.

        Many writes are synced together. Raise SessionLost or ConnectionLost if the outcome of all is not known.
        """
        self._check_open()
        together = sum(map(_writes, operations)) >= PACKED_MIN
        results: list[Result | Exception] = []
        changes: dict[str, Node | None] = {}
        try:
            with self._exclusive():
                group = self._transaction(self._nodes)
                for operation in operations:
                    transaction = self._transaction(group if together else self._nodes)
                    keep = group.take if together else self._storing(operation)
                    results.append(self._outcome(operation, transaction, keep))
                    changes.update(transaction.changes)
                self._nodes.store(group.changes)
        except OSError as error:
            raise ConnectionLost(f"{len(operations)} operations in {self._root}: {error}") from error
        self._wake_others(changes)
        return results

    def on_wake(self, wake: Callable[[], None]) -> None:
        """Call `wake` in a thread of its own. If the system can make no socket, a change is noticed by polling."""
        self._check_open()
        if self._wake_ups is not None:
            self._wake_ups.wake = wake
            return
        with suppress(OSError):
            self._wake_ups = WakeUps(self._root, self._session_id, wake, self._is_watched)

    def take_events(self) -> list[Event]:
        """Return the events since the last call, without waiting for the lock.

        No event is lost while the lock is taken, or after an error: a later call returns them. Raise ConnectionLost
        once the lock has been taken for `lock_timeout_ms`.
        """
        if self._session_fd >= 0:
            self._overdue.update(self._due_watches())
        if self._session_fd >= 0 and self._overdue:
            try:
                with self._exclusive(0):
                    self._check_watches(self._watches.keys() & self._overdue)
                self._overdue.clear()
                self._locked_since_s = None
            except _LockTaken:
                self._look_again()
            except OSError as error:
                raise ConnectionLost(f"the watches of {len(self._overdue)} nodes in {self._root}: {error}") from error
        events, self._events = self._events, []
        return events

    def _look_again(self) -> None:
        """Have take_events called again soon, because the lock is taken. Raise ConnectionLost if that is so for long.
        """
        now_s = time.monotonic()
        if self._locked_since_s is None:
            self._locked_since_s = now_s
        if self._wake_ups is not None:
            self._wake_ups.wake_in(LOOK_RETRY_S)
        if now_s > self._locked_since_s + self._lock_timeout_ms / 1000:
            raise self._lock_taken()

    def _check_watches(self, watches: Iterable[tuple[str, str]]) -> None:
        """Note which watched nodes have changed, or are damaged: a read of such a node raises the reason."""
        for watch in watches:
            try:
                is_changed = self._state_of(self._nodes, *watch) != self._watches[watch]
            except CoordinatorUnavailable:
                is_changed = True
            if is_changed:
                del self._watches[watch]
                self._events.append(Changed(watch[1]))

    def close(self) -> None:
        """End the session; the next session that reads one of its ephemeral nodes removes that node."""
        if self._session_fd >= 0:
            if self._wake_ups is not None:
                self._wake_ups.close()
            os.close(self._session_fd)
            self._session_fd = -1
            wake_all(self._root)

    def abandon(self) -> None:
        """Close the session's files and wake no session, as the kernel does when a process ends."""
        if self._session_fd >= 0:
            if self._wake_ups is not None:
                self._wake_ups.abandon()
            os.close(self._session_fd)
            self._session_fd = -1

    def _check_open(self) -> None:
        if self._session_fd < 0:
            raise SessionLost(f"this session in {self._root} is closed, or was its parent's before a fork")

    def _transaction(self, tree: Tree) -> Transaction:
        return Transaction(tree, self._session_id, self._numbers.next)

    def _storing(self, operation: Operation) -> Callable[[Mapping[str, Node | None]], None]:
        """Return how the changes of an operation are stored: those of a Multi as a whole, others one by one."""
        return self._nodes.store if isinstance(operation, Multi) else self._nodes.store_each

    def _outcome(
        self, operation: Operation, transaction: Transaction, keep: Callable[[Mapping[str, Node | None]], None]
    ) -> Result | Exception:
        """Return the result of an operation after `keep` has its changes, or its error."""
        try:
            check_operation(operation)
            result = self._apply(operation, transaction)
            keep(transaction.changes)
            return result
        except (CoordinationError, ValueError) as error:
            return error

    def _begin_session(self) -> None:
        self._session_id = secrets.randbelow(1 << 62) + 1  # never reused, so that a dead session's nodes stay dead
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        self._session_fd = os.open(self._session_file(self._session_id), flags, 0o600)
        fcntl.flock(self._session_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._events.append(SessionEstablished(self._session_id))
        for name in os.listdir(self._root / "sessions"):  # this deletes the files that dead sessions left
            if name.isdecimal():
                self._is_alive(int(name))

    @contextmanager
    def _exclusive(self, timeout_ms: int | None = None) -> Iterator[None]:
        """Hold the directory's lock; raise _LockTaken if another session does not release it in time."""
        fd = os.open(self._root / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            deadline = time.monotonic() + (self._lock_timeout_ms if timeout_ms is None else timeout_ms) / 1000
            while not _try_lock(fd, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    raise self._lock_taken()
                time.sleep(LOCK_RETRY_S)
            self._nodes.refresh()
            yield
        finally:
            # Unlock explicitly, because a child forked meanwhile shares the file and would keep the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _lock_taken(self) -> _LockTaken:
        return _LockTaken(f"another process has held {self._root}/.lock for {self._lock_timeout_ms} ms")

    def _apply(self, operation: Operation, transaction: Transaction) -> Result:
        match operation:
            case Get(path, watch):
                self._watch(transaction, "data", path, watch)
                return transaction.existing(path)
            case Children(path, watch):
                transaction.existing(path)
                self._watch(transaction, "children", path, watch)
                return transaction.names(path)
            case _:
                return transaction.apply(operation)

    def _is_alive(self, session_id: int) -> bool:
        """Return True if the session's process still holds its lock; otherwise delete the session's file."""
        if session_id == self._session_id:
            return self._session_fd >= 0
        try:
            fd = os.open(self._session_file(session_id), os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            if not _try_lock(fd, fcntl.LOCK_SH):
                return True
            self._session_file(session_id).unlink(missing_ok=True)
            return False
        finally:
            os.close(fd)

    def _watch(self, tree: Tree, kind: str, path: str, watch: bool) -> None:
        if watch:
            self._watches[kind, path] = self._state_of(tree, kind, path)

    def _state_of(self, tree: Tree, kind: str, path: str) -> object:
        """Return the state that a watch compares. A node made again has the same version but another czxid."""
        if kind == "data":
            return tree.node(path)
        if tree.node(path) is None:
            return None
        children = {name: tree.node(child(path, name)) for name in tree.names(path)}
        return {name: node and node.czxid for name, node in children.items()}

    def _is_watched(self, path: str) -> bool:
        """Return True if a change of the node may concern a watch of this session."""
        return ("data", path) in self._watches or ("children", parent(path)) in self._watches

    def _due_watches(self) -> list[tuple[str, str]]:
        """Return the watches to check: those that a wake-up named, or all of them if the last time is a second ago."""
        watches = list(self._watches)
        changed = self._wake_ups.take_changed() if self._wake_ups is not None else None
        now_s = time.monotonic()
        if changed is None or now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            return watches
        above = {parent(path) for path in changed}
        return [(kind, path) for kind, path in watches if path in (changed if kind == "data" else above)]

    def _wake_others(self, changes: Collection[str]) -> None:
        if changes:
            wake_for(self._root, changes)

    def _session_file(self, session_id: int) -> Path:
        return self._root / "sessions" / str(session_id)


def refuse_network_file_system(path: Path) -> None:
    """Raise CoordinatorUnavailable if /proc/mounts places `path` on a network file system."""
    try:
        mounts = Path("/proc/mounts").read_text()
    except OSError:
        return  # not Linux: the file system cannot be recognised
    kind = file_system_of(path.resolve(), mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise CoordinatorUnavailable(
            f"{path} is on a network file system ({kind}), whose locks cannot be relied on; "
            f"use a local directory, or ZooKeeper for more than one machine. To insist: "
            f"flakelog.ids.directory.network.allow=true"
        )


def file_system_of(path: Path, mounts: str) -> str:
    """Return the type of the file system that holds `path`, from the text of /proc/mounts; '' if nothing matches."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        at = Path(fields[1].encode().decode("unicode_escape")) if len(fields) > 2 else None
        if at and path.is_relative_to(at) and len(at.parts) >= best:
            best, kind = len(at.parts), fields[2]
    return kind


def has_nodes(directory: str | os.PathLike[str]) -> bool:
    """Return True if a coordinator keeps its nodes in `directory`; change nothing."""
    return (Path(directory) / "nodes").is_dir()


def _writes(operation: Operation) -> int:
    """Return how many nodes an operation creates and sets."""
    parts = operation.operations if isinstance(operation, Multi) else (operation,)
    return sum(isinstance(part, (Create, Set)) for part in parts)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# A forked child shares its parent's locks. If the child kept them, the parent's session would outlive the parent.
_sessions: "WeakSet[DirectoryCoordinator]" = WeakSet()


def _end_sessions_in_child() -> None:
    for session in _sessions:
        session.abandon()


os.register_at_fork(after_in_child=_end_sessions_in_child)
