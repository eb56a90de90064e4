"""The storage port in memory, with what disks do to one: run full, fail a sync, lose power.

`power_cut` gives the storage as the machine finds it again: every page that was not synced may be there, or as it was
before, or torn, or nonsense, each by itself; a file may end anywhere between its synced and its last size; a name that
was not synced may be missing. What was synced is there.
"""

from collections.abc import Callable

from broker.log.storage import Buffer, StorageError

PAGE_BYTES = 4096

Chance = Callable[[int], int]
"""`chance(n)` gives 0 .. n-1; handed in, so a seed replays a cut."""


class _Content:
    """A file's bytes: as they are, and as they were at the last sync."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""

    def after_power_cut(self, chance: Chance) -> bytes:
        low, high = sorted((len(self.synced), len(self.data)))
        size = (low, high, low + chance(high - low + 1))[chance(3)]
        out = bytearray()
        for start in range(0, size, PAGE_BYTES):
            end = min(start + PAGE_BYTES, size)
            new = bytes(self.data[start:end]).ljust(end - start, b"\0")
            old = self.synced[start:end].ljust(end - start, b"\0")
            if new == old:
                out += new
                continue
            torn = chance(end - start + 1)
            # What was synced never changes: files only grow, or are cut and grow again.
            kept = _common(new, old)
            nonsense = bytes(chance(256) for _ in range(end - start))
            out += (
                new,
                old,
                new[: max(torn, kept)] + old[max(torn, kept) :],
                new[:kept] + nonsense[kept:] if len(self.synced) <= start + kept else old,
            )[chance(4)]
        return bytes(out)


def _common(a: bytes, b: bytes) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class MemoryFile:
    def __init__(self, storage: "MemoryStorage", path: str, content: _Content) -> None:
        self.path = path
        self._storage = storage
        self._content = content

    @property
    def size(self) -> int:
        return len(self._content.data)

    def append(self, data: Buffer) -> None:
        self._storage.take(self.path, len(data))
        self._content.data += data

    def read(self, position: int, length: int) -> bytes:
        return bytes(self._content.data[position : position + length])

    def truncate(self, size: int) -> None:
        del self._content.data[size:]

    def sync(self) -> None:
        self._storage.sync(self.path, self._content)

    def fileno(self) -> int:
        return -1


class MemoryStorage:
    """Files by path. `free_bytes` bounds what may be written; `failing_syncs` names paths whose next sync fails."""

    def __init__(self) -> None:
        self.files: dict[str, _Content] = {}
        self.directories: set[str] = set()
        self.free_bytes: int | None = None
        self.failing_syncs: set[str] = set()
        self._synced_names: dict[str, _Content] = {}

    def take(self, path: str, size: int) -> None:
        if self.free_bytes is not None:
            if size > self.free_bytes:
                raise StorageError(path, "No space left on device", full=True)
            self.free_bytes -= size

    def sync(self, path: str, content: _Content) -> None:
        if path in self.failing_syncs:
            raise StorageError(path, "Input/output error")
        content.synced = bytes(content.data)

    def open(self, path: str, create: bool = False) -> MemoryFile:
        if path not in self.files:
            if not create:
                raise StorageError(path, "No such file or directory")
            self.take(path, 0)
            self.files[path] = _Content()
        return MemoryFile(self, path, self.files[path])

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def list(self, directory: str) -> list[str]:
        prefix = directory.rstrip("/") + "/" if directory else ""
        inside = [p[len(prefix) :] for p in (*self.files, *self.directories) if p.startswith(prefix) and p != prefix]
        return sorted({name.split("/")[0] for name in inside if name})

    def make_directory(self, path: str) -> None:
        self.directories.add(path)

    def rename(self, source: str, target: str) -> None:
        for path in [p for p in self.files if p == source or p.startswith(source + "/")]:
            self.files[target + path[len(source) :]] = self.files.pop(path)
        if source in self.directories:
            self.directories.remove(source)
            self.directories.add(target)

    def remove(self, path: str) -> None:
        for each in [p for p in self.files if p == path or p.startswith(path + "/")]:
            del self.files[each]
        self.directories.discard(path)

    def replace(self, path: str, data: bytes) -> None:
        self.take(path, len(data))
        content = _Content()
        content.data += data
        content.synced = bytes(data)
        self.files[path] = self._synced_names[path] = content

    def sync_directory(self, path: str) -> None:
        prefix = path.rstrip("/") + "/"
        for name in [p for p in self._synced_names if p.startswith(prefix) and p not in self.files]:
            del self._synced_names[name]
        self._synced_names.update((p, c) for p, c in self.files.items() if p.startswith(prefix))

    def power_cut(self, chance: Chance) -> "MemoryStorage":
        """The disk as it is found after the power came back; this storage must not be used any more."""
        after = MemoryStorage()
        after.directories = set(self.directories)
        for path in sorted({*self.files, *self._synced_names}):
            content = self.files.get(path)
            synced = self._synced_names.get(path)
            if content is not synced and chance(2):
                content = synced  # the new name, or the removal, did not reach the disk
            if content is None:
                continue
            found = _Content()
            found.data += content.after_power_cut(chance)
            found.synced = bytes(found.data)
            after.files[path] = after._synced_names[path] = found
        return after
