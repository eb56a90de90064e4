"""The last offset of each key in the part of a log that is being cleaned, in bounded memory.

A long key is stored as a hash, like in Kafka. The hash stands for the key, because with 320 bits no two keys of a log
will collide.

    note     the last offset of each key, while the dirty part is read for the first time
    marks    which offsets these are, for the second reading: most batches need no look at their keys then
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import repeat
from operator import ge

from broker.record.keyed import Keys

ENTRY_BYTES = 216
"""Upper bound of the memory per key: its bytes object, its offset and their place in the dictionary."""
MARKS_PER_KEY = 20
"""Marks take a tenth of the memory of the keys at most; those of a longer part are made one window after the other."""
DROPPED, RECORD, TOMBSTONE = 0, 1, 2
"""Marks of an offset: not the last one of its key, the last one, and the last one without a value."""
EXCEPTIONS_MAX = 10_000
"""Batches that no marks decide. Beyond that many, keys decide, so that a log full of poison takes no memory."""
FEW_RECORDS = 3
"""The keys of a batch with more records are noted all at once."""
_DIGEST_BYTES = 40  # a UUID as text has 36 bytes, and its hash would cost more than it saves


class KeyOffsets:
    """The last offset of each key, in at most `buffer_bytes` of memory (log.cleaner.dedupe.buffer.size)."""

    def __init__(self, buffer_bytes: int, first_offset: int = 0) -> None:
        self._last: dict[bytes, int] = {}
        """Twice the last offset of a key, plus one for a tombstone."""
        self._keys_max = max(buffer_bytes // ENTRY_BYTES, 1)
        self._first_offset = first_offset
        self.end_offset = 0
        """The offsets from `first_offset` to here have been read."""
        self._exceptions: set[int] = set()
        self._window: tuple[int, bytes] = 0, b""
        """The first offset with a mark, and the marks."""

    # --- the first reading ---------------------------------------------------------------------------------------

    def put(self, base_offset: int, records: Keys) -> bool:
        """Note the keys of a batch. Return False if the buffer is full; `end_offset` follows what is noted then."""
        keys, deltas, tombstones, nulls = records
        if len(keys) > FEW_RECORDS and base_offset + deltas[0] >= self._first_offset and not nulls:
            if len(self._last) + len(keys) <= self._keys_max:
                self._last.update(zip(_names(keys), _values(base_offset, records), strict=True))
                return True
        last = self._last
        without_value = frozenset(tombstones) if tombstones else ()
        without_key = frozenset(nulls) if nulls else ()
        for number, key in enumerate(keys):
            offset = base_offset + deltas[number]
            if number in without_key or offset < self._first_offset:
                continue
            name = key if len(key) < _DIGEST_BYTES else _name(key)
            if len(last) >= self._keys_max and name not in last:
                return False
            last[name] = 2 * offset + (number in without_value)
            self.end_offset = offset + 1
        return True

    def except_batch(self, base_offset: int) -> None:
        """Note a batch whose keys are unknown."""
        if len(self._exceptions) <= EXCEPTIONS_MAX:
            self._exceptions.add(base_offset)

    # --- the second reading --------------------------------------------------------------------------------------

    def marks(self, base_offset: int, last_offset: int) -> bytes | None:
        """Return the mark of each offset of a batch, None if its keys decide."""
        if base_offset < self._first_offset or last_offset >= self.end_offset or base_offset in self._exceptions:
            return None
        first, window = self._window
        begin, end = base_offset - first, last_offset - first + 1
        if not 0 <= begin <= end <= len(window):
            if last_offset - base_offset >= self._marks_max or len(self._exceptions) > EXCEPTIONS_MAX:
                return None
            self._make_window(base_offset)
            return self._window[1][: end - begin]
        return window[begin:end]

    @property
    def _marks_max(self) -> int:
        return self._keys_max * MARKS_PER_KEY

    def _make_window(self, first: int) -> None:
        marks = bytearray(min(self.end_offset - first, self._marks_max))
        low, high = 2 * first, 2 * (first + len(marks))
        for value in self._last.values():
            if low <= value < high:
                marks[(value >> 1) - first] = (value & 1) + 1
        self._window = first, bytes(marks)

    def marks_by_key(self, base_offset: int, records: Keys) -> bytes:
        """Return the mark of each record of a batch by its key. A record from `end_offset` on is the last one."""
        values = _values(base_offset, records, 1)
        marks = bytearray(map(ge, values, map(self._last.get, _names(records.keys), repeat(-1))))
        for number in records.nulls:
            marks[number] = values[number] >> 1 >= self.end_offset
        for number in records.tombstones:
            marks[number] *= TOMBSTONE
        return bytes(marks)

    def last(self, key: bytes) -> int:
        """Return the last offset noted for the key, -1 if none is noted."""
        return self._last.get(_name(key), -1) >> 1


def _values(base_offset: int, records: Keys, plus: int = 0) -> Sequence[int]:
    """Return twice the offset of each record, plus `plus`; without it, plus one for a tombstone."""
    deltas, tombstones = records.deltas, records.tombstones
    values: Sequence[int]
    if isinstance(deltas, range):
        values = range(2 * (base_offset + deltas.start) + plus, 2 * (base_offset + deltas.stop) + plus, 2)
    else:
        values = [2 * (base_offset + delta) + plus for delta in deltas]
    if not tombstones or plus:
        return values
    changed = list(values)
    for number in tombstones:
        changed[number] += 1
    return changed


def _names(keys: Sequence[bytes]) -> Sequence[bytes]:
    return keys if max(map(len, keys), default=0) < _DIGEST_BYTES else [_name(key) for key in keys]


def _name(key: bytes) -> bytes:
    """Return a short key itself, a long key's digest. Every digest is longer than a short key, so none collide."""
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()
