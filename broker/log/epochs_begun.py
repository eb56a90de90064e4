"""The leader epochs that were begun and are not in the logs' own files yet: one file for all logs, `epochs-begun`.

A leader's epoch must be on the disk before its first batch. Otherwise a power cut that takes the batch takes the epoch
too, and the log could not tell that it ever was in that epoch. A broker that begins to lead a thousand partitions
would wait for a thousand files, so one file has all of these epochs, and is replaced whole.

    begin    before LeaderAndIsr is carried out: add the epoch of each log that will be led, and write the file
    drop     the log's own file has the epoch, or a truncation has taken it away, or the log was deleted
    join     the start: an epoch of the file that a log does not know begins at the log's end

A log that does not know the epoch has no batch of it, so all its batches are older.

One write runs at a time. All that begin while it runs share the next one. The file has a line of JSON for each log, and
a CRC-32C. A damaged file refuses the start: a log that has forgotten an epoch names an older one to its leader, and
may then keep batches that the leader does not have. A server alone writes no such file.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from broker.log import json_lines, leader_epochs
from broker.log.checkpoint import CheckpointDamaged
from broker.log.partition_log import PartitionLog
from broker.log.storage.port import Storage

FILE = "epochs-begun"
_VERSION = 1


class EpochsBegunDamaged(CheckpointDamaged):
    """The file exists and cannot be read. The message says what to do."""


class BegunEpoch(NamedTuple):
    """The newest epoch of one log; `topic_id` is in hexadecimal."""

    log: str
    topic_id: str
    epoch: int


def encode(epochs: Iterable[BegunEpoch]) -> bytes:
    lines = [epoch._asdict() for epoch in sorted(epochs)]
    return json_lines.encode([{"version": _VERSION, "logs": len(lines)}, *lines])


def decode(data: bytes) -> list[BegunEpoch]:
    """Return the epochs. Raise EpochsBegunDamaged."""
    try:
        first, *lines = json_lines.decode(data)
        version, number = first["version"], first["logs"]
        epochs = [BegunEpoch(line["log"], line["topic_id"], line["epoch"]) for line in lines]
    except json_lines.CrcMismatch as error:
        raise _damaged(str(error)) from None
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(f"its CRC holds, but this program did not write it: {error!r}") from None
    if version != _VERSION or number != len(epochs):
        raise _damaged(f"version {version} with {number} logs; this program reads {_VERSION}")
    return epochs


def _damaged(reason: str) -> EpochsBegunDamaged:
    return EpochsBegunDamaged(
        f"{FILE}: {reason}. Restore the file from a copy. Without it, this broker's logs may have forgotten that they "
        f"were led: if all of its partitions have other replicas in sync, start it with an empty data directory instead"
    )


@dataclass(eq=False, slots=True)
class WriteEpochsBegun:
    """A rewrite of the file. It is on the disk once the job is back; `is_done` says so, `error` why it is not."""

    storage: Storage
    epochs: tuple[BegunEpoch, ...] = ()
    is_done: bool = False
    error: Exception | None = None

    def run(self) -> None:
        self.storage.replace(FILE, encode(self.epochs))


class EpochsBegun:
    """The epochs of the file, as its next version will have them."""

    def __init__(self, storage: Storage, report: Callable[[str], None]) -> None:
        self._storage = storage
        self._report = report
        self._epochs: dict[str, BegunEpoch] = {}
        self._running: WriteEpochsBegun | None = None
        self._next: WriteEpochsBegun | None = None

    def __len__(self) -> int:
        return len(self._epochs)

    def load(self) -> None:
        """Read the file at the start. Raise EpochsBegunDamaged or StorageError."""
        if self._storage.exists(FILE):
            file = self._storage.open(FILE)
            self._epochs = {epoch.log: epoch for epoch in decode(file.read(0, file.size))}

    def begin(self, epochs: Mapping[PartitionLog, int]) -> WriteEpochsBegun:
        """Add the epochs that logs are about to begin. Return the write that has all of them.

        An order that comes late names an earlier epoch than the file has. The file keeps the later one.
        """
        write = self._next = self._next or WriteEpochsBegun(self._storage)
        for log, epoch in epochs.items():
            begun, present = BegunEpoch(log.name, log.topic_id.hex, epoch), self._epochs.get(log.name)
            if present is None or present.topic_id != begun.topic_id or present.epoch < epoch:
                self._epochs[log.name] = begun
        return write

    def drop(self, name: str) -> None:
        """Drop the epoch of a log that is deleted, or truncated and opened again.

        The file follows. If a power cut is first, a truncated log begins the epoch again at its end. As it is then its
        newest one, the next fetch from the leader truncates it again.
        """
        if self._epochs.pop(name, None) is not None:
            self._next = self._next or WriteEpochsBegun(self._storage)

    def drop_stored(self, logs: Iterable[PartitionLog]) -> None:
        """Drop the epochs that the logs' own files have now."""
        for log in logs:
            begun = self._epochs.get(log.name)
            knows = begun is not None and bool(log.epochs) and log.epochs[-1][0] >= begun.epoch
            if knows and log.durability.epochs_stored:
                self.drop(log.name)

    def take(self) -> WriteEpochsBegun | None:
        """Return the next write for a thread, None while one runs or if there is none."""
        if self._running is not None or self._next is None:
            return None
        self._running, self._next = self._next, None
        self._running.epochs = tuple(self._epochs.values())
        return self._running

    def back(self, write: WriteEpochsBegun, error: Exception | None = None) -> None:
        """Take back a write. After a failure the next one has its epochs too."""
        self._running = None
        write.is_done, write.error = error is None, error
        if error is not None:
            self._report(f"the leader epochs that begin could not be written: {error}")

    def join(self, log: PartitionLog) -> None:
        """Begin the file's epoch in a log that was just opened, unless the log knows of it."""
        epoch = self._epochs.get(log.name)
        if epoch is None or epoch.topic_id != log.topic_id.hex:
            return
        joined = leader_epochs.start(log.epochs, epoch.epoch, log.log_end_offset)
        if joined is not log.epochs:
            log.epochs, log.durability.epochs_stored = joined, False
            log.leader_epoch = joined[-1][0]

    def epoch_of(self, name: str) -> int:
        """Return the epoch that the file has for a log, 0 if it has none."""
        epoch = self._epochs.get(name)
        return 0 if epoch is None else epoch.epoch
