"""The log manager: syncs as values, rounds that end in a checkpoint, and logs that are created and deleted."""

import os

import pytest

from broker.log import log_reader
from broker.log.io_jobs import RemoveFiles, SyncLog, WriteCheckpoint
from broker.log.log_manager import LogManager
from broker.log.recovery import checkpoint
from broker.log.storage.memory_storage import MemoryFile, MemoryStorage
from broker.log.storage.os_storage import OsStorage
from broker.log.storage.port import StorageError
from broker.now import Now
from broker.settings.config import BrokerConfig, TopicConfig
from broker.wire.errors import ApiError, ErrorCode

from .conftest import BROKER, NOW, START_MS, append, new_worker

MINUTE_MS = BROKER.log_flush_offset_checkpoint_interval_ms
LOG = f"flights-0/{0:020d}.log"


class Broker:
    """A log manager with its surroundings: a clock, an id worker, and syncs that run when a test runs them."""

    def __init__(self, storage=None, config=BROKER, **topic):
        self.storage = storage or MemoryStorage()
        self.lines = []
        self.manager = LogManager(self.storage, config, self.lines.append)
        self.manager.load_checkpoint()
        self.topic = TopicConfig(**topic)
        self.worker = new_worker()
        self.manager.next_deadline_ms(NOW.ms)

    def open(self, partition=0):
        self.manager.open("flights", partition, self.topic)
        return self.manager._logs.get(("flights", partition))

    def append(self, log, *values, ms=NOW.ms, **fields):
        done = append(log, *(values or (b"a",)), worker=self.worker, now=NOW._replace(ms=ms), **fields)
        self.manager.appended(log)
        return done

    def run(self, *syncs):
        for sync in syncs or self.manager.take_syncs():
            try:
                sync.run()
            except StorageError as error:
                self.manager.sync_failed(sync, error)
            else:
                self.manager.synced(sync)

    def round(self):
        self.manager.start_round()
        while syncs := self.manager.take_syncs():
            self.run(*syncs)

    def checkpoint(self):
        return checkpoint.decode(bytes(self.storage.files["checkpoint"].data))


@pytest.fixture
def broker():
    return Broker()


def kinds(syncs):
    return [type(sync).__name__ for sync in syncs]


# --- rounds ------------------------------------------------------------------------------------------------------


def test_a_round_syncs_what_is_new_and_then_writes_the_checkpoint(broker):
    log, idle = broker.open(0), broker.open(1)
    broker.round()
    broker.append(log)
    broker.manager.start_round()
    (sync,) = broker.manager.take_syncs()
    assert sync.log is log, "the idle log has nothing new"
    broker.run(sync)
    assert kinds(asked := broker.manager.take_syncs()) == ["WriteCheckpoint"]
    broker.run(*asked)
    assert broker.checkpoint() == {"flights-0": log.position(), "flights-1": idle.position()}
    assert log.flushed == log.position() and log.unflushed == 0


def test_a_round_without_anything_new_writes_nothing(broker):
    broker.open()
    broker.round()
    broker.manager.start_round()
    assert broker.manager.take_syncs() == []


def test_the_checkpoint_says_what_was_there_when_the_sync_was_asked_for(broker):
    """Records appended while a sync runs may not be on the disk."""
    log = broker.open()
    broker.append(log)
    position = log.position()
    broker.manager.start_round()
    (sync,) = broker.manager.take_syncs()
    broker.append(log)
    broker.run(sync)
    broker.run()
    assert broker.checkpoint()["flights-0"] == position
    assert log.unflushed == 1


def test_time_starts_a_round(broker):
    log = broker.open()
    broker.append(log)
    due = NOW.ms + MINUTE_MS
    assert broker.manager.next_deadline_ms(NOW.ms) <= due
    broker.manager.tick(Now(due - 1, START_MS))
    assert broker.manager.take_syncs() == []
    broker.manager.tick(Now(due, START_MS))
    assert kinds(broker.manager.take_syncs()) == ["SyncLog"]
    assert broker.manager.next_deadline_ms(due) <= due + MINUTE_MS


