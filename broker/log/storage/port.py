"""The files port: the operations that a log needs of a disk.

`os_storage` implements it over a directory, `memory_storage` over memory that can lose power.

Paths are relative to the data directory, with "/". A log only appends to its files; the few whole files (checkpoint,
metadata) are replaced in one step. A power cut may lose unsynced writes, in any order.
"""

from typing import Protocol, TypeAlias

# Space is reserved ahead of appends only if the disk has this many times as much free, so that the reserve never takes
# the last free space from other writers.
AHEAD_SPARE = 64
TEMPORARY = ".tmp"
"""The suffix of a file that `replace` writes. A kill may leave it behind."""

Buffer: TypeAlias = bytes | bytearray | memoryview


class Descriptor(Protocol):
    """An open descriptor, which stays open while a caller holds it."""

    @property
    def fd(self) -> int: ...


class StorageError(Exception):
    """A failed file operation: its `path`, the `reason`, and whether the disk was `full`.

    `is_passing`: the process lacked descriptors or memory for a moment, so the error says nothing about the file.
    `is_read_only`: the whole file system takes no writes, as after an error with ext4's `errors=remount-ro`.
    """

    def __init__(
        self, path: str, reason: str, full: bool = False, *, is_passing: bool = False, is_read_only: bool = False
    ) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.full = full
        self.is_passing = is_passing
        self.is_read_only = is_read_only

    @property
    def is_of_file(self) -> bool:
        """Return True if the file itself could not be used. A full disk, or a lack of the process, passes."""
        return not (self.full or self.is_passing)


class File(Protocol):
    """A file in use. A reader can use the file of a deleted segment as long as it holds it."""

    path: str
    size: int

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end, or raise StorageError and leave the file as it was.

        If undoing a partial write fails too, `size` is the file's real size.
        """
        ...

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""
        ...

    def read_now(self, position: int, length: int) -> bytes | bytearray | None:
        """Return `length` bytes, or None if they are not in memory or the file has fewer. In that case call `read`,
        which waits and raises errors."""
        ...

    def truncate(self, size: int) -> None: ...

    def trim(self) -> None:
        """Free the space that the disk has reserved past the end. Never raise.

        Call it after a sync, from a thread, when no append will follow soon: some file systems write all data to the
        disk before they free any space.
        """
        ...

    def sync(self) -> None:
        """Return once the file's data is on the disk. Call it from a thread; never retry a failure.

        After a failure, each later sync of the file fails too.
        """
        ...

    def note_unsynced(self) -> None:
        """Note that an earlier process may have left unsynced bytes in the file, as if this one had written them."""
        ...

    def descriptor(self) -> Descriptor | None:
        """Return the open descriptor for sendfile, None if the file is in memory only. Raise StorageError.

        Hold it while its number is used: a file that is not used may be closed, and its number given to another.
        """
        ...

    def modified_ms(self) -> int:
        """Return the time of the last write, by the wall clock."""
        ...

    def set_modified_ms(self, wall_ms: int) -> None:
        """Set the file's modification time."""
        ...


class Storage(Protocol):
    @property
    def location(self) -> str:
        """Return the storage's location, for messages to people."""
        ...

    @property
    def open_count(self) -> int:
        """Return the number of open descriptors of files."""
        ...

    def space(self) -> tuple[int, int]:
        """Return the disk's size in bytes and the bytes that can still be written. Raise StorageError."""
        ...

    def open(self, path: str, create: bool = False, ahead_bytes: int = 0, size: int | None = None) -> File:
        """Open a file for reading and appending. Raise StorageError if it does not exist and `create` is not set.

        `ahead_bytes`: extend the file by this many zeros at a time, and overwrite them with the appended data. Most
        syncs then write no new file size to the disk, and take half the time or less. A later `open` finds the
        remaining zeros at the end of the file. No zeros are added unless the disk has AHEAD_SPARE times as much free
        space.

        `size`: the size of the existing file, as `sizes` has just said. The file is then opened at its first use.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; an empty list if it does not exist."""
        ...

    def sizes(self, directory: str) -> dict[str, int]:
        """Return the size in bytes of each file in a directory, by name; empty if the directory does not exist."""
        ...

    def make_directory(self, *paths: str) -> None:
        """Create directories with their parents, and sync them so that they survive a power cut. Skip existing ones."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its contents. Do nothing if the path does not exist."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Replace a whole file. A power cut leaves the old or the new version, never a part."""
        ...

    def note_until_cut(self, path: str) -> None:
        """Make an empty file that is removed before the next cut: a `truncate`, an append that is undone, `cutting`.

        So a process that finds it after a kill knows that no file has an unsynced cut. After a power cut the file may
        be back. Then no file has an unsynced cut either, because all bytes that can be read are on the disk.
        """
        ...

    def cutting(self) -> None:
        """Note a cut that removes whole files: those of segments past a log's new end."""
        ...

    def sync_all(self) -> bool:
        """Return True once all that any process has written is on the disk, with the names; False if that cannot be
        had with one wait."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return once the names in the directory are on the disk; "" is the data directory itself."""
        ...
