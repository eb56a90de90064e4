"""Timeouts for tests that wait for another process, a thread or the network.

The timeout is long, because a slow or busy machine is no failure. It costs nothing while all is well, because `until`
returns as soon as its condition is true. A condition that is still false after SECONDS will not become true. The time
limit of a whole test (setup.cfg) is several times as long, so that the failed wait can report first.
"""

import threading
import time

SECONDS = 120
MS = SECONDS * 1000
PROGRAM_SECONDS = 4 * SECONDS  # for a whole program, with Java and Spark in it
_PAUSE_SECONDS = 0.005


def until(condition, what="it", pause_s=_PAUSE_SECONDS):
    """Call `condition` until its answer is true, and return the answer; raise AssertionError after SECONDS.

    `pause_s` is the time between two calls. Make it longer if a call keeps other processes busy.
    """
    end = time.monotonic() + SECONDS
    pause = threading.Event()
    while not (answer := condition()):
        assert time.monotonic() < end, f"{what} has not come within {SECONDS} s"
        pause.wait(pause_s)
    return answer
