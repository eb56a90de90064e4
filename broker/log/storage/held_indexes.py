"""A storage for logs that are opened on a full disk: bytes of an index that do not fit are held in memory.

Indexes can be rebuilt from the log, so nothing is lost with the memory. The next append writes the held bytes first,
once the disk has space. If an index is shorter on the disk than the checkpoint says, the next start rebuilds it.
"""

from broker.log import leader_epochs
from broker.log.storage.port import Buffer, Descriptor, File, Storage, StorageError

INDEXES = (".index", ".timeindex", ".txnindex")
REWRITTEN = ".cleaned"  # the suffix of an index that is being rewritten


class HeldFile:
    """A file and the bytes after its end that are held in memory. `file` is None if it could not be made."""

    def __init__(self, storage: Storage, path: str, file: File | None) -> None:
        self._storage = storage
        self._made_path = path
        self._file = file
        self._held = bytearray()
        self._shown_path = path if file is None else file.path
        self.size = self._written

    @property
    def path(self) -> str:
        return self._shown_path

    @path.setter
    def path(self, path: str) -> None:
        self._shown_path = path
        self._made_path = self._made_path.removesuffix(REWRITTEN)
        if self._file is not None:
            self._file.path = path

    @property
    def _written(self) -> int:
        return 0 if self._file is None else self._file.size

    def append(self, data: Buffer) -> None:
        before = len(self._held)
        self._held += data
        try:
            if self._file is None:
                self._file = self._storage.open(self._made_path, create=True)
            self._file.append(bytes(self._held))
        except StorageError as error:
            if not error.full:
                del self._held[before:]
                raise
        else:
            self._held.clear()
        self.size = self._written + len(self._held)

    def read(self, position: int, length: int) -> bytes:
        written = self._written
        stored = b"" if self._file is None or position >= written else self._file.read(position, length)
        start = max(position - written, 0)
        return stored + bytes(self._held[start : max(position + length - written, 0)])

    def read_now(self, position: int, length: int) -> bytes | bytearray | None:
        if self._file is not None and position + length <= self._written:
            return self._file.read_now(position, length)
        return None

    def truncate(self, size: int) -> None:
        written = self._written
        del self._held[max(size - written, 0) :]
        if self._file is not None and size < written:
            self._file.truncate(size)
        self.size = self._written + len(self._held)

    def trim(self) -> None:
        if self._file is not None:
            self._file.trim()

    def sync(self) -> None:
        """Sync the written bytes. The held bytes need no disk, because the next start can rebuild them."""
        if self._file is not None:
            self._file.sync()

    def note_unsynced(self) -> None:
        if self._file is not None:
            self._file.note_unsynced()

    def descriptor(self) -> Descriptor | None:
        return None if self._file is None else self._file.descriptor()

    def modified_ms(self) -> int:
        return 0 if self._file is None else self._file.modified_ms()

    def set_modified_ms(self, wall_ms: int) -> None:
        if self._file is not None:
            self._file.set_modified_ms(wall_ms)


class HeldIndexes:
    """A storage over `storage` whose indexes can be longer than the disk has room for."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def location(self) -> str:
        return self._storage.location

    @property
    def open_count(self) -> int:
        return self._storage.open_count

    def space(self) -> tuple[int, int]:
        return self._storage.space()

    def open(self, path: str, create: bool = False, ahead_bytes: int = 0, size: int | None = None) -> File:
        if not path.removesuffix(REWRITTEN).endswith(INDEXES):
            return self._storage.open(path, create, ahead_bytes, size)
        try:
            file = self._storage.open(path, create, ahead_bytes, size)
        except StorageError as error:
            if not (create and error.full):
                raise
            return HeldFile(self._storage, path, None)
        return HeldFile(self._storage, path, file)

    def exists(self, path: str) -> bool:
        return self._storage.exists(path)

    def list(self, directory: str) -> list[str]:
        return self._storage.list(directory)

    def sizes(self, directory: str) -> dict[str, int]:
        return self._storage.sizes(directory)

    def make_directory(self, *paths: str) -> None:
        self._storage.make_directory(*paths)

    def rename(self, source: str, target: str) -> None:
        """Rename a file. If a rewritten index is in memory only, remove the index that it replaces."""
        if source.endswith(REWRITTEN) and not self._storage.exists(source):
            self._storage.remove(target)
        else:
            self._storage.rename(source, target)

    def remove(self, path: str) -> None:
        self._storage.remove(path)

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file. Raise StorageError; leader epochs stay as they are on a full disk, as each start cuts them.

        The callers for other files count on the new content: rebuilt indexes, and checksums.
        """
        try:
            self._storage.replace(path, data)
        except StorageError as error:
            if not (error.full and path.endswith(leader_epochs.FILE)):
                raise

    def note_until_cut(self, path: str) -> None:
        self._storage.note_until_cut(path)

    def cutting(self) -> None:
        self._storage.cutting()

    def sync_all(self) -> bool:
        return self._storage.sync_all()

    def sync_directory(self, path: str) -> None:
        self._storage.sync_directory(path)
