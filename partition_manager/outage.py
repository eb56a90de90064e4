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

If every message is bad, no probe succeeds, and the outage lasts. Each longer pause is noted, so that a person sees it.
With `outage_max_ms`, failures of the outage's type count as attempts after that time, and the messages go to the dead
letters. The next success makes failures of that type a sign of an outage again. A bolt that raises Unavailable says
itself that no message is to blame, so those failures never count.
"""

from collections.abc import Callable, Hashable
from typing import NamedTuple

from partition_manager.config import SpoutConfig
from partition_manager.retry import RetryPolicy

TIMEOUT = "timeout"  # the whole error text of a message that timed out
PROBE_MIN_MS = 100  # wait before the first probe
NOTED_PAUSE_MS = 5_000  # shorter pauses between probes leave no line in the log
WAY_OUT = (
    "if the messages are to blame, flakelog.spout.outage.max.ms says when attempts count again, and "
    "flakelog.spout.outage.after.messages=0 that they always count"
)


class Outage(NamedTuple):
    """An outage: the type of its failures, how long it lasts in ms, its failed probes, and the latest failure."""

    type: str
    lasted_ms: int
    probes_failed: int
    error: str

    def __str__(self) -> str:
        probes = f"{self.probes_failed} failed probe{'' if self.probes_failed == 1 else 's'}"
        return f"an outage for {self.lasted_ms / 1000:,.1f} s, {probes}: {self.error}; {WAY_OUT}"


class Outages:
    """The failures of one task, across its partitions. Not thread-safe; times are the caller's milliseconds."""

    def __init__(
        self, after: int, probe_max_ms: int, note: Callable[[str], None], *, outage_max_ms: int | None = None
    ) -> None:
        """Begin calm. `after` 0 ignores rows of failures; `outage_max_ms` None lets an outage last for ever.

        `note` receives a line for the start and the end of each outage, and for each longer pause between probes.
        """
        self.is_troubled = False  # False: `succeeded` needs no call
        self._after = after
        self._outage_max_ms = outage_max_ms
        self._policy = RetryPolicy(min(PROBE_MIN_MS, probe_max_ms), 2.0, probe_max_ms)
        self._note = note
        self._now_ms = 0
        self._row_type = ""
        self._row: set[Hashable] = set()  # different messages that failed with that type since the last success
        self._type: str | None = None  # of the outage; None: calm
        self._error = ""  # of the latest failure
        self._too_long: str | None = None  # type of an outage that reached the limit; its failures count
        self._began_ms = 0
        self._noted = False
        self._probe: int | None = None  # ticket of the probe in flight
        self._probe_at_ms = 0
        self._probes_failed = 0

    @property
    def lasts(self) -> bool:
        """Return True during an outage."""
        return self._type is not None

    def current(self, now_ms: int) -> Outage | None:
        """Return the outage, None if there is none. One of Unavailable counts from its first failed probe."""
        if self._type is None or not self._noted:
            return None
        return Outage(self._type, max(now_ms - self._began_ms, 0), self._probes_failed, self._error)

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
        self._type = self._probe = self._too_long = None

    def failed(
        self, message: Hashable, ticket: int, attempt: int, error: str, now_ms: int, *, unavailable: bool = False
    ) -> bool:
        """Record that an emission of `message` failed. Return True if the attempt does not count.

        `attempt` is 1 for the first attempt that counts. `error` begins with the exception's type and ": ".
        """
        self.is_troubled = True
        self._now_ms = now_ms
        self._error = error
        type = error.partition(": ")[0]
        if type == TIMEOUT and self._type is not None:
            type = self._type
        is_row = self._count(message, attempt, type)
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
        if is_row or is_probe:
            self._tell(is_probe)
        if is_probe and type == self._type and not unavailable:
            self._end_if_too_long()
        return unavailable or type == self._type

    # --- internals

    def _count(self, message: Hashable, attempt: int, type: str) -> bool:
        """Count a failure in the row of its type. Return True if that row is, or continues, an outage."""
        if attempt == 1 or message in self._row:
            if type != self._row_type:
                self._row_type = type
                self._row.clear()
            if len(self._row) < self._after:
                self._row.add(message)
        return type == self._row_type and 0 < self._after <= len(self._row) and type != self._too_long

    def _begin(self, type: str, now_ms: int) -> None:
        self._type = type
        self._began_ms = now_ms
        self._noted = False
        self._probe = None
        self._probes_failed = 0
        self._probe_at_ms = now_ms + self._policy.delay_ms(1)

    def _tell(self, is_probe: bool) -> None:
        """Note that the outage has begun, or that the next probe follows after a longer pause."""
        if self._type is None:
            return
        pause_ms = self._probe_at_ms - self._now_ms
        if not self._noted:
            self._noted = True
            self._note(
                f"an outage: messages fail with {self._error}; one at a time is tried until one succeeds, "
                "and no attempt is counted"
            )
        elif is_probe and pause_ms >= NOTED_PAUSE_MS:
            outage = Outage(self._type, self._now_ms - self._began_ms, self._probes_failed, self._error)
            self._note(f"{outage}; the next probe follows in {pause_ms / 1000:,.1f} s")

    def _end_if_too_long(self) -> None:
        if self._outage_max_ms is None or self._now_ms - self._began_ms < self._outage_max_ms:
            return
        self._note(
            f"the outage of {self._type} lasts for longer than flakelog.spout.outage.max.ms ({self._outage_max_ms}): "
            "its failures count as attempts until a message succeeds"
        )
        self._too_long, self._type = self._type, None


def outages_of(config: SpoutConfig, note: Callable[[str], None]) -> Outages:
    """Return the outages of a task with these settings."""
    after, probe_max_ms = config.spout_outage_after_messages, config.spout_outage_probe_max_ms
    return Outages(after, probe_max_ms, note, outage_max_ms=config.spout_outage_max_ms)
