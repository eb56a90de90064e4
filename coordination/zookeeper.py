"""SHELL (sockets, threads and files, by kazoo): a coordinator on a ZooKeeper ensemble. The only importer of kazoo.

`execute` blocks its thread for at most `request_timeout_ms`. `begin` is non-blocking: it answers by a callback in
kazoo's thread (coordination.deferred makes a Deferred of it). kazoo must never be called synchronously from a state
listener (python-zk/kazoo#356, #405), so the listeners here only record events.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event as Flag
from threading import Lock
from typing import Any, NamedTuple

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    CancelledError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RequestTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
    ZookeeperStoppedError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState, WatchedEvent
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from coordination.access import Access, Protection, an_ensemble
from coordination.port import (
    BadVersion,
    Changed,
    Check,
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
    SessionEnded,
    SessionEstablished,
    SessionLost,
    SessionSuspended,
    Set,
    Written,
    check_operation,
    described,
)

CONNECT_TIMEOUT_MS = 15_000
ATTEMPT_PART = 1 / 3  # of the session timeout, for one attempt to connect, so that a second one is in time
REQUEST_TIMEOUT_MS = 10_000  # a request waits this long for a connection to come back; then its outcome is unknown

# kazoo's messages become our errors and events. Without a handler Python prints each failed attempt to stderr.
logging.getLogger("kazoo").addHandler(logging.NullHandler())

_ERRORS: dict[type[Exception], type[CoordinationError]] = {
    NodeExistsError: NodeExists,
    NoNodeError: NoNode,
    NoChildrenForEphemeralsError: NoNode,
    BadVersionError: BadVersion,
    NotEmptyError: NotEmpty,
    SessionExpiredError: SessionLost,
    ConnectionLoss: ConnectionLost,
    ConnectionDropped: ConnectionLost,
    KazooTimeoutError: ConnectionLost,
    OperationTimeoutError: ConnectionLost,
    RequestTimeoutError: ConnectionLost,
    ThrottledOpError: ConnectionLost,
    SessionMovedError: ConnectionLost,
    CancelledError: ConnectionLost,
    ZookeeperStoppedError: ConnectionLost,
}
"""The port's error for each of kazoo's; for any other the server has refused the operation, and would again."""

_ACLS: dict[Protection, list[ACL]] = {
    Protection.OPEN: OPEN_ACL_UNSAFE,
    Protection.READABLE: CREATOR_ALL_ACL + READ_ACL_UNSAFE,
    Protection.SECRET: CREATOR_ALL_ACL,
}

Done = Callable[[Result | CoordinationError], object]


class _ProtectingClient(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """kazoo's client, which creates each node with the ACL of its path, and so do the parents that are missing."""

    access = Access()

    def acl_of(self, path: str) -> list[ACL]:
        return _ACLS[self.access.protection(path)]

    def create_async(self, path: str, value: bytes = b"", acl: Any = None, **options: Any) -> IAsyncResult:
        return super().create_async(path, value, acl or self.acl_of(path), **options)

    def ensure_path_async(self, path: str, acl: Any = None) -> IAsyncResult:
        return super().ensure_path_async(path, self.acl_of(path))


