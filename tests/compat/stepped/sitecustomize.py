"""Give a Python program a separate wall clock: on its path, this module runs before the program (`own_clock`).

The file that FLAKELOG_TEST_CLOCK names has how far the clock is ahead, in ns. Clocks that only measure durations are
those of the machine.
"""

import mmap
import os
import time

_machine_ns = time.time_ns

with open(os.environ["FLAKELOG_TEST_CLOCK"], "rb") as _file:
    _ahead = mmap.mmap(_file.fileno(), 0, access=mmap.ACCESS_READ)


def time_ns():
    return _machine_ns() + int.from_bytes(_ahead, "little", signed=True)


time.time_ns = time_ns
time.time = lambda: time_ns() / 1_000_000_000
