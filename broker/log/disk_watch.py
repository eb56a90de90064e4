"""Whether the disk of the data directory is full: since when, and how much space is left.

The disk counts as full from a write that found no space, or while fewer than `flakelog.disk.full.bytes` are usable. It
has space again when twice that is usable, and more than at the last write that failed. If a limit that the system does
not show (a quota) made the write fail, the disk counts as full until no write has failed for RETRY_MS.

Bytes that the reserve lacks (broker.log.storage.reserve) are not usable. The watch has the reserve written when the
disk has space for it. While the disk is full, Produce is refused (broker.produce.turn), because messages would take the
space that the reserve has just given to the writes that free space. The watch refuses no other write.
"""

from collections.abc import Callable
from contextlib import suppress

from broker.log.io_jobs import FillReserve, Runnable
from broker.log.storage import reserve
from broker.log.storage.port import Storage, StorageError
from broker.now import Now
from broker.settings.config import BrokerConfig
from broker.waiting.pending import Pending

CHECK_EVERY_MS = 10_000  # while there is space; a write that fails is noticed at once
CHECK_FULL_EVERY_MS = 1_000
RETRY_MS = 10_000
LINES_EVERY_MS = 60_000  # between two reports of a full disk, though space may come and go faster


class DiskWatch:
    """The state of one disk. `report` takes lines for the operator, `hand_out` takes a job for a thread.

    `became_read_only` is called with the reason at the first write that fails because the disk takes none.
    """

    def __init__(
        self,
        storage: Storage,
        config: BrokerConfig,
        report: Callable[[str], None],
        pending: Pending,
        hand_out: Callable[[FillReserve], None],
        became_read_only: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._storage = storage
        self._config = config
        self._report = report
        self._pending = pending
        self._hand_out = hand_out
        self._became_read_only = became_read_only
        self.read_only: str | None = None
        """Why no write will succeed until the next start; None while the disk takes writes."""
        self.usable_bytes: int | None = None
        """The bytes that could still be written at the last check, beside the reserve; None before the first."""
        self.full_since_ms: int | None = None
        """Since when the disk is full, in Unix ms; None while it has space."""
        self._failed: StorageError | None = None
        self._failed_ms = 0
        self._failed_bytes = 0
        """The usable bytes when a write failed last."""
        self._due_ms: int | None = None
        self._next_line_ms: int | None = None
        self._was_reported = False
        self._free_bytes = 0
        """The bytes that could be written at the last check, also by the reserve."""
        self._reserve_bytes = 0
        """The size that the reserve must have."""
        self._present_bytes = 0
        """The size that the reserve has."""
        self._is_filling = False
        """True while a thread writes the reserve."""
        self._not_filled = ""
        """The reason why the reserve could not be written, as it was reported."""

    @property
    def is_full(self) -> bool:
        return self.full_since_ms is not None

    @property
    def lacking_bytes(self) -> int:
        """Return the bytes that the reserve lacked at the last check. They are free, and not usable."""
        return max(self._reserve_bytes - self._present_bytes, 0)

    @property
    def location(self) -> str:
        """Return the location of the data directory."""
        return self._storage.location

    def failed(self, error: Exception) -> None:
        """Note an error of a file operation. If the disk was full, measure it now; the next check draws conclusions."""
        if isinstance(error, StorageError) and error.is_read_only and self.read_only is None:
            self.read_only = f"the disk of {self._storage.location} is read-only since a write failed ({error})"
            self._became_read_only(self.read_only)
        if isinstance(error, StorageError) and error.full:
            self._failed = error
            self._pending.deadline = True
            self._measure()
            self._failed_bytes = self.usable_bytes or 0

    def next_deadline_ms(self, now_ms: int) -> int:
        """Return when `check` is due, by the monotonic clock."""
        return now_ms if self._failed is not None or self._due_ms is None else self._due_ms

    def check(self, now: Now) -> None:
        """Look at the disk if it is time to, and report when it becomes full and when it has space again."""
        if now.ms < self.next_deadline_ms(now.ms):
            return
        self._measure()
        self._conclude(now, self.usable_bytes or 0)
        self._due_ms = now.ms + (CHECK_FULL_EVERY_MS if self.is_full else CHECK_EVERY_MS)
        self._fill_if_space()

    def job_ended(self, job: Runnable, error: Exception | None = None) -> None:
        """Note the outcome of a job."""
        if isinstance(job, FillReserve):
            self._filled(error)
        elif error is not None:
            self.failed(error)

    def _measure(self) -> None:
        with suppress(StorageError):  # then the last figures stay
            _, self._free_bytes = self._storage.space()
            self._present_bytes = reserve.present_bytes(self._storage)
            self._reserve_bytes = reserve.needed_bytes(self._storage) if self._config.disk_full_bytes else 0
            self.usable_bytes = max(self._free_bytes - self.lacking_bytes, 0)

    # --- the reserve ---------------------------------------------------------------------------------------------

    def _fill_if_space(self) -> None:
        """Have the reserve written if it lacks bytes and the disk has space for them."""
        if self._present_bytes >= self._reserve_bytes or self._is_filling or self.is_full:
            return
        taken_bytes = reserve.filled_bytes(self._reserve_bytes) - self._present_bytes
        if self._free_bytes >= taken_bytes + self._config.disk_full_bytes:
            self._is_filling = True
            self._hand_out(FillReserve(self._storage, self._reserve_bytes))

    def _filled(self, error: Exception | None) -> None:
        """Note that the reserve was written, or could not be. A later check tries again."""
        self._is_filling = False
        reason = "" if error is None else str(error)
        if reason and reason != self._not_filled:
            self._report(f"the reserve for a full disk could not be written: {reason}")
        self._not_filled = reason

    # --- the state -----------------------------------------------------------------------------------------------

    def _conclude(self, now: Now, usable_bytes: int) -> None:
        failed, self._failed = self._failed, None
        least_bytes = self._config.disk_full_bytes
        if failed is not None:
            self._failed_ms = now.ms
        if self.full_since_ms is None:
            if failed is not None or usable_bytes < least_bytes:
                self.full_since_ms, self._was_reported = now.wall_ms, False
                self._report_full(now, usable_bytes, failed)
        elif failed is None and usable_bytes >= 2 * least_bytes and (
            usable_bytes >= self._failed_bytes + least_bytes or now.ms - self._failed_ms >= RETRY_MS
        ):
            self._ends(now, usable_bytes)
        elif not self._was_reported:
            self._report_full(now, usable_bytes, failed)

    def _report_full(self, now: Now, usable_bytes: int, failed: StorageError | None) -> None:
        """Report a full disk, unless the last such line is too young; then a later check reports it."""
        if self._next_line_ms is None or now.ms >= self._next_line_ms:
            self._was_reported, self._next_line_ms = True, now.ms + LINES_EVERY_MS
            why = "" if failed is None else f" ({failed})"
            self._report(
                f"the disk of {self._storage.location} is full: {usable_bytes} bytes are usable{why}. Messages are "
                f"refused with KAFKA_STORAGE_ERROR until it has space, and reads are served"
            )

    def _ends(self, now: Now, usable_bytes: int) -> None:
        full_ms = now.wall_ms - (self.full_since_ms or now.wall_ms)
        self.full_since_ms, self._failed_bytes = None, 0
        if self._was_reported:
            self._report(
                f"the disk of {self._storage.location} has space again: {usable_bytes} bytes are usable, "
                f"after {full_ms // 1_000} s"
            )
