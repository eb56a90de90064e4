"""Tracking of tuple trees with one 64-bit number for each tree, whatever its size.

Each tuple of a tree has a random 64-bit edge. A tree's value is the XOR of all edges added and all edges acked. It is 0
when each edge has been both added and acked, and earlier only by chance, once in 2**64
(https://storm.apache.org/releases/2.8.1/Acking-framework-implementation.html). In Storm the edges travel as messages.
In one process they are added as tuples are created, before the parent tuple is acked, so a tree is never complete too
early.

Trees are kept in the order they began and share one timeout, so the first tree is the next to time out. Timeouts are
therefore exact, at the cost of Storm's rotating map, which times out after one to two times the timeout.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

TIMEOUT = "timeout"

Anchors = tuple[tuple[int, int], ...]  # (root, edge) pairs: the trees a tuple belongs to and its edge in each


class Failed(NamedTuple):
    """The end of a tree that failed, for the spout task that began it."""

    task: int
    id: Any
    error: str
    unavailable: bool = False  # a service that a bolt needs is down


class Abandoned(NamedTuple):
    """A spout's tuple that is neither complete nor failed, and no longer waited for."""

    task: int


class Tree:
    """A spout's tuple and all that is anchored to it. `task` and `id` are those of the spout."""

    __slots__ = ("value", "task", "id", "began_ms")

    def __init__(self, task: int, id: Any, began_ms: int, value: int) -> None:
        self.task = task
        self.id = id
        self.began_ms = began_ms
        self.value = value


class Acker:
    """All tuple trees of one engine. Not thread-safe."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._trees: dict[int, Tree] = {}  # by root, in the order they began
        self._ended: list[Tree | Failed | Abandoned] = []  # a Tree that ended is complete
        self._expire_at_ms = 0  # not later than the first timeout, which only moves to later times

    def __len__(self) -> int:
        """Return the number of incomplete trees."""
        return len(self._trees)

    def track(self, root: int, task: int, id: Any, now_ms: int, edge: int = 0) -> None:
        """Begin a tree of a spout task. `edge` is the XOR of its first edges, or 0 if the caller adds them next."""
        self._trees[root] = Tree(task, id, now_ms, edge)

    def is_open(self, root: int) -> bool:
        """Return True if the tree has not ended."""
        return root in self._trees

    def add(self, root: int, edge: int) -> None:
        """Add a tuple to a tree. Ignore a tree that has ended."""
        tree = self._trees.get(root)
        if tree is not None:
            tree.value ^= edge

    def ack(self, root: int, edge: int) -> None:
        """Ack a tuple; the tree is complete when all its tuples are acked."""
        self.ack_all((((root, edge),),))

    def ack_all(self, acked: Iterable[Anchors]) -> None:
        """Ack tuples, each in all its trees."""
        trees, ended = self._trees, self._ended
        for anchors in acked:
            for root, edge in anchors:
                tree = trees.get(root)
                if tree is not None:
                    tree.value ^= edge
                    if not tree.value:
                        del trees[root]
                        ended.append(tree)

    def fail(self, root: int, error: str, unavailable: bool = False) -> None:
        """Fail the tree of a failed tuple. Later acks and fails in that tree are ignored."""
        tree = self._trees.pop(root, None)
        if tree is not None:
            self._ended.append(Failed(tree.task, tree.id, error, unavailable))

    def leave(self, root: int) -> None:
        """Wait for the tree no longer: its message stays unsettled. Later acks and fails in that tree are ignored."""
        tree = self._trees.pop(root, None)
        if tree is not None:
            self._ended.append(Abandoned(tree.task))

    def expire(self, now_ms: int) -> None:
        """Fail every tree that has timed out."""
        if now_ms < self._expire_at_ms:
            return
        while self._trees:
            root, tree = next(iter(self._trees.items()))
            self._expire_at_ms = tree.began_ms + self._timeout_ms
            if self._expire_at_ms > now_ms:
                return
            self.fail(root, TIMEOUT)

    def take_ended(self) -> list[Tree | Failed | Abandoned]:
        """Return the trees that ended since the last call, in that order: complete, failed, and those that are left."""
        ended, self._ended = self._ended, []
        return ended

    def next_deadline_ms(self) -> int | None:
        """Return the time the next tree times out, or None if no tree is open."""
        if not self._trees:
            return None
        return next(iter(self._trees.values())).began_ms + self._timeout_ms
