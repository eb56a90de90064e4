"""The truncation of one log, as two jobs for worker threads (broker.log.truncation has their order).

    PrepareCut   sync the log's files; find the batch where the cut is to lie, and the position for the checkpoint
    CutLog       remove later segments, newest first; cut the .log; write the epochs; open the log anew

The checkpoint is lowered between the two. A crash before CutLog has begun leaves the log as it was. A crash after it
has cut the .log leaves the cut log, perhaps with its newest epoch at the end: the next fetch from the leader then
diverges there, and truncates once more. A crash while later segments are removed leaves a log that ends with one of
them.

Recovery cuts the id index and the other indexes to what the .log has left, and reads the producers again.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from broker.log import leader_epochs, producer_state
from broker.log.checkpoint import UNCOUNTED, LogPosition
from broker.log.closed_segment import OpenSegments
from broker.log.compaction.swap import finish_swaps
from broker.log.index.id_index import IdIndex
from broker.log.partition_log import NO_TOPIC_ID, PartitionLog
from broker.log.recovery.recovery import LogDamaged, RecoveryReport, open_log
from broker.log.recovery.synced import offsets_of
from broker.log.segment import ID_INDEX, LOG, SUFFIXES, batches_of, file_name, remove_files
from broker.log.storage.port import File, Storage, StorageError
from broker.settings.config import BrokerConfig, TopicConfig

OPEN_SEGMENTS = 4
"""Closed segments that a thread keeps open while it opens a log; the log has none of them open afterwards."""


class CutEnd(NamedTuple):
    """The end of a log after the cut: batches below `offset`, in the segments up to `segment`, in `log_bytes` of it."""

    offset: int
    segment: int
    log_bytes: int
    position: LogPosition
    """The log's position for the checkpoint, which is not past the end."""
    is_anew: bool = False
    """True if nothing stays, and the log begins at `offset`."""


@dataclass(eq=False, slots=True)
class LogCut:
    """The truncation of one log to `offset`, from the release of the old PartitionLog to the new one."""

    storage: Storage
    log: PartitionLog
    """The log as it was. It is offline, and only its values are read."""
    offset: int
    is_anew: bool
    """True if the log is to begin at `offset` with nothing."""
    config: TopicConfig
    last_id: int = -1
    """No id of the leader's log before `offset` is greater, if the log is to begin there; -1 if that is not known."""
    checkpointed: LogPosition | None = None
    end: CutEnd | None = None
    opened: PartitionLog | None = None
    report: RecoveryReport | None = None
    error: Exception | None = None
    """Why a step failed. The files are as before it, or as after it."""
    is_running: bool = False
    """True while a thread works on the log's files."""

    @property
    def key(self) -> tuple[str, int]:
        return self.log.topic, self.log.partition

    def work(self, step: Callable[[], None]) -> None:
        """Do a step in this thread, and store its error in `error`."""
        try:
            step()
        except (StorageError, LogDamaged) as error:
            self.error = error

    def path(self, base_offset: int, suffix: str) -> str:
        return f"{self.log.name}/{file_name(base_offset, suffix)}"


@dataclass(frozen=True, eq=False, slots=True)
class PrepareCut:
    """Sync the log's files, and find the end of the cut log."""

    cut: LogCut
    files: tuple[File, ...]
    bases: tuple[int, ...]
    """Base offsets of the log's segments. The directory may have leftovers of others."""

    def run(self) -> None:
        self.cut.work(self._prepare)

    def _prepare(self) -> None:
        cut = self.cut
        for file in self.files:
            file.sync()
        finish_swaps(cut.storage, cut.log.name)
        end = self._find_end()
        # If a snapshot at this offset is left of an earlier position, it is not one of this position.
        if end.position.producers == UNCOUNTED:
            cut.storage.remove(cut.path(end.position.offset, producer_state.SUFFIX))
        cut.storage.sync_directory(cut.log.name)
        cut.end = end

    def _find_end(self) -> CutEnd:
        cut, log = self.cut, self.cut.log
        if cut.is_anew or cut.offset < log.log_start_offset:
            return _anew(log, cut.offset, cut.last_id)
        bases = [base for base in self.bases if cut.storage.exists(cut.path(base, LOG))]
        number = bisect_right(bases, cut.offset) - 1
        if number < 0:
            raise LogDamaged(f"{log.name} has no segment with offset {cut.offset}, though it begins at {bases[:1]}")
        base = bases[number]
        kept = self._kept(base)
        in_segment = kept is not None and kept.segment == base
        begin = (kept.offset, kept.log_bytes) if kept is not None and in_segment else (base, 0)
        end_offset, log_bytes = self._last_batch(base, *begin)
        if end_offset < log.log_start_offset:  # the log begins inside the batch that is cut
            return _anew(log, log.log_start_offset, self._bound_before(base, log.log_start_offset))
        return CutEnd(end_offset, base, log_bytes, kept or self._lowered(bases[: number + 1]))

    def _kept(self, base: int) -> LogPosition | None:
        """Return the checkpoint's position if it need not be lowered for a cut in the segment at `base`."""
        checkpointed, log_start_offset = self.cut.checkpointed, self.cut.log.log_start_offset
        if checkpointed is None or checkpointed.segment > base or checkpointed.offset > self.cut.offset:
            return None
        # Segments below the log's start go at once, so the position's own must not be one of them.
        if checkpointed.log_start_offset < log_start_offset and log_start_offset >= checkpointed.offset:
            return None
        return replace(checkpointed, log_start_offset=log_start_offset)

    def _last_batch(self, base: int, offset: int, position: int) -> tuple[int, int]:
        """Return (offset, position) after the last batch of a segment that ends at or before the cut.

        Begin after the batch that ends at `offset` and `position`.
        """
        file = self.cut.storage.open(self.cut.path(base, LOG))
        for at, header in batches_of(file, position, file.size):
            if header.base_offset < offset:
                raise LogDamaged(f"{file.path} at byte {at}: offset {header.base_offset} stands after {offset - 1}")
            if header.last_offset >= self.cut.offset:
                return offset, position
            offset, position = header.last_offset + 1, at + header.size
        if position != file.size:
            raise LogDamaged(f"{file.path} at byte {position}: it ends in the middle of a batch")
        return offset, position

    def _lowered(self, bases: Sequence[int]) -> LogPosition:
        """Return the position at the beginning of the segment that is cut, so that recovery reads all of it."""
        log, base = self.cut.log, bases[-1]
        last_id = self._last_id(bases[-2], base) if len(bases) > 1 else self._bound_before(base, base)
        return replace(
            _empty(log, base),
            log_start_offset=log.log_start_offset,
            last_id=last_id,
            producers=UNCOUNTED,
            cleaned_offset=min(log.cleaned_offset, base),
            decided_offset=0,  # a marker past the cut may have ended a transaction that began long before
            leader_epoch=leader_epochs.epoch_of(log.epochs, base - 1),
        )

    def _bound_before(self, base: int, offset: int) -> int:
        """Return an id that no record before `offset` exceeds, although the log has none of them (rule I7).

        The leader may have these records still. Then its log is not empty, and it tells no last id. The segment at
        `base` has the first record from `offset` on.
        """
        if not offset:
            return -1
        ids = IdIndex(self.cut.storage.open(self.cut.path(base, ID_INDEX)), base)
        first = next(ids.entries(), None)
        if first is None:
            return self.cut.log.last_id
        runs = ids.runs(offset, offset + 1)  # none if a cleaner has removed the first batch of the segment
        return (runs[0][0] if runs else first.first_id) - 1

    def _last_id(self, before: int, end: int) -> int:
        ids = IdIndex(self.cut.storage.open(self.cut.path(before, ID_INDEX)), before)
        last = ids.entry(len(ids) - 1) if len(ids) else None
        if last is None or last.offset + last.length > end:
            raise LogDamaged(f"{ids.file.path}: its last entry is damaged, or goes on past offset {end}")
        return last.first_id + last.length - 1


