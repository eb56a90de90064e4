"""Recovery compares the leader epochs of batches, which no CRC covers, with each other and with the metadata's."""

import pytest

from broker.log import leader_epochs
from broker.log.io_jobs import SyncLog
from broker.log.storage.memory_storage import MemoryStorage
from tests.broker.log.conftest import append, in_epochs, new_worker, reopen
from tests.broker.log.truncation_world import Broker, filled

LOG = f"flights-0/{0:020d}.log"


def with_epoch(storage, position, epoch):
    storage.files[LOG].data[position + 12 : position + 16] = epoch.to_bytes(4, "big", signed=True)


@pytest.mark.parametrize(
    "number, epoch, kept_batches",
    [
        (2, 1, 2),
        (2, -1, 2),
        (2, 7, 2),
        (2, 1 << 20, 2),
        (0, 3, 0),
        (5, 2, 5),
        (5, 3 + 1024, 5),
        (5, -(1 << 31), 5),
    ],
)
def test_a_damaged_leader_epoch_cuts_the_log_before_its_batch(number, epoch, kept_batches):
    """It is outside the CRC. Epochs never decrease, and none is far above the metadata's."""
    storage, positions, _ = in_epochs(2, 2, 2, 3, 3, 3)
    with_epoch(storage, positions[number], epoch)
    opened, report = reopen(storage, leader_epoch=3)
    assert opened.log_end_offset == kept_batches
    assert f"{LOG} at byte {positions[kept_batches]}: leader epoch {epoch} " in report.reason
    assert opened.leader_epoch in (0, 2, 3)


def test_of_two_batches_whose_leader_epochs_contradict_each_other_none_is_kept():
    storage, positions, _ = in_epochs(2, 3, 3)
    with_epoch(storage, positions[2], 2)
    opened, report = reopen(storage)
    assert opened.log_end_offset == 1
    assert report.reason == f"{LOG} at byte {positions[1]}: leader epoch 3 stands before 2"


@pytest.mark.parametrize("kept_bytes", (12, 20, 40))
def test_a_torn_batch_says_nothing_of_the_leader_epoch_before_it(kept_bytes):
    """A power cut may leave the beginning of a batch that was never synced, and zeros for its epoch."""
    storage, positions, _ = in_epochs(2, 3, 3)
    data = storage.files[LOG].data
    data[positions[2] + kept_bytes :] = bytes(len(data) - positions[2] - kept_bytes)
    if kept_bytes > 12:
        with_epoch(storage, positions[2], 0)
    opened, _ = reopen(storage)
    assert (opened.log_end_offset, opened.leader_epoch) == (2, 3)


def test_a_leader_epoch_below_that_of_the_checkpoint_cuts_the_log():
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage)
    log.start_leader_epoch(3)
    append(log, b"a", worker=worker)
    checkpointed = log.position()
    storage.replace("flights-0/leader-epoch-checkpoint", leader_epochs.encode(log.epochs))
    append(log, b"b", worker=worker)
    with_epoch(storage, checkpointed.log_bytes, 2)
    opened, report = reopen(storage, checkpointed)
    assert opened.log_end_offset == 1
    assert report.reason == f"{LOG} at byte {checkpointed.log_bytes}: leader epoch 2 stands after 3"


@pytest.mark.parametrize("leader_epoch", [0, 4, 9])
def test_good_batches_are_kept_whatever_older_metadata_says_of_the_leader_epoch(leader_epoch):
    """An operator may put an older metadata.json back after several crashes."""
    storage, _, _ = in_epochs(0, 0, 2, 3, 3, 9)
    opened, report = reopen(storage, leader_epoch=leader_epoch)
    assert (opened.log_end_offset, report.cut, opened.leader_epoch) == (6, False, 9)


def test_a_log_begins_where_its_epochs_begin_though_the_checkpoint_has_an_older_start():
    """The file of epochs is written before the checkpoint that has the start. Below it, no epoch would be known."""
    broker = filled(checkpoint_at=5)
    broker.manager.delete_records(broker.log(), 12, broker.now)
    broker.manager.syncs.start_round()
    broker.run([job for job in broker.manager.take_syncs() if isinstance(job, SyncLog)])
    log = Broker(broker.storage).log()
    assert log.epochs[0] == (3, 12) and log.log_start_offset == 12
