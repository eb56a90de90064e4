"""The files port: what a log asks of a disk. `os_storage` is a directory of the machine, `memory_storage` one that can
lose power.

Paths are relative to the data directory, with "/". Everything a log writes is appended; the rare whole files
(checkpoint, metadata) are replaced in one step. What is not synced may be gone after a power cut, in any order.
"""

from typing import Protocol, TypeAlias

# Room is taken ahead of what is appended only where the disk has so many times as much: it must not be its last, which
# is somebody else's to write to.
AHEAD_SPARE = 64

Buffer: TypeAlias = bytes | bytearray | memoryview


class StorageError(Exception):
    """A file operation that failed: `path`, why, and whether the disk was full."""

    def __init__(self, path: str, reason: str, full: bool = False) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.full = full


class File(Protocol):
    """An open file. It closes when nothing refers to it any more: a reader may hold a deleted segment's file."""

    path: str
    size: int

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end, or raise StorageError and leave the file as it was.

        Where it cannot be left so (the cut fails as well), `size` says what is there now.
        """
        ...

    def read(self, position: int, length: int) -> bytes:
        """At most `length` bytes; fewer only at the end of the file."""
        ...

    def read_now(self, position: int, length: int) -> bytes | bytearray | None:
        """`length` bytes, or None where they are not in memory, or not there: then `read` waits, and tells."""
        ...

    def truncate(self, size: int) -> None: ...

    def trim(self) -> None:
        """Give back what the disk has set aside past the end, if any: no more is appended soon. It never fails.

        Called after a sync, from a thread: some file systems write all there is to the disk before they give any back.
        """
        ...

    def sync(self) -> None:
        """Return when the file's data is on the disk. Called from a thread; a failure is never retried."""
        ...

    def fileno(self) -> int:
        """The descriptor for sendfile; -1 where there is none."""
        ...

    def modified_ms(self) -> int:
        """When it was last written to, by the wall clock."""
        ...

    def set_modified_ms(self, wall_ms: int) -> None:
        """Say it was last written to then."""
        ...


class Storage(Protocol):
    @property
    def location(self) -> str:
        """Where it is, for people."""
        ...

    def space(self) -> tuple[int, int]:
        """Bytes of the disk, and those that can still be written; StorageError."""
        ...

    def open(self, path: str, create: bool = False, ahead_bytes: int = 0) -> File:
        """Open for reading and appending; StorageError where it is not there and `create` is not set.

        `ahead_bytes`: what is appended is written over zeros that were put past the end before, so many at a time: most
        syncs then have no change of the file's size to bring to the disk, and take half the time or less. Who opens the
        file later finds those zeros at its end. None are put where the disk has no room for AHEAD_SPARE times as many.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted; none where there is no such directory."""
        ...

    def sizes(self, directory: str) -> dict[str, int]:
        """The files in a directory, by name, and how many bytes each has; none where there is no such directory."""
        ...

    def make_directory(self, *paths: str) -> None:
        """Make them and their parents, and see that they survive a power cut. One that is there is fine."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it. One that is not there is fine."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Put a whole file in place of an older one: after a power cut it is the one or the other, never a part."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory are on the disk; "" is the data directory itself."""
        ...
