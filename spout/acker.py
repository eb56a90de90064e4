"""Which tuple trees are complete: one 64-bit number a tree, whatever its size.

Each tuple of a tree has a random 64-bit edge. A tree's value is the XOR of all edges made and all edges acked, so it is
0 when each has been both, and before that only by chance, once in 2**64
(https://storm.apache.org/releases/2.8.1/Acking-framework-implementation.html). In Storm the edges travel as messages;
in one process they are added as tuples are made, before the tuple they come from is acked, so a tree is never complete
too early.

Trees stand in the order they began and all have the same time, so the first is the next to time out. That makes
timeouts exact where Storm's rotating map gives one to two times the time, and costs no more.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

TIMEOUT = "timeout"


class Outcome(NamedTuple):
    """A tree's end, for the spout task that began it. `error` is None for a complete one."""

    task: int
    id: Any
    error: str | None
    took_ms: int


class _Tree:
    __slots__ = ("value", "task", "id", "began_ms")

    def __init__(self, task: int, id: Any, began_ms: int) -> None:
        self.value = 0
        self.task = task
        self.id = id
        self.began_ms = began_ms


class Acker:
    """All trees of one engine. Not thread-safe."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._trees: OrderedDict[int, _Tree] = OrderedDict()
        self._outcomes: list[Outcome] = []

    def __len__(self) -> int:
        """Trees that are not complete."""
        return len(self._trees)

    def track(self, root: int, task: int, id: Any, now_ms: int) -> None:
        """A spout task begins a tree; its first edges are added before anything else happens."""
        self._trees[root] = _Tree(task, id, now_ms)

    def add(self, root: int, edge: int) -> None:
        """A tuple joins a tree. One that ended meanwhile is left in peace."""
        tree = self._trees.get(root)
        if tree is not None:
            tree.value ^= edge

    def ack(self, root: int, edge: int, now_ms: int) -> None:
        """A tuple is done. The tree is complete when no other is left."""
        tree = self._trees.get(root)
        if tree is not None:
            tree.value ^= edge
            if not tree.value:
                self._end(root, tree, None, now_ms)

    def fail(self, root: int, error: str, now_ms: int) -> None:
        """A tuple failed, so its tree has. Later acks and fails in it are ignored."""
        tree = self._trees.get(root)
        if tree is not None:
            self._end(root, tree, error, now_ms)

    def expire(self, now_ms: int) -> None:
        """Fail every tree whose time is over."""
        while self._trees:
            root, tree = next(iter(self._trees.items()))
            if tree.began_ms + self._timeout_ms > now_ms:
                return
            self._end(root, tree, TIMEOUT, now_ms)

    def take_outcomes(self) -> list[Outcome]:
        """Trees that ended since the last call, in that order."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def next_deadline_ms(self) -> int | None:
        """When the next tree times out."""
        if not self._trees:
            return None
        return next(iter(self._trees.values())).began_ms + self._timeout_ms

    def _end(self, root: int, tree: _Tree, error: str | None, now_ms: int) -> None:
        del self._trees[root]
        self._outcomes.append(Outcome(tree.task, tree.id, error, now_ms - tree.began_ms))
