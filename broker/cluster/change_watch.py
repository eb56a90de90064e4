"""The frame of a broker's views of the coordinator: it reads all of a kind when a session begins, then what changes.

Kafka's brokers of 3.9 learn so of settings and of access rules. A writer makes a change node, which names what it has
changed. The node says only that there is a change; the present state is read from the state's own node.

    begin -> read change nodes (watched), read all
             a change path changed -> read new change nodes (watched), read what they name

A shell carries out `take_operations` and passes the results to `completed`, passes the coordinator's events to
`notified`, and calls `tick` at `next_deadline_ms`.
"""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from broker.cluster.driver import Driver
from broker.cluster.json_document import DamagedDocument
from broker.cluster.procedure import Pause, Procedure, read, read_children
from broker.now import Now
from broker.waiting.pending import Pending
from coordination.port import (
    Changed,
    CoordinationError,
    Delete,
    Event,
    Get,
    Node,
    NoNode,
    Operation,
    Result,
    SessionEnded,
    SessionLost,
)

CHANGE_EXPIRATION_MS = 15 * 60 * 1_000
"""The age at which a change node is deleted (Kafka's change.expiration).

Each broker has read the node by then: a session without any answer ends within minutes, and a new session reads all.
"""
PAUSE_AFTER_ERROR_MS = 1_000

Key = TypeVar("Key")
"""Names one thing that may change: an entity with settings, a resource with rules."""


