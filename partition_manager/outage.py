"""Outages: a service that the bolts need is down, so that messages fail for a reason that is not their own.

    calm -- `after` different messages in a row fail with one type --> all wait
    all wait -- a message succeeds ---------------------------------> calm, or some wait
    calm -- a bolt raises Unavailable ------------------------------> some wait
    some wait -- `after` different messages in a row fail ----------> all wait
    some wait -- a message that failed in the outage succeeds ------> calm

While all wait, the spout emits one message at a time, the probe. While some wait, messages that failed in the outage
are parked (partition_manager/parked.py), and the probe is one of them; all others go on, because they may not need that
service. After each probe that fails the spout waits longer, up to `probe_max_ms`. Failures of the outage's type count
no attempt, so that no message is given up for them. Timeouts count as that type too. Other failures still count: they
are the message's own.

Messages that always fail must not look like an outage. A message that failed before, while others succeeded, does not
count in a row. While all wait, probes are new messages if there are any, and otherwise the messages that failed in
turn, so one message that always fails does not prolong an outage.

If every message is bad, no probe succeeds, and the outage lasts. Each longer pause is noted, so that a person sees it.
With `outage_max_ms`, failures of the outage's type count as attempts after that time, and the messages go to the dead
letters. The next success makes failures of that type a sign of an outage again. A bolt that raises Unavailable says
itself that no message is to blame, so those failures never count.

At most once, a message that fails is dropped and cannot be parked. So all wait from the first Unavailable on.
"""

from collections.abc import Callable, Hashable
from typing import NamedTuple

from partition_manager.config import AT_LEAST_ONCE, SpoutConfig
from partition_manager.parked import Parked, TopicPartitionOffset, Turn
from partition_manager.retry import RetryPolicy

TIMEOUT = "timeout"  # the whole error text of a message that timed out
PROBE_MIN_MS = 100  # wait before the first probe
NOTED_PAUSE_MS = 5_000  # shorter pauses between probes leave no line in the log
WAY_OUT = (
    "if the messages are to blame, flakelog.spout.outage.max.ms says when attempts count again, and "
    "flakelog.spout.outage.after.messages=0 that they always count"
)


OTHERS_GO_ON = "other messages go on"


class Outage(NamedTuple):
    """An outage: the type of its failures, how long it lasts in ms, its failed probes, and the latest failure.

    `others_go_on` is False while the spout emits nothing but probes.
    """

    type: str
    lasted_ms: int
    probes_failed: int
    error: str
    others_go_on: bool = False

    def __str__(self) -> str:
        probes = f"{self.probes_failed} failed probe{'' if self.probes_failed == 1 else 's'}"
        advice = OTHERS_GO_ON if self.others_go_on else WAY_OUT
        return f"an outage for {self.lasted_ms / 1000:,.1f} s, {probes}: {self.error}; {advice}"


