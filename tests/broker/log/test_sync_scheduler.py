"""The sync scheduler without a registry: queues, checkpoint rounds and outcomes."""

import pytest

from broker.log import checkpoint
from broker.log.io_jobs import CutJournal, RemoveFiles, SyncJournal, SyncLog, WriteCheckpoint
from broker.log.recovery.recovery import open_log
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.port import StorageError
from broker.log.sync_scheduler import SyncScheduler
from broker.now import Now
from broker.settings.config import BrokerConfig, TopicConfig
from broker.waiting.pending import Pending

from .conftest import BROKER, NOW, START_MS, append, new_worker

MINUTE_MS = BROKER.log_flush_offset_checkpoint_interval_ms
ONE_THREAD = BrokerConfig(sync_threads=1)


class Disk:
    """A scheduler over a disk in memory; `run` does the work of its threads."""

    def __init__(self, config=BROKER):
        self.config = config
        self.storage = MemoryStorage()
        self.lines = []
        self.worker = new_worker()
        self.scheduler = SyncScheduler(self.storage, config, self.lines.append, Pending())

    def open(self, partition=0, **topic):
        log, _ = open_log(self.storage, "flights", partition, TopicConfig(**topic), self.config, None)
        self.scheduler.add_log(log)
        return log

    def append(self, log, ms=NOW.ms):
        append(log, b"a", worker=self.worker, now=NOW._replace(ms=ms))
        self.scheduler.ask_if_due(log)

    def run(self, *jobs):
        """Run these jobs, or those of one `take`, and return the logs that their outcomes name."""
        changed = []
        for job in jobs or self.scheduler.take():
            try:
                job.run()
            except StorageError as error:
                changed += self.scheduler.failed(job, error)
            else:
                changed += self.scheduler.synced(job)
        return changed

    def checkpoint(self):
        return checkpoint.decode(bytes(self.storage.files["checkpoint"].data))


@pytest.fixture
def disk():
    return Disk()


def kinds(jobs):
    return [type(job) for job in jobs]


# --- queues ------------------------------------------------------------------------------------------------------


def test_urgent_and_background_syncs_take_turns():
    """An urgent log does not wait for a whole checkpoint round, and many of them do not stop the round."""
    disk = Disk(ONE_THREAD)
    calm, busy = [disk.open(n) for n in range(3)], [disk.open(n, flush_messages=2) for n in range(3, 6)]
    for log in (*calm, *busy):
        disk.append(log)
    disk.scheduler.start_round(calm)
    for log in busy:
        disk.append(log)
    order = []
    while jobs := disk.scheduler.take():
        order += [job.log for job in jobs if isinstance(job, SyncLog)]
        disk.run(*jobs)
    assert order == [log for pair in zip(busy, calm, strict=True) for log in pair]


def test_a_log_that_both_queues_have_is_synced_once(disk):
    log = disk.open()
    disk.append(log)
    log.ask_sync(soon=False)
    log.ask_sync(soon=True)
    assert disk.run() == [log]
    assert disk.scheduler.take() == []


def test_added_jobs_are_handed_out_in_their_order_before_the_syncs(disk):
    log = disk.open(flush_messages=1)
    disk.append(log)
    added = [RemoveFiles(disk.storage, "", (name,)) for name in "ab"]
    for job in added:
        disk.scheduler.add_job(job)
    first, second, sync = disk.scheduler.take()
    assert [first, second] == added and isinstance(sync, SyncLog)


def test_a_journal_round_starts_only_on_demand(disk):
    """The shell may hold the next journal round back; other jobs do not wait for it."""
    log = disk.open(durable_acks=True)
    disk.append(log)
    assert disk.scheduler.take(begin_round=False) == []
    assert kinds(jobs := disk.scheduler.take()) == [SyncJournal]
    assert disk.run(*jobs) == [log] and log.durability.end_offset == 1


# --- time --------------------------------------------------------------------------------------------------------


