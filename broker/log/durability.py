"""How much of a log is on the disk: in its own files, and in the journal that it may share."""

from broker.log.checkpoint import LogPosition


class Durability:
    """The end of one log's synced part, and the state of its syncs. An instance must not refer to the log."""

    __slots__ = (
        "flushed", "checkpointed", "end_offset", "key", "unsynced_bytes", "unflushed_since_ms", "mending",
        "is_named", "epochs_stored", "_journaled_ahead",
    )  # fmt: skip

    def __init__(self, flushed: LogPosition, *, is_named: bool = False, epochs_stored: bool = True) -> None:
        self.flushed = flushed
        """The position up to which the log's own files are synced."""
        self.checkpointed = flushed
        """The log's position in the checkpoint on the disk, from which a start after a crash recovers."""
        self.end_offset = flushed.offset
        """Offsets below it are on the disk: in the log's own files, or in the journal."""
        self.key = object()
        """The purgatory's key for requests that wait for the disk, so that an append does not touch them."""
        self.unsynced_bytes = 0
        self.unflushed_since_ms: int | None = None
        """When the first record was appended that no sync has begun for; None without one."""
        self.mending = False
        """A write failed and was undone; the log refuses appends until a sync succeeds."""
        self.is_named = is_named
        """True once the names of the log's first files are on the disk. The first sync does that."""
        self.epochs_stored = epochs_stored
        """False if a leader epoch was begun that is not in the file yet. The next sync for a checkpoint writes it."""
        self._journaled_ahead: tuple[int, int] | None = None

    def appended(self, size: int, now_ms: int) -> None:
        """Count bytes that were appended."""
        self.unsynced_bytes += size
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = now_ms

    def sync_begins(self) -> None:
        """Note that a sync begins, which covers everything appended so far."""
        self.unflushed_since_ms = None
        self.unsynced_bytes = 0

    def synced(self, position: LogPosition, *, mends: bool = False, stores_epochs: bool = False) -> None:
        """Note that the log's own files are on the disk up to `position`, and what else the sync has done."""
        self.flushed = position
        self.is_named = True
        self.mending = self.mending and not mends
        self.epochs_stored = self.epochs_stored or stores_epochs
        self.end_offset = max(self.end_offset, position.offset)
        ahead = self._journaled_ahead
        if ahead is not None and ahead[0] <= self.end_offset:
            self.end_offset = max(self.end_offset, ahead[1])
            self._journaled_ahead = None

    def journaled(self, first_offset: int, end_offset: int) -> bool:
        """Note that the journal has these offsets on the disk.

        Return False if the offsets before them are not on the disk. The new offsets then count as durable when the
        log's own files are synced up to them.
        """
        # A gap arises when the topic began to use the journal a moment ago: the batches before are in its files only,
        # and no sync has covered them yet.
        if first_offset <= self.end_offset:
            self.end_offset = max(self.end_offset, end_offset)
            return True
        ahead = self._journaled_ahead
        self._journaled_ahead = (ahead[0] if ahead and ahead[1] == first_offset else first_offset), end_offset
        return False
