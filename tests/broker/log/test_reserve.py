"""The reserve of the data directory: with its space a full disk can be left by deleting records."""

import pytest

from broker.log import checkpoint
from broker.log.deletions import CHECKPOINT_AGAIN_MS, CHECKPOINT_WITHIN_MS
from broker.log.disk_watch import CHECK_EVERY_MS, CHECK_FULL_EVERY_MS
from broker.log.io_jobs import FillReserve
from broker.log.retention_walk import FULL_RETENTION_MS
from broker.log.storage import reserve
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.os_storage import OsStorage
from broker.log.storage.port import StorageError
from broker.metadata import document
from broker.now import Now
from broker.settings.config import BrokerConfig
from tests.broker.log.conftest import BROKER, NOW, START_MS
from tests.broker.log.manager_world import MINUTE_MS, Broker

LEAST = reserve.LEAST_BYTES
FILLED = reserve.filled_bytes(LEAST)
DELAY_MS = 60_000


def filled(config=None, **topic):
    """Make a log of four batches of one record, each in a separate segment and synced; return (broker, log)."""
    storage = MemoryStorage()
    storage.gives_back = True
    broker = Broker(storage, config or BrokerConfig(), segment_bytes=1024, file_delete_delay_ms=DELAY_MS, **topic)
    log = broker.open()
    while log.log_end_offset < 4:
        broker.append(log, b"%d" % log.log_end_offset * 700)
    broker.round()
    return broker, log


def at(broker, ms):
    """Do all that is due `ms` after NOW, with its jobs."""
    now = Now(NOW.ms + ms, START_MS + ms)
    broker.manager.tick(now)
    while syncs := broker.manager.take_syncs():
        broker.run(*syncs)
        broker.manager.tick(now)


def names(storage, suffix=".log"):
    """Return the base offsets of the segments that have a file with this suffix."""
    return [int(name.split(".")[0]) for name in storage.list("flights-0") if name.endswith(suffix)]


def full(broker):
    """Fill the disk to the last byte, after the reserve was written, and let the broker see it at NOW."""
    at(broker, -CHECK_EVERY_MS)
    assert reserve.present_bytes(broker.storage) == FILLED
    broker.storage.free_bytes = 0
    at(broker, 0)
    assert broker.manager.disk.is_full


def test_the_files_of_the_reserve_have_these_names():
    assert reserve.REPLACED == (checkpoint.FILE, document.FILE)


def test_the_reserve_is_written_at_the_first_look_with_real_bytes(tmp_path):
    broker = Broker(OsStorage(str(tmp_path)), BrokerConfig())
    at(broker, 0)
    status = (tmp_path / reserve.FILE).stat()
    assert status.st_size == FILLED and status.st_blocks * 512 >= LEAST


def test_the_reserve_has_space_for_two_copies_of_the_largest_file_that_is_replaced():
    broker = Broker(config=BrokerConfig())
    broker.storage.replace(document.FILE, bytes(LEAST + 1))
    at(broker, 0)
    assert reserve.present_bytes(broker.storage) == reserve.filled_bytes(2 * (LEAST + 1))
    broker.storage.replace(checkpoint.FILE, bytes(2 * LEAST))
    at(broker, CHECK_EVERY_MS)
    assert reserve.present_bytes(broker.storage) == reserve.filled_bytes(4 * LEAST)


