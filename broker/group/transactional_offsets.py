"""Offsets committed in open transactions (KIP-98, KIP-447): they take effect when the transaction commits.

The commit written last wins, not the transaction that ended last. A later commit overtakes an offset of a transaction
if it is non-transactional or its own transaction has committed. So the order of the records decides, and a replay gives
the same result.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

from broker.group.offsets import CommittedOffset

K = TypeVar("K", bound=Hashable)


class Place(NamedTuple):
    """The key of a committed offset."""

    group_id: str
    topic: str
    partition: int


class _Pending(NamedTuple):
    order: int
    committed: CommittedOffset
    before: "_Pending | None"
    """The former commit of the same transaction at this place."""


class TransactionalOffsets:
    """The open offsets of all groups, by producer: at most one for each place and open transaction."""

    def __init__(self) -> None:
        self._producers: dict[int, dict[Place, _Pending]] = {}
        self._places: Counter[Place] = Counter()
        self._groups: Counter[str] = Counter()
        self._order = 0

    def put(self, producer_id: int, place: Place, committed: CommittedOffset) -> None:
        """Keep an offset whose record was written, until its transaction ends."""
        before = self._producers.get(producer_id, {}).get(place)
        self.drop(producer_id, place)
        self._order += 1
        self._set(producer_id, place, _Pending(self._order, committed, before and before._replace(before=None)))

    def take_back(self, producer_id: int, place: Place) -> None:
        """Undo the last `put`, whose record could not be written, and restore the commit before it."""
        pending = self._producers[producer_id][place]
        self.drop(producer_id, place)
        if pending.before is not None:
            self._set(producer_id, place, pending.before)

    def _set(self, producer_id: int, place: Place, pending: _Pending) -> None:
        self._producers.setdefault(producer_id, {})[place] = pending
        self._places[place] += 1
        self._groups[place.group_id] += 1

    def drop(self, producer_id: int, place: Place) -> None:
        """Drop this producer's open offset at a place, regardless of how its transaction ends."""
        if self._producers.get(producer_id, {}).pop(place, None) is not None:
            self._gone(producer_id, place)

    def _gone(self, producer_id: int, place: Place) -> None:
        _one_less(self._places, place)
        _one_less(self._groups, place.group_id)
        if not self._producers[producer_id]:
            del self._producers[producer_id]

    def overtake(self, place: Place) -> None:
        """Drop all open offsets of a place, because a non-transactional commit or a tombstone was written after them.
        """
        self._overtake(place, self._order + 1)

    def _overtake(self, place: Place, order: int) -> None:
        if place not in self._places:
            return
        for producer_id in list(self._producers):
            pending = self._producers[producer_id].get(place)
            if pending is not None and pending.order < order:
                self.drop(producer_id, place)

    def end(
        self, producer_id: int, commit: bool, is_kept: Callable[[str], bool]
    ) -> list[tuple[Place, CommittedOffset]]:
        """End a producer's transaction for the groups `is_kept` accepts; return the offsets it commits."""
        ended = [each for each in self._producers.get(producer_id, {}).items() if is_kept(each[0].group_id)]
        for place, _ in ended:
            self.drop(producer_id, place)
        if not commit:
            return []
        for place, pending in ended:
            self._overtake(place, pending.order)
        return [(place, pending.committed) for place, pending in ended]

    def is_open(self, place: Place) -> bool:
        """Return True if the end of an open transaction may change this offset."""
        return place in self._places

    def has(self, group_id: str) -> bool:
        """Return True if the end of an open transaction may commit an offset of the group."""
        return group_id in self._groups

    def of_group(self, group_id: str) -> list[Place]:
        """Return the places of a group that the end of an open transaction may change."""
        return [place for place in self._places if place.group_id == group_id] if self.has(group_id) else []

    def of_topics(self, is_wanted: Callable[[str], bool]) -> list[Place]:
        """Return the places in topics with `is_wanted` True that the end of an open transaction may change."""
        return [place for place in self._places if is_wanted(place.topic)]


def _one_less(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
