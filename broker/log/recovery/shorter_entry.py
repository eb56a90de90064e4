"""The shortening of the last entry of an id index, so that a crash at any step loses no id.

A batch that recovery cuts off may share an entry with batches that stay. Their index is cut, and the entry's first part
is appended. A crash between the two would leave batches without ids, and the next start would cut them off. So a small
file is on the disk before the index is cut:

    N.idindex.shorter   the number of entries that stay, and the entry to append

The index is synced before that. A start that finds the file does both steps again, if the file fits the index. The
file's removal is on the disk before any entry is appended.
"""

import re
from collections.abc import Iterable

from broker.log.index.id_index import IdIndex
from broker.log.recovery.synced import LogDamaged
from broker.log.segment import ID_INDEX, file_name
from broker.log.storage.port import Storage
from broker.log.storage.reserve import write_with_reserve
from broker.wire.id_entries import ENTRY_BYTES, IdEntry, read_entry, seed_of

SHORTER = ".shorter"
_NUMBER_BYTES = 8
_NAME = re.compile(rf"([0-9]{{20}}){re.escape(ID_INDEX + SHORTER)}")


def shorten(storage: Storage, directory: str, ids: IdIndex, number: int, last: IdEntry) -> None:
    """Let an id index end with its first `number` entries and `last`, the first part of the next one.

    On a full disk the small file takes the reserve. Raise StorageError.
    """
    path = f"{directory}/{file_name(ids.base_offset, ID_INDEX + SHORTER)}"
    data = number.to_bytes(_NUMBER_BYTES, "big") + ids.packed(last)
    ids.file.sync()  # a power cut must not take entries that the small file counts
    write_with_reserve(storage, lambda: storage.replace(path, data))
    _cut(ids, data)
    storage.remove(path)
    storage.sync_directory(directory)


def finish_shortening(storage: Storage, directory: str, names: Iterable[str]) -> bool:
    """Do what an earlier process has begun. `names` are those in the directory. Return True if there was something.

    Raise LogDamaged if a file does not fit its index, before that index has changed. Raise StorageError.
    """
    begun = list(filter(None, map(_NAME.fullmatch, names)))
    for name in begun:
        path = f"{directory}/{name[0]}"
        index_path = path.removesuffix(SHORTER)
        if storage.exists(index_path):  # otherwise its segment was removed later
            file, ids = storage.open(path), IdIndex(storage.open(index_path), int(name[1]))
            data = file.read(0, file.size)
            fault = _fault(ids, data)
            if fault is not None:
                raise LogDamaged(
                    f"{path}: {fault}; nothing is cut. Restore the file and {index_path} from a copy, or move the file "
                    f"to another directory: then the log ends where its ids end"
                )
            _cut(ids, data)
        storage.cutting()  # the removal is not synced yet
        storage.remove(path)
    if begun:
        storage.sync_directory(directory)
    return bool(begun)


def _fault(ids: IdIndex, data: bytes) -> str | None:
    """Return the fault of a small file's data, None if it fits the index.

    A crash may leave the index uncut, cut, or with a torn entry after the cut.
    """
    if len(data) != _NUMBER_BYTES + ENTRY_BYTES:  # the file is replaced whole, so no crash leaves a part of it
        return f"it has {len(data)} bytes, not {_NUMBER_BYTES + ENTRY_BYTES}"
    number = int.from_bytes(data[:_NUMBER_BYTES], "big")
    entry = read_entry(data, _NUMBER_BYTES, ids.base_offset, seed_of(ids.base_offset))
    if entry is None:
        return "the check of its entry fails"
    if number > len(ids):
        return f"it says that {number} entries stay, and the index has {len(ids)}"
    before = ids.entry(number - 1) if number else None
    if number and (before is None or before.offset + before.length > entry.offset):
        return f"its entry begins at offset {entry.offset}, which does not follow entry {number - 1} of the index"
    stands = ids.entry(number)
    if stands is not None and not _begins_as(stands, entry):
        return (
            f"its {entry.length} offsets from {entry.offset}, with ids from {entry.first_id}, are not the first of "
            f"entry {number} of the index, which has {stands.length} offsets from {stands.offset}, with ids from "
            f"{stands.first_id}"
        )
    return None


def _begins_as(entry: IdEntry, first_part: IdEntry) -> bool:
    return entry._replace(length=first_part.length) == first_part and entry.length >= first_part.length


def _cut(ids: IdIndex, data: bytes) -> None:
    kept_bytes, entry = int.from_bytes(data[:_NUMBER_BYTES], "big") * ENTRY_BYTES, data[_NUMBER_BYTES:]
    ids.file.truncate(kept_bytes)
    ids.file.append(entry)
    ids.file.sync()
