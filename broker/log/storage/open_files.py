"""SHELL (files, a lock): the open descriptors of a data directory, a limited number of them.

A file that was not used lately is closed, and opened again by its name at its next use. The choice is CLOCK's: the
descriptors form a ring, and one that was used since the last look gets another round.

- A caller holds the `Descriptor` while it uses its number. Closing drops one reference, so no number is closed, and
  perhaps given to another file, in the middle of a read, a sync or a sendfile.
- The kernel reports a failed write to the descriptors that were open at that time. So a file with unsynced writes is
  synced before it is closed. If that fails, the file stays open, and its every later sync fails (see `OsFile.sync`).
- A file that is renamed is found under its new name. A file that is removed or overwritten stays open to its readers.
- A file that was exchanged or cut by another program is refused by name when it is opened again.
"""

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Protocol
from weakref import ReferenceType, ref

from broker.log.storage.port import StorageError

FILE_MODE = 0o600  # the files hold messages and SCRAM keys, so only their owner may read them
FILES_MAX = 1 << 30
_TRIES_MAX = 256  # descriptors looked at to close one that needs no sync
_SYNCED_AT_ONCE = 16  # files: the disk syncs that many in little more time than one
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)
_MADE_ROOM = 8  # descriptors closed if the process has none left, as its connections and registries need some too


class Descriptor:
    """An open descriptor, closed with its last reference."""

    __slots__ = ("fd", "_among")

    def __init__(self, fd: int, among: "OpenFiles") -> None:
        self.fd = fd
        self._among = among

    def __del__(self) -> None:
        self._among.closes(self.fd)  # first, because the number is free once it is closed
        os.close(self.fd)


class OsFile(Protocol):
    """A file that can be closed and opened again."""

    path: str
    at: Descriptor | None
    stays_open: bool
    was_used: bool

    @property
    def is_dirty(self) -> bool: ...

    def opened(self) -> Descriptor: ...

    def closed(self) -> bool: ...

    def check(self, fd: int) -> None: ...

    def sync(self) -> None: ...


