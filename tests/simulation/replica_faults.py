"""Planted faults: each takes one rule of replicated logs out, and the world of replicas has to notice.

test_replica_power_cut.py has the seeds within which each is found.
"""

from broker.log import cut_log, leader_epochs
from broker.log.checkpoint_writer import CheckpointWriter
from broker.log.cut_log import CutLog, PrepareCut
from broker.log.io_jobs import SyncLog
from broker.log.journal import Journal
from broker.log.partition_log import PartitionLog
from broker.log.producer_state import ProducerState
from broker.log.recovery import recovery
from broker.log.truncation import Truncations
from broker.settings.config import LONG_MAX
from broker.wire.id_entries import ENTRY_BYTES
from tests.simulation.replica_oracle import headers_of
from tests.simulation.replica_world import ReplicaWorld


def keeps_the_newest_epoch_at_a_cut(patch):
    """A truncation cuts the epochs as recovery does, which keeps the newest one."""
    patch.setattr(leader_epochs, "truncated", leader_epochs.cut)


def cuts_before_the_checkpoint_is_lowered(patch):
    """S5: the files are cut while the checkpoint still names what they had."""
    prepare = PrepareCut._prepare

    def prepare_and_cut(job):
        prepare(job)
        early = CutLog(job.cut, job.cut.end, None)
        early._remove_later(early.end)
        if not early.end.is_anew:
            early._cut_log(early.end)

    patch.setattr(cut_log.PrepareCut, "_prepare", prepare_and_cut)


def leaves_the_journal_as_it_was(patch):
    """S5: the entries of a truncated log in older journal files still count."""
    lower = CheckpointWriter.lower
    patch.setattr(CheckpointWriter, "lower", lambda writer, positions, number: lower(writer, positions, 0))


def syncs_ids_later_than_batches(patch):
    """S1: a sync of a log leaves the ids to the next one of another file."""

    def run(job):
        files, job.files = job.files, tuple(file for file in job.files if not file.path.endswith(".idindex"))
        try:
            sync(job)
        finally:
            job.files = files

    sync = SyncLog.run
    patch.setattr(SyncLog, "run", run)


def names_the_epoch_of_the_last_record(patch):
    """T1: a follower names the epoch of its last batch, and not the newest that it knows of."""

    def last_epoch(world, log):
        headers = headers_of(log)
        return headers[-1].leader_epoch if headers else -1

    patch.setattr(ReplicaWorld, "last_epoch", last_epoch)


def begins_anew_without_the_last_id(patch):
    """I7: a log that begins anew does not take over the last id before that from its leader."""
    begin = Truncations.begin
    patch.setattr(Truncations, "begin", lambda cuts, offsets, last_ids, *, anew: begin(cuts, offsets, {}, anew=anew))


def is_not_told_the_last_id(patch):
    """I7: a follower learns no last id, neither as its log begins anew nor while its leader's log is empty."""
    begins_anew_without_the_last_id(patch)
    patch.setattr(PartitionLog, "know_last_id", lambda log, id: None)


def shows_what_is_not_replicated(patch):
    """R1: the high watermark is the log's end."""
    patch.setattr(PartitionLog, "move_replicated_to", lambda log, offset: None)


def compares_what_it_has_deleted(patch):
    """A leader takes an epoch whose end it has deleted for one that ended at its start; none begins later."""

    def divergence(epochs, last_epoch, fetch_offset, log_start_offset, log_end_offset):
        epoch, end_offset = leader_epochs.end_of(epochs, last_epoch, log_end_offset)
        diverges = epoch < last_epoch or end_offset < fetch_offset
        return (epoch, end_offset) if diverges else None

    patch.setattr(leader_epochs, "divergence", divergence)


def shortens_an_entry_in_two_steps(patch):
    """Recovery cuts an entry of the id index, and then appends its first part."""

    def shorten(storage, directory, ids, number, last):
        ids.file.truncate(number * ENTRY_BYTES)
        ids.file.append(ids.packed(last))

    patch.setattr(recovery, "shorten", shorten)


def removes_segments_without_a_note(patch):
    """S5: a truncation that is killed after it has removed segments leaves the note that nothing is cut."""
    remove = CutLog._remove_later

    def remove_later(job, end):
        storage = job.cut.storage
        note, storage._until_cut = storage._until_cut, ""
        try:
            remove(job, end)
        finally:
            storage._until_cut = note

    patch.setattr(CutLog, "_remove_later", remove_later)


def removes_the_journal_of_a_running_round(patch):
    """A journal file may be removed before the round that makes it."""
    take = Journal.take_round

    def take_round(journal):
        job = take(journal)
        journal._out_to = None
        return job

    patch.setattr(Journal, "take_round", take_round)


def compacts_by_the_newest_sequences(patch):
    """The cleaner keeps the last batch of each producer, though a truncation may take it."""
    last_records = ProducerState.last_records
    patch.setattr(ProducerState, "last_records", lambda state, high_watermark: last_records(state, LONG_MAX))


FAULTS = (
    keeps_the_newest_epoch_at_a_cut,
    cuts_before_the_checkpoint_is_lowered,
    leaves_the_journal_as_it_was,
    syncs_ids_later_than_batches,
    names_the_epoch_of_the_last_record,
    begins_anew_without_the_last_id,
    is_not_told_the_last_id,
    shows_what_is_not_replicated,
    compares_what_it_has_deleted,
    shortens_an_entry_in_two_steps,
    removes_segments_without_a_note,
    removes_the_journal_of_a_running_round,
    compacts_by_the_newest_sequences,
)
