"""The storage port in memory, with a disk's failures: it can run full, fail a sync or a cut, and lose power.

`power_cut` returns the storage as a restarted machine finds it. Synced data survives. Every unsynced page may be new,
as it was at any cut or sync before, torn, or garbage, each independently of the others. A file may end anywhere between
its synced and its last size. An unsynced name may be missing, and a rename or removal undone.
"""

from collections import Counter
from collections.abc import Callable
from weakref import WeakSet

from broker.log.storage.port import AHEAD_SPARE, Buffer, StorageError

PAGE_BYTES = 4096

Chance = Callable[[int], int]
"""`chance(n)` returns 0 .. n-1. The caller passes it in, so that a seed replays a power cut."""


class _Content:
    """A file's bytes: the current ones, the synced ones, and the versions before each cut since the last sync.

    The kernel may write pages back at any time, so bytes that were cut off or overwritten may have reached the disk.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.cut: list[bytes] = []
        self.modified_ms = 0

    def truncate(self, size: int) -> None:
        if size < len(self.data):
            self.cut.append(bytes(self.data))
            del self.data[size:]
        else:
            self.data += bytes(size - len(self.data))

    def sync(self) -> None:
        self.synced = bytes(self.data)
        self.cut.clear()

    def after_power_cut(self, chance: Chance) -> bytes:
        versions = [self.synced, *self.cut]
        low = min(len(self.synced), len(self.data))
        high = max(len(self.data), *map(len, versions))
        size = (low, len(self.data), low + chance(high - low + 1))[chance(3)]
        out = bytearray()
        for start in range(0, size, PAGE_BYTES):
            old = versions[chance(len(versions))]
            out += self._page(start, min(start + PAGE_BYTES, size), old, chance)
        return bytes(out)

    def _page(self, start: int, end: int, older: bytes, chance: Chance) -> bytes:
        new = bytes(self.data[start:end]).ljust(end - start, b"\0")
        old = older[start:end].ljust(end - start, b"\0")
        # Synced bytes without a later write are the same in all versions, and survive.
        kept = _common(_common(new, old), self.synced[start:end])
        if new == old and len(kept) >= len(new):
            return new
        is_kept = chance(4)
        if is_kept < 2:
            return (new, old)[is_kept]
        if is_kept == 2:
            torn = max(chance(end - start + 1), len(kept))
            return new[:torn] + old[torn:]
        size = end - start - len(kept)
        return kept + chance(1 << 8 * size).to_bytes(size, "big")


def _common(a: bytes, b: bytes) -> bytes:
    """Return the common prefix of two byte strings."""
    if a.startswith(b):
        return b
    return a[: next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))]


class MemoryFile:
    def __init__(self, storage: "MemoryStorage", path: str, content: _Content, ahead_bytes: int) -> None:
        self.path = path
        self._storage = storage
        self._ahead_bytes = ahead_bytes
        self._zeros = 0
        self._content = content
        storage.open_files.add(self)

    @property
    def size(self) -> int:
        return len(self._content.data) - self._zeros

    def append(self, data: Buffer) -> None:
        size = len(data)
        if size > self._zeros and self._ahead_bytes and self._storage.has_room(size + AHEAD_SPARE * self._ahead_bytes):
            self._extend(bytes(size - self._zeros + self._ahead_bytes))
            self._zeros = size + self._ahead_bytes
        if self._zeros >= size:
            self._content.data[self.size : self.size + size] = data
            self._zeros -= size
            return
        if self._zeros:
            self.truncate(self.size)
        self._extend(data)

    def _extend(self, data: Buffer) -> None:
        before = self.size
        try:
            self._storage.take(self.path, len(data))
        except StorageError:
            # The part that fits is written, then cut off. It may have reached the disk all the same.
            self._content.data += memoryview(data)[: self._storage.free_bytes]
            self.truncate(before)
            raise
        self._content.data += data
        self._content.modified_ms = self._storage.wall_ms

    def read(self, position: int, length: int) -> bytes:
        self._storage.fail_if_told(self.path, self._storage.failing_reads)
        if self.path in self._storage.lacking_reads:
            raise StorageError(self.path, "Too many open files", is_passing=True)
        data = bytes(self._content.data[position : position + length])
        self._storage.bytes_read[self.path] += len(data)
        self._storage.not_in_memory.discard(self.path)
        return data

    def read_now(self, position: int, length: int) -> bytes | None:
        return None if self.path in self._storage.not_in_memory else self.read(position, length)

    def truncate(self, size: int) -> None:
        self._storage.cutting()
        self._storage.fail_if_read_only(self.path)
        self._storage.fail_if_told(self.path, self._storage.failing_cuts)
        self._content.truncate(size)
        self._zeros = 0

    def trim(self) -> None:
        """Do nothing, because no space is reserved."""

    def sync(self) -> None:
        self._storage.fail_if_told(self.path, self._storage.failing_syncs)
        self._content.sync()

    def note_unsynced(self) -> None:
        """Do nothing, because the bytes that are synced are known."""

    def descriptor(self) -> None:
        return None

    def modified_ms(self) -> int:
        return self._content.modified_ms

    def set_modified_ms(self, wall_ms: int) -> None:
        self._content.modified_ms = wall_ms


UNBOUNDED_BYTES = 1 << 40  # total size reported for an unbounded disk


class MemoryStorage:
    """The files by path. `free_bytes` bounds the writes; each `failing_*` set names the paths where that fails."""

    def __init__(self) -> None:
        self.files: dict[str, _Content] = {}
        self.directories: set[str] = set()
        self.free_bytes: int | None = None
        self.gives_back = False
        """True if the bytes of removed files are free again; otherwise other programs take them at once."""
        self.syncs_all = False
        """True for a disk that `sync_all` can wait for."""
        self.wall_ms = 0
        """The modification time that writes set."""
        self.failing_reads: set[str] = set()
        self.lacking_reads: set[str] = set()
        """Paths whose reads fail because the process has no descriptor left."""
        self.is_read_only = False
        """True for a disk that takes no writes, and whose files can be read."""
        self.failing_syncs: set[str] = set()
        self.failing_cuts: set[str] = set()
        self.failing_opens: set[str] = set()
        self.not_in_memory: set[str] = set()
        """Paths of files that are on the disk only, until a read that waits."""
        self.bytes_read: Counter[str] = Counter()
        """Bytes read, by path."""
        self.directory_syncs = 0
        self.open_files: WeakSet[MemoryFile] = WeakSet()
        self._until_cut = ""
        self._synced_names: dict[str, _Content] = {}
        self._renames: list[tuple[str, str]] = []
        """Renames that are not yet on the disk, oldest first."""

    location = "/memory"
    open_count = 0

    def space(self) -> tuple[int, int]:
        used = sum(self.open(path).size for path in self.files)
        free = UNBOUNDED_BYTES - used if self.free_bytes is None else self.free_bytes
        return used + free, free

    def take(self, path: str, size: int) -> None:
        self.fail_if_read_only(path)
        if self.free_bytes is not None:
            if size > self.free_bytes:
                raise StorageError(path, "No space left on device", full=True)
            self.free_bytes -= size

    def _give_back(self, path: str) -> None:
        """Count the bytes of a file that loses its name as free again, with `gives_back`."""
        if self.gives_back and self.free_bytes is not None and path in self.files:
            self.free_bytes += len(self.files[path].data)

    @staticmethod
    def fail_if_told(path: str, failing: set[str]) -> None:
        if path in failing:
            raise StorageError(path, "Input/output error")

    def fail_if_read_only(self, path: str) -> None:
        if self.is_read_only:
            raise StorageError(path, "Read-only file system", is_read_only=True)

    def has_room(self, size: int) -> bool:
        return self.free_bytes is None or size <= self.free_bytes

    def open(
        self, path: str, create: bool = False, ahead_bytes: int = 0, size: int | None = None
    ) -> MemoryFile:
        self.fail_if_told(path, self.failing_opens)
        if path not in self.files:
            if not create:
                raise StorageError(path, "No such file or directory")
            self.files[path] = _Content()
        return MemoryFile(self, path, self.files[path], ahead_bytes)

    def exists(self, path: str) -> bool:
        return not path or path in self.files or path in self.directories

    def list(self, directory: str) -> list[str]:
        prefix = directory.rstrip("/") + "/" if directory else ""
        inside = [p[len(prefix) :] for p in (*self.files, *self.directories) if p.startswith(prefix) and p != prefix]
        return sorted({name.split("/")[0] for name in inside if name})

    def sizes(self, directory: str) -> dict[str, int]:
        return {path.rpartition("/")[2]: len(self.files[path].data) for path in _inside(directory, self.files)}

    def make_directory(self, *paths: str) -> None:
        for parts in (path.split("/") for path in paths):
            self.directories.update("/".join(parts[: n + 1]) for n in range(len(parts)))

    def rename(self, source: str, target: str) -> None:
        if not self.exists(source):
            raise StorageError(source, "No such file or directory")
        if self.list(target):
            raise StorageError(source, "Directory not empty")
        self._move(source, target)
        self._renames.append((source, target))

    def _move(self, source: str, target: str) -> None:
        for names in (self.files, self._synced_names):
            for path in _under(source, names):
                names[target + path[len(source) :]] = names.pop(path)
        for path in _under(source, self.directories):
            self.directories.remove(path)
            self.directories.add(target + path[len(source) :])

    def remove(self, path: str) -> None:
        for name in _under(path, self.files):
            self._give_back(name)
            del self.files[name]
        self.directories.difference_update(_under(path, self.directories))

    def replace(self, path: str, data: bytes) -> None:
        self.take(path, len(data))
        self._give_back(path)
        content = _Content()
        content.data += data
        content.sync()
        self.files[path] = self._synced_names[path] = content

    def note_until_cut(self, path: str) -> None:
        self.open(path, create=True)
        self._until_cut = path

    def cutting(self) -> None:
        """Remove the note of `note_until_cut`, because a file is about to be cut."""
        if self._until_cut:
            self.remove(self._until_cut)
            self._until_cut = ""

    def sync_all(self) -> bool:
        if self.syncs_all:
            for content in self.files.values():
                content.sync()
            self._synced_names = dict(self.files)
            self._renames.clear()
        return self.syncs_all

    def sync_directory(self, path: str) -> None:
        self.directory_syncs += 1
        for name in _inside(path, self._synced_names):
            if name not in self.files:
                del self._synced_names[name]
        self._synced_names.update((name, self.files[name]) for name in _inside(path, self.files))
        if any(path in (_parent(source), _parent(target)) for source, target in self._renames):
            self._renames.clear()  # the file system has one journal, so older renames are on the disk too

    def power_cut(self, chance: Chance) -> "MemoryStorage":
        """Return the disk as found after a power cut. This storage does not change."""
        before = MemoryStorage()
        before.files, before._synced_names = dict(self.files), dict(self._synced_names)
        before.directories = set(self.directories)
        for source, target in reversed(self._renames[chance(len(self._renames) + 1) :]):
            if not before.exists(source):
                before._move(target, source)
        return before._after_power_cut(chance)

    def _after_power_cut(self, chance: Chance) -> "MemoryStorage":
        after = MemoryStorage()
        after.directories = set(self.directories)
        for path in sorted({*self.files, *self._synced_names}):
            content = self.files.get(path)
            synced = self._synced_names.get(path)
            if content is not synced and chance(2):
                content = synced  # the new name, or the removal, did not reach the disk
            if content is None:
                continue
            made = _Content()
            made.data += content.after_power_cut(chance)
            made.sync()
            after.files[path] = after._synced_names[path] = made
            if _parent(path):
                after.make_directory(_parent(path))
        return after


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _inside(directory: str, names: dict[str, _Content]) -> list[str]:
    """Return the names in this directory, but not below it. Tests call it ten thousand times on hundreds of names."""
    prefix = directory + "/" if directory else ""
    size = len(prefix)
    return [name for name in names if name.startswith(prefix) and name.find("/", size) < 0]


def _under(path: str, names: "set[str] | dict[str, _Content]") -> list[str]:
    """Return the path and all names below it."""
    below = path + "/"
    return [name for name in names if name.startswith(path) and (name == path or name.startswith(below))]
