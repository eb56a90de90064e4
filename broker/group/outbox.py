"""Output of the group coordinator: records to append to __consumer_offsets, and answers that are ready.

The caller first takes the records and appends them, then takes the answers and touches their keys in the purgatory.
This order guarantees that no member learns of a generation or a commit that is not in the log.
"""

from typing import Any, NamedTuple, TypeVar

from broker.group.group import Group
from broker.group.results import Pending

R = TypeVar("R")


class Append(NamedTuple):
    """A record for `__consumer_offsets`. `value` is None for a tombstone. `producer` is the (id, epoch) of the producer
    in whose transaction the record is written, None outside a transaction."""

    key: bytes
    value: bytes | None
    group_id: str
    producer: tuple[int, int] | None = None


class Outbox:
    """Records and answers of one request or tick. The caller empties it after each, so that its size stays bounded."""

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
        """Return the answers of a group that were not taken yet; a failed append turns them into errors."""
        return [pending for answered_id, pending in self._answered if answered_id == group_id]