def _empty(log: PartitionLog, offset: int) -> LogPosition:
    """Return the position of an empty segment at `offset`."""
    topic_id = log.topic_id.hex if log.topic_id != NO_TOPIC_ID else ""
    return LogPosition(offset, offset, -1, offset, 0, 0, -1, offset, 0, topic_id=topic_id)


def _anew(log: PartitionLog, offset: int, last_id: int = -1) -> CutEnd:
    position = replace(_empty(log, offset), last_id=last_id, cleaned_offset=offset, decided_offset=offset)
    return CutEnd(offset, offset, 0, position, is_anew=True)


@dataclass(frozen=True, eq=False, slots=True)
class CutLog:
    """Cut the log's files to `end`, and open the log anew. The checkpoint has the position of `end`."""

    cut: LogCut
    end: CutEnd
    config: BrokerConfig

    def run(self) -> None:
        self.cut.work(self._cut)

    def _cut(self) -> None:
        log, end = self.cut.log, self.end
        self._remove_later(end)
        if not end.is_anew:
            self._cut_log(end)
        epochs = [] if end.is_anew else leader_epochs.truncated(log.epochs, end.offset)
        if epochs != log.epochs or not log.durability.epochs_stored:
            self._store(epochs)
        self._open()

    def _remove_later(self, end: CutEnd) -> None:
        """Remove the segments past the cut, newest first. Their names must not come back: new ones may be equal."""
        cut, directory = self.cut, self.cut.log.name
        names = cut.storage.list(directory)
        bases = set().union(*(offsets_of(names, suffix) for suffix in SUFFIXES))
        later = sorted([base for base in bases if base > end.segment or end.is_anew], reverse=True)
        if later:
            cut.storage.cutting()
        for base in later:
            remove_files(cut.storage, directory, base)
        if later:
            cut.storage.sync_directory(directory)

    def _cut_log(self, end: CutEnd) -> None:
        file = self.cut.storage.open(self.cut.path(end.segment, LOG))
        if file.size > end.log_bytes:
            file.truncate(end.log_bytes)
            file.sync()

    def _store(self, epochs: list[tuple[int, int]]) -> None:
        self.cut.storage.replace(f"{self.cut.log.name}/{leader_epochs.FILE}", leader_epochs.encode(epochs))

    def _open(self) -> None:
        cut, old = self.cut, self.cut.log
        among = OpenSegments(OPEN_SEGMENTS)  # the reactor thread has the registry of all logs
        log, cut.report = open_log(
            cut.storage,
            *cut.key,
            cut.config,
            self.config,
            self.end.position,
            old.topic_id,
            is_uncut=True,
            open_segments=among,
            leader_epoch=old.leader_epoch,
        )
        if log.log_end_offset < log.log_start_offset:
            raise LogDamaged(f"{log.name} ends at offset {log.log_end_offset}, before its start: {cut.report.reason}")
        epochs = leader_epochs.truncated(log.epochs, log.log_end_offset)
        if epochs != log.epochs:  # recovery found less than was there
            self._store(epochs)
            log.epochs, log.leader_epoch = epochs, epochs[-1][0] if epochs else 0
        cut.opened = log


CutJob: TypeAlias = PrepareCut | CutLog
CUT_JOBS = PrepareCut, CutLog
