"""Requests that cannot be answered yet: each waits for an event on one of its keys, or for its deadline.

A handler returns a response, or a `Delayed`. The engine hands the latter to `Purgatory.watch`; whoever changes what
others may wait for (a partition's end, a group) calls `touch` with that key. The names are Kafka's
(DelayedOperationPurgatory), with two things simpler because one thread does all of it:

- Kafka checks an operation again after it has put it under its keys, for an event may come in between. Here none can:
  nothing runs between the check and the watching.
- Kafka leaves completed operations on their watch lists and purges now and then. Here completion takes an operation
  off all its keys at once, so a list never holds more than what waits.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

from broker.now import Now
from broker.timing_wheel import Timer, TimingWheel

Response = TypeVar("Response")

# Default of flakelog.max.delayed.operations: each costs about a kilobyte beside its request.
MAX_DELAYED = 1_000_000


class Delayed(Generic[Response]):
    """A request that waits. Answered once: by `try_complete` when one of `keys` is touched, or by `expire`.

    `deadline_ms` is on the engine's monotonic clock; None leaves the time limit to whoever owns the key
    (a group's own timers). `try_complete` answers None as long as there is nothing to answer. Who waits on many keys
    is told by `touched`, just before, which one it was.
    """

    __slots__ = ("keys", "deadline_ms", "try_complete", "expire", "touched", "_on_done", "_timer")

    def __init__(
        self,
        keys: Iterable[Hashable],
        deadline_ms: int | None,
        try_complete: Callable[[Now], Response | None],
        expire: Callable[[Now], Response],
        touched: Callable[[Hashable], None] | None = None,
    ) -> None:
        self.keys = tuple(keys)
        self.deadline_ms = deadline_ms
        self.try_complete = try_complete
        self.expire = expire
        self.touched = touched
        self._on_done: Callable[[Response], None] | None = None
        self._timer: Timer[Delayed[Any]] | None = None

    @property
    def waiting(self) -> bool:
        """True while a purgatory watches it."""
        return self._on_done is not None


AnyDelayed: TypeAlias = Delayed[Any]


class Purgatory:
    """All delayed requests of one engine. Not for threads; may be called again from within `on_done`.

    `max_delayed` limits how many wait. Past it a request gets at once the answer its deadline would have given it:
    a fetch what there is, a produce its timeout. `overflowed` counts these.
    """

    def __init__(self, start_ms: int = 0, max_delayed: int = MAX_DELAYED) -> None:
        self._wheel: TimingWheel[AnyDelayed] = TimingWheel(start_ms=start_ms)
        self._watchers: dict[Hashable, dict[AnyDelayed, None]] = {}
        self._waiting = 0
        self._max_delayed = max_delayed
        self.overflowed = 0

    def __len__(self) -> int:
        """Requests that wait, each counted once."""
        return self._waiting

    @property
    def watched_keys(self) -> int:
        """Keys that something waits on."""
        return len(self._watchers)

    def watch(
        self, delayed: Delayed[Response], on_done: Callable[[Response], None], now: Now, limited: bool = True
    ) -> None:
        """Answer `delayed` through `on_done`: now if it can be, else when a key is touched or its deadline comes.

        Not `limited`: it waits past `max_delayed` too, for what must not be answered early.
        """
        if delayed.waiting:
            raise ValueError("this delayed request is watched already; each is answered once")
        response = delayed.try_complete(now)
        if response is None and self._may_not_wait(delayed, now, limited):
            response = delayed.expire(now)
        if response is not None:
            on_done(response)
            return
        self._register(delayed, on_done)

    def touch(self, key: Hashable, now: Now) -> int:
        """Something happened to `key`: answer what can be answered now. Returns how many were."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return 0
        answered = 0
        for delayed in list(watchers):  # a copy: answering changes the list, and may answer others on it
            if not delayed.waiting:
                continue
            if delayed.touched is not None:
                delayed.touched(key)
            if (response := delayed.try_complete(now)) is not None:
                self._finish(delayed, response)
                answered += 1
        return answered

    def cancel(self, delayed: AnyDelayed) -> None:
        """Forget a request whose connection is gone; harmless when it has been answered."""
        if delayed.waiting:
            self._forget(delayed)

    def advance(self, now: Now) -> int:
        """Give the requests whose deadline has come their answer. Returns how many there were."""
        expired = 0
        for delayed in self._wheel.advance(now.ms):
            if delayed.waiting:  # an earlier one's answer may have answered or cancelled it
                self._finish(delayed, delayed.expire(now))
                expired += 1
        return expired

    def next_deadline_ms(self) -> int | None:
        """When `advance` is wanted next, on the monotonic clock; None when no deadline stands."""
        return self._wheel.next_deadline_ms()

    def _may_not_wait(self, delayed: AnyDelayed, now: Now, limited: bool) -> bool:
        if delayed.deadline_ms is not None and delayed.deadline_ms <= now.ms:
            return True
        if self._waiting < self._max_delayed or not limited:
            return False
        self.overflowed += 1
        return True

    def _register(self, delayed: Delayed[Response], on_done: Callable[[Response], None]) -> None:
        delayed._on_done = on_done
        if delayed.deadline_ms is not None:
            delayed._timer = self._wheel.add(delayed.deadline_ms, delayed)
        for key in delayed.keys:
            self._watchers.setdefault(key, {})[delayed] = None
        self._waiting += 1

    def _finish(self, delayed: AnyDelayed, response: Any) -> None:
        on_done = delayed._on_done
        self._forget(delayed)  # first, so that `on_done` finds it answered
        if on_done is not None:
            on_done(response)

    def _forget(self, delayed: AnyDelayed) -> None:
        delayed._on_done = None
        if delayed._timer is not None:
            delayed._timer.cancel()
            delayed._timer = None
        for key in delayed.keys:
            watchers = self._watchers.get(key, {})
            watchers.pop(delayed, None)  # a key named twice is gone already
            if not watchers:
                self._watchers.pop(key, None)
        self._waiting -= 1
