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
_LONGEST_PAUSE_SECONDS = 0.1
_PAUSED_SHARE = 0.1
"""A pause is this share of the time waited so far: a long wait takes little CPU, and ends at most a tenth too late."""


def until(condition, what="it", pause_s=_PAUSE_SECONDS):
    """Call `condition` until its answer is true, and return the answer; raise AssertionError after SECONDS.

    `pause_s` is the shortest time between two calls. Make it longer if a call keeps other processes busy.
    """
    begin = time.monotonic()
    pause = threading.Event()
    while not (answer := condition()):
        waited_s = time.monotonic() - begin
        assert waited_s < SECONDS, f"{what} has not come within {SECONDS} s"
        pause.wait(max(pause_s, min(_LONGEST_PAUSE_SECONDS, waited_s * _PAUSED_SHARE)))
    return answer
