"""Outages: a service that the bolts need is down, so that every message fails for a reason that is not its own.

    calm -- `after` different messages in a row fail with one type --> outage
    calm -- a bolt raises Unavailable ------------------------------> outage
    outage -- a message succeeds -----------------------------------> calm

In an outage the spout emits one message at a time, the probe. After each probe that fails it waits longer, up to
`probe_max_ms`. Failures of the outage's type count no attempt, so that no message is given up for them. Timeouts count
as that type too. Other failures still count: they are the message's own.

Messages that always fail must not look like an outage. A message that failed before, while others succeeded, does not
count in a row. Probes are new messages if there are any, and otherwise the messages that failed in turn, so one message
that always fails does not prolong an outage.
"""

from collections.abc import Callable, Hashable

from partition_manager.retry import RetryPolicy

TIMEOUT = "timeout"  # the whole error text of a message that timed out
PROBE_MIN_MS = 100  # wait before the first probe


class Outages:
    """The failures of one task, across its partitions. Not thread-safe; times are the caller's milliseconds."""

    def __init__(self, after: int, probe_max_ms: int, note: Callable[[str], None]) -> None:
        """Begin calm. `after` 0 ignores rows of failures. `note` receives the start and the end of each outage."""
        self.is_troubled = False  # False: `succeeded` needs no call
        self._after = after
        self._policy = RetryPolicy(min(PROBE_MIN_MS, probe_max_ms), 2.0, probe_max_ms)
        self._note = note
        self._now_ms = 0
        self._row_type = ""
        self._row: set[Hashable] = set()  # different messages that failed with that type since the last success
        self._type: str | None = None  # of the outage; None: calm
        self._began_ms = 0
        self._noted = False
        self._probe: int | None = None  # ticket of the probe in flight
        self._probe_at_ms = 0
        self._probes_failed = 0

    @property
    def lasts(self) -> bool:
        """Return True during an outage."""
        return self._type is not None

    def next_probe_ms(self) -> int | None:
        """Return the time of the next probe; None if there is no outage or a probe is in flight."""
        return None if self._type is None or self._probe is not None else self._probe_at_ms

    def may_emit(self, now_ms: int) -> bool:
        """Return False if the spout must wait, because of an outage."""
        self._now_ms = now_ms
        return self._type is None or (self._probe is None and now_ms >= self._probe_at_ms)

    def emitted(self, ticket: int) -> None:
        """Remember the emission with this ticket as the probe, during an outage."""
        if self._type is not None:
            self._probe = ticket

    def ended(self, ticket: int) -> None:
        """If the emission was the probe, let another follow at once, because this one says nothing of the service.

        It had no tuples, could not be decoded, or its partition was revoked.
        """
        if ticket == self._probe:
            self._probe = None

    def succeeded(self) -> None:
        """A message was fully processed: the row of failures and the outage are over."""
        self.is_troubled = False
        self._row.clear()
        if self._type is not None and self._noted:
            took = f"{(self._now_ms - self._began_ms) / 1000:,.1f} s and {self._probes_failed} failed probes"
            self._note(f"the outage of {self._type} is over after {took}")
        self._type = self._probe = None

    def failed(
        self, message: Hashable, ticket: int, attempt: int, error: str, now_ms: int, *, unavailable: bool = False
    ) -> bool:
        """Record that an emission of `message` failed. Return True if the attempt does not count.

        `attempt` is 1 for the first attempt that counts. `error` begins with the exception's type and ": ".
        """
        self.is_troubled = True
        self._now_ms = now_ms
        type = error.partition(": ")[0]
        if type == TIMEOUT and self._type is not None:
            type = self._type
        if attempt == 1 or message in self._row:
            if type != self._row_type:
                self._row_type = type
                self._row.clear()
            if len(self._row) < self._after:
                self._row.add(message)
        is_row = type == self._row_type and 0 < self._after <= len(self._row)
        if self._type is None:
            if is_row or unavailable:
                self._begin(type, now_ms)
        elif is_row:
            self._type = type  # one failure gave way to another
        is_probe = ticket == self._probe
        if is_probe:
            self._probe = None
            self._probes_failed += 1
            self._probe_at_ms = now_ms + self._policy.delay_ms(self._probes_failed + 1)
        if self._type is not None and not self._noted and (is_row or is_probe):
            self._noted = True
            self._note(
                f"an outage: messages fail with {error}; one at a time is tried until one succeeds, "
                "and no attempt is counted"
            )
        return unavailable or type == self._type

    def _begin(self, type: str, now_ms: int) -> None:
        self._type = type
        self._began_ms = now_ms
        self._noted = False
        self._probe = None
        self._probes_failed = 0
        self._probe_at_ms = now_ms + self._policy.delay_ms(1)
