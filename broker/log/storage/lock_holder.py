"""SHELL (files of /proc): who holds a locked file, for the message to the operator.

The kernel knows the holder. The process id in the lock file is the last server's, which may have ended since; any
process that may open the file can hold its lock. Outside Linux, and across containers, the kernel does not tell.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

COMMAND_CHARACTERS = 120
_LOCK_COLUMNS = 6  # of /proc/locks: number:, FLOCK, ADVISORY, WRITE, process id, device:inode


def holder_of(fd: int, proc: Path = Path("/proc")) -> str:
    """Return who holds the lock of an open file, for people: process id, start and command line."""
    if not (proc / "locks").exists():
        last = _written_pid(fd)
        return f"pid {last}" if _is_alive(last) else "a process that this system does not name"
    pid = _holders_pid(fd, proc)
    if not pid:
        return "a process that cannot be named from here, perhaps in another container"
    if not (proc / str(pid)).exists():
        return f"a child of process {pid}, which took the lock and has ended"
    facts = [f"pid {pid}", *_started(pid, proc), *_command(pid, proc)]
    return ", ".join(facts)


def _holders_pid(fd: int, proc: Path) -> int:
    """Return the id of the process that took the lock, 0 if it is not known."""
    file = os.fstat(fd)
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    holders = dict(_locks_of(file.st_ino, proc))
    last = _written_pid(fd)
    # Some file systems show another device here than in fstat; then a holder that wrote its id is certain enough.
    return holders.get(device) or (last if last in holders.values() else 0)


def _written_pid(fd: int) -> int:
    """Return the process id in the lock file, written by the last server; 0 without one."""
    text = os.pread(fd, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isascii() and text.isdigit() else 0


def _is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError, OverflowError):
        try:
            os.kill(pid, 0)
        except PermissionError:
            pass  # it is another user's
        return pid > 0
    return False


def _locks_of(inode: int, proc: Path) -> Iterator[tuple[str, int]]:
    """Yield (device, process id) of each exclusive lock on files with this inode."""
    with suppress(OSError):
        for line in (proc / "locks").read_text().splitlines():
            words = line.split()
            if len(words) < _LOCK_COLUMNS or words[1] != "FLOCK":  # "->" there marks a process that waits
                continue
            device, _, number = words[5].rpartition(":")
            if number == str(inode) and words[4].isdigit():
                yield device, int(words[4])


def _started(pid: int, proc: Path) -> Iterator[str]:
    """Yield when a process began, in local time; nothing if /proc does not tell."""
    with suppress(OSError, ValueError, IndexError):
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19])  # the 22nd field of the file: since boot, proc(5)
        lines = (proc / "stat").read_text().splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        began = datetime.fromtimestamp(boot + ticks // os.sysconf("SC_CLK_TCK"))
        yield f"started {began:%Y-%m-%d %H:%M:%S}"


def _command(pid: int, proc: Path) -> Iterator[str]:
    """Yield the command line of a process, cut; nothing if /proc does not tell."""
    with suppress(OSError):
        text = (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        shown = "".join(character if character.isprintable() else "?" for character in text)
        if shown:
            yield shown[:COMMAND_CHARACTERS]
