"""The file of leader epochs: a start believes it only if its CRC holds and the checkpoint does not contradict it."""

from dataclasses import replace

import pytest

from broker.log import leader_epochs
from broker.log.recovery.recovery import LogDamaged
from broker.log.storage.memory_storage import MemoryStorage
from tests.broker.log.conftest import append, new_worker, reopen
from tests.broker.log.truncation_world import Broker, filled

FILE = "flights-0/leader-epoch-checkpoint"
LOG = f"flights-0/{0:020d}.log"
EPOCHS = [(0, 0), (2, 2), (5, 3)]


def checkpointed_log():
    """Return a storage with four batches in the epochs 0, 0, 2 and 5, and the log's position in the checkpoint."""
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage)
    for epoch in (0, 0, 2, 5):
        log.start_leader_epoch(epoch)
        append(log, b"a", worker=worker)
    put(storage, leader_epochs.encode(log.epochs))
    return storage, log.position()


def put(storage, data):
    if data is None:
        storage.remove(FILE)
    else:
        storage.replace(FILE, data)


def stored(storage):
    return bytes(storage.files[FILE].data)


def without_crc(*epochs):
    lines = ["0", str(len(epochs)), *(f"{epoch} {start}" for epoch, start in epochs)]
    return "".join(line + "\n" for line in lines).encode()


@pytest.mark.parametrize("number", range(len(leader_epochs.encode(EPOCHS)) * 8))
def test_a_flipped_bit_is_noticed_and_the_epochs_are_read_from_the_batches(number):
    storage, position = checkpointed_log()
    data = bytearray(stored(storage))
    data[number // 8] ^= 1 << number % 8
    put(storage, bytes(data))
    opened, report = reopen(storage, position, leader_epoch=5)
    assert (opened.log_start_offset, opened.log_end_offset, opened.epochs) == (0, 4, EPOCHS)
    assert report.epochs_fault.startswith(FILE) and report.epochs_fault in report.line(opened)
    assert stored(storage) == leader_epochs.encode(EPOCHS)


@pytest.mark.parametrize(
    "data, fault",
    [
        (None, f"there is no file {FILE}, though epoch 5 was synced"),
        (leader_epochs.encode([]), "offset 3 was synced in epoch 5: []"),
        (leader_epochs.encode([(0, 0)]), r"offset 3 was synced in epoch 5: [(0, 0)]"),
        (leader_epochs.encode([(0, 0), (7, 3)]), "offset 3 was synced in epoch 5: [(0, 0), (7, 3)]"),
        (leader_epochs.encode([(2, 4)]), "offset 3 was synced in epoch 5: [(2, 4)]"),
        (without_crc(), "offset 3 was synced in epoch 5: []"),
        (without_crc((0, 3), (5, 4)), "it begins at offset 3, and the log at 0"),
    ],
)
def test_a_file_of_another_time_is_noticed_by_the_checkpoint(data, fault):
    storage, position = checkpointed_log()
    put(storage, data)
    opened, report = reopen(storage, position, leader_epoch=5)
    assert (opened.log_start_offset, opened.epochs) == (0, EPOCHS)
    assert report.epochs_fault.endswith(fault) and report.batches_read == 0
    again, report = reopen(storage, opened.position(), leader_epoch=5)
    assert (again.epochs, report.epochs_fault) == (EPOCHS, None)


def test_a_log_without_a_checkpoint_finds_its_epochs_in_its_batches_too():
    storage, _ = checkpointed_log()
    put(storage, b"damaged")
    opened, report = reopen(storage, leader_epoch=5)
    assert (opened.epochs, opened.log_end_offset, report.batches_read) == (EPOCHS, 4, 4)
    assert stored(storage) == leader_epochs.encode(EPOCHS)


@pytest.mark.parametrize("synced_epoch", [-1, 5])
def test_a_file_without_a_crc_is_taken_unless_it_is_contradicted(synced_epoch):
    """Earlier versions wrote it so, and their checkpoint has no epoch."""
    storage, position = checkpointed_log()
    put(storage, without_crc(*EPOCHS))
    opened, report = reopen(storage, replace(position, leader_epoch=synced_epoch), leader_epoch=5)
    assert (opened.epochs, report.epochs_fault) == (EPOCHS, None)


def test_an_epoch_whose_last_batch_was_cleaned_away_stays_known():
    storage, position = checkpointed_log()
    last = position.log_bytes // 4 * 3
    del storage.files[LOG].data[last:]
    ids = storage.files[f"flights-0/{0:020d}.idindex"].data
    del ids[len(ids) // 4 * 3 :]
    put(storage, None)
    shorter, _ = reopen(storage, leader_epoch=5)
    storage.remove(FILE)
    opened, report = reopen(storage, replace(shorter.position(), leader_epoch=5), leader_epoch=5)
    assert opened.epochs == [(0, 0), (5, 2)] and "epoch 5 was synced" in report.epochs_fault


def test_a_log_whose_batches_do_not_tell_their_epochs_either_goes_offline():
    storage, position = checkpointed_log()
    put(storage, b"damaged")
    at = position.log_bytes // 2
    storage.files[LOG].data[at + 12 : at + 16] = (9).to_bytes(4, "big")
    with pytest.raises(LogDamaged, match=f"{FILE}.*; and {LOG} at byte {at}: leader epoch 9 stands before 5"):
        reopen(storage, position, leader_epoch=9)
    assert stored(storage) == b"damaged"


def test_the_operator_gets_a_line_and_the_log_goes_on():
    """An epoch in which nothing was written is forgotten. No batch of this log is of it."""
    broker = filled()
    epochs, end_offset = broker.log().epochs, broker.log().log_end_offset
    assert epochs[-1] == (8, end_offset)
    broker.round()
    broker.storage.replace(FILE, b"1\n0\n")
    started = Broker(broker.storage)
    (line,) = [line for line in started.lines if FILE in line]
    assert "its leader epochs were read from its batches" in line
    assert (started.log().epochs, started.log().log_end_offset) == (epochs[:-1], end_offset)
    started.append(b"goes on")
    assert started.log().log_end_offset == end_offset + 1
