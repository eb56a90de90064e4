"""A procedure of operations on the coordinator: a generator that yields batches and receives their outcomes.

A batch is a tuple of operations that may be carried out at the same time. The outcomes are in the same order; a failed
operation's outcome is its CoordinationError, which is returned and not thrown, because most batches want all outcomes.
The driver of a procedure waits for a moment after a batch with a lost answer, and ends the procedure when the session
is over: SessionLost never reaches it.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias, TypeVar

from coordination.port import (
    Children,
    ConnectionLost,
    CoordinationError,
    CoordinatorUnavailable,
    Get,
    Node,
    NoNode,
    Operation,
    Result,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Pause:
    """A procedure yields this to wait; `reason` tells people what for."""

    ms: int
    reason: str


Outcome: TypeAlias = Result | CoordinationError
Procedure: TypeAlias = Generator[tuple[Operation, ...] | Pause, Sequence[Outcome], T]

OPERATIONS_AT_ONCE = 500
"""The operations of one batch of reads."""


class ControllerMoved(Exception):
    """Another broker has raised the controller epoch, or owns /controller: this one is no longer the controller."""


def read(operations: Iterable[Operation]) -> Procedure[list[Outcome]]:
    """Carry out reads; repeat those whose answers were lost. Errors such as NoNode are outcomes."""
    outcomes: list[Outcome] = []
    for chunk in chunks(operations, OPERATIONS_AT_ONCE):
        outcomes += yield from _read_chunk(chunk)
    return outcomes


def _read_chunk(operations: Sequence[Operation]) -> Procedure[list[Outcome]]:
    outcomes: dict[int, Outcome] = {}
    pending = list(range(len(operations)))
    while pending:
        batch = yield tuple(operations[index] for index in pending)
        outcomes.update(zip(pending, batch, strict=True))
        pending = [index for index in pending if isinstance(outcomes[index], ConnectionLost)]
    return [outcomes[index] for index in range(len(operations))]


def read_node(path: str, *, watch: bool = False) -> Procedure[Node | None]:
    """Return a node, or None if it does not exist. Raise any other error."""
    (outcome,) = yield from read([Get(path, watch=watch)])
    if isinstance(outcome, NoNode):
        return None
    if isinstance(outcome, CoordinationError):
        raise outcome
    assert isinstance(outcome, Node)
    return outcome


def read_children(path: str, *, watch: bool = False) -> Procedure[list[str]]:
    """Return the sorted names of a node's children; an empty list if it does not exist."""
    (outcome,) = yield from read([Children(path, watch=watch)])
    if isinstance(outcome, CoordinationError) and not isinstance(outcome, NoNode):
        raise outcome
    return [str(name) for name in outcome] if isinstance(outcome, tuple) else []


def write(operation: Operation) -> Procedure[Outcome]:
    """Carry out one write and return its outcome, which may be ConnectionLost: its caller reads before it repeats.

    Raise CoordinatorUnavailable, because the same write would be refused again.
    """
    (outcome,) = yield from write_all((operation,))
    return outcome


def write_all(operations: Iterable[Operation]) -> Procedure[Sequence[Outcome]]:
    """Carry out writes that do not depend on each other, as `write` does."""
    outcomes = yield tuple(operations)
    for outcome in outcomes:
        if isinstance(outcome, CoordinatorUnavailable):
            raise outcome
    return outcomes


def failed_index(outcome: Outcome) -> int | None:
    """Return the position of the operation for which a Multi failed; None if it succeeded or its answer was lost.

    The first operation of the controller's Multis checks the controller epoch. Raise ControllerMoved if it failed.
    """
    index = outcome.index if isinstance(outcome, CoordinationError) else None
    if index == 0:
        raise ControllerMoved("another broker has raised the controller epoch")
    return index


def results_of(multi: Outcome) -> Sequence[object]:
    """Return the results of a Multi that succeeded."""
    assert isinstance(multi, tuple)
    return multi


def chunks(items: Iterable[T], size: int) -> Generator[list[T], None, None]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
