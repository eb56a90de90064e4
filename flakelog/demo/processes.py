"""The demo's child processes, which are stopped however the demo ends, also after an error or a kill."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

_PR_SET_PDEATHSIG = 1
START_SECONDS = 120.0  # on a busy machine; a child that exits is noticed at once
STOP_SECONDS = 30.0


class ChildFailed(Exception):
    """A child did not start, or ended unexpectedly; the message has its last lines."""


def _die_with_parent() -> None:
    """Request SIGTERM for this process when its parent is killed (Linux only)."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    except (OSError, AttributeError):
        return


class Child:
    """`python -m ...` in a separate session, so that Ctrl-C reaches the demo first; output goes to a file."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        self._name = arguments[0]
        self._stream = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise ChildFailed if the child has ended."""
        code = self._process.poll()
        if code is not None:
            raise ChildFailed(f"{self._name} ended with {code}:\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait_for_line(self, prefix: str) -> str:
        """Return the first line of the child's output that begins with `prefix`; raise ChildFailed."""
        return wait_until(lambda: self._line(prefix), self.check, START_SECONDS, f"a line beginning {prefix!r}")

    def _line(self, prefix: str) -> str | None:
        lines = self.log.read_text(errors="replace").splitlines()
        return next((line for line in lines if line.startswith(prefix)), None)

    def kill(self) -> None:
        """Send SIGKILL, which ends the child as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if the child does not end in time."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, how)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._stream.close()


T = TypeVar("T")

POLL_SECONDS = 0.05


def wait_until(ask: Callable[[], T | None], check: Callable[[], None], seconds: float, awaited: str) -> T:
    """Call `ask` until it returns an answer; `check` raises when none can come. Raises ChildFailed after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = ask()
        if answer is not None:
            return answer
        check()
        time.sleep(POLL_SECONDS)
    raise ChildFailed(f"no {awaited} within {seconds:g} s")
