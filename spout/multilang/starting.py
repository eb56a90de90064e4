"""SHELL (a thread): says to Storm now and then that a process still starts.

Storm ends a worker whose process is silent for too long, by default 30 s, and starts it again. An import or a `prepare`
that takes longer, of a large model for example, would never end otherwise.
"""

import threading
from collections.abc import Callable

from spout.multilang.frames import frame
from spout.multilang.handshake import Handshake
from spout.multilang.wire import INFO, PipeClosed

SHARE = 3  # lines in the time that Storm waits


class Starting:
    """A thread that writes a line for Storm's log now and then, until `end` is called."""

    def __init__(
        self, write: Callable[[bytes], None], handshake: Handshake, wait: Callable[[float], bool] | None = None
    ) -> None:
        """Start the thread. `wait(seconds)` returns True as soon as `end` is called, and False after that time."""
        self._write = write
        self._task = f"{handshake.component}[{handshake.index}]"
        self._seconds = max(1, handshake.timeout_seconds // SHARE)
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait
        self._thread = threading.Thread(target=self._say, name="flakelog-starting", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Write no more."""
        self._ended.set()
        self._thread.join()

    def _say(self) -> None:
        seconds = 0
        while not self._wait(self._seconds):
            seconds += self._seconds
            text = f"{self._task}: it is being imported and opened for {seconds} s now"
            try:
                self._write(frame({"command": "log", "msg": text, "level": INFO}))
            except PipeClosed:
                return
