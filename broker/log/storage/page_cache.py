"""SHELL (files): reads that know whether a range of a file is in memory, so that the reactor waits for no disk."""

import errno
import os
from contextlib import suppress

_PROBE_EVERY_BYTES = 256 * 1024  # the kernel's minimum read-ahead of a file that is read in order
_READ_BYTES = 1 << 20
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)  # Linux only


def is_in_memory(fd: int, position: int, length: int) -> bool:
    """Return True if a range of a file can be read without waiting for the disk, judged by a few one-byte reads.

    Return True also if the system cannot tell: only Linux can, and not for every file system.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    byte = bytearray(1)
    try:
        for at in (*range(position, position + length, _PROBE_EVERY_BYTES), position + length - 1):
            os.preadv(fd, (byte,), at, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def read_now(fd: int, position: int, length: int) -> bytearray | None:
    """Return `length` bytes of a file, None if `read_now_into` returns False."""
    data = bytearray(length)
    return data if read_now_into(fd, position, data) else None


def read_now_into(fd: int, position: int, data: bytearray | memoryview) -> bool:
    """Fill `data` from a file. Return False if the read would block, comes up short, or fails.

    If the system cannot tell which data is in memory, the read may block.
    """
    try:
        return os.preadv(fd, (data,), position, _NO_WAIT) == len(data)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # not every file system supports it
            return False
    return os.preadv(fd, (data,), position) == len(data)


def read_into_memory(fd: int, position: int, length: int) -> None:
    """Read a range of a file into the page cache. Run in a thread, because it blocks. Leave errors to the next read."""
    buffer = bytearray(min(_READ_BYTES, length))
    end = position + length
    with suppress(OSError):
        while position < end and (size := os.preadv(fd, (buffer,), position)):
            position += size