def test_a_round_takes_in_a_log_that_was_being_synced_when_it_began():
    """With flush.messages=1 under load some sync is always running; the checkpoint must be written all the same."""
    broker = Broker(flush_messages=1)
    one, two = broker.open(0), broker.open(1)
    broker.append(one)
    (first,) = broker.manager.take_syncs()
    broker.append(two)
    (second,) = broker.manager.take_syncs()
    broker.manager.start_round()
    broker.append(one)
    broker.run(first)
    third = broker.manager.take_syncs()
    assert [(sync.log, sync.for_checkpoint) for sync in third] == [(one, True)]
    broker.run(second)
    fourth = broker.manager.take_syncs()
    assert [(sync.log, sync.for_checkpoint) for sync in fourth] == [(two, True)]
    broker.run(*fourth)
    broker.append(two)
    (fifth,) = broker.manager.take_syncs()
    broker.run(*third)
    assert fifth.log is two, "it is still out when the round ends"
    assert kinds(asked := broker.manager.take_syncs()) == ["WriteCheckpoint"]
    broker.run(*asked)
    assert broker.checkpoint()["flights-0"].offset == 2


def test_a_round_that_waits_for_a_disk_is_not_begun_twice(broker):
    log = broker.open()
    broker.append(log)
    broker.manager.start_round()
    (sync,) = broker.manager.take_syncs()
    broker.manager.start_round()
    assert broker.manager.take_syncs() == []
    broker.run(sync)
    assert kinds(broker.manager.take_syncs()) == ["WriteCheckpoint"]


def test_one_checkpoint_is_written_at_a_time_and_the_newest_comes_last(broker):
    """If two threads replaced one file, the older version could be the last."""
    log = broker.open()
    broker.append(log)
    broker.manager.start_round()
    broker.run()
    (first,) = broker.manager.take_syncs()
    broker.append(log)
    broker.manager.start_round()
    broker.run()
    assert broker.manager.take_syncs() == []
    broker.run(first)
    assert broker.checkpoint()["flights-0"].offset == 1
    broker.run()
    assert broker.checkpoint()["flights-0"].offset == 2


def test_snapshots_of_producers_go_with_the_checkpoint_that_names_them(broker):
    log = broker.open()
    sent = {"producer_id": 7, "producer_epoch": 0}
    broker.append(log, base_sequence=0, **sent)
    broker.round()
    broker.append(log, base_sequence=1, **sent)
    broker.manager.start_round()
    broker.run()
    snapshots = [f"flights-0/{offset:020d}.snapshot" for offset in (1, 2)]
    found = [path for path in broker.storage.files if path.endswith(".snapshot")]
    assert found == snapshots, "the older one is still named"
    broker.run()
    assert [path for path in broker.storage.files if path.endswith(".snapshot")] == snapshots[1:]


def test_a_disk_too_full_for_a_snapshot_takes_no_log_offline(broker):
    """The broker serves again when there is space. The log is synced, and its headers identify the producers too."""
    log = broker.open()
    sent = {"producer_id": 7, "producer_epoch": 0}
    broker.append(log, base_sequence=0, **sent)
    broker.storage.free_bytes = 0
    broker.round()
    assert log.offline is None and log.unflushed == 0
    assert any("the checkpoint could not be written" in line for line in broker.lines)
    broker.storage.free_bytes = None
    broker.round()
    again = Broker(broker.storage)
    assert broker.append(again.open(), base_sequence=0, **sent).duplicate


# --- flush.messages, flush.ms ------------------------------------------------------------------------------------


def test_messages_make_a_sync_due():
    broker = Broker(flush_messages=3)
    log = broker.open()
    broker.append(log, b"a", b"b")
    assert broker.manager.take_syncs() == []
    broker.append(log, b"c")
    assert kinds(broker.manager.take_syncs()) == ["SyncLog"]


def test_messages_that_came_while_a_sync_was_out_are_synced_when_it_is_back():
    broker = Broker(flush_messages=1)
    log = broker.open()
    broker.append(log)
    (sync,) = broker.manager.take_syncs()
    broker.append(log)
    assert broker.manager.take_syncs() == [], "one sync of a log is out at a time"
    broker.run(sync)
    (sync,) = broker.manager.take_syncs()
    broker.run(sync)
    assert (log.unflushed, broker.manager.take_syncs()) == (0, [])


