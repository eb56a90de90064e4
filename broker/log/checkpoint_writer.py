"""The writes of the checkpoint: one at a time, so that an older version never replaces a newer one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from broker.log import checkpoint, producer_state
from broker.log.checkpoint import LogPosition
from broker.log.io_jobs import WriteCheckpoint
from broker.log.partition_log import PartitionLog
from broker.log.recovery import stored_checkpoint
from broker.log.segment import file_name
from broker.log.storage.port import Storage


class CheckpointWriter:
    """The synced positions of all logs, as the next checkpoint will have them.

    `hand_out` takes the next write for a thread. `has_journal_before` says if a journal file with a number lower than
    this one may be on the disk.
    """

    def __init__(
        self,
        storage: Storage,
        hand_out: Callable[[WriteCheckpoint], None],
        has_journal_before: Callable[[int], bool],
        report: Callable[[str], None],
    ) -> None:
        self.positions: dict[str, LogPosition] = {}
        """The synced position of each log by name."""
        self._storage = storage
        self._hand_out = hand_out
        self._has_journal_before = has_journal_before
        self._report = report
        self._changed = False
        """True if `positions` differ from the last checkpoint that was asked for."""
        self._writing = False
        """True while a checkpoint is being written."""
        self._uncovered: dict[PartitionLog, LogPosition] = {}
        """Synced logs whose new position is not in a written checkpoint yet."""
        self._stale: list[str] = []
        """Producer snapshots that the next checkpoint replaces."""
        self._lowered: set[str] = set()
        """Logs to truncate whose position was lowered since the last checkpoint that was asked for."""
        self.frees_space = False
        """True if segments are removed after the next write, so that it may use the reserve."""

    def load(self) -> None:
        """Read the checkpoint, before any log is added; in an empty directory, begin one.

        Raise CheckpointDamaged, also if only the checkpoint is missing, or StorageError.
        """
        positions = stored_checkpoint.load(self._storage)
        if positions is None:
            self._storage.replace(checkpoint.FILE, checkpoint.encode({}))
        else:
            self.positions = positions

    # --- changes -------------------------------------------------------------------------------------------------

    def note(self, log: PartitionLog, position: LogPosition) -> None:
        """Note that a log is synced up to this position."""
        before = self.positions.get(log.name)
        if before is not None and before.producers and before.offset != position.offset:
            self._stale.append(f"{log.name}/{file_name(before.offset, producer_state.SUFFIX)}")
        if before is not None and before.journal_from:
            position = replace(position, journal_from=before.journal_from)
        self.positions[log.name] = self._uncovered[log] = position
        self._changed = True

    def lower(self, positions: Mapping[PartitionLog, LogPosition], journal_from: int) -> None:
        """Replace the positions of released logs, and write the checkpoint even during a round.

        The write names them in `lowered`. Entries of theirs count in journal files from `journal_from` on.
        """
        for log, position in positions.items():
            self.positions[log.name] = replace(position, journal_from=journal_from)
            self._lowered.add(log.name)
        self._changed = True
        self.write()

    def lower_again(self, names: Iterable[str]) -> None:
        """Write the checkpoint again after a failure. The write names these logs in `lowered`."""
        self._lowered.update(names)
        self._changed = True
        self.write()

    def release(self, log: PartitionLog) -> None:
        """Forget this opening of a log, and keep the log's position."""
        self._uncovered.pop(log, None)

    def forget(self, name: str) -> None:
        """Forget a deleted log. The caller then calls `write`."""
        if self.positions.pop(name, None) is not None:
            self._changed = True

    def drop_journal_numbers(self) -> bool:
        """Drop `journal_from` from the positions that no longer need it. Return True if there were any."""
        dropped = {
            name: replace(position, journal_from=0)
            for name, position in self.positions.items()
            if position.journal_from and not self._has_journal_before(position.journal_from)
        }
        self.positions.update(dropped)
        self._changed = self._changed or bool(dropped)
        return bool(dropped)

    def journal_closed(self) -> None:
        """At a clean stop, write the checkpoint without numbers of journal files, if no file is left.

        The version of Flakelog before truncation begins with file 1 again, and keeps no such numbers.
        """
        if self.drop_journal_numbers():
            self.write()

    # --- writes --------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Ask for a write if the positions have changed and no write is running."""
        if self._changed and not self._writing:
            self.drop_journal_numbers()
            self._changed, self._writing = False, True
            stale, self._stale = tuple(self._stale), []
            covers, self._uncovered = self._uncovered, {}
            lowered, self._lowered = frozenset(self._lowered), set()
            frees, self.frees_space = self.frees_space, False
            self._hand_out(WriteCheckpoint(self._storage, dict(self.positions), stale, covers, lowered, frees))

    def written(self, job: WriteCheckpoint, *, in_round: bool) -> None:
        """Take back a write that succeeded. Changes of a running round wait for its end."""
        for log, position in job.covers.items():
            log.durability.checkpointed = position
        self._writing = False
        if not in_round or self._lowered:
            self.write()

    def failed(self, job: WriteCheckpoint, error: Exception) -> None:
        """Take back a write that failed."""
        self._report(f"the checkpoint could not be written: {error}; the older one stays")
        self._uncovered = job.covers | self._uncovered
        self._changed = True
        self._writing = False
        if self._lowered:
            self.write()

    def stop(self) -> None:
        """Forget the running write, because the threads have ended."""
        self._changed, self._writing = self._changed or self._writing, False

    @property
    def is_written(self) -> bool:
        """Return True if the written checkpoint has every synced position."""
        return not self._changed
