"""What the group coordinator wants done: records to append to __consumer_offsets, and who can be answered by now.

The order is the promise: whoever runs the coordinator takes the records and appends them, and only then takes the keys
and touches them in the purgatory. So no member hears of a generation or a commit that is not in the log.
"""

from typing import Any, NamedTuple, TypeVar

from broker.group.group import Group
from broker.group.results import Pending

R = TypeVar("R")


class Append(NamedTuple):
    """One record for `__consumer_offsets`; `value` is None for a tombstone. `producer` are the id and epoch of the
    producer in whose transaction it is written."""

    key: bytes
    value: bytes | None
    group_id: str
    producer: tuple[int, int] | None = None


class Outbox:
    """Filled by one request or tick, emptied right after it: its length is bounded by what one of these can do."""

    def __init__(self) -> None:
        self._appends: list[Append] = []
        self._answered: list[tuple[str, Pending[Any]]] = []

    def append(
        self, group_id: str, key: bytes, value: bytes | None, producer: tuple[int, int] | None = None
    ) -> None:
        self._appends.append(Append(key, value, group_id, producer))

    def answer(self, group: Group, pending: Pending[R], result: R) -> None:
        pending.result = result
        self._answered.append((group.group_id, pending))

    def take_appends(self) -> list[Append]:
        taken, self._appends = self._appends, []
        return taken

    def take_answered(self) -> list[Pending[Any]]:
        taken, self._answered = self._answered, []
        return [pending for _, pending in taken]

    def unsent(self, group_id: str) -> list[Pending[Any]]:
        """Answers of a group nobody has taken yet: an append that failed must change them."""
        return [pending for answered_id, pending in self._answered if answered_id == group_id]
