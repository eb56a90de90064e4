"""The reserve: a file that keeps some space of the disk for the writes that free space.

Old segments are removed only once a checkpoint without them is on the disk, and a topic only once the metadata is. Both
files are replaced whole, so for a moment they need space for a second copy. On a full disk the reserve is removed, and
gives its space to them. It is written again when the disk has space (broker.log.disk_watch).

Its bytes look random, because some file systems keep no space for zeros.
"""

from collections.abc import Callable
from contextlib import suppress
from hashlib import shake_128
from typing import TypeVar

from broker.log.storage.port import Storage, StorageError

T = TypeVar("T")

FILE = "reserve"
REPLACED = "checkpoint", "metadata.json"
"""The files whose copies the reserve has space for."""
LEAST_BYTES = 128 << 10


def replace(storage: Storage, path: str, data: bytes, *, frees_space: bool) -> None:
    """Replace a file. If the disk is full and the new content `frees_space`, use the reserve. Raise StorageError."""
    if frees_space:
        write_with_reserve(storage, lambda: storage.replace(path, data))
    else:
        storage.replace(path, data)


def write_with_reserve(storage: Storage, write: Callable[[], T]) -> T:
    """Return what `write` returns. If the disk is full, remove the reserve and write again. Raise StorageError."""
    try:
        return write()
    except StorageError as error:
        if not error.full:
            raise
        free(storage)
        return write()


def free(storage: Storage) -> None:
    """Remove the reserve, so that the next write finds its space. Another thread may have removed it already.

    Some file systems give space free only with the next sync, so sync the directory. Raise StorageError.
    """
    try:
        storage.remove(FILE)
    except StorageError:
        if storage.exists(FILE):  # no other thread has removed it meanwhile
            raise
    storage.sync_directory("")


def needed_bytes(storage: Storage) -> int:
    """Return the least size of a reserve: LEAST_BYTES, or two copies of the largest file of REPLACED."""
    return max(LEAST_BYTES, *(2 * _size_of(storage, path) for path in REPLACED))


def fill(storage: Storage, needed_bytes: int) -> None:
    """Write a reserve that is half as large again as it must be, so that the files may grow. Raise StorageError.

    The old one goes first, because the disk may have no space for both.
    """
    free(storage)
    storage.replace(FILE, shake_128(b"reserve").digest(filled_bytes(needed_bytes)))


def filled_bytes(needed_bytes: int) -> int:
    """Return the size of a reserve that `fill` writes."""
    return needed_bytes + needed_bytes // 2


def present_bytes(storage: Storage) -> int:
    """Return the size of the reserve, 0 if it is missing."""
    return _size_of(storage, FILE)


def _size_of(storage: Storage, path: str) -> int:
    with suppress(StorageError):  # a thread may remove or replace the file now
        if storage.exists(path):
            return storage.open(path).size
    return 0
