"""Deletion of whole logs: their names are free again, and their files go in the background and after crashes."""

import pytest

from broker.log import log_reader
from broker.log.io_jobs import RemoveFiles
from broker.log.storage.port import StorageError
from tests.broker.log.manager_world import Broker


@pytest.fixture
def broker():
    return Broker()


def test_a_deleted_log_is_gone_and_its_name_is_free(broker):
    log = broker.open()
    broker.append(log, b"old")
    broker.round()
    broker.delete(0)
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
    broker.delete(0)
    assert len(region.file.read(region.position, region.length)) == region.length


def test_a_sync_that_comes_back_after_the_deletion_leaves_no_trace(broker):
    log = broker.open()
    broker.append(log)
    broker.manager.syncs.start_round()
    (sync,) = broker.manager.take_syncs()
    broker.delete(0)
    broker.manager.synced(sync)
    broker.manager.sync_failed(sync, StorageError("flights-0", "gone"))
    assert broker.manager.syncs.positions == {} and broker.lines == [] and broker.manager.offline == {}
    broker.append(broker.open())
    broker.round()
    assert broker.checkpoint()["flights-0"].offset == 1


def test_a_log_made_again_has_no_epochs_or_producers_of_the_deleted_one_which_a_thread_still_syncs(broker):
    log = broker.open()
    broker.append(log, producer_id=7, producer_epoch=0, base_sequence=0)
    log.start_leader_epoch(6)
    broker.manager.syncs.start_round()
    (sync,) = broker.manager.take_syncs()
    put_away = broker.manager.delete({"flights": [0]})
    assert not put_away.is_ready
    broker.run(sync)
    assert put_away.is_ready
    broker.run(put_away)
    fresh = broker.open()
    assert fresh.leader_epoch == 0 and fresh.producers.epoch_of(7) is None


def test_a_deleted_log_does_not_come_back_with_the_power(broker):
    broker.append(broker.open(), b"old")
    broker.round()
    broker.delete(0)
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
    again.delete(0)
    assert broker.storage.list("flights-0.1.deleted") and broker.storage.list("flights-0.2.deleted")
    again.run()
    assert broker.storage.list("") == ["checkpoint"]


def test_a_deleted_log_is_removed_by_a_thread_which_waits_for_nobodys_files(broker):
    """Unlinking a large file takes long; so does closing the last descriptor of an unlinked one."""
    broker.append(broker.open(), b"x")
    broker.delete(0)
    (removal,) = [sync for sync in broker.manager.take_syncs() if isinstance(sync, RemoveFiles)]
    assert broker.storage.list("flights-0.1.deleted") and not broker.storage.open_files
    removal.run()
    assert broker.storage.list("") == ["checkpoint"]


def test_the_logs_of_a_topic_are_deleted_with_one_wait_for_the_disk(broker):
    for partition in range(20):
        broker.open(partition)
    before = broker.storage.directory_syncs
    broker.delete(*range(20))
    assert broker.storage.directory_syncs == before + 1
