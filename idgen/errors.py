"""Errors of the id service. Each message says what would be right; each type says what cures the error.

Waiting cures `SequenceExhausted` (until its `retry_at_ms`), `ClockMovedBackwards` (until the wall clock has caught up)
and, once the registry answers again, `LeadExhausted` and `NoWorkerNumber`. A new claim cures `Fenced`. A corrected
request cures the errors whose names begin with `Invalid`. Only another configuration cures the rest.
"""

from coordination.errors import FlakelogError


class IdError(FlakelogError):
    """The base of all id errors: no id was issued, and the worker's state has not changed."""


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
    """The time is past the layout's last millisecond, so no more ids can be made."""

    def __init__(self, time_ms: int, last_ms: int) -> None:
        super().__init__(f"{time_ms} is past the layout's last millisecond, {last_ms}: more time bits are needed")
        self.last_ms = last_ms


class Fenced(IdError):
    """This worker is fenced for good; the message has the reason and the remedy."""


class NoWorkerNumber(IdError):
    """No worker number is held yet; the message says what the claim waits for."""


class WorkerIdsExhausted(NoWorkerNumber):
    """Every worker number of the registry is held or resting."""


class LayoutMismatch(IdError):
    """The registry was started with another layout; ids of both would collide, so this process does not start."""


class ClockMovedBackwards(IdError):
    """The wall clock was set back further than `flakelog.ids.max.skew.ms`; ids would name a time far from it."""


class InvalidUserAgent(IdError):
    """A user agent that does not match `[a-zA-Z][a-zA-Z-0-9]*` (Twitter's rule), or is too long."""


class InvalidCount(IdError):
    """A number of ids that one request cannot ask for."""


class InvalidId(IdError):
    """A value that is not an id."""


class InvalidTimeRange(IdError):
    """A time span that ends before it starts, or lacks its start or end."""
