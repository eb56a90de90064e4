"""A file that hashes the bytes written to it."""

import hashlib
from typing import BinaryIO


class HashingFile:
    """A file to write to that counts and hashes its bytes. `close` leaves the inner file open."""

    closed = False
    dropped = False
    """True after an error: later writes are ignored."""

    def __init__(self, inner: BinaryIO) -> None:
        self._inner = inner
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        if not self.dropped:
            self._inner.write(data)
        self._hash.update(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        if not self.dropped:
            self._inner.flush()

    def close(self) -> None:
        pass

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()
