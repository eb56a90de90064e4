"""What can go wrong with ids. Each error says what would be right; what cures it is in its type.

Waiting cures `SequenceExhausted` (its `retry_at_ms`) and, once the registry answers again, `LeadExhausted` and
`NoWorkerNumber`. Claiming anew cures `Fenced`. Nothing but another configuration cures the rest.
"""


class IdError(Exception):
    """No id was issued, and the worker's state is what it was."""


class SequenceExhausted(IdError):
    """All ids up to the run-ahead bound are issued; the same call succeeds at `retry_at_ms` (id clock, Unix ms)."""

    def __init__(self, retry_at_ms: int, max_ahead_ms: int) -> None:
        super().__init__(f"every id up to {max_ahead_ms} ms ahead of the clock is issued; again at {retry_at_ms}")
        self.retry_at_ms = retry_at_ms


class LeadExhausted(IdError):
    """The clock has reached the acknowledged high-water mark: the registry has not answered for a whole lead."""

    def __init__(self, time_ms: int, limit_ms: int) -> None:
        super().__init__(
            f"ids of {time_ms} need a high-water mark above it, the registry acknowledged {limit_ms}; "
            f"ids go on as soon as it answers"
        )
        self.limit_ms = limit_ms


class LayoutExhausted(IdError):
    """The time does not fit the layout's bits: it is over."""

    def __init__(self, time_ms: int, last_ms: int) -> None:
        super().__init__(f"{time_ms} is past the layout's last millisecond, {last_ms}: more time bits are needed")
        self.last_ms = last_ms


class Fenced(IdError):
    """This worker may issue no id any more; the message names why, and the remedy."""


class NoWorkerNumber(IdError):
    """No worker number is held yet; the message says what it waits for."""


class WorkerIdsExhausted(NoWorkerNumber):
    """Every worker number of the registry is held or resting."""


class LayoutMismatch(IdError):
    """The registry was started with another layout; ids of both would collide, so this process does not start."""


class ClockMovedBackwards(IdError):
    """The wall clock was set back further than `flakelog.ids.max.skew.ms`; ids would name a time far from it."""


class InvalidUserAgent(IdError):
    """A user agent that is not `[a-zA-Z][a-zA-Z-0-9]*` (Twitter's rule), or too long."""


class InvalidCount(IdError):
    """A number of ids that cannot be asked for at once."""


class InvalidId(IdError):
    """What was given as an id is none."""


class InvalidTimeRange(IdError):
    """A time span that ends before it starts, or has no start or no end."""
