"""The changes of one operation to a tree of nodes, before they are stored: the rules that memory and directory share.

A Transaction reads the tree through its own changes, so a later operation of a Multi sees what the earlier ones did. It
stores nothing: the tree takes all of `changes`, or, after an error, none of them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from coordination.port import (
    ANY_VERSION,
    PERSISTENT,
    BadVersion,
    Check,
    CoordinationError,
    Create,
    Delete,
    Multi,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Set,
    Written,
    parent,
    sequential_path,
)


class Tree(Protocol):
    """The stored nodes."""

    def node(self, path: str) -> Node | None:
        """Return the node, or None."""

    def names(self, path: str) -> Iterable[str]:
        """Return the names of the node's children."""


class Transaction:
    """The changes of a session: the new node of each path, or None for a node that is deleted.

    `next_number` returns a number that is higher than each one before it. `now_ms` is the time of the changes, for a
    tree that keeps times.
    """

    def __init__(self, tree: Tree, session_id: int, next_number: Callable[[], int], now_ms: int = 0) -> None:
        self.changes: dict[str, Node | None] = {}
        self._changed_names: dict[str, dict[str, bool]] = {}  # by parent; False for a child that is deleted
        self._tree = tree
        self._session_id = session_id
        self._next_number = next_number
        self._now_ms = now_ms
        self._czxid: int | None = None

    def node(self, path: str) -> Node | None:
        """Return the node as this transaction leaves it, or None."""
        return self.changes[path] if path in self.changes else self._tree.node(path)

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names of the node's children as this transaction leaves them, in order."""
        changed = self._changed_names.get(path, {})
        kept = [name for name in self._tree.names(path) if name not in changed]
        return tuple(sorted([*kept, *(name for name, exists in changed.items() if exists)]))

    def take(self, changes: Mapping[str, Node | None]) -> None:
        """Add the changes of a transaction that has this one for its tree."""
        for path, node in changes.items():
            self._put(path, node)

    def apply(self, operation: Create | Set | Delete | Multi) -> Written | tuple[Written, ...]:
        """Carry out the operation; return its result, or raise its error."""
        if not isinstance(operation, Multi):
            return self._change(operation, makes_parents=True)
        results: list[Written] = []
        for index, part in enumerate(operation.operations):
            try:
                results.append(self._change(part, makes_parents=False))
            except CoordinationError as error:
                error.index = index
                raise
        return tuple(results)

    def existing(self, path: str) -> Node:
        """Return the node; raise NoNode."""
        node = self.node(path)
        if node is None:
            raise NoNode(path)
        return node

    def _change(self, operation: Check | Create | Set | Delete, *, makes_parents: bool) -> Written:
        match operation:
            case Create():
                return self._create(operation, makes_parents)
            case Check(path, version):
                self._at_version(path, version)
            case Set(path, data, version):
                node = self._at_version(path, version)
                self._put(path, node._replace(data=data, version=node.version + 1, mtime_ms=self._now_ms))
                return node.version + 1
            case Delete(path, version):
                self._at_version(path, version)
                if self.names(path):
                    raise NotEmpty(path)
                self._put(path, None)
        return None

    def _create(self, create: Create, makes_parents: bool) -> str:
        path = create.path
        if not create.sequential and self.node(path) is not None:
            raise NodeExists(path)
        above = self.node(parent(path))
        if above is None:
            if not makes_parents:
                raise NoNode(parent(path))
            self._create(Create(parent(path)), makes_parents)
        elif above.owner != PERSISTENT:
            raise NoNode(f"{parent(path)} is ephemeral and can have no children")
        if self._czxid is None:
            self._czxid = self._next_number()
        if create.sequential:
            path = sequential_path(create.path, self._next_number())
            if self.node(path) is not None:
                raise NodeExists(path)
        owner = self._session_id if create.ephemeral else PERSISTENT
        self._put(path, Node(create.data, 0, owner, self._czxid, self._now_ms))
        return path

    def _put(self, path: str, node: Node | None) -> None:
        self.changes[path] = node
        if path != "/":
            self._changed_names.setdefault(parent(path), {})[path.rpartition("/")[2]] = node is not None

    def _at_version(self, path: str, version: int) -> Node:
        node = self.existing(path)
        if version not in (node.version, ANY_VERSION):
            raise BadVersion(f"{path} is at version {node.version}, not {version}")
        return node
