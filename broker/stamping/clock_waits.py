"""The partitions that take no messages because their last id is ahead of the clock.

Ids rise strictly with the offset, so the last id of a log is the floor for its next one. If the clock was ahead in an
earlier run, a log has no ids until the clock has reached its floor. A request that meets such a log is refused. This
module keeps which partitions were asked for in vain, and since when, for the log, the metrics and the readiness.
"""

from collections.abc import Callable
from typing import NamedTuple

from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.stamping.id_stamper import IdStamper
from broker.waiting.purgatory import Purgatory
from coordination.listing import listed
from idgen.errors import IdError

CHECK_EVERY_MS = 1_000  # how late the end of a wait is noticed
REPORT_EVERY_MS = 60_000  # between two lines in the log, however many partitions wait
NAMED_MAX = 5  # partitions that a line names; /health/ready names all of them
REMEDY = "flakelog.ids.log.max.ahead.ms, see 'A clock that was ahead' in docs/ids-and-kubernetes.md"


class ClockWait(NamedTuple):
    """A partition's wait, in ms: how far its last id is ahead of the clock, how long it has refused messages, and how
    long it will."""

    ahead_ms: int
    waiting_ms: int
    left_ms: int


class ClockWaits:
    """The waits of a broker's partitions. Times are Unix ms of the id clock, as that clock never goes back."""

    def __init__(
        self, logs: LogManager, stamper: IdStamper, purgatory: Purgatory, report: Callable[[str], None]
    ) -> None:
        self._logs = logs
        self._stamper = stamper
        self._purgatory = purgatory
        self._report = report
        self._since_ms: dict[PartitionLog, int] = {}
        self._is_reported = False
        """True if the log says that partitions wait."""
        self._next_line_ms = 0
        """The earliest time of the next line in the log, on the monotonic clock."""
        self.on_wait: Callable[[], object] = lambda: None
        """Called when a partition begins to wait. A broker may meet one late: it begins to lead a partition whose last
        leader had a clock that is ahead of its own (rule I6)."""

    def refused(self, log: PartitionLog, now: Now) -> None:
        """Note that a log had no ids for a request. Do nothing unless the clock is the reason."""
        if log in self._since_ms or not self._stamper.wait_ms(log.last_id, now.wall_ms):
            return
        if not self._since_ms:
            self._check_later(now)
        self._since_ms[log] = now.wall_ms
        if len(self._since_ms) == 1:
            self._tell(now)
        self.on_wait()

    def why(self, log: PartitionLog, now: Now) -> str:
        """Return the reason why a log takes no messages now, for the client."""
        wait_ms = self._stamper.wait_ms(log.last_id, now.wall_ms)
        ahead_ms = self._stamper.ahead_ms(log.last_id, now.wall_ms)
        return (
            f"{log.name}: its last id is {ahead_ms} ms ahead of the broker's clock, and ids rise with the offset; "
            f"it takes messages again in {wait_ms} ms"
        )

    def waiting(self, now_ms: int) -> dict[str, ClockWait]:
        """Return the waits of the partitions that refuse messages now, by partition name. The longest wait is first."""
        waits = {}
        for log, since_ms in self._since_ms.items():
            left_ms = self._left_ms(log, now_ms)
            if left_ms:
                ahead_ms = self._stamper.ahead_ms(log.last_id, now_ms)
                waits[log.name] = ClockWait(ahead_ms, max(now_ms - since_ms, 0), left_ms)
        return waits

    def ahead(self, now_ms: int) -> dict[str, int]:
        """Return the partitions whose last id is too far ahead of the clock for the ids of this process's usual worker
        number, with the distance in ms, by name. The furthest is first."""
        try:
            max_ahead_ms = self._stamper.worker().max_ahead_ms
            ahead_by_name = {log.name: self._stamper.ahead_ms(log.last_id, now_ms) for log in self._logs.all()}
        except IdError:
            return {}
        ahead = ((name, ahead_ms) for name, ahead_ms in ahead_by_name.items() if ahead_ms > max_ahead_ms)
        return dict(sorted(ahead, key=lambda wait: -wait[1]))

    def tell_at_start(self, now_ms: int) -> None:
        """Report the partitions that are ahead of the clock, before any client meets them."""
        ahead = self.ahead(now_ms)
        if ahead:
            self._report(
                f"the last ids of {len(ahead)} partitions are ahead of this machine's clock, the furthest by "
                f"{max(ahead.values())} ms: {listed(ahead, NAMED_MAX)}; each takes messages when the clock has "
                f"reached its last id, or sooner with {REMEDY}"
            )

    def _left_ms(self, log: PartitionLog, now_ms: int) -> int:
        if log.offline is not None or not self._logs.has(log):
            return 0
        return self._stamper.wait_ms(log.last_id, now_ms)

    def _check_later(self, now: Now) -> None:
        self._purgatory.call_at(now.ms + CHECK_EVERY_MS, self._check)

    def _check(self, now: Now) -> None:
        """Drop the waits that are over, and report."""
        for log in [waiting for waiting in self._since_ms if not self._left_ms(waiting, now.wall_ms)]:
            del self._since_ms[log]
        if self._since_ms:
            self._check_later(now)
            self._tell(now)
        elif self._is_reported:
            self._is_reported = False
            self._report("the clock has reached the last ids: no partition waits for it any more")

    def _tell(self, now: Now) -> None:
        """Report the waits, at most once every REPORT_EVERY_MS."""
        if now.ms < self._next_line_ms:
            return
        self._is_reported = True
        self._next_line_ms = now.ms + REPORT_EVERY_MS
        waits = self.waiting(now.wall_ms)
        furthest_ms = max(wait.ahead_ms for wait in waits.values())
        self._report(
            f"{len(waits)} partitions refuse messages, because their last ids are ahead of this machine's clock, the "
            f"furthest by {furthest_ms} ms: {listed(waits, NAMED_MAX)}; each goes on when the clock has reached its "
            f"last id, or sooner with {REMEDY}"
        )