class _ConnectTimes(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's handler, with a shorter time for each attempt to connect.

    kazoo waits a whole session timeout for the answer to its first request. A ZooKeeper that starts may accept a
    connection and never answer it, and then the session would end while kazoo waits. So an attempt is given up after
    `attempt_s` seconds, and the next one finds a server in time.
    """

    def __init__(self, attempt_s: float) -> None:
        super().__init__()
        self.is_connected: Callable[[], bool] = lambda: True
        self._attempt_s = attempt_s
        self._until_s = 0.0

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        self._until_s = time.monotonic() + self._attempt_s
        return super().create_connection(*args, **{**kwargs, "timeout": self._attempt_s})

    def select(self, read: Any, write: Any, errors: Any, timeout: float | None = None) -> Any:
        if not self.is_connected():
            left_s = max(self._until_s - time.monotonic(), 0)
            timeout = left_s if timeout is None else min(timeout, left_s)
        return super().select(read, write, errors, timeout)


class ZooKeeperCoordinator:
    """A session with an ensemble: hosts as 'a:2181,b:2181/chroot'. Raises CoordinatorUnavailable if none answers.

    With `wait` off nothing blocks; the caller then calls `wait_until_connected` before anything else, in a thread that
    may block. A chroot that is missing is created, unless `make_chroot` is off: then the session finds no node.
    """

    def __init__(
        self,
        hosts: str,
        access: Access = Access(),
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        wait: bool = True,
        make_chroot: bool = True,
    ) -> None:
        self._hosts = hosts
        self._makes_chroot = make_chroot
        self.request_timeout_ms = request_timeout_ms
        self._pid = os.getpid()
        self._lock = Lock()
        self._events: dict[Event, None] = {}  # an ordered set: one entry for each event, even if it came several times
        self._lost_watches: dict[str, None] = {}  # an ordered set of paths whose watches ended with their connection
        self._is_connected = False
        self._settled = Flag()  # connected, refused or closed: nothing to wait for
        self._closed = False
        self._wake: Callable[[], None] | None = None
        self.session_timeout_ms = access.session_timeout_ms
        """The session timeout that the server has granted; before the first connection, what we ask for."""
        self._client = _client(hosts, access)
        _tell_granted(self._client, self._granted)
        self._client.add_listener(self._state_changed)
        self._client.start_async()
        if wait:
            self.wait_until_connected(connect_timeout_ms)

    def wait_until_connected(self, timeout_ms: int) -> None:
        """Block until a server answers; after `timeout_ms`, close the session and raise CoordinatorUnavailable."""
        self._settled.wait(timeout_ms / 1000)
        if self._closed:
            raise CoordinatorUnavailable(f"the session with ZooKeeper at {self._hosts} was closed while it was opened")
        try:
            if not self._client.connected:
                raise KazooTimeoutError
            if self._makes_chroot:
                self._make_chroot()
        except (KazooTimeoutError, KazooException) as error:
            self.close()
            raise CoordinatorUnavailable(self._why_not(error, timeout_ms)) from error

    def _make_chroot(self) -> None:
        """Create the chroot with all its parents, because kazoo itself creates only its last name."""
        client = self._client
        chroot, client.chroot = client.chroot, ""
        try:
            if chroot:
                client.ensure_path(chroot)
        finally:
            client.chroot = chroot

    def _why_not(self, error: Exception, timeout_ms: int) -> str:
        if isinstance(error, NoAuthError):
            return f"ZooKeeper at {self._hosts} lets us make no chroot; check the file of our credentials"
        return f"no ZooKeeper answered at {self._hosts} in {timeout_ms} ms"

    @property
    def session_id(self) -> int:
        client_id = self._client.client_id
        return int(client_id[0]) if client_id else 0

    @property
    def scope(self) -> str:
        return f"zookeeper {self._hosts}"

    def execute(self, operation: Operation) -> Result:
        try:
            pending = self._ask(operation)
            return _result(operation, pending.get(timeout=self.request_timeout_ms / 1000))
        except (KazooException, KazooTimeoutError) as error:
            raise _translated(operation, error) from error

    def begin(self, operation: Operation, done: Done) -> None:
        """Send the operation; `done` receives the result or the error in a thread of kazoo's. There is no deadline."""
        self._ask(operation).rawlink(lambda pending: done(_outcome(operation, pending)))

    def take_events(self) -> list[Event]:
        with self._lock:
            events = list(self._events)
            self._events.clear()
        return events

    def on_wake(self, wake: Callable[[], None]) -> None:
        self._wake = wake  # called in a thread of kazoo's

    def close(self) -> None:
        if os.getpid() == self._pid:  # a forked child has none of kazoo's threads; the session is its parent's
            self._closed = True
            self._settled.set()
            self._client.remove_listener(self._state_changed)
            self._client.stop()
            self._client.close()

    def protect(self, path: str, protection: Protection) -> None:
        """Replace the ACL of a node that exists. Raises NoNode, ConnectionLost and CoordinatorUnavailable."""
        try:
            self._client.set_acls_async(path, _ACLS[protection]).get(timeout=self.request_timeout_ms / 1000)
        except (KazooException, KazooTimeoutError) as error:
            raise _kind_of(error)(f"the ACL of {path}: {_reason(error)}") from error

    def _ask(self, operation: Operation) -> IAsyncResult:
        check_operation(operation)
        if os.getpid() != self._pid:
            raise SessionLost("this session with ZooKeeper was made by the parent process; connect anew after a fork")
        client = self._client
        match operation:
            case Create(path, data, ephemeral, sequential):
                return client.create_async(path, data, ephemeral=ephemeral, sequence=sequential, makepath=True)
            case Set(path, data, version):
                return client.set_async(path, data, version)
            case Delete(path, version):
                return client.delete_async(path, version)
            case Children(path, watch):
                return client.get_children_async(path, watch=_Watch(self._watched, path) if watch else None)
            case Get(path, watch):
                return _watched_get(client, path, _Watch(self._watched, path)) if watch else client.get_async(path)
            case Multi(operations):
                return _transaction(client, operations).commit_async()

    def _watched(self, path: str, event: WatchedEvent) -> None:
        """Report a change of a node. Report one too if the watch ended with its connection, once there is another.

        kazoo does not set watches again on a new connection, and the node may have changed meanwhile.
        """
        if event.path is None:
            with self._lock:
                if not self._is_connected:
                    self._lost_watches[path] = None
                    return
        self._happened(Changed(path))

    def _granted(self, timeout_ms: int) -> None:
        self.session_timeout_ms = timeout_ms

    def _state_changed(self, state: str) -> None:
        self._settled.set()
        with self._lock:
            self._is_connected = state == KazooState.CONNECTED
            lost = list(self._lost_watches) if self._is_connected else []
            for path in lost:
                del self._lost_watches[path]
        if state == KazooState.CONNECTED:
            self._happened(SessionEstablished(self.session_id, self.session_timeout_ms))
        else:
            self._happened(SessionEnded() if state == KazooState.LOST else SessionSuspended())
        for path in lost:
            self._happened(Changed(path))

    def _happened(self, event: Event) -> None:
        with self._lock:
            self._events.pop(event, None)  # move a repeated event to the end, because its last occurrence counts
            self._events[event] = None
        if self._wake is not None:
            self._wake()


class _Watch(NamedTuple):
    """A watch of a node. Two of the same node are equal, so that kazoo keeps one of them."""

    watched: Callable[[str, WatchedEvent], None]
    path: str

    def __call__(self, event: WatchedEvent) -> None:
        self.watched(self.path, event)


def _client(hosts: str, access: Access) -> KazooClient:
    """Return kazoo's client, not started; it retries to connect forever, pausing at most one second.

    Raise CoordinatorUnavailable if the hosts cannot be those of an ensemble.
    """
    if wanted := an_ensemble(hosts):
        raise CoordinatorUnavailable(f"ZooKeeper at {hosts!r}: {wanted}")
    credentials = _credentials(access.credentials_file) if access.credentials_file else None
    handler = _ConnectTimes(access.session_timeout_ms / 1000 * ATTEMPT_PART)
    client = _ProtectingClient(
        hosts,
        handler=handler,
        timeout=access.session_timeout_ms / 1000,
        connection_retry={"max_tries": -1, "max_delay": 1},
        auth_data=[("digest", credentials)] if credentials else None,
        use_ssl=access.tls,
        ca=access.truststore,
        certfile=access.keystore,
        keyfile=access.keystore,
        check_hostname=access.verify_hostname,
    )
    client.access = access
    handler.is_connected = lambda: client.connected
    return client


def _tell_granted(client: KazooClient, granted: Callable[[int], None]) -> None:
    """Call `granted` with the session timeout of each connection, before the listeners hear of the connection.

    kazoo only logs it. So this reads the server's answer to the first request of the connection.
    """
    connection = client._connection
    invoke = connection._invoke

    def read(timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = invoke(timeout, request, xid)
        if isinstance(request, Connect) and answer[0].time_out > 0:  # 0 says that the session has ended
            granted(int(answer[0].time_out))
        return answer

    connection._invoke = read


def _watched_get(client: KazooClient, path: str, watch: _Watch) -> IAsyncResult:
    """Read a node and watch it. `exists` leaves a watch on a missing node too; the answers come in order.

    If the connection is lost between the two, the next connection answers `get`, and has no watch. So an error of
    `exists` is the outcome.
    """
    exists, get = client.exists_async(path, watch=watch), client.get_async(path)
    both = client.handler.async_result()

    def answered(_: IAsyncResult) -> None:
        error = exists.exception or get.exception
        if error is None:
            both.set(get.value)
        else:
            both.set_exception(error)

    get.rawlink(answered)
    return both


def _transaction(client: _ProtectingClient, operations: Sequence[Check | Create | Set | Delete]) -> TransactionRequest:
    """Return kazoo's transaction of the operations, not sent."""
    transaction = client.transaction()
    for operation in operations:
        match operation:
            case Check(path, version):
                transaction.check(path, version)
            case Create(path, data, ephemeral, sequential):
                transaction.create(path, data, client.acl_of(path), ephemeral=ephemeral, sequence=sequential)
            case Set(path, data, version):
                transaction.set_data(path, data, version)
            case Delete(path, version):
                transaction.delete(path, version)
    return transaction


def _credentials(file: str) -> str:
    """Return the line "user:password" of a file; raise CoordinatorUnavailable if the file has no such line."""
    try:
        text = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CoordinatorUnavailable(f"credentials for ZooKeeper in {file}: {error}") from error
    user, colon, password = text.partition(":")
    if not (user and colon and password) or "\n" in text:
        raise CoordinatorUnavailable(f"credentials for ZooKeeper in {file}: must be one line, user:password")
    return text


def _outcome(operation: Operation, pending: IAsyncResult) -> Result | CoordinationError:
    try:
        return _result(operation, pending.get(block=False))
    except (KazooException, KazooTimeoutError) as error:
        return _translated(operation, error)
    except CoordinationError as error:
        return error


def _result(operation: Operation, answer: Any) -> Result:
    """Convert kazoo's answer to the port's result; raise the error of the operation of a Multi that failed."""
    match operation, answer:
        case Get(), (data, stat):
            return Node(data, stat.version, stat.ephemeralOwner, stat.czxid, stat.mtime)
        case Children(), list(names):
            return tuple(sorted(names))
        case Multi(operations), list(answers):
            if any(isinstance(part, KazooException) for part in answers):
                raise _failure(operation, answers)
            return tuple(_written(part, answer) for part, answer in zip(operations, answers, strict=True))
        case (Create() | Set() | Delete()) as part, _:
            return _written(part, answer)
    return None


def _written(operation: Check | Create | Set | Delete, answer: Any) -> Written:
    match operation, answer:
        case Create(), str(path):
            return path
        case Set(), stat:
            version: int = stat.version
            return version
    return None


def _failure(multi: Multi, answers: Sequence[Any]) -> CoordinationError:
    """Return the error of the operation that failed; the server answers RolledBack and RuntimeInconsistency for others.

    kazoo reports a transaction that failed as its result.
    """
    for index, (part, answer) in enumerate(zip(multi.operations, answers, strict=True)):
        if not isinstance(answer, (RolledBackError, RuntimeInconsistency)):
            error = _translated(part, answer)
            error.index = index
            return error
    return ConnectionLost(f"{described(multi)}: rolled back for no reason")


def _translated(operation: Operation | Check, error: Exception) -> CoordinationError:
    """Convert kazoo's error to the port's."""
    return _kind_of(error)(f"{described(operation)}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Return kazoo's error in words; most of its errors have none."""
    if isinstance(error, NoAuthError):
        return (
            "ZooKeeper lets others alone do this (NoAuth), because the node was made with other credentials: give this "
            "process the user and password of flakelog.ids.zookeeper.credentials.file, or the certificate, that the "
            "others have"
        )
    return str(error) or type(error).__name__


def _kind_of(error: Exception) -> type[CoordinationError]:
    """Return the port's error for kazoo's: CoordinatorUnavailable for a refusal such as NoAuth or QuotaExceeded."""
    return next((ours for theirs, ours in _ERRORS.items() if isinstance(error, theirs)), CoordinatorUnavailable)