def test_age_makes_a_sync_due_from_the_first_message_on():
    broker = Broker(flush_ms=50)
    log = broker.open()
    broker.append(log, ms=1_000)
    broker.append(log, ms=1_030)
    assert broker.manager.next_deadline_ms(1_030) == 1_050
    broker.manager.tick(Now(1_049, START_MS))
    assert broker.manager.take_syncs() == []
    broker.manager.tick(Now(1_050, START_MS))
    (sync,) = broker.manager.take_syncs()
    broker.append(log, ms=1_060)
    broker.run(sync)
    assert broker.manager.next_deadline_ms(1_060) == 1_110


def test_age_is_not_forgotten_while_a_slow_sync_is_out():
    broker = Broker(flush_ms=50)
    log = broker.open()
    broker.append(log, ms=1_000)
    broker.manager.tick(Now(1_050, START_MS))
    (sync,) = broker.manager.take_syncs()
    broker.append(log, ms=1_060)
    broker.manager.tick(Now(1_200, START_MS))
    assert broker.manager.take_syncs() == []
    broker.run(sync)
    assert broker.manager.next_deadline_ms(1_200) == 1_110
    broker.manager.tick(Now(1_201, START_MS))
    assert kinds(broker.manager.take_syncs()) == ["SyncLog"]


def test_many_appends_leave_one_note_of_when_a_flush_is_due():
    """Memory must not grow with the number of messages (DESIGN rule 4)."""
    broker = Broker(flush_ms=50)
    log = broker.open()
    for _ in range(100):
        broker.append(log)
    assert len(broker.manager.syncs._flush_due) == 1


def test_silent_producers_are_forgotten_by_the_brokers_clock():
    """The limit is producer.id.expiration.ms; old timestamps do not show that a producer is silent."""
    broker = Broker()
    log = broker.open()
    broker.append(log, producer_id=7, producer_epoch=0, base_sequence=0, timestamp_ms=0)
    minute, day = broker.manager.next_deadline_ms(NOW.ms), BROKER.producer_id_expiration_ms
    broker.manager.tick(Now(minute, START_MS + day))
    assert len(log.producers) == 1
    broker.manager.tick(Now(minute + MINUTE_MS, START_MS + day + 1))
    assert len(log.producers) == 0


# --- concurrent syncs --------------------------------------------------------------------------------------------


def test_a_round_of_many_logs_has_no_more_syncs_out_than_there_are_threads():
    """The limit is flakelog.sync.threads; a disk with too many requests at once answers none of them in time."""
    broker = Broker(config=BrokerConfig(sync_threads=2))
    for partition in range(10):
        broker.append(broker.open(partition))
    broker.manager.start_round()
    seen = []
    while syncs := broker.manager.take_syncs():
        assert len(syncs) <= 2
        seen += kinds(syncs)
        broker.run(*syncs)
    assert seen == ["SyncLog"] * 10 + ["WriteCheckpoint"]
    assert len(broker.checkpoint()) == 10


def test_a_flush_that_is_due_does_not_wait_for_a_round_of_many_logs():
    broker = Broker(config=BrokerConfig(sync_threads=1), flush_messages=2)
    logs = [broker.open(partition) for partition in range(10)]
    for log in logs:
        broker.append(log)
    broker.manager.start_round()
    (first,) = broker.manager.take_syncs()
    broker.append(logs[9])
    broker.run(first)
    nearest = []
    for _ in range(2):
        (sync,) = broker.manager.take_syncs()
        nearest.append(sync.log)
        broker.run(sync)
    assert logs[9] in nearest


def test_flushes_that_are_always_due_do_not_keep_a_round_from_its_end():
    broker = Broker(config=BrokerConfig(sync_threads=1), flush_messages=1)
    busy, others = broker.open(0), [broker.open(partition) for partition in range(1, 4)]
    for log in others:
        log.config = TopicConfig()
        broker.append(log)
    broker.manager.start_round()
    for _ in range(12):
        broker.append(busy)
        broker.run(*broker.manager.take_syncs())
    assert len(broker.checkpoint()) >= 3


def test_a_log_is_synced_in_the_background_before_the_kernel_holds_its_writers_up():
    """The setting is flakelog.background.sync.bytes: past the kernel's dirty limits a write waits for the disk."""
    broker = Broker(config=BrokerConfig(background_sync_bytes=1 << 16))
    log = broker.open()
    for _ in range(6):
        broker.append(log, bytes(10_000))
    assert broker.manager.take_syncs() == []
    broker.append(log, bytes(10_000))
    (sync,) = broker.manager.take_syncs()
    broker.append(log, bytes(10_000))
    assert broker.manager.take_syncs() == []
    broker.run(sync)
    assert (log.flushed.offset, broker.manager.take_syncs()) == (7, [])


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