class OpenFiles:
    """The files in use by their directory, and the ring of those with a descriptor. Thread-safe."""

    def __init__(self, limit: int = FILES_MAX) -> None:
        self.limit = limit
        self._lock = threading.RLock()  # a file may close inside it, with its last reference
        self._ring: OrderedDict[int, ReferenceType[OsFile]] = OrderedDict()
        self._fixed: dict[int, None] = {}
        """Descriptors that are not closed while their file is in use."""
        self._pool: ThreadPoolExecutor | None = None
        self._files: dict[str, dict[int, ReferenceType[OsFile]]] = {}
        self._until_cut = ""

    def __len__(self) -> int:
        """Return the number of open descriptors."""
        return len(self._ring) + len(self._fixed)

    # --- descriptors -------------------------------------------------------------------------------------------------

    def open(self, file: OsFile, flags: int, mode: int = 0) -> Descriptor:
        """Open a file under its path, and close others past the limit. Raise OSError."""
        with self._lock:
            if file.at is not None:  # another thread has just opened it
                return file.at
            self._make_room(self.limit - 1)
            fd = self.number_of(file.path, flags, mode)
            at = Descriptor(fd, self)  # closed if the next line raises
            file.check(fd)
            file.at = at
            file.was_used = False  # its first use earns no second round, so that a file used once is closed first
            if file.stays_open:
                self._fixed[fd] = None
            else:
                self._ring[fd] = ref(file)
            return at

    def number_of(self, path: str, flags: int, mode: int = 0) -> int:
        """Open a path, and return its number for the caller to close. Make room if none is left. Raise OSError."""
        with self._lock:
            try:
                return os.open(path, flags, mode)
            except OSError as error:
                if error.errno not in _NONE_LEFT:
                    raise
            self._make_room(max(len(self._ring) - _MADE_ROOM, 0))
            return os.open(path, flags, mode)

    def closes(self, fd: int) -> None:
        """Forget a descriptor that is about to be closed."""
        self._ring.pop(fd, None)
        self._fixed.pop(fd, None)

    def _make_room(self, most: int) -> None:
        """Close files until at most `most` descriptors are in the ring, or none can be closed."""
        while len(self._ring) > most and self._close_one():
            pass

    def _close_one(self) -> bool:
        """Close the file that was not used for longest, by CLOCK; one without unsynced writes if there is one."""
        dirty: list[OsFile] = []
        for _ in range(min(2 * len(self._ring), _TRIES_MAX)):
            try:
                fd, oldest = self._ring.popitem(last=False)
            except KeyError:
                return False
            file = oldest()
            if file is None:
                continue  # it is closed already
            if not file.was_used and not file.is_dirty and file.closed():
                return True
            if not file.was_used and len(dirty) < _SYNCED_AT_ONCE and file not in dirty:
                dirty.append(file)
            file.was_used = False
            self._ring[fd] = oldest
        return self._sync_and_close(dirty)

    def _sync_and_close(self, files: list[OsFile]) -> bool:
        """Sync files, and close them. A file whose sync fails stays open, outside the ring.

        Return False if there is no file.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_SYNCED_AT_ONCE, "files-to-close")
        for file, failed in zip(files, self._pool.map(_sync_fails, files), strict=True):
            at = file.at
            if at is not None and failed:
                self._ring.pop(at.fd, None)
                self._fixed[at.fd] = None
            elif at is not None and file.closed():
                self._ring.pop(at.fd, None)
        return bool(files)

    # --- cuts ------------------------------------------------------------------------------------------------------

    def note_until_cut(self, path: str) -> None:
        """Make an empty file that `cutting` removes. Raise OSError."""
        with self._lock:
            os.close(self.number_of(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
            self._until_cut = path

    def cutting(self) -> None:
        """Remove the note of `note_until_cut`, because a file is about to be cut. Raise OSError."""
        with self._lock:
            if self._until_cut:
                with suppress(FileNotFoundError):
                    os.unlink(self._until_cut)
                self._until_cut = ""

    # --- names ---------------------------------------------------------------------------------------------------

    def add(self, file: OsFile) -> None:
        """Note a file in use."""
        with self._lock:
            self._files.setdefault(os.path.dirname(file.path), {})[id(file)] = ref(file)

    def forget(self, file: OsFile) -> None:
        """Forget a file at the end of its use."""
        files = self._files.get(os.path.dirname(file.path))
        if files is not None:
            files.pop(id(file), None)

    def _at(self, path: str) -> Iterator[OsFile]:
        """Yield the files in use at a path, or in the directory at that path."""
        for open_file in list(self._files.get(path, {}).values()):
            if (file := open_file()) is not None:
                yield file
        for open_file in list(self._files.get(os.path.dirname(path), {}).values()):
            if (file := open_file()) is not None and file.path == path:
                yield file

    def keep_open(self, path: str) -> None:
        """Open the files in use at a path, which is about to be removed, for as long as they are used."""
        with self._lock:
            for file in self._at(path):
                self._fix(file)
            self._files.pop(path, None)

    def _fix(self, file: OsFile) -> None:
        file.stays_open = True
        try:
            fd = file.opened().fd
        except (OSError, StorageError):
            return  # another program removed it; the next reader meets the error
        if self._ring.pop(fd, None) is not None:
            self._fixed[fd] = None

    @contextmanager
    def renaming(self, source: str, target: str) -> Iterator[None]:
        """Let the caller rename a file or a directory, and find the files in use under the new name."""
        with self._lock:
            moved = list(self._at(source))
            for file in self._at(target):
                self._fix(file)  # it is overwritten
            yield
            for file in moved:
                self.forget(file)
                file.path = target + file.path[len(source) :]
                self._files.setdefault(os.path.dirname(file.path), {})[id(file)] = ref(file)
            self._files.pop(source, None)


def _sync_fails(file: OsFile) -> bool:
    """Sync a file. Return True if that fails; the file keeps the error."""
    try:
        file.sync()
    except StorageError:
        return True
    return False
