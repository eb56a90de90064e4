"""The log manager: failures take one log offline and no other, and a close leaves a whole checkpoint."""

import pytest

from broker.log import checkpoint, log_reader
from broker.log.io_jobs import SyncLog, WriteCheckpoint, run_in_turn
from broker.log.log_manager import LogManager
from broker.log.storage.memory_storage import MemoryFile, MemoryStorage
from broker.log.storage.port import StorageError
from broker.settings.config import BrokerConfig
from broker.wire.errors import ApiError, ErrorCode
from tests.broker.log.conftest import BROKER, NOW
from tests.broker.log.manager_world import LOG, Broker, kinds


@pytest.fixture
def broker():
    return Broker()


def test_after_a_clean_stop_a_start_reads_no_more_of_a_segment_however_large_it_is():
    """The number of reads depends on the number of segments only, even for ten gigabytes."""

    def reads_to_open(segment_bytes):
        first = Broker(segment_bytes=segment_bytes, index_interval_bytes=1000)
        log = first.open()
        while len(log.segments.all) < 5:
            first.append(log, bytes(500))
        first.manager.close()
        reads, read = [], MemoryFile.read
        MemoryFile.read = lambda file, position, length: reads.append(length) or read(file, position, length)
        try:
            opened = Broker(first.storage, segment_bytes=segment_bytes, index_interval_bytes=1000).open()
        finally:
            MemoryFile.read = read
        assert opened.log_end_offset == log.log_end_offset
        return len(reads)

    assert reads_to_open(500_000) == reads_to_open(50_000) < 5 * 10


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".log", ".idindex", ".index", ".timeindex"])
def test_a_failed_sync_takes_the_log_offline_for_good(broker, suffix):
    """The kernel may have dropped the bytes that it could not write, and it reports that only once."""
    log = broker.open()
    broker.append(log)
    broker.storage.failing_syncs.add(f"flights-0/{0:020d}{suffix}")
    broker.round()
    broker.storage.failing_syncs.clear()
    assert broker.manager.offline == {"flights-0": log.offline}
    assert len(broker.lines) == 1 and f"{suffix}: Input/output error" in broker.lines[0]
    assert "flights-0" not in broker.manager.syncs.positions
    for use in (lambda: broker.append(log), lambda: log_reader.read(log, 0, 1, True)):
        with pytest.raises(ApiError, match="offline") as caught:
            use()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    log.ask_sync(soon=True)
    broker.manager.syncs.start_round()
    assert not [sync for sync in broker.manager.take_syncs() if isinstance(sync, SyncLog)], "it is never tried again"
    broker.manager.close()
    assert log.durability.flushed.offset == 0


def test_one_log_offline_does_not_keep_the_others_from_the_checkpoint(broker):
    bad, good = broker.open(0), broker.open(1)
    broker.append(bad)
    broker.append(good)
    broker.storage.failing_syncs.add(LOG)
    broker.round()
    assert set(broker.checkpoint()) == {"flights-1"}


def test_a_checkpoint_that_could_not_be_written_is_written_by_the_next_round(broker):
    log = broker.open()
    broker.append(log)
    broker.manager.syncs.start_round()
    broker.run()
    broker.storage.free_bytes = 10
    broker.run()
    assert "the checkpoint could not be written" in broker.lines[0] and "older one stays" in broker.lines[0]
    broker.storage.free_bytes = None
    broker.round()
    assert broker.checkpoint()["flights-0"].offset == 1


def test_a_damaged_log_stays_offline_by_name_and_the_others_are_not_disturbed():
    first = Broker()
    for partition in range(2):
        first.append(first.open(partition))
    first.manager.close()
    first.storage.files[LOG].truncate(10)
    second = Broker(first.storage)
    second.open(0)
    second.open(1)
    assert list(second.manager.offline) == ["flights-0"]
    assert "flights-0 is offline" in second.lines[0] and LOG in second.lines[0]
    with pytest.raises(ApiError) as caught:
        second.manager.get("flights", 0)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert second.manager.get("flights", 1).log_end_offset == 1
    second.manager.close()
    assert second.checkpoint()["flights-0"].offset == 1, "what is known of the damaged log is kept"


