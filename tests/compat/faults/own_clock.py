"""A separate wall clock for a server: the program's `time.time` and `time.time_ns` are those of tests/compat/stepped.

    clock = OwnClock(directory / "clock-2", ahead_ms=400)
    ServerProcess(data, prefix=clock.prefix)
    clock.set(60_000)           the clock of the running server steps at once

libfaketime 0.9.10 is no way to do it: with it, Python's threads spin while they wait for each other.
"""

import os
from pathlib import Path

from tests.compat.server_process import PYTHONPATH

_STEPPED = Path(__file__).resolve().parents[1] / "stepped"
_BYTES = 8


class OwnClock:
    """A clock that is `ahead_ms` ahead of the machine's, for Python programs run under `prefix`."""

    def __init__(self, file, ahead_ms=0):
        self._file = Path(file)
        self._file.write_bytes(bytes(_BYTES))
        self.prefix = (
            "env",
            f"PYTHONPATH={PYTHONPATH}{os.pathsep}{_STEPPED}",
            f"FLAKELOG_TEST_CLOCK={self._file}",
        )
        self.set(ahead_ms)

    def set(self, ahead_ms):
        """Step the clock. The programs have the file in memory, so it is written in place."""
        with open(self._file, "r+b", buffering=0) as file:
            file.write((ahead_ms * 1_000_000).to_bytes(_BYTES, "little", signed=True))
