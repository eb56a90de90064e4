"""A storage that reads another one and keeps all changes in memory, for a check that changes nothing on the disk."""

from broker.log.storage.port import Buffer, Descriptor, File, Storage, StorageError


class OverlayFile:
    """A file whose first `_kept` bytes are the other storage's, and the rest is in memory."""

    def __init__(self, path: str, below: File | None) -> None:
        self.path = path
        self._below = below
        self._kept = below.size if below is not None else 0
        self._data = bytearray()
        self.size = self._kept

    def append(self, data: Buffer) -> None:
        self._data += data
        self.size += len(data)

    def read(self, position: int, length: int) -> bytes:
        below = b""
        if self._below is not None and position < self._kept:
            below = self._below.read(position, min(length, self._kept - position))
        if len(below) < length:
            start = max(position - self._kept, 0)
            below += bytes(self._data[start : start + length - len(below)])
        return below

    def read_now(self, position: int, length: int) -> bytes | bytearray | None:
        data = self.read(position, length)
        return data if len(data) == length else None

    def truncate(self, size: int) -> None:
        if size < self._kept:
            self._kept = size
            self._data.clear()
        else:
            del self._data[size - self._kept :]
            self._data += bytes(size - self._kept - len(self._data))
        self.size = size

    def trim(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def note_unsynced(self) -> None:
        pass

    def descriptor(self) -> Descriptor | None:
        return None

    def modified_ms(self) -> int:
        return self._below.modified_ms() if self._below is not None else 0

    def set_modified_ms(self, wall_ms: int) -> None:
        pass


class OverlayStorage:
    """The files of a storage, with changes that only this object sees."""

    def __init__(self, below: Storage) -> None:
        self._below = below
        self._files: dict[str, OverlayFile] = {}
        self._removed: set[str] = set()
        """Files and directories of the other storage that were removed or renamed."""

    @property
    def location(self) -> str:
        return self._below.location

    @property
    def open_count(self) -> int:
        return self._below.open_count

    def space(self) -> tuple[int, int]:
        return self._below.space()

    def _is_gone(self, path: str) -> bool:
        return path in self._removed or path.rpartition("/")[0] in self._removed

    def open(
        self, path: str, create: bool = False, ahead_bytes: int = 0, size: int | None = None
    ) -> OverlayFile:
        file = self._files.get(path)
        if file is None:
            below = self._below.open(path) if not self._is_gone(path) and self._below.exists(path) else None
            if below is None and not create:
                raise StorageError(path, "No such file or directory")
            file = self._files[path] = OverlayFile(path, below)
        return file

    def exists(self, path: str) -> bool:
        return path in self._files or (not self._is_gone(path) and self._below.exists(path)) or bool(self._in(path))

    def _in(self, directory: str) -> list[str]:
        """Return the names of the changed files in a directory."""
        start = directory + "/" if directory else ""
        return [
            path[len(start) :] for path in self._files if path.startswith(start) and "/" not in path[len(start) :]
        ]

    def _names(self, directory: str) -> list[str]:
        start = directory + "/" if directory else ""
        if directory in self._removed:
            return []
        return [name for name in self._below.list(directory) if start + name not in self._removed]

    def list(self, directory: str) -> list[str]:
        return sorted({*self._names(directory), *self._in(directory)})

    def sizes(self, directory: str) -> dict[str, int]:
        start = directory + "/" if directory else ""
        below = {} if directory in self._removed else self._below.sizes(directory)
        sizes = {name: size for name, size in below.items() if start + name not in self._removed}
        return sizes | {name: self._files[start + name].size for name in self._in(directory)}

    def make_directory(self, *paths: str) -> None:
        pass

    def rename(self, source: str, target: str) -> None:
        for name in self.list(source):
            self.rename(f"{source}/{name}", f"{target}/{name}")
        if source in self._files or (
            not self._is_gone(source) and source not in self._removed and self._is_file(source)
        ):
            self._files[target] = self.open(source)
        self.remove(source)

    def _is_file(self, path: str) -> bool:
        directory, _, name = path.rpartition("/")
        return name in self._below.sizes(directory)

    def remove(self, path: str) -> None:
        for removed in [name for name in self._files if name == path or name.startswith(path + "/")]:
            del self._files[removed]
        self._removed.add(path)

    def replace(self, path: str, data: bytes) -> None:
        self._files[path] = OverlayFile(path, None)
        self._files[path].append(data)

    def note_until_cut(self, path: str) -> None:
        pass

    def cutting(self) -> None:
        pass

    def sync_all(self) -> bool:
        return True

    def sync_directory(self, path: str) -> None:
        pass
