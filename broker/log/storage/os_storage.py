"""SHELL (files): the storage port over a directory of the machine."""

import errno
import fcntl
import os
import shutil
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from broker.log.storage.lock_holder import holder_of
from broker.log.storage.open_files import FILE_MODE, Descriptor, OpenFiles
from broker.log.storage.page_cache import read_now
from broker.log.storage.port import AHEAD_SPARE, TEMPORARY, Buffer, StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
LOCK = ".lock"  # the name in Kafka
DIRECTORY_MODE = 0o700  # as FILE_MODE

# Syncs the data and the size; file times need no sync. macOS has only fsync.
_datasync = getattr(os, "fdatasync", os.fsync)


# Allocating blocks page by page during a large append doubles its time, so `_reserve` asks for space ahead: a fraction
# of the file's size, up to a limit, because larger pieces gain nothing. Asking for the whole size again could reserve a
# third of a full disk for silent partitions.
_RESERVE_FROM_BYTES = 64 * 1024
_RESERVE_PART = 4
_RESERVE_BYTES = 8 << 20
_BLOCK_BYTES = 512  # unit of st_blocks
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE: the end of the file does not move
# Magic numbers of ext4 and XFS, from statfs(2). btrfs is missing because it does not compress a file that ever had
# space reserved.
_GAINING = (0xEF53, 0x58465342)
_STATFS_BYTES = 256  # more than struct statfs on any system
# ext4, XFS and btrfs, whose syncfs waits for the disk. FUSE's does not.
_WAITING = (0xEF53, 0x58465342, 0x9123683E)


@cache
def _c_library() -> Any:
    """Return the C library on 64-bit Linux, None elsewhere.

    Python's own fallocate makes the file longer, and Python cannot tell the type of a file system.
    """
    if sys.platform != "linux" or sys.maxsize < 1 << 32:  # 32-bit C libraries differ in the type of a position
        return None
    try:
        import ctypes  # needed rarely and late

        library = ctypes.CDLL(None)
        library.fallocate.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long
        library.fstatfs.argtypes = ctypes.c_int, ctypes.c_void_p
        library.syncfs.argtypes = (ctypes.c_int,)
    except (ImportError, OSError, AttributeError):  # Python was compiled without libffi or shared libraries
        return None
    return library


def _set_aside(fd: int, position: int, length: int) -> None:
    """Reserve disk space for `length` bytes of a file from `position`, if that is possible and useful."""
    library = _c_library()
    if library is None:
        return
    if _type_of(library, fd) in _GAINING:
        library.fallocate(fd, _KEEP_SIZE, position, length)


def _type_of(library: Any, fd: int) -> int:
    """Return the magic number of a file's file system."""
    about = array("I", bytes(_STATFS_BYTES))
    library.fstatfs(fd, about.buffer_info()[0])
    return about[0]


