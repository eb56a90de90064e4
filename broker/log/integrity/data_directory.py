"""A look at a data directory without its metadata, so that a start never takes old data for an empty directory."""

import re
from collections.abc import Collection, Iterable

from broker.log.segment import LOG
from broker.log.storage.port import Storage
from broker.wire.errors import ApiError, ErrorCode
from coordination.listing import listed

NAMED_MAX = 3
"""Names in a message; a directory may hold thousands."""

_PARTITION = re.compile(r"(.+)-(\d+)")
_JOURNAL = re.compile(r"\d+\.journal")


def partition_of(name: str) -> tuple[str, int] | None:
    """Return (topic, partition) of a partition's directory by its name, None for any other name."""
    match = _PARTITION.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def has_log(storage: Storage, directory: str) -> bool:
    """Return True if a directory has a log file."""
    return any(name.endswith(LOG) for name in storage.list(directory))


def data_beside(storage: Storage) -> list[str]:
    """Return the names of partitions' directories with logs, and of journals. Raise StorageError."""
    names = storage.list("")
    return [
        name
        for name in names
        if _JOURNAL.fullmatch(name) or (partition_of(name) is not None and has_log(storage, name))
    ]


class Strays:
    """Partitions' directories with records of no topic. A new topic never takes them, and nothing deletes them."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._names: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def find(self, partitions: Collection[str]) -> str:
        """Find the directories of none of these partitions ("topic-0"). Return the first few names, "" for none."""
        names = [name for name in self._storage.list("") if partition_of(name) is not None and name not in partitions]
        strays = [name for name in names if has_log(self._storage, name)]
        self._names.update(strays)
        return listed(strays, NAMED_MAX)

    def check(self, partitions: Iterable[str]) -> None:
        """Raise ApiError if one of these partitions that are to be created has records already."""
        for name in partitions:
            if name in self._names and has_log(self._storage, name):
                where = f"{self._storage.location}/{name}"
                raise ApiError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{where} has records of another topic. Move it away, or delete it",
                )
            self._names.discard(name)