# --- failures ----------------------------------------------------------------------------------------------------


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
    assert "flights-0" not in broker.manager.syncs.known
    for use in (lambda: broker.append(log), lambda: log_reader.read(log, 0, 1, True)):
        with pytest.raises(ApiError, match="offline") as caught:
            use()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    log.ask_sync(log, True)
    broker.manager.start_round()
    assert not [sync for sync in broker.manager.take_syncs() if isinstance(sync, SyncLog)], "it is never tried again"
    broker.manager.close()
    assert log.flushed.offset == 0


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
    broker.manager.start_round()
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
    with pytest.raises(checkpoint.CheckpointDamaged):
        LogManager(storage, BROKER, print).load_checkpoint()


# --- deletion ----------------------------------------------------------------------------------------------------


def test_a_deleted_log_is_gone_and_its_name_is_free(broker):
    log = broker.open()
    broker.append(log, b"old")
    broker.round()
    broker.manager.delete({"flights": [0]})
    assert not broker.storage.list("flights-0") and log.offline == "it was deleted"
    broker.round()
    assert broker.checkpoint() == {}
    fresh = broker.open()
    assert fresh.log_end_offset == 0
    assert broker.append(fresh, b"new").base_offset == 0


def test_a_reader_keeps_the_bytes_of_a_deleted_log(broker):
    log = broker.open()
    broker.append(log, b"a")
    region = log_reader.read(log, 0, 1 << 20, True).records
    broker.manager.delete({"flights": [0]})
    assert len(region.file.read(region.position, region.length)) == region.length


def test_a_sync_that_comes_back_after_the_deletion_leaves_no_trace(broker):
    log = broker.open()
    broker.append(log)
    broker.manager.start_round()
    (sync,) = broker.manager.take_syncs()
    broker.manager.delete({"flights": [0]})
    broker.manager.synced(sync)
    broker.manager.sync_failed(sync, StorageError("flights-0", "gone"))
    assert broker.manager.syncs.known == {} and broker.lines == [] and broker.manager.offline == {}
    broker.append(broker.open())
    broker.round()
    assert broker.checkpoint()["flights-0"].offset == 1


def test_a_deleted_log_does_not_come_back_with_the_power(broker):
    broker.append(broker.open(), b"old")
    broker.round()
    broker.manager.delete({"flights": [0]})
    broker.run()
    for seed in range(50):
        after = broker.storage.power_cut(lambda n: seed % n)  # noqa: B023
        again = Broker(after)
        again.run()
        assert not [name for name in after.list("") if name.startswith("flights")], "deletions are finished at a start"
        assert again.open().log_end_offset == 0


def test_half_a_deletion_is_no_obstacle_to_the_next(broker):
    broker.storage.make_directory("flights-0.1.deleted")
    broker.storage.replace("flights-0.1.deleted/x", b"left by a crash")
    again = Broker(broker.storage)
    again.open()
    again.manager.delete({"flights": [0]})
    assert broker.storage.list("flights-0.1.deleted") and broker.storage.list("flights-0.2.deleted")
    again.run()
    assert broker.storage.list("") == []


def test_a_deleted_log_is_removed_by_a_thread_which_waits_for_nobodys_files(broker):
    """Unlinking a large file takes long; so does closing the last descriptor of an unlinked one."""
    broker.append(broker.open(), b"x")
    broker.manager.delete({"flights": [0]})
    (removal,) = [sync for sync in broker.manager.take_syncs() if isinstance(sync, RemoveFiles)]
    assert broker.storage.list("flights-0.1.deleted") and not broker.storage.open_files
    removal.run()
    assert broker.storage.list("") == []


def test_the_logs_of_a_topic_are_deleted_with_one_wait_for_the_disk(broker):
    for partition in range(20):
        broker.open(partition)
    before = broker.storage.directory_syncs
    broker.manager.delete({"flights": range(20)})
    assert broker.storage.directory_syncs == before + 1


# --- close -------------------------------------------------------------------------------------------------------


