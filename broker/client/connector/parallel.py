"""Several procedures that are carried out at the same time, as one."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from broker.cluster.procedure import OPERATIONS_AT_ONCE, Outcome, Pause, Procedure, chunks
from coordination.port import Operation

T = TypeVar("T")


def together(procedures: Iterable[Procedure[T]]) -> Procedure[list[T]]:
    """Carry out procedures that do not depend on each other; return their values in order.

    Each batch has the batches of all that go on. None of them may pause. The first error ends all.
    """
    values: list[T] = []
    for chunk in chunks(procedures, OPERATIONS_AT_ONCE):
        values += yield from _all_of(chunk)
    return values


def _all_of(procedures: Sequence[Procedure[T]]) -> Procedure[list[T]]:
    values: dict[int, T] = {}
    batches: dict[int, tuple[Operation, ...]] = {}
    outcomes: dict[int, Sequence[Outcome] | None] = dict.fromkeys(range(len(procedures)))
    while len(values) < len(procedures):
        for index, own in outcomes.items():
            try:
                batch = next(procedures[index]) if own is None else procedures[index].send(own)
            except StopIteration as stop:
                batches.pop(index, None)
                values[index] = stop.value
            else:
                assert not isinstance(batch, Pause), "a pause of one would be a pause of all"
                batches[index] = batch
        if batches:
            answers = yield tuple(operation for batch in batches.values() for operation in batch)
            outcomes = _shared_out(batches, answers)
    return [values[index] for index in range(len(procedures))]


def _shared_out(
    batches: dict[int, tuple[Operation, ...]], answers: Sequence[Outcome]
) -> dict[int, Sequence[Outcome] | None]:
    """Return the outcomes of each procedure's batch."""
    outcomes: dict[int, Sequence[Outcome] | None] = {}
    first = 0
    for index, batch in batches.items():
        outcomes[index] = answers[first : first + len(batch)]
        first += len(batch)
    return outcomes
