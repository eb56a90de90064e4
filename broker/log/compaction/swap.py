"""The renames that put a cleaned segment in the place of the segments it was made of, safe against crashes.

    N.log.cleaned   being written; a start removes it
    N.log.swap      whole and synced; it replaces the segments from its first offset to its last
    N.log           in its place; the old segments' files are named `.deleted`

Each step renames all files of a segment; for the cleaned segment, the .log file is the last of a step. Files are
renamed one by one, and the file system's journal keeps that order, so a crash leaves the first few renames done. A
start that finds a .log.swap completes the swap; without one, it removes the swap's files. The old segments are removed
only after the directory's new names are synced.
"""

import re
from collections import deque
from collections.abc import Sequence

from broker.log.segment import (
    CLEANED,
    DELETED,
    ID_INDEX,
    LOG,
    SUFFIXES,
    SWAP,
    Segment,
    batches_of,
    file_name,
    remove_files,
)
from broker.log.storage.port import Storage

_UNFINISHED = re.compile(rf"[0-9]{{20}}({'|'.join(SUFFIXES)})({CLEANED}|{SWAP})".replace(".", "[.]"))


class Swap:
    """The renames that give a cleaned segment the name of the first old one.

    If a rename fails, the log continues with its open files. The swap's owner or the next start retries.
    """

    def __init__(self, storage: Storage, cleaned: Segment, old: Sequence[Segment]) -> None:
        self.cleaned = cleaned
        self.old = tuple(old)
        self.retired: list[str] = []
        """Paths of the renamed old files, which may be removed once the swap is done."""
        self._storage = storage
        last_first = tuple(reversed(SUFFIXES))
        self._renames_left = deque(
            [(cleaned, suffix + CLEANED, suffix + SWAP) for suffix in last_first]
            + [(segment, suffix, suffix + DELETED) for segment in old for suffix in SUFFIXES]
            + [(cleaned, suffix + SWAP, suffix) for suffix in last_first]
        )

    def go_on(self) -> None:
        """Do the remaining renames. Raise StorageError at the first that fails."""
        while self._renames_left:
            segment, before, after = self._renames_left[0]
            path = f"{segment.directory}/{file_name(segment.base_offset, '')}"
            if self._storage.exists(path + before):
                self._storage.rename(path + before, path + after)
                segment.renamed(path + before, path + after)
                if after.endswith(DELETED):
                    self.retired.append(path + after)
            self._renames_left.popleft()


def finish_swaps(storage: Storage, directory: str) -> None:
    """Complete each swap that an earlier process began, and remove the files of unfinished cleaning.

    Leave other files alone: people may keep copies in the directory.
    """
    for name in _unfinished(storage, directory):
        if name.endswith(LOG + SWAP):
            _finish(storage, directory, int(name.removesuffix(LOG + SWAP)))
    for name in _unfinished(storage, directory):
        storage.remove(f"{directory}/{name}")


def _unfinished(storage: Storage, directory: str) -> list[str]:
    return [name for name in storage.list(directory) if _UNFINISHED.fullmatch(name)]


def _finish(storage: Storage, directory: str, base_offset: int) -> None:
    """Remove the old segments, then rename the swap's files.

    The .log.swap is renamed last, and only once the removal is on the disk. Until then, each start repeats all steps.
    """
    path = f"{directory}/{file_name(base_offset, '')}"
    file = storage.open(path + LOG + SWAP)
    end = base_offset
    for _, header in batches_of(file, 0, file.size):
        end = header.last_offset + 1
    old = [base for base in _bases(storage, directory) if base_offset < base < end]
    if storage.exists(path + ID_INDEX + SWAP):  # renamed first: the final name is still an old segment's
        old.append(base_offset)
    storage.sync_directory(directory)
    for base in old:
        remove_files(storage, directory, base)
    storage.sync_directory(directory)
    for suffix in reversed(SUFFIXES):
        if storage.exists(path + suffix + SWAP):
            storage.rename(path + suffix + SWAP, path + suffix)


def _bases(storage: Storage, directory: str) -> set[int]:
    """Return the base offsets of all segments with at least one file."""
    stems = (name.partition(".") for name in storage.list(directory))
    return {int(stem) for stem, dot, suffix in stems if dot + suffix in SUFFIXES and stem.isdecimal()}