def test_files_that_grow_a_little_do_not_have_the_reserve_written_again():
    broker = Broker(config=BrokerConfig())
    broker.storage.replace(document.FILE, bytes(LEAST))
    at(broker, 0)
    before = broker.storage.files[reserve.FILE]
    broker.storage.replace(document.FILE, bytes(LEAST + LEAST // 4))
    at(broker, CHECK_EVERY_MS)
    assert broker.storage.files[reserve.FILE] is before


def test_the_reserve_is_small_also_where_a_disk_counts_as_full_early():
    broker = Broker(config=BrokerConfig(disk_full_bytes=10 << 20))
    broker.storage.free_bytes = 21 << 20
    at(broker, 0)
    assert reserve.present_bytes(broker.storage) == FILLED and not broker.manager.disk.is_full


def test_a_reserve_that_cannot_be_written_is_no_full_disk():
    """A quota that the system does not show may have no space for it."""
    broker = Broker(config=BrokerConfig())
    broker.manager.tick(NOW)
    (job,) = (job for job in broker.manager.take_syncs() if isinstance(job, FillReserve))
    broker.manager.sync_failed(job, StorageError(reserve.FILE, "Disk quota exceeded", full=True))
    at(broker, CHECK_EVERY_MS)
    assert not broker.manager.disk.is_full and any("the reserve" in line for line in broker.lines)


def test_a_disk_without_space_for_the_reserve_gets_none_until_it_has():
    broker, _ = filled()
    broker.storage.free_bytes = 2 * LEAST - 1
    at(broker, 0)
    assert broker.manager.disk.is_full and not broker.storage.exists(reserve.FILE)
    assert broker.manager.disk.usable_bytes == LEAST - 1, "the others are the reserve's"
    broker.storage.free_bytes = 3 * LEAST
    at(broker, CHECK_FULL_EVERY_MS)
    assert not broker.manager.disk.is_full and reserve.present_bytes(broker.storage) == FILLED


def test_no_reserve_is_kept_where_no_disk_counts_as_full():
    broker = Broker(config=BROKER)
    at(broker, 0)
    assert BROKER.disk_full_bytes == 0 and not broker.storage.exists(reserve.FILE)


def test_on_a_full_disk_deleted_records_give_their_space_back_within_seconds():
    broker, log = filled()
    full(broker)
    broker.manager.delete_records(log, 2, NOW)
    at(broker, CHECKPOINT_WITHIN_MS)
    at(broker, CHECKPOINT_WITHIN_MS + CHECK_FULL_EVERY_MS)
    assert broker.manager.disk.is_full, "because the reserve is missing"
    assert names(broker.storage) == [2, 3] and not names(broker.storage, ".deleted")
    assert not broker.storage.exists(reserve.FILE)
    assert Broker(broker.storage).open().log_start_offset == 2, "a kill does not lose what was acknowledged"
    broker.storage.free_bytes += 2 * LEAST
    at(broker, CHECKPOINT_WITHIN_MS + 2 * CHECK_FULL_EVERY_MS)
    assert reserve.present_bytes(broker.storage) == FILLED


def test_a_log_whose_leader_epochs_are_not_stored_gives_space_back_too():
    broker, log = filled()
    log.start_leader_epoch(7)
    full(broker)
    broker.manager.delete_records(log, 2, NOW)
    at(broker, CHECKPOINT_WITHIN_MS)
    assert names(broker.storage) == [2, 3] and log.durability.epochs_stored


def test_a_full_disk_is_left_by_retention_of_all_records():
    """The new segment in the place of all needs space too."""
    broker, log = filled()
    at(broker, 0)
    broker.storage.free_bytes = 0
    log.config = broker.topic.__class__(segment_bytes=1024, file_delete_delay_ms=DELAY_MS, retention_bytes=0)
    at(broker, DELAY_MS)
    at(broker, DELAY_MS + FULL_RETENTION_MS)
    at(broker, DELAY_MS + FULL_RETENTION_MS + CHECKPOINT_WITHIN_MS)
    at(broker, DELAY_MS + FULL_RETENTION_MS + CHECKPOINT_WITHIN_MS + CHECK_FULL_EVERY_MS)
    assert (log.log_start_offset, log.log_end_offset) == (4, 4)
    assert names(broker.storage) == [4] and not names(broker.storage, ".deleted")


def test_retention_looks_more_often_while_the_disk_is_full():
    broker, log = filled()
    full(broker)
    at(broker, 30_000)  # the first walk
    log.config = broker.topic.__class__(segment_bytes=1024, file_delete_delay_ms=DELAY_MS, retention_bytes=1500)
    at(broker, 30_000 + FULL_RETENTION_MS)
    assert log.log_start_offset == 2


def test_a_checkpoint_that_frees_nothing_leaves_the_reserve():
    broker, log = filled()
    broker.append(log, b"5")
    full(broker)
    at(broker, MINUTE_MS)
    assert any("the checkpoint could not be written" in line for line in broker.lines)
    assert reserve.present_bytes(broker.storage) == FILLED


def test_a_checkpoint_for_deleted_records_that_fails_is_written_again_soon():
    broker, log = filled(BROKER)
    broker.storage.free_bytes = 0
    broker.manager.delete_records(log, 2, NOW)
    at(broker, CHECKPOINT_WITHIN_MS)
    assert names(broker.storage) == [0, 1, 2, 3]
    broker.storage.free_bytes = None
    assert broker.manager.next_deadline_ms(NOW.ms) <= NOW.ms + CHECKPOINT_WITHIN_MS + CHECKPOINT_AGAIN_MS
    at(broker, CHECKPOINT_WITHIN_MS + CHECKPOINT_AGAIN_MS)
    assert names(broker.storage) == [2, 3]


def test_a_start_inside_a_segment_is_checkpointed_again_too():
    broker, log = filled(BROKER)
    broker.append(log, b"4", b"5")
    broker.round()
    broker.storage.free_bytes = 0
    broker.manager.delete_records(log, 5, NOW)
    at(broker, CHECKPOINT_WITHIN_MS)
    broker.storage.free_bytes = None
    at(broker, CHECKPOINT_WITHIN_MS + CHECKPOINT_AGAIN_MS)
    assert broker.checkpoint()["flights-0"].log_start_offset == 5


def test_a_clean_stop_on_a_full_disk_keeps_a_deletion_that_was_just_acknowledged():
    broker, log = filled()
    full(broker)
    broker.manager.delete_records(log, 2, NOW)
    broker.manager.close()
    assert Broker(broker.storage).open().log_start_offset == 2


def test_a_reserve_that_cannot_be_written_is_reported_once_and_tried_again():
    broker = Broker(config=BrokerConfig())
    for ms in (0, CHECK_EVERY_MS):
        broker.manager.tick(Now(NOW.ms + ms, START_MS))
        (job,) = [job for job in broker.manager.take_syncs() if isinstance(job, FillReserve)]
        broker.manager.sync_failed(job, StorageError("/data/reserve", "Input/output error"))
    assert broker.lines == ["the reserve for a full disk could not be written: /data/reserve: Input/output error"]


@pytest.mark.parametrize("frees_space", [False, True])
def test_only_a_write_that_frees_space_takes_the_reserve(frees_space):
    storage = MemoryStorage()
    storage.gives_back = True
    storage.replace(reserve.FILE, bytes(4096))
    storage.free_bytes = 0
    if frees_space:
        reserve.replace(storage, "checkpoint", bytes(4096), frees_space=True)
        assert storage.list("") == ["checkpoint"]
    else:
        with pytest.raises(StorageError):
            reserve.replace(storage, "checkpoint", b"new", frees_space=False)
        assert storage.list("") == [reserve.FILE]