class ChangeWatch(Generic[Key]):
    """A view of one kind. A subclass says what a change node names, and reads it.

    `what` is the kind, for people, and `change_paths` are the parents of its change nodes. `has_read_all` is True once
    the first read of all is complete. `problems` says which nodes are damaged, by path; what they hold stays as it was
    read last. `failure` is the error that ended the last read, None if the read went well.
    """

    what: str
    change_paths: tuple[str, ...]

    def __init__(self, pending: Pending) -> None:
        self.has_read_all = False
        self.problems: dict[str, str] = {}
        self.failure: str | None = None
        self._driver = Driver(pending)
        self._changes_seen: dict[str, int] = {}  # paths of change nodes, with the time of the first look at each
        self._is_in_session = False
        self._must_read_all = False
        self._must_read_changes = False

    @property
    def problem(self) -> str | None:
        """Return the error of the last read, or the reason of a damaged node; None if all is well."""
        return self.failure or next(iter(self.problems.values()), None)

    @property
    def is_idle(self) -> bool:
        """Return True if no read is in progress or waits."""
        return not self._driver.is_running and not (self._is_in_session and self._must_read)

    def begin(self, now: Now) -> None:
        """Read all, because a session has begun. The change paths must exist, or be made by `_read_everything`: a node
        that does not exist takes no watch."""
        self._driver.cancel()
        self._is_in_session = True
        self._must_read_all = True
        self._run(now)

    def stop(self) -> None:
        """Read nothing more until `begin`. The state that was read last holds."""
        self._is_in_session = False
        self._driver.cancel()

    # --- the coordinator -----------------------------------------------------------------------------------------

    def take_operations(self) -> list[Operation]:
        return self._driver.take_operations()

    def completed(self, operation: Operation, outcome: Result | CoordinationError, now: Now) -> None:
        """Take the result or the error of an operation, which is the same object that `take_operations` returned."""
        self._driver.completed(operation, outcome, now)

    def notified(self, event: Event, now: Now) -> None:
        match event:
            case SessionEnded():
                self.stop()
            case Changed(path) if path in self.change_paths:
                self._must_read_changes = True
                self._run(now)

    def tick(self, now: Now) -> None:
        self._driver.tick(now)
        self._run(now)

    def next_deadline_ms(self) -> int | None:
        return self._driver.next_deadline_ms()

    # --- what a subclass says ------------------------------------------------------------------------------------

    def _decode_change(self, path: str, data: bytes) -> Key:
        """Return what a change node names. Raise DamagedDocument."""
        raise NotImplementedError

    def _read_everything(self) -> Procedure[None]:
        """Read all of the kind. Clear `problems` after the last read that may fail."""
        raise NotImplementedError

    def _read(self, keys: Iterable[Key]) -> Procedure[None]:
        """Read these."""
        raise NotImplementedError

    def _prepare(self) -> Procedure[None]:
        """Make what must be there before the first read."""
        yield ()

    # --- the work ------------------------------------------------------------------------------------------------

    @property
    def _must_read(self) -> bool:
        return self._must_read_all or self._must_read_changes

    def _is_due(self, now: Now) -> bool:
        return self._must_read

    def _run(self, now: Now) -> None:
        if self._is_due(now) and self._is_in_session and not self._driver.is_running:
            self._driver.begin(self._work(now), self._ended, now)

    def _work(self, now: Now) -> Procedure[None]:
        """Do one thing that waits."""
        if self.failure is not None:
            yield Pause(PAUSE_AFTER_ERROR_MS, f"the last read of {self.what} failed: {self.failure}")
        yield from self._read_due(now)
        self.failure = None

    def _read_due(self, now: Now) -> Procedure[None]:
        if self._must_read_all:
            yield from self._read_all(now)
        else:
            yield from self._read_changes(now)

    def _ended(self, value: Any, error: Exception | None, now: Now) -> None:
        if isinstance(error, SessionLost):
            self._is_in_session = False  # `begin` follows
            return
        if error is not None:
            if not isinstance(error, CoordinationError):
                raise error
            self.failure = str(error) or type(error).__name__
            self._must_read_all = True
        self._run(now)

    def _read_all(self, now: Now) -> Procedure[None]:
        """Read the change nodes first, so that a change during the reads of the others is read again."""
        if not self.has_read_all:
            yield from self._prepare()
        self._must_read_changes = False  # before the read, so that a later event causes another read
        paths = yield from self._read_change_paths()
        yield from self._read_everything()
        self._note_changes(paths, now)
        self._must_read_all = False
        self.has_read_all = True
        yield from self._delete_expired(now)

    def _read_changes(self, now: Now) -> Procedure[None]:
        self._must_read_changes = False  # before the read, so that a later event causes another read
        paths = yield from self._read_change_paths()
        new = [path for path in paths if path not in self._changes_seen]
        keys: dict[Key, None] = {}
        for path, outcome in zip(new, (yield from read([Get(path) for path in new])), strict=True):
            if isinstance(outcome, NoNode):  # deleted before it was read: anything may have changed
                self._must_read_all = True
                return
            if isinstance(outcome, CoordinationError):
                raise outcome
            assert isinstance(outcome, Node)
            try:
                keys[self._decode_change(path, outcome.data)] = None
            except DamagedDocument as error:
                self.problems[path] = str(error)
        yield from self._read(keys)
        self._note_changes(paths, now)
        yield from self._delete_expired(now)

    # --- change nodes --------------------------------------------------------------------------------------------

    def _read_change_paths(self) -> Procedure[list[str]]:
        """Return the paths of all change nodes, and watch for new ones."""
        paths: list[str] = []
        for change_path in self.change_paths:
            paths += [f"{change_path}/{name}" for name in (yield from read_children(change_path, watch=True))]
        return paths

    def _note_changes(self, paths: list[str], now: Now) -> None:
        self._changes_seen = {path: self._changes_seen.get(path, now.ms) for path in paths}
        parents = tuple(f"{change_path}/" for change_path in self.change_paths)
        for path in [path for path in self.problems if path.startswith(parents) and path not in self._changes_seen]:
            del self.problems[path]

    def _delete_expired(self, now: Now) -> Procedure[None]:
        """Delete the change nodes that this broker saw long ago. A node that cannot be deleted now is tried again."""
        expired = [path for path, seen_ms in self._changes_seen.items() if seen_ms <= now.ms - CHANGE_EXPIRATION_MS]
        yield tuple(Delete(path) for path in expired)