def _failure(path: str, error: OSError) -> StorageError:
    """Return a StorageError that names the file."""
    reason = error.strerror or str(error)
    is_passing, is_read_only = error.errno in _PASSING, error.errno == errno.EROFS
    return StorageError(path, reason, error.errno in _FULL, is_passing=is_passing, is_read_only=is_read_only)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Turn an OSError into a StorageError that names the file."""
    try:
        yield
    except OSError as error:
        raise _failure(path, error) from error


_NEVER = _NOT_OPENED = -1


class OsFile:
    """A file that is opened when it is used, and closed when others are used more (broker.log.storage.open_files).

    A reader of a deleted segment keeps its bytes.
    """

    __slots__ = (
        "path", "size", "at", "stays_open", "was_used", "_among", "_asked_end", "_failed", "_identity", "_synced",
        "_writes", "__weakref__",
    )  # fmt: skip

    _STAYS_OPEN = False
    _FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_APPEND

    def __init__(self, path: str, among: OpenFiles, create: bool = False, size: int | None = None) -> None:
        self.path = path
        self.size = _NOT_OPENED if size is None else size
        self.at: Descriptor | None = None
        """The open descriptor, None while the file is closed."""
        self.stays_open = self._STAYS_OPEN
        self.was_used = True
        self._among = among
        self._asked_end = 0
        self._failed: str | None = None
        """The reason why a sync failed. Data may be lost since, so no later sync succeeds."""
        self._identity: tuple[int, int] | None = None
        self._writes, self._synced = 0, _NEVER  # the number of writes, and how many of them are synced
        if size is None:
            among.open(self, self._FLAGS | (os.O_CREAT if create else 0), FILE_MODE)
        among.add(self)

    # --- the descriptor ----------------------------------------------------------------------------------------------

    def opened(self) -> Descriptor:
        """Return the descriptor; hold it while its number is used. Raise OSError, or StorageError if it is another."""
        self.was_used = True
        return self.at or self._among.open(self, self._FLAGS)

    def check(self, fd: int) -> None:
        """Raise StorageError unless a descriptor that was opened by name is this file's, with all its data."""
        status = os.fstat(fd)
        identity = status.st_dev, status.st_ino
        if self._identity is None:
            self._identity = identity
        elif self._identity != identity:
            raise StorageError(self.path, "another file has this name now")
        if self.size == _NOT_OPENED:
            self.size = status.st_size
        elif status.st_size < self.size:
            raise StorageError(self.path, f"it has {status.st_size} bytes, {self.size} were written")

    @property
    def is_dirty(self) -> bool:
        """Return True if this process has unsynced writes in the file."""
        return self._writes > max(self._synced, 0)

    def closed(self) -> bool:
        """Close the file. Return False if it is dirty; then it stays open.

        A write is counted before it takes the descriptor. So either it is seen here, or it opens the file again.
        """
        at, self.at = self.at, None
        if self.is_dirty:
            self.at = at
            return False
        return True

    def descriptor(self) -> Descriptor:
        with _named(self.path):
            return self.opened()

    def fileno(self) -> int:
        """Return the number of the descriptor, for a caller that uses no other file meanwhile. Raise StorageError."""
        return self.descriptor().fd

    def __del__(self) -> None:
        self._among.forget(self)

    # --- reads and writes --------------------------------------------------------------------------------------------

    def append(self, data: Buffer) -> None:
        size = len(data)
        self._writes += 1
        self.was_used = True
        at = self.at or self.descriptor()
        if size >= _RESERVE_FROM_BYTES and self.size + size > self._asked_end:
            self._reserve(at, size)
        try:
            written = os.write(at.fd, data)
            while written < size:  # one write takes 2 GiB at most
                written += os.write(at.fd, memoryview(data)[written:])
        except OSError as error:
            with _named(self.path):
                # If the cut fails too, `size` keeps the real size, because the undo code of the caller needs it.
                before, self.size = self.size, os.fstat(at.fd).st_size
                self._among.cutting()
                os.ftruncate(at.fd, before)
                self.size = before
            raise _failure(self.path, error) from error
        self.size += size

    def _reserve(self, at: Descriptor, size: int) -> None:
        """Reserve space for `size` bytes and later appends. On failure do nothing; the write then allocates space."""
        length = size + min(self.size // _RESERVE_PART, _RESERVE_BYTES)
        self._asked_end = self.size + length  # set on failure too, so that appends do not retry each time
        with suppress(StorageError):
            if self._has_spare(at, length, length):
                _set_aside(at.fd, self.size, length)

    def _has_spare(self, at: Descriptor, size: int, ahead_bytes: int) -> bool:
        """Return True if, after `size` bytes, the disk still has AHEAD_SPARE times `ahead_bytes` free."""
        with _named(self.path):
            disk = os.fstatvfs(at.fd)
        return disk.f_bavail * disk.f_frsize >= size + AHEAD_SPARE * ahead_bytes

    def trim(self) -> None:
        # Compare with the blocks on the disk, because a killed process may have left space reserved.
        with suppress(OSError, StorageError):
            at = self.opened()
            status = os.fstat(at.fd)
            if status.st_blocks * _BLOCK_BYTES >= status.st_size + _RESERVE_FROM_BYTES:
                os.ftruncate(at.fd, status.st_size)
                os.utime(at.fd, ns=(status.st_atime_ns, status.st_mtime_ns))  # as nothing was written
                self._asked_end = 0

    def read(self, position: int, length: int) -> bytes:
        self.was_used = True
        at = self.at or self.descriptor()
        try:  # a small fetch reads ten times, so avoid a context manager
            return os.pread(at.fd, length, position)
        except OSError as error:
            raise _failure(self.path, error) from error

    def read_now(self, position: int, length: int) -> bytearray | None:
        self.was_used = True
        try:
            at = self.at or self.opened()
        except (OSError, StorageError):
            return None
        return read_now(at.fd, position, length)

    def truncate(self, size: int) -> None:
        self._writes += 1
        with _named(self.path):
            at = self.opened()
            self._among.cutting()
            os.ftruncate(at.fd, size)
        self.size = size
        self._asked_end = 0

    def sync(self) -> None:
        if self._failed is not None:
            raise StorageError(self.path, self._failed)
        writes = self._writes
        if writes == self._synced:
            return
        at = self.descriptor()
        try:
            _datasync(at.fd)
        except OSError as error:
            self._failed = error.strerror or str(error)
            raise StorageError(self.path, self._failed, error.errno in _FULL) from error
        self._synced = writes

    def note_unsynced(self) -> None:
        self._writes += 1

    def modified_ms(self) -> int:
        with _named(self.path):
            at = self.opened()
            return os.fstat(at.fd).st_mtime_ns // 1_000_000

    def set_modified_ms(self, wall_ms: int) -> None:
        with _named(self.path):
            at = self.opened()
            os.utime(at.fd, ns=(wall_ms * 1_000_000, wall_ms * 1_000_000))


class OsFileAhead(OsFile):
    """A file that is extended with `ahead_bytes` zeros at a time, as `Storage.open` describes. It stays open."""

    __slots__ = ("_ahead_bytes", "_zeros")

    _STAYS_OPEN = True
    _FLAGS = os.O_RDWR | os.O_CLOEXEC

    def __init__(self, path: str, among: OpenFiles, create: bool, ahead_bytes: int) -> None:
        super().__init__(path, among, create)
        self._ahead_bytes = ahead_bytes
        self._zeros = 0

    def append(self, data: Buffer) -> None:
        size = len(data)
        self._writes += 1
        at = self.descriptor()
        block = memoryview(data)
        # A larger append is slow anyway, so it adds no zeros.
        if size > self._zeros and size < self._ahead_bytes and self._has_spare(at, size, self._ahead_bytes):
            block = memoryview(b"".join((data, bytes(self._ahead_bytes))))
        written = 0
        try:
            while written < len(block):
                written += os.pwrite(at.fd, block[written:], self.size + written)
        except OSError as error:
            if written < size:
                with _named(self.path):
                    before, self.size = self.size, os.fstat(at.fd).st_size
                    self.truncate(before)
                raise _failure(self.path, error) from error
            with _named(self.path):
                self.truncate(self.size + size)  # another writer took the space for the zeros
            return
        self.size += size
        self._zeros = max(self._zeros, written) - size

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._zeros = 0


class OsStorage:
    """A data directory of the machine. `descriptors` are those of its files."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.descriptors = OpenFiles()
        self._lock: int | None = None

    def _path(self, path: str) -> str:
        return os.path.join(self.root, path)  # a path of an open file has the root already

    def lock(self) -> None:
        """Lock the directory until this process ends. Raise StorageError with the process that holds the lock."""
        full = self._path(LOCK)
        with _named(full):
            fd = os.open(full, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            # A user who may only read an older server's file could lock it, too.
            with suppress(PermissionError):
                os.fchmod(fd, FILE_MODE)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = holder_of(fd)
                os.close(fd)
                raise StorageError(self.root, f"another process uses this data directory: {holder}") from None
            try:
                os.ftruncate(fd, 0)
                os.write(fd, f"{os.getpid()}\n".encode())
            except OSError as error:
                if error.errno not in _FULL:  # the lock holds without the process id
                    raise
        self._lock = fd

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def location(self) -> str:
        return os.path.abspath(self.root)

    @property
    def open_count(self) -> int:
        return len(self.descriptors)

    def space(self) -> tuple[int, int]:
        with _named(self.root):
            disk = os.statvfs(self.root)
        return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize

    def open(self, path: str, create: bool = False, ahead_bytes: int = 0, size: int | None = None) -> OsFile:
        full = self._path(path)
        with _named(full):
            if ahead_bytes:
                return OsFileAhead(full, self.descriptors, create, ahead_bytes)
            return OsFile(full, self.descriptors, create, size)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._path(path))

    def list(self, directory: str) -> list[str]:
        full = self._path(directory)
        with _named(full):
            try:
                return sorted(os.listdir(full))
            except FileNotFoundError:
                return []

    def sizes(self, directory: str) -> dict[str, int]:
        full = self._path(directory)
        with _named(full):
            try:
                with os.scandir(full) as entries:
                    return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
            except FileNotFoundError:
                return {}

    def make_directory(self, *paths: str) -> None:
        changed: dict[str, None] = {}
        for full in map(self._path, paths):
            with _named(full):
                missing = []
                while not os.path.isdir(full):
                    missing.append(full)
                    full = os.path.dirname(full)
                for directory in reversed(missing):
                    os.mkdir(directory, DIRECTORY_MODE)
                    changed[os.path.dirname(directory)] = None
        for parent in changed:
            with _named(parent):
                _sync_names(self.descriptors, parent)

    def rename(self, source: str, target: str) -> None:
        before, after = self._path(source), self._path(target)
        with _named(before), self.descriptors.renaming(before, after):
            os.rename(before, after)

    def remove(self, path: str) -> None:
        full = self._path(path)
        self.descriptors.keep_open(full)
        with _named(full):
            if os.path.isdir(full):
                shutil.rmtree(full)
            elif os.path.exists(full):
                os.unlink(full)

    def replace(self, path: str, data: bytes) -> None:
        full = self._path(path)
        with _named(full):
            try:
                _write_synced(self.descriptors, full + TEMPORARY, data)
            except OSError:
                with suppress(FileNotFoundError):
                    os.unlink(full + TEMPORARY)
                raise
            self.descriptors.keep_open(full)
            os.replace(full + TEMPORARY, full)
            _sync_names(self.descriptors, os.path.dirname(full))

    def note_until_cut(self, path: str) -> None:
        full = self._path(path)
        with _named(full):
            self.descriptors.note_until_cut(full)

    def cutting(self) -> None:
        with _named(self._path("")):
            self.descriptors.cutting()

    def sync_all(self) -> bool:
        library = _c_library()
        if library is None:
            return False
        with _named(self.root):
            fd = self.descriptors.number_of(self.root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _type_of(library, fd) in _WAITING and library.syncfs(fd) == 0
        finally:
            os.close(fd)

    def sync_directory(self, path: str) -> None:
        with _named(self._path(path)):
            _sync_names(self.descriptors, self._path(path))


def _write_synced(descriptors: OpenFiles, path: str, data: bytes) -> None:
    fd = descriptors.number_of(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        written = 0
        while written < len(data):
            written += os.write(fd, memoryview(data)[written:])
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_names(descriptors: OpenFiles, directory: str) -> None:
    fd = descriptors.number_of(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
