"""How long tests wait for what another process, a thread or the network does: until it is true.

It costs nothing while all is well, and a machine that is slow or busy is no failure. What has not come after so long is
not on its way; the time limit of a whole test (setup.cfg) is several times that, so that what failed can say so.
"""

import threading
import time

SECONDS = 120
MS = SECONDS * 1000
PROGRAM_SECONDS = 4 * SECONDS  # for a whole program, with Java and Spark in it
_PAUSE_SECONDS = 0.005


def until(there, what="it"):
    """Call until the answer is true, and return it; AssertionError when that never comes."""
    end = time.monotonic() + SECONDS
    pause = threading.Event()
    while not (found := there()):
        assert time.monotonic() < end, f"{what} has not come within {SECONDS} s"
        pause.wait(_PAUSE_SECONDS)
    return found
