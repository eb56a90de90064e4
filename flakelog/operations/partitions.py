"""Partitions: ask many of them at once, also those of which some are offline or deleted; the bounds of their logs."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from broker.client.blocking import Client
from broker.client.core import Partition
from broker.client.errors import BrokerError
from broker.client.offset_lookup import find_bounds, find_offsets
from broker.client.offset_spec import Latest
from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED

Answer = TypeVar("Answer")
SEARCHED_AT_ONCE = 200  # in a request of a search: about 0.3 s, so that its progress is seen


def ask_each(
    partitions: Iterable[Partition], ask: Callable[[list[Partition]], dict[Partition, Answer]]
) -> tuple[dict[Partition, Answer], dict[Partition, BrokerError]]:
    """Return the answers to `ask`, and the errors of partitions that are offline or deleted.

    `ask` raises BrokerError if one of its partitions has an error. Then ask for each half, and so on.
    """
    wanted = list(partitions)
    if not wanted:
        return {}, {}
    try:
        return ask(wanted), {}
    except BrokerError as error:
        if len(wanted) == 1:
            return {}, {wanted[0]: error}
    half = len(wanted) // 2
    first, second = ask_each(wanted[:half], ask), ask_each(wanted[half:], ask)
    return first[0] | second[0], first[1] | second[1]


def ask_in_portions(
    partitions: Sequence[Partition],
    ask: Callable[[list[Partition]], dict[Partition, Answer]],
    step: Callable[[int], object],
    at_once: int = SEARCHED_AT_ONCE,
) -> tuple[dict[Partition, Answer], dict[Partition, BrokerError]]:
    """Ask as `ask_each` does, for `at_once` partitions at a time, and call `step` with their number after each."""
    answers: dict[Partition, Answer] = {}
    errors: dict[Partition, BrokerError] = {}
    for begin in range(0, len(partitions), at_once):
        portion = partitions[begin : begin + at_once]
        answered, failed = ask_each(portion, ask)
        answers |= answered
        errors |= failed
        step(len(portion))
    return answers, errors


def bounds_of(client: Client, topic: str, partition: int, committed: bool = False) -> tuple[int, int]:
    """Return (first offset, offset of the next message).

    With `committed`, the second is the start of the first open transaction if one is open.
    """
    return bounds_of_all(client, [(topic, partition)], committed)[topic, partition]


def bounds_of_all(
    client: Client, partitions: Iterable[Partition], committed: bool = False
) -> dict[Partition, tuple[int, int]]:
    """Return the bounds of partitions, as `bounds_of` does. A request asks for many, so that thousands take no time."""
    level = READ_COMMITTED if committed else READ_UNCOMMITTED
    return dict(client.run(find_bounds(client.core, partitions, isolation_level=level)))


def ends_of(client: Client, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the offset of each partition's next message, without partitions that do not answer."""
    return ask_each(partitions, lambda some: client.run(find_offsets(client.core, some, Latest())))[0]