def test_an_unknown_partition_is_named(broker):
    with pytest.raises(ApiError, match="there is no flights-7") as caught:
        broker.manager.get("flights", 7)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_damaged_checkpoint_is_not_taken_for_an_empty_one():
    storage = MemoryStorage()
    storage.replace("checkpoint", b"nonsense")
    with pytest.raises(checkpoint.CheckpointDamaged, match="checkpoint: .*Put it back from a copy.*--new-checkpoint"):
        LogManager(storage, BROKER, print).load_checkpoint()


def test_a_checkpoint_that_is_missing_beside_data_is_not_taken_for_an_empty_one(broker):
    """A start could not tell damage to synced records from the end that a crash has left, and would cut both."""
    broker.append(broker.open(), b"x")
    broker.storage.remove("checkpoint")
    with pytest.raises(checkpoint.CheckpointDamaged, match="/checkpoint is missing beside data: flights-0. .*a copy"):
        LogManager(broker.storage, BROKER, print).load_checkpoint()


def test_a_first_start_begins_a_checkpoint_because_a_crash_may_come_before_the_first_sync(broker):
    assert broker.checkpoint() == {}


# --- close -----------------------------------------------------------------------------------------------------------


def test_after_a_close_with_syncs_still_out_everything_is_in_the_checkpoint(broker):
    log = broker.open()
    broker.append(log)
    broker.manager.syncs.start_round()
    broker.manager.take_syncs()  # given to a thread that never reports back
    broker.append(log)
    broker.manager.close()
    assert broker.checkpoint()["flights-0"] == log.position()


def test_a_close_may_sync_many_logs_at_once_and_each_failure_is_its_log_s_own(broker):
    logs = [broker.open(partition) for partition in range(5)]
    for log in logs:
        broker.append(log)
    broker.storage.failing_syncs.add(LOG)
    batches = []

    def run_all(jobs):
        batches.append(jobs)
        return list(run_in_turn(jobs))

    broker.manager.close(run_all)
    assert kinds(batches[0]) == ["SyncLog"] * len(logs)
    assert list(broker.manager.offline) == ["flights-0"]
    assert set(broker.checkpoint()) == {f"flights-{partition}" for partition in range(1, 5)}


def test_closing_on_a_full_disk_says_so_and_syncs_the_others():
    broker = Broker(config=BrokerConfig())
    broker.append(broker.open(0))
    broker.append(broker.open(1))
    broker.storage.free_bytes = 0
    broker.manager.close()
    assert any("No space left" in line for line in broker.lines)
    assert broker.storage.files[f"flights-1/{0:020d}.log"].synced


def test_the_checkpoint_is_a_value_that_runs_in_a_thread():
    storage = MemoryStorage()
    storage.replace("flights-0/old", b"")
    WriteCheckpoint(storage, {}, ("flights-0/old",), {}).run()
    assert storage.open("checkpoint").read(0, 10) == checkpoint.encode({})[:10] and not storage.exists("flights-0/old")


def test_a_sync_that_fails_while_a_log_is_rolled_is_reported_and_who_waits_for_the_log_is_told():
    """With too many unsynced segments the writer waits for the disk and may find it broken."""
    broker = Broker(config=BrokerConfig(max_open_segments=1))
    log = broker.open()
    broker.append(log)
    log.roll()
    broker.append(log)
    broker.storage.failing_syncs.add(LOG)
    with pytest.raises(StorageError):
        log.roll()
    assert broker.lines == [f"partition flights-0 is offline: a sync failed: {LOG}: Input/output error"]
    assert broker.manager.next_deadline_ms(NOW.ms) == NOW.ms
    assert broker.manager.tick(NOW) == [log] and broker.manager.tick(NOW) == []
