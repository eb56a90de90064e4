"""A cleaned segment takes the place of those it was made of, whatever happens on the way.

    N.log.cleaned   being written; it means nothing
    N.log.swap      whole, synced, and to take the place of the segments from its first offset to its last
    N.log           in its place; what it was made of is called `.deleted`

All files of a segment get each name, the .log file last. Files are renamed one after the other, and a journal keeps
that order: a crash leaves a beginning of it. So a start finds a .log.swap and goes on, or finds none and goes back; the
old segments are removed only when the directory with the new names is on the disk.
"""

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
from broker.log.storage import Storage


class Swap:
    """A cleaned segment's way to its name, which the first of the old ones has. Where a name cannot be changed the log
    goes on with what it has open, and whoever has the swap goes on with it later; so does the next start."""

    def __init__(self, storage: Storage, cleaned: Segment, old: Sequence[Segment]) -> None:
        self.cleaned = cleaned
        self.old = tuple(old)
        self.retired: list[str] = []
        """The names of what may be removed when it is done."""
        self._storage = storage
        last_first = tuple(reversed(SUFFIXES))
        self._left = deque(
            [(cleaned, suffix + CLEANED, suffix + SWAP) for suffix in last_first]
            + [(segment, suffix, suffix + DELETED) for segment in old for suffix in SUFFIXES]
            + [(cleaned, suffix + SWAP, suffix) for suffix in last_first]
        )

    def go_on(self) -> None:
        """Change the names that are left; StorageError at the first that cannot be changed."""
        while self._left:
            segment, before, after = self._left[0]
            path = f"{segment.directory}/{file_name(segment.base_offset, '')}"
            if self._storage.exists(path + before):
                self._storage.rename(path + before, path + after)
                segment.renamed(path + before, path + after)
                if after.endswith(DELETED):
                    self.retired.append(path + after)
            self._left.popleft()


def finish_swaps(storage: Storage, directory: str) -> None:
    """At a start: go on with each swap that was begun, and remove what of a cleaning came to nothing."""
    names = storage.list(directory)
    if not any(name.endswith((CLEANED, SWAP)) for name in names):
        return
    for name in names:
        if name.endswith(LOG + SWAP):
            _finish(storage, directory, int(name.removesuffix(LOG + SWAP)))
    for name in storage.list(directory):
        if name.endswith((CLEANED, SWAP)):
            storage.remove(f"{directory}/{name}")


def _finish(storage: Storage, directory: str, base_offset: int) -> None:
    """The .log.swap goes last, and only when what it replaces is gone from the disk: until then it is begun anew."""
    path = f"{directory}/{file_name(base_offset, '')}"
    file = storage.open(path + LOG + SWAP)
    end = base_offset
    for _, header in batches_of(file, 0, file.size):
        end = header.last_offset + 1
    old = [base for base in _bases(storage, directory) if base_offset < base < end]
    if storage.exists(path + ID_INDEX + SWAP):  # the first to be renamed: what has the name now is of an old segment
        old.append(base_offset)
    storage.sync_directory(directory)
    for base in old:
        remove_files(storage, directory, base)
    storage.sync_directory(directory)
    for suffix in reversed(SUFFIXES):
        if storage.exists(path + suffix + SWAP):
            storage.rename(path + suffix + SWAP, path + suffix)


def _bases(storage: Storage, directory: str) -> set[int]:
    """Of the segments of which there is any file."""
    stems = (name.partition(".") for name in storage.list(directory))
    return {int(stem) for stem, dot, suffix in stems if dot + suffix in SUFFIXES and stem.isdecimal()}
