"""The clean stop of all logs, after which the next start reads nothing of them."""

from collections.abc import Callable, Collection, Sequence

from broker.log.io_jobs import RemoveFiles
from broker.log.partition_log import PartitionLog
from broker.log.recovery import clean_stop
from broker.log.storage.port import Storage, StorageError
from broker.log.sync_scheduler import IoJob, SyncScheduler

SYNCS_AT_ONCE = 64
"""Logs whose syncs are handed out together. A sync may hold a snapshot of its log's producers in memory."""


def close(
    syncs: SyncScheduler,
    logs: Collection[PartitionLog],
    run: Callable[[Sequence[IoJob]], None],
    report: Callable[[str], None],
) -> None:
    """Sync all logs, write the checkpoint and remove the journal, with `run` for jobs that do not need each other.

    The worker threads have ended, so no outcome of a running job will be returned.
    """
    removals = [job for job in syncs.stop() if isinstance(job, RemoveFiles)]
    for log in logs:
        if log.offline is None:
            _seal(log, report)
    syncs.start_round()
    while jobs := syncs.take(syncs_max=SYNCS_AT_ONCE):
        run(jobs)
    for log in logs:
        if log.offline is None:
            log.segments.active.log.trim()
    cut = syncs.close_journal()
    if cut is not None:
        run([cut])
    syncs.checkpoint.journal_closed()
    for job in (*syncs.take(), *removals):
        run([job])


def _seal(log: PartitionLog, report: Callable[[str], None]) -> None:
    try:
        log.segments.active.seal()
    except StorageError as error:  # a full disk: the index is only shorter
        report(f"partition {log.name}: {error}")


def note_clean_stop(storage: Storage, logs: Collection[PartitionLog], report: Callable[[str], None]) -> None:
    """Leave the note for the next start that all logs are closed."""
    try:
        storage.replace(clean_stop.FILE, clean_stop.encode(logs))
        storage.remove(clean_stop.UNCUT)
    except StorageError as error:  # a full disk: without the note, the next start only does more work
        report(f"the clean stop could not be noted: {error}")
