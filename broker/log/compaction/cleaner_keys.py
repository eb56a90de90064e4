"""The last offset of each key in the part of a log that is being cleaned, in bounded memory.

A long key is stored as a hash, like in Kafka. The hash stands for the key, because with 192 bits no two keys of a log
will collide.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import repeat
from operator import ge

ENTRY_BYTES = 200
"""Upper bound of the memory per key: its bytes object, its offset and their place in the dictionary."""
MARKS_PER_KEY = 20
"""Marks take a tenth of the memory of the keys at most."""
_DIGEST_BYTES = 24


class KeyOffsets:
    """The last offset of each key, in at most `buffer_bytes` of memory (log.cleaner.dedupe.buffer.size)."""

    def __init__(self, buffer_bytes: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self._keys_max = max(buffer_bytes // ENTRY_BYTES, 1)
        self.end_offset = 0
        """The offsets below it have been read."""

    def put(self, key: bytes, offset: int) -> bool:
        """Note a later offset of a key. Return False if the key is new and the buffer is full."""
        name = _name(key)
        if name not in self._offsets and len(self._offsets) >= self._keys_max:
            return False
        self._offsets[name] = offset
        return True

    def put_all(self, keys: Sequence[bytes], offsets: Sequence[int]) -> bool:
        """Note later offsets of keys. Return False, with none noted, if the buffer may have too little room."""
        if len(self._offsets) + len(keys) > self._keys_max:
            return False
        self._offsets.update(zip(_names(keys), offsets, strict=True))
        return True

    def is_last(self, keys: Sequence[bytes], offsets: Sequence[int]) -> bytes:
        """Return a 1 for each offset at or past the last one noted for its key, and a 0 for each other one."""
        return bytes(map(ge, offsets, map(self._offsets.get, _names(keys), repeat(-1))))

    def marks(self, first_offset: int) -> bytes | None:
        """Return a byte for each offset from `first_offset` to `end_offset`: 1 if it is the last one of its key.

        Return None if that takes too much memory.
        """
        number = self.end_offset - first_offset
        if number > self._keys_max * MARKS_PER_KEY:
            return None
        marks = bytearray(max(number, 0))
        for offset in self._offsets.values():
            marks[offset - first_offset] = 1
        return bytes(marks)

    def last(self, key: bytes) -> int:
        """Return the last offset noted for the key, -1 if none is noted."""
        return self._offsets.get(_name(key), -1)


def _names(keys: Sequence[bytes]) -> Sequence[bytes]:
    return keys if max(map(len, keys), default=0) < _DIGEST_BYTES else [_name(key) for key in keys]


def _name(key: bytes) -> bytes:
    """Return a short key itself, a long key's digest. Every digest is longer than a short key, so none collide."""
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()
