"""The shortening of the last entry of an id index, so that a crash at any step loses no id.

A batch that recovery cuts off may share an entry with batches that stay. Their index is cut, and the entry's first part
is appended. A crash between the two would leave batches without ids, and the next start would cut them off. So a small
file is on the disk before the index is cut:

    N.idindex.shorter   the number of entries that stay, and the entry to append

A start that finds it does both steps again. Its removal is on the disk before any entry is appended.
"""

from collections.abc import Iterable

from broker.log.index.id_index import IdIndex
from broker.log.segment import ID_INDEX, file_name
from broker.log.storage.port import Storage, StorageError
from broker.log.storage.reserve import write_with_reserve
from broker.wire.id_entries import ENTRY_BYTES, IdEntry

SHORTER = ".shorter"
_NUMBER_BYTES = 8


def shorten(storage: Storage, directory: str, ids: IdIndex, number: int, last: IdEntry) -> None:
    """Let an id index end with its first `number` entries and `last`, the first part of the next one.

    On a full disk the small file takes the reserve. Raise StorageError.
    """
    path = f"{directory}/{file_name(ids.base_offset, ID_INDEX + SHORTER)}"
    data = number.to_bytes(_NUMBER_BYTES, "big") + ids.packed(last)
    write_with_reserve(storage, lambda: storage.replace(path, data))
    _cut(ids, data)
    storage.remove(path)
    storage.sync_directory(directory)


def finish_shortening(storage: Storage, directory: str, names: Iterable[str]) -> bool:
    """Do what an earlier process has begun. `names` are those in the directory. Return True if there was something.

    Raise StorageError.
    """
    begun = [name for name in names if name.endswith(ID_INDEX + SHORTER)]
    for name in begun:
        path = f"{directory}/{name}"
        index_path = path.removesuffix(SHORTER)
        if storage.exists(index_path):  # otherwise its segment was removed later
            file = storage.open(path)
            base_offset = int(name.removesuffix(ID_INDEX + SHORTER))
            _cut(IdIndex(storage.open(index_path), base_offset), file.read(0, file.size))
        storage.cutting()  # the removal is not synced yet
        storage.remove(path)
    if begun:
        storage.sync_directory(directory)
    return bool(begun)


def _cut(ids: IdIndex, data: bytes) -> None:
    kept_bytes, entry = int.from_bytes(data[:_NUMBER_BYTES], "big") * ENTRY_BYTES, data[_NUMBER_BYTES:]
    if len(entry) != ENTRY_BYTES:
        raise StorageError(ids.file.path + SHORTER, f"it has {len(data)} bytes, not {_NUMBER_BYTES + ENTRY_BYTES}")
    if kept_bytes > ids.file.size:  # a power cut has taken entries before it, with their batches
        return
    ids.file.truncate(kept_bytes)
    ids.file.append(entry)
    ids.file.sync()
