"""Offsets committed in transactions that are still open (KIP-98, KIP-447): they count when the transaction commits.

What was written last counts, not what was ended last: an offset of a transaction is overtaken by a commit written after
it, be it plain or of another transaction that has committed. So the order of the records decides, and who replays them
comes to the same.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

from broker.group.offsets import CommittedOffset

K = TypeVar("K", bound=Hashable)


class Place(NamedTuple):
    """Where an offset is committed."""

    group_id: str
    topic: str
    partition: int


class _Pending(NamedTuple):
    order: int
    committed: CommittedOffset
    before: "_Pending | None"
    """What its transaction had committed there before it."""


class TransactionalOffsets:
    """Of all groups, by producer. At most one for each place and open transaction."""

    def __init__(self) -> None:
        self._producers: dict[int, dict[Place, _Pending]] = {}
        self._places: Counter[Place] = Counter()
        self._groups: Counter[str] = Counter()
        self._order = 0

    def put(self, producer_id: int, place: Place, committed: CommittedOffset) -> None:
        """Written, and to be decided."""
        before = self._producers.get(producer_id, {}).get(place)
        self.drop(producer_id, place)
        self._order += 1
        self._set(producer_id, place, _Pending(self._order, committed, before and before._replace(before=None)))

    def take_back(self, producer_id: int, place: Place) -> None:
        """What was put last could not be written: what was there before it counts on."""
        pending = self._producers[producer_id][place]
        self.drop(producer_id, place)
        if pending.before is not None:
            self._set(producer_id, place, pending.before)

    def _set(self, producer_id: int, place: Place, pending: _Pending) -> None:
        self._producers.setdefault(producer_id, {})[place] = pending
        self._places[place] += 1
        self._groups[place.group_id] += 1

    def drop(self, producer_id: int, place: Place) -> None:
        """What this producer committed there does not count, however its transaction ends."""
        if self._producers.get(producer_id, {}).pop(place, None) is not None:
            self._gone(producer_id, place)

    def _gone(self, producer_id: int, place: Place) -> None:
        _one_less(self._places, place)
        _one_less(self._groups, place.group_id)
        if not self._producers[producer_id]:
            del self._producers[producer_id]

    def overtake(self, place: Place) -> None:
        """A plain commit was written, or a tombstone: nothing written before it counts any more."""
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
        """A producer's transaction ended in the partition that keeps these groups: the offsets that count by it."""
        ended = [each for each in self._producers.get(producer_id, {}).items() if is_kept(each[0].group_id)]
        for place, _ in ended:
            self.drop(producer_id, place)
        if not commit:
            return []
        for place, pending in ended:
            self._overtake(place, pending.order)
        return [(place, pending.committed) for place, pending in ended]

    def is_open(self, place: Place) -> bool:
        """Whether the end of a transaction may change the offset there."""
        return place in self._places

    def has(self, group_id: str) -> bool:
        """Whether the end of a transaction may commit an offset of the group."""
        return group_id in self._groups

    def of_group(self, group_id: str) -> list[Place]:
        """The places of it that the end of a transaction may change."""
        return [place for place in self._places if place.group_id == group_id] if self.has(group_id) else []

    def of_topics(self, is_wanted: Callable[[str], bool]) -> list[Place]:
        """The places in such topics that the end of a transaction may change."""
        return [place for place in self._places if is_wanted(place.topic)]


def _one_less(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
