"""The last offset of each key in the part of a log that is being cleaned, in bounded memory.

As in Kafka a long key is kept as a hash, which stands for it: with 192 bits no two keys of a log will meet.
"""

from hashlib import blake2b

ENTRY_BYTES = 200
"""What one key takes at most: its bytes object, its offset and their place in the dictionary."""
_DIGEST_BYTES = 24


class KeyOffsets:
    """At most `buffer_bytes` of them (log.cleaner.dedupe.buffer.size)."""

    def __init__(self, buffer_bytes: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self._keys_max = max(buffer_bytes // ENTRY_BYTES, 1)
        self.end_offset = 0
        """The offsets below it have been looked at."""

    def put(self, key: bytes, offset: int) -> bool:
        """Note a later offset of a key; False where there is no room for another key."""
        name = _name(key)
        if name not in self._offsets and len(self._offsets) >= self._keys_max:
            return False
        self._offsets[name] = offset
        return True

    def last(self, key: bytes) -> int:
        """The last offset noted for the key; -1 where none is."""
        return self._offsets.get(_name(key), -1)


def _name(key: bytes) -> bytes:
    """Shorter than a digest, or a digest: no key can be made to look like another's."""
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()
