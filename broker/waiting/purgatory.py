"""Requests that cannot be answered yet: each waits for an event on one of its keys, or for its deadline.

A handler returns a response, or a `Delayed` that the engine passes to `Purgatory.watch`. Code that changes something
requests may wait for (a partition's end, a group) calls `touch` with that key. The names are Kafka's
(DelayedOperationPurgatory). Two things are simpler because one thread does all of it:

- Kafka checks an operation again after it has put it under its keys, because an event may come in between. Here no
  other code runs between the check and the watching.
- Kafka leaves completed operations on their watch lists and purges now and then. Here completion takes an operation off
  all its keys at once. Only a request on more than KEYS_AT_ONCE keys stays on them for a moment: `advance` takes it off
  in slices, because many such requests may be answered by one event or at one time.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from broker.now import Now
from broker.waiting.timing_wheel import Timer, TimingWheel

Response = TypeVar("Response")

# Default of flakelog.max.delayed.operations. Each costs about a kilobyte besides its request.
MAX_DELAYED = 1_000_000
KEYS_AT_ONCE = 500
KEYS_PER_ADVANCE = 10_000
"""A Fetch waits on as many keys at most, so that requests leave their keys as fast as new ones come."""


class Delayed(Generic[Response]):
    """A request that waits. It is answered once: by `try_complete` when one of `keys` is touched, or by `expire`.

    `deadline_ms` is on the engine's monotonic clock. If it is None the owner of the key limits the time (a group has
    timers). `try_complete` returns None while there is no answer. Before it, `touched` receives the touched key, for
    requests that wait on many keys. If it `holds_connection`, the later requests of its connection are executed after
    its answer. It counts as `size` in the limit on waiting requests. `offset` is set if it waits for one offset alone.

    The answer may be work in slices (`broker.steps`), whose value is the answer or another Delayed.
    """

    __slots__ = (
        "keys", "deadline_ms", "try_complete", "expire", "touched", "holds_connection", "size", "offset", "_on_done",
        "_timer",
        "__weakref__",
    )  # fmt: skip

    def __init__(
        self,
        keys: Iterable[Hashable],
        deadline_ms: int | None,
        try_complete: Callable[[Now], Response | None],
        expire: Callable[[Now], Response],
        touched: Callable[[Hashable], None] | None = None,
        holds_connection: bool = False,
        size: int = 1,
        offset: int = 0,
    ) -> None:
        self.keys = tuple(keys)
        self.deadline_ms = deadline_ms
        self.try_complete = try_complete
        self.expire = expire
        self.touched = touched
        self.holds_connection = holds_connection
        self.size = size
        self.offset = offset
        self._on_done: Callable[[Response], object] | None = None
        self._timer: Timer[Delayed[Any]] | None = None

    @property
    def waiting(self) -> bool:
        """True while a purgatory watches it."""
        return self._on_done is not None


AnyDelayed: TypeAlias = Delayed[Any]


class Listener(Protocol):
    """Is told each touch of the keys that it listens to. It is no request: it is never answered, and has no deadline.
    """

    def touched(self, key: Hashable, now: Now) -> None: ...


class Purgatory:
    """All delayed requests of one engine. Not thread-safe; may be called again from within `on_done`.

    `max_delayed` limits the sum of the sizes of waiting requests. Past it a request gets at once the answer it would
    get at its deadline: a fetch the available records, a produce its timeout. `overflowed` counts these requests.
    """

    def __init__(self, start_ms: int = 0, max_delayed: int = MAX_DELAYED) -> None:
        self._wheel: TimingWheel[AnyDelayed] = TimingWheel(start_ms=start_ms)
        self._watchers: dict[Hashable, dict[AnyDelayed | Listener, None]] = {}
        self._waiting = 0
        self._size = 0
        self._max_delayed = max_delayed
        self._leaving: deque[tuple[AnyDelayed, Iterator[Hashable]]] = deque()
        """Answered requests, with the keys that they are still watched by."""
        self._to_touch: dict[Hashable, None] = {}
        """The keys that are touched at the end of the turn."""
        self.overflowed = 0

    def __len__(self) -> int:
        """Return the number of waiting requests, each counted once."""
        return self._waiting

    @property
    def watched_keys(self) -> int:
        """Return the number of keys that requests wait on, or listeners listen to."""
        return len(self._watchers)

    @property
    def size(self) -> int:
        """Return the sum of the sizes of waiting requests. A Fetch counts with its partitions until it leaves them."""
        return self._size

    def watch(
        self, delayed: Delayed[Response], on_done: Callable[[Response], object], now: Now, limited: bool = True
    ) -> None:
        """Answer `delayed` through `on_done`: now if possible, else when a key is touched or its deadline comes.

        If not `limited`, it waits even past `max_delayed`, for requests that must not be answered early.
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

    def call_at(self, deadline_ms: int, call: Callable[[Now], object]) -> AnyDelayed:
        """Have `advance` call `call(now)` once `deadline_ms` has come. Return what `cancel` takes.

        The call never comes early, however many requests wait: it would try again at once, for ever.
        """
        delayed: Delayed[Now] = Delayed((), deadline_ms, lambda now: None, lambda now: now)
        self._register(delayed, call)
        return delayed

    def wait_on(self, delayed: Delayed[Response], following: Delayed[Response]) -> None:
        """Let a waiting request wait as `following` does from now on, for other keys and another deadline."""
        on_done = delayed._on_done
        if on_done is None:
            return
        self._end_wait(delayed)
        self._unwatch(delayed, delayed.keys)
        delayed.keys, delayed.deadline_ms = following.keys, following.deadline_ms
        delayed.try_complete, delayed.expire = following.try_complete, following.expire
        delayed.touched, delayed.size, delayed.offset = following.touched, following.size, following.offset
        self._register(delayed, on_done)

    def touch(self, key: Hashable, now: Now, *, upto: int | None = None) -> int:
        """Answer the requests on `key` that can be answered now that something happened to it. Return their number.

        With `upto`, it only reached this offset. So the requests that wait for a later one are left alone: under a bulk
        load they are many.
        """
        watchers = self._watchers.get(key)
        if watchers is None:
            return 0
        answered = 0
        for delayed in list(watchers):  # a copy: answering changes the list, and may answer other requests on it
            if not isinstance(delayed, Delayed):
                delayed.touched(key, now)
                continue
            if not delayed.waiting or (upto is not None and delayed.offset > upto):
                continue
            if delayed.touched is not None:
                delayed.touched(key)
            if (response := delayed.try_complete(now)) is not None:
                self._finish(delayed, response)
                answered += 1
        return answered

    def touch_at_end(self, key: Hashable) -> None:
        """Touch `key` at the end of the turn, once, so that one answer has all that the turn changes."""
        self._to_touch[key] = None

    def end_turn(self, now: Now) -> None:
        """Touch the keys of `touch_at_end`."""
        while self._to_touch:
            keys, self._to_touch = self._to_touch, {}
            for key in keys:
                self.touch(key, now)

    def listen(self, key: Hashable, listener: Listener) -> None:
        """Tell `listener` each touch of `key` from now on, until `unlisten`."""
        self._watchers.setdefault(key, {})[listener] = None

    def unlisten(self, key: Hashable, listener: Listener) -> None:
        """Tell `listener` nothing more of `key`."""
        self._unwatch_some(listener, (key,))

    def cancel(self, delayed: AnyDelayed) -> None:
        """Forget a request whose connection is closed. Do nothing if it was answered."""
        if delayed.waiting:
            self._forget(delayed)

    def advance(self, now: Now) -> int:
        """Answer the requests whose deadline has come. Return their number."""
        expired = 0
        for delayed in self._wheel.advance(now.ms):
            if delayed.waiting:  # the answer of an earlier request may have answered or cancelled it
                self._finish(delayed, delayed.expire(now))
                expired += 1
        if self._leaving:
            self._leave_keys()
        self.end_turn(now)
        return expired

    def next_deadline_ms(self) -> int | None:
        """Return when `advance` is due next, on the monotonic clock: 0 for at once, None without a deadline."""
        return 0 if self._leaving or self._to_touch else self._wheel.next_deadline_ms()

    def _may_not_wait(self, delayed: AnyDelayed, now: Now, limited: bool) -> bool:
        if delayed.deadline_ms is not None and delayed.deadline_ms <= now.ms:
            return True
        if self._size < self._max_delayed or not limited:
            return False
        self.overflowed += 1
        return True

    def _register(self, delayed: Delayed[Response], on_done: Callable[[Response], object]) -> None:
        delayed._on_done = on_done
        if delayed.deadline_ms is not None:
            delayed._timer = self._wheel.add(delayed.deadline_ms, delayed)
        for key in delayed.keys:
            self._watchers.setdefault(key, {})[delayed] = None
        self._waiting += 1
        self._size += delayed.size

    def _finish(self, delayed: AnyDelayed, response: Any) -> None:
        on_done = delayed._on_done
        self._forget(delayed)  # first, so that `on_done` finds it answered
        if on_done is not None:
            on_done(response)

    def _forget(self, delayed: AnyDelayed) -> None:
        self._end_wait(delayed)
        if len(delayed.keys) > KEYS_AT_ONCE:
            self._leaving.append((delayed, iter(delayed.keys)))
        else:
            self._unwatch(delayed, delayed.keys)

    def _end_wait(self, delayed: AnyDelayed) -> None:
        delayed._on_done = None
        if delayed._timer is not None:
            delayed._timer.cancel()
            delayed._timer = None
        self._waiting -= 1

    def _unwatch(self, delayed: AnyDelayed, keys: Iterable[Hashable]) -> None:
        self._unwatch_some(delayed, keys)
        self._size -= delayed.size

    def _unwatch_some(self, delayed: AnyDelayed | Listener, keys: Iterable[Hashable]) -> int:
        """Take a request, or a listener, off these keys; return their number."""
        number = 0
        for number, key in enumerate(keys, 1):
            watchers = self._watchers.get(key, {})
            watchers.pop(delayed, None)  # absent if the key was named twice
            if not watchers:
                self._watchers.pop(key, None)
        return number

    def _leave_keys(self) -> None:
        """Take answered requests off KEYS_PER_ADVANCE keys."""
        keys_left = KEYS_PER_ADVANCE
        while self._leaving and keys_left > 0:
            delayed, keys = self._leaving[0]
            number = self._unwatch_some(delayed, islice(keys, keys_left))
            if number < keys_left:
                self._leaving.popleft()
                self._size -= delayed.size
            keys_left -= number
