"""A peer for our ids: a Snowflake generator as programmers write it first."""

import threading
import time


class NaiveWorker:
    """The usual Snowflake generator: a lock, the wall clock for each id, spinning to the next millisecond."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ms = -1
        self._sequence = 0

    def next_id(self) -> int:
        with self._lock:
            now_ms = int(time.time() * 1000)
            if now_ms == self._last_ms:
                self._sequence = (self._sequence + 1) & 4095
                if self._sequence == 0:
                    while now_ms <= self._last_ms:
                        now_ms = int(time.time() * 1000)
            else:
                self._sequence = 0
            self._last_ms = now_ms
            return (now_ms - 1288834974657) << 22 | 1 << 12 | self._sequence
