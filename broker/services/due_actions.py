"""The actions of the transaction coordinator that are due: markers, aborts and tombstones, done in slices.

An end may need thousands of markers, and thousands of transactions may time out together. No request waits for all of
them, because each slice does some of the actions, in the order in which they became due.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from broker.now import Now

# These are not settings, because 32 markers take some two milliseconds on any disk, and a client with more to end waits
# a little longer.
MARKERS_AT_ONCE = 32  # markers and records in a slice
SLICE_EVERY_MS = 10  # pause between slices; most of the time is left for requests
END_EVERY_MS = 5  # pause while a client waits for markers; half of the time is left

Verb: TypeAlias = Callable[[Any, Now], int]
"""An action due for a transactional id, a stranded transaction or a request. It returns how many markers and records it
wrote."""


class DueActions:
    """All actions of one broker that are due, or that failed and are tried again after `retry_ms`."""

    def __init__(self, retry_ms: int) -> None:
        self._retry_after_ms = retry_ms
        self._failed: dict[tuple[Verb, Any], None] = {}
        """The actions to try again, all at `_retry_ms`."""
        self._retry_ms = 0
        self._due: dict[tuple[Verb, Any], None] = {}
        """The actions with their arguments, in order."""
        self._due_ms = 0
        self.awaited: set[object] = set()
        """The ends and requests whose markers are being written. A client may wait for each."""

    def add(self, verb: Verb, about: Any) -> None:
        """Make an action due, in the next slice."""
        self._due[verb, about] = None

    def later(self, verb: Verb, about: Any, now: Now) -> None:
        """Make an action due in its turn, because no request has to wait for it now."""
        if not self._due:
            self._due_ms = now.ms + self._pause_ms()
        self._due[verb, about] = None

    def try_again(self, verb: Verb, about: Any, now: Now) -> None:
        """Make an action due again after a pause, because it failed."""
        if not self._failed:
            self._retry_ms = now.ms + self._retry_after_ms
        self._failed[verb, about] = None

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due, on the monotonic clock; None if there are no actions."""
        if self._due and self._failed:
            return min(self._due_ms, self._retry_ms)
        if self._due:
            return self._due_ms
        return self._retry_ms if self._failed else None

    def tick(self, now: Now) -> None:
        """Do a slice of the actions if the pause since the last one is over."""
        if self._failed and self._retry_ms <= now.ms:
            self._due.update(self._failed)
            self._failed = {}
        if self._due and self._due_ms <= now.ms:
            self.do_some(now)

    def do_some(self, now: Now) -> None:
        """Do a slice of the actions, small enough not to delay requests."""
        if not self._due:
            return
        markers_left = MARKERS_AT_ONCE
        while self._due and markers_left > 0:
            verb, about = next(iter(self._due))
            del self._due[verb, about]
            markers_left -= 1 + verb(about, now)
        self._due_ms = now.ms + self._pause_ms()

    def _pause_ms(self) -> int:
        return END_EVERY_MS if self.awaited else SLICE_EVERY_MS
