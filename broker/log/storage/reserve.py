"""The reserve: a file of zeros that keeps some space of the disk for the writes that free space.

Old segments are removed only once a checkpoint without them is on the disk, and a topic only once the metadata is. Both
files are replaced whole, so for a moment they need space for a second copy. On a full disk the reserve is removed, and
gives its space to them. It is written again when the disk has space (broker.log.disk_watch).
"""

from contextlib import suppress

from broker.log.storage.port import Storage, StorageError

FILE = "reserve"
REPLACED = "checkpoint", "metadata.json"
"""The files whose copies the reserve has space for."""
_BLOCK_BYTES = 4096


def replace(storage: Storage, path: str, data: bytes, *, frees_space: bool) -> None:
    """Replace a file. If the disk is full and the new content `frees_space`, use the reserve. Raise StorageError."""
    try:
        storage.replace(path, data)
    except StorageError as error:
        if not (error.full and frees_space):
            raise
        free(storage)
        storage.replace(path, data)


def free(storage: Storage) -> None:
    """Remove the reserve, so that the next write finds its space. Another thread may have removed it already.

    Some file systems give space free only with the next sync, so sync the directory. Raise StorageError.
    """
    storage.remove(FILE)
    storage.sync_directory("")


def needed_bytes(storage: Storage, least_bytes: int) -> int:
    """Return the size that the reserve is to have; 0 for no reserve, if `least_bytes` is 0.

    That is `least_bytes`, or enough for two copies of the largest file of REPLACED, in whole blocks.
    """
    if not least_bytes:
        return 0
    needed = max(least_bytes, *(2 * _size_of(storage, path) for path in REPLACED))
    return -(-needed // _BLOCK_BYTES) * _BLOCK_BYTES


def present_bytes(storage: Storage) -> int:
    """Return the size of the reserve, 0 if it is missing."""
    return _size_of(storage, FILE)


def _size_of(storage: Storage, path: str) -> int:
    with suppress(StorageError):  # a thread may remove or replace the file now
        if storage.exists(path):
            return storage.open(path).size
    return 0