def test_the_deadline_is_the_next_flush_or_the_next_checkpoint_round(disk):
    log = disk.open(flush_ms=50)
    assert disk.scheduler.next_deadline_ms(NOW.ms) == NOW.ms + MINUTE_MS
    disk.append(log, ms=NOW.ms + 10)
    assert disk.scheduler.next_deadline_ms(NOW.ms + 10) == NOW.ms + 60


def test_a_changed_flush_ms_replaces_the_noted_time(disk):
    log = disk.open(flush_ms=50)
    disk.append(log)
    log.config = TopicConfig(flush_ms=20)
    disk.scheduler.reconfigured([log])
    assert disk.scheduler.next_deadline_ms(NOW.ms) == NOW.ms + 20
    disk.scheduler.tick(Now(NOW.ms + 20, START_MS))
    assert kinds(disk.scheduler.take()) == [SyncLog]


def test_a_log_that_went_offline_makes_a_tick_due_immediately(disk):
    """Requests that wait for the log must be answered."""
    log = disk.open()
    log.take_offline("a write could not be undone")
    assert disk.scheduler.next_deadline_ms(NOW.ms) == NOW.ms
    assert disk.scheduler.take_lost() == [log] and disk.scheduler.take_lost() == []
    assert disk.scheduler.next_deadline_ms(NOW.ms) == NOW.ms + MINUTE_MS
    assert disk.lines == ["partition flights-0 is offline: a write could not be undone"]


# --- outcomes and the checkpoint ---------------------------------------------------------------------------------


def test_a_round_among_some_logs_leaves_the_others(disk):
    first, second = disk.open(0), disk.open(1)
    disk.append(first)
    disk.append(second)
    disk.scheduler.start_round([first])
    assert disk.scheduler.in_round and disk.run() == [first]
    assert not disk.scheduler.in_round and kinds(jobs := disk.scheduler.take()) == [WriteCheckpoint]
    assert first.durability.checkpointed.offset == 0, "the checkpoint is not on the disk yet"
    disk.run(*jobs)
    assert set(disk.checkpoint()) == {"flights-0"}
    assert first.durability.checkpointed.offset == 1 and second.unflushed == 1


def test_a_round_ends_without_a_log_that_is_forgotten_meanwhile(disk):
    """The checkpoint must not name a deleted log, whatever its sync's outcome."""
    deleted, remaining = disk.open(0), disk.open(1)
    disk.append(deleted)
    disk.append(remaining)
    disk.scheduler.start_round()
    (first, second) = disk.scheduler.take()
    disk.scheduler.forget(deleted.name, deleted)
    assert disk.run(first) == [] and disk.run(second) == [remaining]
    disk.run()
    assert set(disk.checkpoint()) == {"flights-1"} and disk.scheduler.checkpoint.is_written


def test_a_failed_journal_takes_its_logs_offline_and_no_others(disk):
    durable, other = disk.open(0, durable_acks=True), disk.open(1)
    disk.append(durable)
    (job,) = disk.scheduler.take()
    lost = disk.scheduler.failed(job, StorageError(job.to.name, "Input/output error"))
    assert lost == [durable] and other.offline is None
    assert "a sync of the journal failed" in durable.offline


def test_a_journal_that_cannot_be_cut_is_only_reported(disk):
    error = StorageError("1.journal", "Input/output error")
    assert disk.scheduler.failed(CutJournal(disk.storage, ("1.journal",)), error) == []
    assert len(disk.lines) == 1 and "1.journal could not be removed" in disk.lines[0]


def test_after_a_stop_a_last_round_covers_syncs_whose_outcome_never_came(disk):
    log = disk.open()
    disk.append(log)
    disk.scheduler.start_round()
    disk.scheduler.take()
    removal = RemoveFiles(disk.storage, "", ("x",))
    disk.scheduler.add_job(removal)
    assert disk.scheduler.stop() == [removal]
    disk.scheduler.start_round()
    while jobs := disk.scheduler.take():
        disk.run(*jobs)
    assert disk.checkpoint()["flights-0"] == log.position() == disk.scheduler.positions["flights-0"]
