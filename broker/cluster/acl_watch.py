"""A broker's view of all access rules in the coordinator (the AclAuthorizer of Kafka 3.9).

At the start of each session the watch reads the rules of all resources. From then on it reads the resources that new
change nodes name. While the coordinator is away, the rules that were read last hold.

    begin -> read change nodes (watched), read all resources -> the rules
             a change path changed -> read new change nodes (watched), read their resources -> the rules

A shell carries out `take_operations` and passes the results to `completed`, passes the coordinator's events to
`notified`, calls `tick` at `next_deadline_ms`, and uses `take_acls`.
"""

from collections.abc import Iterable
from typing import Any

from broker.cluster.acl_documents import CHANGE_PATHS, PARENTS, AclResource, decode_acl_change, decode_acls
from broker.cluster.driver import Driver
from broker.cluster.json_document import DamagedDocument
from broker.cluster.procedure import Pause, Procedure, read, read_children
from broker.cluster.registration import create_if_missing
from broker.now import Now
from broker.security.authorization.acl import AclBinding
from coordination.port import (
    Changed,
    Children,
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
"""The age at which a change node is deleted, as in Kafka."""
PAUSE_AFTER_ERROR_MS = 1_000


class AclWatch:
    """The rules of all resources, as this broker has read them.

    `has_read_all` is True once the first read of all resources is complete. `problems` says which nodes are damaged, by
    path; their resources keep the rules that were read last.
    """

    def __init__(self) -> None:
        self.has_read_all = False
        self.problems: dict[str, str] = {}
        self.failure: str | None = None
        """The error that ended the last read; None if the read went well."""
        self._driver = Driver()
        self._acls: dict[AclResource, frozenset[AclBinding]] = {}
        self._is_changed = False
        self._changes_seen: dict[str, int] = {}  # paths of change nodes, with the time of the first look at each
        self._is_in_session = False
        self._must_read_all = False
        self._must_read_changes = False

    def begin(self, now: Now) -> None:
        """Read all rules, because a session has begun."""
        self._driver.cancel()
        self._is_in_session = True
        self._must_read_all = True
        self._run(now)

    def stop(self) -> None:
        """Read nothing more until `begin`. The rules that were read hold."""
        self._is_in_session = False
        self._driver.cancel()

    def take_acls(self) -> frozenset[AclBinding] | None:
        """Return all rules if they have changed since the last call, else None."""
        if not self._is_changed:
            return None
        self._is_changed = False
        return frozenset().union(*self._acls.values())

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
            case Changed(path) if path in CHANGE_PATHS:
                self._must_read_changes = True
                self._run(now)

    def tick(self, now: Now) -> None:
        self._driver.tick(now)
        self._run(now)

    def next_deadline_ms(self) -> int | None:
        return self._driver.next_deadline_ms()

    # --- the work ------------------------------------------------------------------------------------------------

    def _run(self, now: Now) -> None:
        is_due = self._must_read_all or self._must_read_changes
        if is_due and self._is_in_session and not self._driver.is_running:
            self._driver.begin(self._work(now), self._ended, now)

    def _work(self, now: Now) -> Procedure[None]:
        if self.failure is not None:
            yield Pause(PAUSE_AFTER_ERROR_MS, f"the last read of access rules failed: {self.failure}")
        if self._must_read_all:
            yield from self._read_all(now)
        else:
            yield from self._read_changes(now)
        self.failure = None

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
        """Read the change nodes first, so that a change during the reads of the resources is read again."""
        if not self.has_read_all:
            for path in (*PARENTS, *CHANGE_PATHS):
                yield from create_if_missing(path)
        self._must_read_changes = False
        names = yield from self._read_change_paths()
        resources: list[AclResource] = []
        for parent, names_below in zip(PARENTS, (yield from read([Children(path) for path in PARENTS])), strict=True):
            if isinstance(names_below, CoordinationError) and not isinstance(names_below, NoNode):
                raise names_below
            if isinstance(names_below, tuple):
                resources += [AclResource(*PARENTS[parent], str(name)) for name in names_below]
        self.problems.clear()
        for resource in self._acls.keys() - set(resources):
            del self._acls[resource]
            self._is_changed = True
        yield from self._read(resources)
        self._changes_seen = {path: self._changes_seen.get(path, now.ms) for path in names}
        self._is_changed = self._is_changed or not self.has_read_all
        self.has_read_all = True
        self._must_read_all = False
        yield from self._delete_expired(now)

    def _read_changes(self, now: Now) -> Procedure[None]:
        self._must_read_changes = False  # before the read, so that a later event causes another read
        paths = yield from self._read_change_paths()
        new = [path for path in paths if path not in self._changes_seen]
        resources: dict[AclResource, None] = {}
        for path, outcome in zip(new, (yield from read([Get(path) for path in new])), strict=True):
            if isinstance(outcome, NoNode):  # deleted before it was read: any resource may have changed
                self._must_read_all = True
                return
            if isinstance(outcome, CoordinationError):
                raise outcome
            assert isinstance(outcome, Node)
            try:
                resources[decode_acl_change(path, outcome.data)] = None
            except DamagedDocument as error:
                self.problems[path] = str(error)
        yield from self._read(resources)
        self._changes_seen = {path: self._changes_seen.get(path, now.ms) for path in paths}
        yield from self._delete_expired(now)

    def _read_change_paths(self) -> Procedure[list[str]]:
        """Return the paths of all change nodes, and watch for new ones."""
        paths: list[str] = []
        for change_path in CHANGE_PATHS:
            paths += [f"{change_path}/{name}" for name in (yield from read_children(change_path, watch=True))]
        return paths

    def _read(self, resources: Iterable[AclResource]) -> Procedure[None]:
        resources = list(resources)
        outcomes = yield from read([Get(resource.path) for resource in resources])
        for resource, outcome in zip(resources, outcomes, strict=True):
            if isinstance(outcome, CoordinationError) and not isinstance(outcome, NoNode):
                raise outcome
            try:
                acls = decode_acls(resource, outcome.data) if isinstance(outcome, Node) else frozenset()
            except DamagedDocument as error:
                self.problems[resource.path] = str(error)
                continue
            self.problems.pop(resource.path, None)
            if acls != self._acls.get(resource, frozenset()):
                self._acls[resource] = acls
                self._is_changed = True

    def _delete_expired(self, now: Now) -> Procedure[None]:
        """Delete the change nodes that this broker saw long ago. A node that cannot be deleted now is tried again."""
        expired = [path for path, seen_ms in self._changes_seen.items() if seen_ms <= now.ms - CHANGE_EXPIRATION_MS]
        if expired:
            yield tuple(Delete(path) for path in expired)
