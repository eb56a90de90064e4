"""Offsets committed in open transactions (KIP-98, KIP-447): they take effect when the transaction commits.

The commit written last wins, not the transaction that ended last. A later commit overtakes an offset of a transaction
if it is non-transactional or its own transaction has committed. So the order of the records decides, and a replay gives
the same result.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple, TypeVar

from broker.group.offset_records import OffsetKey
from broker.group.offsets import CommittedOffset

K = TypeVar("K", bound=Hashable)


class OpenOffset(NamedTuple):
    order: int
    committed: CommittedOffset
    before: "OpenOffset | None"
    """The former commit of the same transaction of this offset key."""


class TransactionalOffsets:
    """The open offsets of a coordinator, by producer: at most one for each offset key and open transaction."""

    def __init__(self) -> None:
        self._producers: dict[int, dict[OffsetKey, OpenOffset]] = {}
        self._keys: Counter[OffsetKey] = Counter()
        self._groups: Counter[str] = Counter()
        self._order = 0

    def put(self, producer_id: int, key: OffsetKey, committed: CommittedOffset) -> None:
        """Keep an offset whose record was written, until its transaction ends."""
        before = self._producers.get(producer_id, {}).get(key)
        self.drop(producer_id, key)
        self._order += 1
        self._set(producer_id, key, OpenOffset(self._order, committed, before and before._replace(before=None)))

    def take_back(self, producer_id: int, key: OffsetKey) -> None:
        """Undo the last `put`, whose record could not be written, and restore the commit before it."""
        pending = self._producers[producer_id][key]
        self.drop(producer_id, key)
        if pending.before is not None:
            self._set(producer_id, key, pending.before)

    def _set(self, producer_id: int, key: OffsetKey, pending: OpenOffset) -> None:
        self._producers.setdefault(producer_id, {})[key] = pending
        self._keys[key] += 1
        self._groups[key.group_id] += 1

    def drop(self, producer_id: int, key: OffsetKey) -> None:
        """Drop this producer's open offset of an offset key, regardless of how its transaction ends."""
        if self._producers.get(producer_id, {}).pop(key, None) is not None:
            self._uncount(producer_id, key)

    def _uncount(self, producer_id: int, key: OffsetKey) -> None:
        _one_less(self._keys, key)
        _one_less(self._groups, key.group_id)
        if not self._producers[producer_id]:
            del self._producers[producer_id]

    def overtake(self, key: OffsetKey) -> None:
        """Drop all open offsets of a key, because a non-transactional commit or a tombstone was written after them."""
        self._overtake(key, self._order + 1)

    def _overtake(self, key: OffsetKey, order: int) -> None:
        if key not in self._keys:
            return
        for producer_id in list(self._producers):
            pending = self._producers[producer_id].get(key)
            if pending is not None and pending.order < order:
                self.drop(producer_id, key)

    def open_of(self, key: OffsetKey) -> dict[int, OpenOffset]:
        """Return all open offsets of a key by their producers, for `restore`."""
        if key not in self._keys:
            return {}
        return {producer_id: offsets[key] for producer_id, offsets in self._producers.items() if key in offsets}

    def restore(self, key: OffsetKey, overtaken: Mapping[int, OpenOffset]) -> None:
        """Undo `overtake`, because nothing was written that overtakes these offsets."""
        for producer_id, pending in overtaken.items():
            self.drop(producer_id, key)
            self._set(producer_id, key, pending)

    def end(self, producer_id: int, commit: bool) -> list[tuple[OffsetKey, CommittedOffset]]:
        """End a producer's transaction; return the offsets it commits."""
        ended = list(self._producers.get(producer_id, {}).items())
        for key, _ in ended:
            self.drop(producer_id, key)
        if not commit:
            return []
        for key, pending in ended:
            self._overtake(key, pending.order)
        return [(key, pending.committed) for key, pending in ended]

    def is_open(self, key: OffsetKey) -> bool:
        """Return True if the end of an open transaction may change this offset."""
        return key in self._keys

    def has(self, group_id: str) -> bool:
        """Return True if the end of an open transaction may commit an offset of the group."""
        return group_id in self._groups

    def of_group(self, group_id: str) -> list[OffsetKey]:
        """Return the offset keys of a group that the end of an open transaction may change."""
        return (
            [key for key in self._keys if key.group_id == group_id]
            if self.has(group_id)
            else []
        )

    def of_topics(self, is_wanted: Callable[[str], bool]) -> list[OffsetKey]:
        """Return the offset keys in topics with `is_wanted` True that the end of an open transaction may change."""
        return [key for key in self._keys if is_wanted(key.topic)]


def _one_less(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
