"""SHELL (file descriptors, a thread): keeps what a user's code prints away from the pipe to Storm.

Descriptors 1 and 2 become pipes that a thread always reads, so that no print blocks: Storm reads a process's standard
error only now and then, and would wait for the process meanwhile. This covers code in C and child processes too. Lines
past the limit are dropped and counted.
"""

import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TextIO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

INFO, WARN = 2, 3  # Storm's log levels: of standard output, of standard error
LINES_MAX = 1_000  # lines that wait to be taken
LINE_BYTES_MAX = 8_192  # a longer line is cut into several
READ_BYTES = 65_536
PIPE_BYTES = 1 << 20  # room for code in C that prints while it holds Python's lock, so that the thread cannot read
JOIN_SECONDS = 1.0  # longest wait for the last lines at the end: a child process may keep the pipe open


class Line(NamedTuple):
    """A line that was printed."""

    text: str
    level: int


class CapturedOutput:
    """The output of this process. `storm_in` and `storm_out` are the descriptors of the pipes to Storm."""

    def __init__(self) -> None:
        """Take descriptors 0, 1 and 2 over."""
        self.storm_in = os.dup(0)
        self.storm_out = os.dup(1)
        self._stderr = os.dup(2)
        with suppress(OSError):  # a device such as /dev/null has no such mode, and needs none
            os.set_blocking(self._stderr, False)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self._levels = {_capture(1): INFO, _capture(2): WARN}
        # New ones, because the old ones may believe that they write to a file.
        sys.stdout = _stream(1)
        sys.stderr = _stream(2)
        self._lines: deque[Line] = deque()
        self._dropped = 0
        self._lock = threading.Lock()
        self.on_lines: Callable[[], None] = lambda: None  # called in the thread when lines wait and none did before
        self._thread = threading.Thread(target=self._read, name="flakelog-output", daemon=True)
        self._thread.start()

    def take(self) -> list[Line]:
        """Return and clear the lines printed since the last call, and how many were dropped."""
        with self._lock:
            lines = list(self._lines)
            self._lines.clear()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            lines.append(Line(f"{dropped} more lines were printed, and dropped", WARN))
        return lines

    def say(self, text: str) -> None:
        """Write to the real standard error, as much as goes without waiting: Storm shows it if the process ends."""
        try:
            os.write(self._stderr, text.encode(errors="replace"))
        except OSError:
            pass  # full or closed, and there is no other place

    def close(self) -> None:
        """Wait for the last lines of this process, but not for those of child processes that still run."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        os.close(nothing)
        self._thread.join(JOIN_SECONDS)

    def _read(self) -> None:
        rests = dict.fromkeys(self._levels, b"")
        while rests:
            for fd in select.select(list(rests), (), ())[0]:
                data = os.read(fd, READ_BYTES)
                *lines, unfinished = (rests[fd] + data).split(b"\n")
                if not data or len(unfinished) > LINE_BYTES_MAX:
                    lines.append(unfinished)
                    unfinished = b""
                rests[fd] = unfinished
                self._add(lines, self._levels[fd])
                if not data:
                    del rests[fd]

    def _add(self, lines: list[bytes], level: int) -> None:
        with self._lock:
            was_empty = not self._lines
            for line in lines:
                if not line.strip():
                    continue
                if len(self._lines) < LINES_MAX:
                    self._lines.append(Line(line[:LINE_BYTES_MAX].decode(errors="replace"), level))
                else:
                    self._dropped += 1
            wakes = was_empty and bool(self._lines)
        if wakes:
            self.on_lines()


def _stream(fd: int) -> TextIO:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _capture(fd: int) -> int:
    """Make the descriptor the end of a new pipe; return the other end."""
    reader, writer = os.pipe()
    os.dup2(writer, fd)
    os.close(writer)
    if fcntl is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
        try:
            fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # more than this user may have; the usual size does
    return reader
