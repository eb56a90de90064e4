"""SHELL (files, flock, a clock for its deadline): a coordinator for one machine, in a directory.

    <directory>/.lock             locked exclusively during each operation, so that operations are serialized
    <directory>/sessions/<id>     locked exclusively while the session's process lives; the kernel releases the lock at
                                  kill -9 and at power loss, so an ephemeral node never outlives its session
    <directory>/nodes/a/b/.node   the node /a/b: one line "<version> <owner>", then its data
    <directory>/packed            nodes that were written together (coordination/packed_nodes.py)

A node is written to a new file, which is synced and renamed over the old one. Then its directory is synced, and only
then is the operation acknowledged. So an acknowledged node survives a power cut, and is never half-written. The
directory of an ephemeral node is not synced, because a power cut ends its session anyway.
Locks of files are not reliable on network file systems, so such a directory is refused if it can be recognised.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

from coordination.packed_nodes import DATA_BYTES_MAX, PackedNodes, sync_directory
from coordination.port import (
    ANY_VERSION,
    PERSISTENT,
    BadVersion,
    Changed,
    Children,
    ConnectionLost,
    CoordinationError,
    CoordinatorUnavailable,
    Create,
    Delete,
    Event,
    Get,
    Multi,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Result,
    SessionEstablished,
    SessionLost,
    Set,
    check_operation,
    described,
    parent,
)

LOCK_TIMEOUT_MS = 5_000  # operations take ms; a process stopped while holding the lock must not block others forever
LOCK_RETRY_S = 0.002
NODE_FILE = ".node"
PACKED_MIN = 8  # a group of fewer writes is faster in files of their own
NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 cifs smb3 smbfs afs ceph fuse.ceph lustre glusterfs fuse.glusterfs fuse.sshfs beegfs gpfs ocfs2 gfs2 9p "
    "virtiofs coda davfs fuse.s3fs fuse.gcsfuse fuse.rclone fuse.juicefs fuse.davfs2 vboxsf prl_fs orangefs".split()
)


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
        self._packed = PackedNodes(self._root)
        self._group: dict[str, Node] | None = None  # written together, not yet on the disk
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
        try:
            with self._exclusive():
                return self._apply(operation)
        except OSError as error:
            raise ConnectionLost(f"{described(operation)} in {self._root}: {error}") from error

    def execute_all(self, operations: Sequence[Operation]) -> list[Result | Exception]:
        """Carry out the operations in order; return the result of each, or its error.

        Many writes are synced together. Raise SessionLost or ConnectionLost if the outcome of all is not known.
        """
        self._check_open()
        writes = sum(isinstance(operation, (Create, Set)) for operation in operations)
        try:
            with self._exclusive():
                self._group = {} if writes >= PACKED_MIN else None
                results = [self._outcome(operation) for operation in operations]
                if self._group:
                    self._packed.write({**self._packed.nodes, **self._group})
                return results
        except OSError as error:
            raise ConnectionLost(f"{len(operations)} operations in {self._root}: {error}") from error
        finally:
            self._group = None

    def take_events(self) -> list[Event]:
        """Return the events since the last call.

        Watches are checked only in this call, because another process's change to a file is not reported to us.
        """
        events, self._events = self._events, []
        if self._watches and self._session_fd >= 0:
            with self._exclusive():
                for (kind, path), seen in list(self._watches.items()):
                    if self._state_of(kind, path) != seen:
                        del self._watches[kind, path]
                        events.append(Changed(path))
        return events

    def on_wake(self, wake: Callable[[], None]) -> None:
        """Accept the callback; watches are checked in take_events only."""

    def close(self) -> None:
        """End the session; the next session that reads one of its ephemeral nodes removes that node."""
        if self._session_fd >= 0:
            os.close(self._session_fd)
            self._session_fd = -1

    def _check_open(self) -> None:
        if self._session_fd < 0:
            raise SessionLost(f"this session in {self._root} is closed, or was its parent's before a fork")

    def _outcome(self, operation: Operation) -> Result | Exception:
        try:
            check_operation(operation)
            return self._apply(operation)
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
    def _exclusive(self) -> Iterator[None]:
        """Hold the directory's lock; raise ConnectionLost if another process does not release it in time."""
        fd = os.open(self._root / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            deadline = time.monotonic() + self._lock_timeout_ms / 1000
            while not _try_lock(fd, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise ConnectionLost(f"another process has held {self._root}/.lock for {self._lock_timeout_ms} ms")
                time.sleep(LOCK_RETRY_S)
            self._packed.refresh()
            yield
        finally:
            # Unlock explicitly, because a child forked meanwhile shares the file and would keep the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _apply(self, operation: Operation) -> Result:
        match operation:
            case Create():
                return self._create(operation)
            case Set(path, data, version):
                node = self._changeable(path, version)
                self._write(path, Node(data, node.version + 1, node.owner))
                return node.version + 1
            case Delete(path, version):
                self._changeable(path, version)
                if self._children(path):
                    raise NotEmpty(path)
                self._remove(path)
            case Get(path, watch):
                self._watch("data", path, watch)
                return self._node(path)
            case Children(path, watch):
                self._node(path)
                self._watch("children", path, watch)
                return self._children(path)
            case Multi():
                raise CoordinatorUnavailable(f"directory {self._root} carries out no Multi yet")
        return None

    def _create(self, create: Create) -> str:
        if self._read(create.path) is not None:
            raise NodeExists(create.path)
        above = self._read(parent(create.path))
        if above is None:
            self._create(Create(parent(create.path)))
        elif above.owner != PERSISTENT:
            raise NoNode(f"{parent(create.path)} is ephemeral and can have no children")
        self._write(create.path, Node(create.data, 0, self._session_id if create.ephemeral else PERSISTENT))
        return create.path

    def _node(self, path: str) -> Node:
        node = self._read(path)
        if node is None:
            raise NoNode(path)
        return node

    def _changeable(self, path: str, version: int) -> Node:
        node = self._node(path)
        if version not in (node.version, ANY_VERSION):
            raise BadVersion(f"{path} is at version {node.version}, not {version}")
        return node

    def _children(self, path: str) -> tuple[str, ...]:
        packed = (*self._packed.nodes, *(self._group or ()))
        names = {child.rpartition("/")[2] for child in packed if parent(child) == path}
        with suppress(FileNotFoundError):  # a packed node needs no folder
            names.update(entry.name for entry in os.scandir(self._folder(path)) if entry.is_dir())
        return tuple(name for name in sorted(names) if self._read(f"{path.rstrip('/')}/{name}") is not None)

    def _read(self, path: str) -> Node | None:
        """Return the node, or None. An ephemeral node whose session has ended is removed and counts as missing."""
        if self._group and path in self._group:
            return self._group[path]
        packed = self._packed.nodes.get(path)
        alone = self._read_file(path)
        if packed is None or alone is None:
            return packed or alone
        return packed if packed.version > alone.version else alone

    def _read_file(self, path: str) -> Node | None:
        try:
            header, _, data = (self._folder(path) / NODE_FILE).read_bytes().partition(b"\n")
        except FileNotFoundError:
            return Node(b"", 0, PERSISTENT) if path == "/" else None
        try:
            version, owner = map(int, header.split())
        except ValueError:
            raise CoordinatorUnavailable(f"{self._folder(path) / NODE_FILE} is damaged: {header[:40]!r}") from None
        if owner == PERSISTENT or self._is_alive(owner):
            return Node(data, version, owner)
        self._remove(path)
        return None

    def _write(self, path: str, node: Node) -> None:
        durable = node.owner == PERSISTENT
        if self._group is not None and durable and len(node.data) <= DATA_BYTES_MAX:
            self._group[path] = node
            return
        if self._group:
            self._group.pop(path, None)
        folder = self._folder(path)
        missing = [ancestor for ancestor in (folder, *folder.parents) if not ancestor.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "wb") as file:
            file.write(b"%d %d\n" % (node.version, node.owner) + node.data)
            file.flush()
            os.fsync(fd)
        os.rename(folder / ".new", folder / NODE_FILE)
        if durable:
            sync_directory(folder)
            for created in missing:
                sync_directory(created.parent)

    def _remove(self, path: str) -> None:
        folder = self._folder(path)
        if self._group:
            self._group.pop(path, None)
        packed = self._packed.nodes
        if path in packed:  # before the file, which may be older
            self._packed.write({other: node for other, node in packed.items() if other != path})
        (folder / NODE_FILE).unlink(missing_ok=True)
        (folder / ".new").unlink(missing_ok=True)
        sync_directory(folder)
        with suppress(OSError):  # a power cut may leave part of a child in it; a folder without a node file is no node
            folder.rmdir()

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

    def _watch(self, kind: str, path: str, watch: bool) -> None:
        if watch:
            self._watches[kind, path] = self._state_of(kind, path)

    def _state_of(self, kind: str, path: str) -> object:
        """Return the state that a watch compares.

        For data it is the node, and the inode and mtime of its file if it has one, because a node deleted and created
        again has the same version but another file.
        """
        node = self._read(path)
        if node is None:
            return None
        if kind == "children":
            return self._children(path)
        try:
            stat = (self._folder(path) / NODE_FILE).stat()
        except FileNotFoundError:
            return node
        return node, stat.st_ino, stat.st_mtime_ns

    def _folder(self, path: str) -> Path:
        return self._root / "nodes" / path[1:]

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
        session.close()


os.register_at_fork(after_in_child=_end_sessions_in_child)
