"""Tracking of tuple trees with one 64-bit number for each tree, whatever its size.

Each tuple of a tree has a random 64-bit edge. A tree's value is the XOR of all edges added and all edges acked. It is 0
when each edge has been both added and acked, and earlier only by chance, once in 2**64
(https://storm.apache.org/releases/2.8.1/Acking-framework-implementation.html). In Storm the edges travel as messages.
In one process they are added as tuples are created, before the parent tuple is acked, so a tree is never complete too
early.

Trees are kept in the order they began and share one timeout, so the first tree is the next to time out. Timeouts are
therefore exact, at the cost of Storm's rotating map, which times out after one to two times the timeout.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

TIMEOUT = "timeout"


class Outcome(NamedTuple):
    """The end of a tree, for the spout task that began it. `error` is None if the tree is complete."""

    task: int
    id: Any
    error: str | None
    took_ms: int
    unavailable: bool = False  # the tree failed because a service that a bolt needs is down


class _Tree:
    __slots__ = ("value", "task", "id", "began_ms")

    def __init__(self, task: int, id: Any, began_ms: int) -> None:
        self.value = 0
        self.task = task
        self.id = id
        self.began_ms = began_ms


class Acker:
    """All tuple trees of one engine. Not thread-safe."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._trees: OrderedDict[int, _Tree] = OrderedDict()
        self._outcomes: list[Outcome] = []

    def __len__(self) -> int:
        """Return the number of incomplete trees."""
        return len(self._trees)

    def track(self, root: int, task: int, id: Any, now_ms: int) -> None:
        """Begin a tree of a spout task; the caller adds its first edges before any other call."""
        self._trees[root] = _Tree(task, id, now_ms)

    def is_open(self, root: int) -> bool:
        """Return True if the tree has not ended."""
        return root in self._trees

    def add(self, root: int, edge: int) -> None:
        """Add a tuple to a tree. Ignore a tree that has ended."""
        tree = self._trees.get(root)
        if tree is not None:
            tree.value ^= edge

    def ack(self, root: int, edge: int, now_ms: int) -> None:
        """Ack a tuple; the tree is complete when all its tuples are acked."""
        tree = self._trees.get(root)
        if tree is not None:
            tree.value ^= edge
            if not tree.value:
                self._end(root, tree, None, now_ms)

    def fail(self, root: int, error: str, now_ms: int, unavailable: bool = False) -> None:
        """Fail the tree of a failed tuple. Later acks and fails in that tree are ignored."""
        tree = self._trees.get(root)
        if tree is not None:
            self._end(root, tree, error, now_ms, unavailable)

    def expire(self, now_ms: int) -> None:
        """Fail every tree that has timed out."""
        while self._trees:
            root, tree = next(iter(self._trees.items()))
            if tree.began_ms + self._timeout_ms > now_ms:
                return
            self._end(root, tree, TIMEOUT, now_ms)

    def take_outcomes(self) -> list[Outcome]:
        """Return the trees that ended since the last call, in the order they ended."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def next_deadline_ms(self) -> int | None:
        """Return the time the next tree times out, or None if no tree is open."""
        if not self._trees:
            return None
        return next(iter(self._trees.values())).began_ms + self._timeout_ms

    def _end(self, root: int, tree: _Tree, error: str | None, now_ms: int, unavailable: bool = False) -> None:
        del self._trees[root]
        self._outcomes.append(Outcome(tree.task, tree.id, error, now_ms - tree.began_ms, unavailable))
