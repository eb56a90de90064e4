"""The last offset of each key in the part of a log that is being cleaned, in bounded memory.

A long key is stored as a hash, like in Kafka. The hash stands for the key, because with 192 bits no two keys of a log
will collide.
"""

from hashlib import blake2b

ENTRY_BYTES = 200
"""Upper bound of the memory per key: its bytes object, its offset and their place in the dictionary."""
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

    def last(self, key: bytes) -> int:
        """Return the last offset noted for the key, -1 if none is noted."""
        return self._offsets.get(_name(key), -1)


def _name(key: bytes) -> bytes:
    """Return a short key itself, a long key's digest. Every digest is longer than a short key, so none collide."""
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()