class Outages:
    """The failures of one task, across its partitions. Not thread-safe; times are the caller's milliseconds."""

    def __init__(
        self,
        after: int,
        probe_max_ms: int,
        note: Callable[[str], None],
        *,
        outage_max_ms: int | None = None,
        parks: bool = True,
    ) -> None:
        """Begin calm. `after` 0 ignores rows of failures; `outage_max_ms` None lets an outage last for ever.

        `note` receives a line for the start and the end of each outage, and for each longer pause between probes.
        Without `parks` all messages wait in an outage that a bolt reported.
        """
        self.is_troubled = False  # False: `emitted` and `succeeded` need no call
        self.now_ms = 0  # as last told
        self._after = after
        self._outage_max_ms = outage_max_ms
        self._parks = parks
        self._policy = RetryPolicy(min(PROBE_MIN_MS, probe_max_ms), 2.0, probe_max_ms)
        self._note = note
        self._row_type = ""
        self._row: set[Hashable] = set()  # different messages that failed with that type since the last success
        self._type: str | None = None  # of the outage in which all messages wait
        self._reported: str | None = None  # type of the outage that a bolt reported
        self._parked = Parked()
        self._error = ""  # of the latest failure
        self._too_long: str | None = None  # type of an outage that reached the limit; its failures count
        self._began_ms = 0
        self._noted = False
        self._noted_type = ""
        self._probe: int | None = None  # ticket of the probe in flight, while all wait
        self._probe_at_ms = 0
        self._probes_failed = 0

    @property
    def all_wait(self) -> bool:
        """Return True during an outage in which the spout emits one message at a time."""
        return self._type is not None

    @property
    def parks(self) -> bool:
        """Return True if a message that fails now, and is excused, is to be parked."""
        return self._reported is not None

    def current(self, now_ms: int) -> Outage | None:
        """Return the outage, or None. One of Unavailable counts from its first failed probe."""
        type = self._type or self._reported
        if type is None or not self._noted:
            return None
        return Outage(type, max(now_ms - self._began_ms, 0), self._probes_failed, self._error, self._type is None)

    # --- emissions

    def next_probe_ms(self) -> int | None:
        """Return the time of the next probe; None if no outage waits for one, or a probe is in flight."""
        if self._type is None:
            return self._probe_at_ms if self._parked.is_waiting else None
        return None if self._probe is not None else self._probe_at_ms

    def may_emit(self, now_ms: int) -> bool:
        """Return False if the spout must wait, because of an outage."""
        self.now_ms = now_ms
        return self._type is None or (self._probe is None and now_ms >= self._probe_at_ms)

    @property
    def has_parked(self) -> bool:
        """Return True if a message is parked, and it may be tried now or later."""
        return self._parked.is_waiting

    def next_turn(self, now_ms: int) -> Turn | None:
        """Return the parked message to emit next, or None if it is too early or none is parked.

        Another one follows after a pause, if this one cannot be emitted meanwhile.
        """
        if now_ms < self._probe_at_ms:
            return None
        turn = self._parked.next()
        if turn is not None and self._type is None:
            self._probe_at_ms = now_ms + self._policy.delay_ms(self._probes_failed + 2)
        return turn

    def emitted(self, message: TopicPartitionOffset, ticket: int) -> None:
        """Note an emission: it is the probe if all wait, or if the message was parked."""
        self._parked.emitted(message, ticket)
        if self._type is not None:
            self._probe = ticket

    # --- outcomes

    def park(self, message: TopicPartitionOffset, ticket: int) -> None:
        """Park a message whose attempt with this ticket has failed."""
        self._parked.park(message, ticket)

    def forget(self, message: TopicPartitionOffset) -> None:
        """Drop a parked message that is no longer this task's, or that needs no turn."""
        self._parked.forget(message)
        self._end_if_empty()

    def ended(self, ticket: int) -> None:
        """If the emission was the probe, let another follow at once, because this one says nothing of the service.

        It had no tuples, could not be decoded, or its partition was revoked.
        """
        if ticket == self._probe:
            self._probe = None
        if self._parked.is_tried(ticket):
            self._parked.ended(ticket)
            self._probe_at_ms = self.now_ms
            self._end_if_empty()

    def succeeded(self, ticket: int) -> list[Turn]:
        """A message was fully processed: the row of failures is over, and what waits for such a success.

        Return the parked messages that need to wait no longer.
        """
        self._row.clear()
        self._type = self._too_long = self._probe = None
        freed: list[Turn] = []
        if self._parked.is_tried(ticket):
            freed = self._parked.take()
            self._reported = None
        self.is_troubled = self._reported is not None
        self._end_if_calm()
        return freed

    def failed(
        self, message: Hashable, ticket: int, attempt: int, error: str, now_ms: int, *, unavailable: bool = False
    ) -> bool:
        """Record that an emission of `message` failed. Return True if the attempt does not count.

        `attempt` is 1 for the first attempt that counts. `error` begins with the exception's type and ": ".
        """
        self.is_troubled = True
        self.now_ms = now_ms
        self._error = error
        type = error.partition(": ")[0]
        if type == TIMEOUT:
            type = self._type or self._reported or type
        is_row = self._count(message, attempt, type)
        self._begin(type, is_row=is_row, is_reported=unavailable)
        is_probe = ticket == self._probe or self._parked.is_tried(ticket)
        if is_probe:
            self._probe = None
            self._parked.ended(ticket)
            self._probes_failed += 1
            self._probe_at_ms = now_ms + self._policy.delay_ms(self._probes_failed + 1)
        if is_row or is_probe:
            self._tell(is_probe)
        if is_probe and type == self._type and not unavailable and self._lasts_too_long:
            self._end_too_long()
        return unavailable or type == self._type or (type == self._reported and not self._lasts_too_long)

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

    def _begin(self, type: str, *, is_row: bool, is_reported: bool) -> None:
        """Begin an outage, or widen one: a row makes all wait, and may have another type than the row before."""
        if not (is_row or is_reported):
            return
        if self._type is None and self._reported is None:
            self._began_ms = self.now_ms
            self._noted = False
            self._probe = None
            self._probes_failed = 0
            self._probe_at_ms = self.now_ms + self._policy.delay_ms(1)
        if is_row or (self._type is None and not self._parks):
            self._type = type
        if is_reported and self._parks and self._reported is None:
            self._reported = type

    def _end_if_empty(self) -> None:
        """End an outage that a bolt reported, if none of the messages that failed in it is left."""
        if not self._parked:
            self._reported = None
            self._end_if_calm()

    def _end_if_calm(self) -> None:
        """Note the end of the outage, if none is left."""
        if self._type is None and self._reported is None and self._noted:
            self._noted = False
            duration = f"{(self.now_ms - self._began_ms) / 1000:,.1f} s and {self._probes_failed} failed probes"
            self._note(f"the outage of {self._noted_type} is over after {duration}")

    def _tell(self, is_probe: bool) -> None:
        """Note that the outage has begun, or that the next probe follows after a longer pause."""
        type = self._type or self._reported
        if type is None:
            return
        self._noted_type = type
        pause_ms = self._probe_at_ms - self.now_ms
        if not self._noted:
            self._noted = True
            tried = "one at a time is tried until one succeeds"
            go_on = f"; {OTHERS_GO_ON}" if self._type is None else ""
            self._note(f"an outage: messages fail with {self._error}; {tried}, and no attempt is counted{go_on}")
        elif is_probe and pause_ms >= NOTED_PAUSE_MS:
            self._note(f"{self.current(self.now_ms)}; the next probe follows in {pause_ms / 1000:,.1f} s")

    @property
    def _lasts_too_long(self) -> bool:
        return self._outage_max_ms is not None and self.now_ms - self._began_ms >= self._outage_max_ms

    def _end_too_long(self) -> None:
        self._note(
            f"the outage of {self._type} lasts for longer than flakelog.spout.outage.max.ms ({self._outage_max_ms}): "
            "its failures count as attempts until a message succeeds"
        )
        self._too_long, self._type = self._type, None
        self._noted = self._reported is not None


def outages_of(config: SpoutConfig, note: Callable[[str], None]) -> Outages:
    """Return the outages of a task with these settings."""
    after, probe_max_ms = config.spout_outage_after_messages, config.spout_outage_probe_max_ms
    parks = config.spout_guarantee == AT_LEAST_ONCE
    return Outages(after, probe_max_ms, note, outage_max_ms=config.spout_outage_max_ms, parks=parks)