def test_after_a_close_with_syncs_still_out_everything_is_in_the_checkpoint(broker):
    log = broker.open()
    broker.append(log)
    broker.manager.start_round()
    broker.manager.take_syncs()  # given to a thread that never reports back
    broker.append(log)
    broker.manager.close()
    assert broker.checkpoint()["flights-0"] == log.position()


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


# --- on the machine's disk ---------------------------------------------------------------------------------------


def test_a_data_directory_closes_opens_and_loses_a_log_as_memory_does(tmp_path):
    """The directory holds the files that Kafka's dump tool knows, by their names."""
    first = Broker(OsStorage(str(tmp_path)), segment_bytes=1024)
    log, doomed = first.open(0), first.open(1)
    for _ in range(3):
        first.append(log, b"x" * 800)
    first.append(doomed, producer_id=7, producer_epoch=0, base_sequence=0)
    first.manager.close()
    first.manager.delete({"flights": [1]})
    names = [f"{base:020d}{suffix}" for base in range(3) for suffix in (".idindex", ".index", ".log", ".timeindex")]
    assert sorted(path.name for path in (tmp_path / "flights-0").iterdir()) == names
    first.manager.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".stopped-cleanly", "checkpoint", "flights-0"]
    second = Broker(OsStorage(str(tmp_path)), segment_bytes=1024)
    opened = second.open(0)
    assert second.lines == [] and opened.log_end_offset == 3
    assert log_reader.ids_of(opened, 0, 3) == log_reader.ids_of(log, 0, 3)
    assert second.open(1).log_end_offset == 0


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


@pytest.fixture
def on_disk(tmp_path):
    """Return a broker, its log with preallocated space, and a function that counts the bytes preallocated past the
    end."""
    broker = Broker(OsStorage(str(tmp_path)))
    log = broker.open()

    def spare():
        there = os.stat(tmp_path / LOG)
        return there.st_blocks * 512 - there.st_size

    for _ in range(5):
        broker.append(log, bytes(range(256)) * 2048)
    if spare() < 1 << 18:
        pytest.skip("this system sets no room aside")
    return broker, log, spare


def test_a_roll_does_not_wait_for_the_disk_to_give_room_back_the_sync_after_it_does(on_disk):
    """XFS writes all unwritten data before it gives space back, which delays all clients for seconds."""
    broker, log, spare = on_disk
    log.roll()
    assert spare() >= 1 << 18
    broker.run()
    assert spare() <= 8192


def test_who_rolls_too_fast_for_the_syncs_gives_room_back_itself(tmp_path):
    broker = Broker(OsStorage(str(tmp_path)), BrokerConfig(max_open_segments=1), segment_bytes=1 << 20)
    log = broker.open()
    for _ in range(12):
        broker.append(log, bytes(range(256)) * 1024)
    spare = [there.st_blocks * 512 - there.st_size for there in map(os.stat, (tmp_path / "flights-0").glob("*.log"))]
    assert len(spare) == 4 and sum(each > 8192 for each in spare) <= 2


def test_after_a_clean_stop_no_room_is_set_aside(on_disk):
    broker, _, spare = on_disk
    broker.manager.close()
    assert spare() <= 8192


def test_a_start_gives_back_the_room_of_segments_that_are_not_appended_to_any_more(on_disk, tmp_path):
    broker, log, spare = on_disk
    log.roll()
    broker.append(log)
    Broker(OsStorage(str(tmp_path))).open()  # after kill -9
    assert spare() <= 8192


def test_a_write_that_fails_as_nobody_expected_leaves_no_ids_that_the_next_batch_would_find_in_its_place(
    tmp_path, monkeypatch
):
    broker = Broker(OsStorage(str(tmp_path)))
    log = broker.open()
    write = os.write

    def little_memory(fd, data):
        if len(data) > 1_000:
            raise MemoryError
        return write(fd, data)

    monkeypatch.setattr(os, "write", little_memory)
    with pytest.raises(MemoryError):
        broker.append(log, bytes(range(256)) * 8)
    broker.run()
    broker.append(log, b"a")
    broker.append(log, b"b")
    broker.run()
    found = Broker(OsStorage(str(tmp_path))).open()  # after kill -9
    assert found.log_end_offset == 2 and log_reader.ids_of(found, 0, 2) == log_reader.ids_of(log, 0, 2)
