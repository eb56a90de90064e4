"""SHELL (a thread, exit of the process): the end of a process that threads of the user may not delay for ever."""

import os
import threading

EXIT_SECONDS = 3.0  # how long threads of the user may delay the end of the process


def exit_within_seconds(code: int, seconds: float = EXIT_SECONDS) -> None:
    """End the process with this code in so many seconds, even if threads of the user or a full pipe keep it."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
