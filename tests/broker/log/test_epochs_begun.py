"""A leader's epoch is on the disk before its first batch, for all logs by one write (rule S2)."""

import pytest

from broker.log import epochs_begun, leader_epochs
from broker.log.epochs_begun import FILE, BegunEpoch, EpochsBegunDamaged, WriteEpochsBegun
from broker.log.leader_epochs import end_of
from tests.broker.log.truncation_world import Broker, fill, filled

EPOCHS = [BegunEpoch("flights-0", "0" * 32, 3), BegunEpoch("flights-1", "1" * 32, 2**31 - 1)]


def in_file(broker):
    data = bytes(broker.storage.files[FILE].data)
    return [(epoch.log, epoch.epoch) for epoch in epochs_begun.decode(data)]


def led(broker, epoch, *partitions):
    """Begin an epoch in these logs; return the write."""
    logs = [broker.log(partition) for partition in partitions]
    write = broker.manager.begin_epochs(dict.fromkeys(logs, epoch))
    for log in logs:
        log.start_leader_epoch(epoch)
    return write


def power_cut(broker):
    return Broker(broker.storage.power_cut(lambda n: 0), partitions=len(broker.manager.all()), later_ms=60_000)


# --- the file --------------------------------------------------------------------------------------------------------


def test_the_file_says_what_was_written_to_it():
    assert epochs_begun.decode(epochs_begun.encode(EPOCHS)) == EPOCHS
    assert epochs_begun.decode(epochs_begun.encode([])) == []


def test_a_flipped_bit_anywhere_refuses_the_start_by_name():
    """A log that has forgotten an epoch may keep batches that its leader does not have."""
    broker = Broker()
    data = epochs_begun.encode(EPOCHS)
    for position in range(len(data)):
        damaged = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        broker.storage.replace(FILE, damaged)
        with pytest.raises(EpochsBegunDamaged, match=f"^{FILE}: .*Restore the file from a copy"):
            Broker(broker.storage)


@pytest.mark.parametrize("size", range(0, 200, 7))
def test_a_file_cut_at_any_byte_is_damaged(size):
    data = epochs_begun.encode(EPOCHS)
    with pytest.raises(EpochsBegunDamaged):
        epochs_begun.decode(data[: min(size, len(data) - 1)])


def test_a_file_of_another_version_is_refused():
    data = epochs_begun.json_lines.encode([{"version": 2, "logs": 0}])
    with pytest.raises(EpochsBegunDamaged, match="version 2 with 0 logs; this program reads 1"):
        epochs_begun.decode(data)


# --- epochs ----------------------------------------------------------------------------------------------------------


def test_after_a_power_cut_a_log_knows_the_epoch_that_it_led_without_a_batch():
    broker = filled()
    write = led(broker, 11, 0)
    assert not write.is_done
    broker.settle()
    assert write.is_done and write.error is None
    again = power_cut(broker).log()
    assert again.epochs[-1] == (11, again.log_end_offset) and again.leader_epoch == 11


def test_a_power_cut_that_takes_the_batches_of_an_epoch_leaves_the_epoch_and_its_end():
    broker = Broker(durable_acks=False)
    broker.append(b"a", b"b", b"c")
    broker.round()
    led(broker, 4, 0)
    broker.settle()
    broker.append(b"lost", b"too")
    log = power_cut(broker).log()
    assert log.log_end_offset == 3 and log.epochs == [(0, 0), (4, 3)]
    assert end_of(log.epochs, 4, log.log_end_offset) == (4, 3)


def test_an_epoch_begins_at_the_logs_end_if_the_batches_before_it_are_lost():
    broker = Broker(durable_acks=False)
    broker.append(b"a", b"b")
    broker.round()
    broker.append(b"lost")
    led(broker, 4, 0)
    broker.settle()
    log = power_cut(broker).log()
    assert log.epochs == [(0, 0), (4, 2)]


def test_an_epoch_is_joined_once_more_until_the_logs_own_file_has_it():
    broker = filled()
    led(broker, 11, 0)
    broker.settle()
    again = power_cut(broker)
    assert power_cut(again).log().epochs[-1][0] == 11
    again.append(b"a")
    again.round()
    again.settle()
    assert in_file(again) == []
    own = bytes(again.storage.files[f"flights-0/{leader_epochs.FILE}"].data)
    assert leader_epochs.decode(own)[-1][0] == 11
    assert power_cut(again).log().epochs == again.log().epochs


def test_an_epoch_of_a_topic_that_was_deleted_is_not_the_one_of_its_name():
    broker = Broker()
    broker.storage.replace(FILE, epochs_begun.encode([BegunEpoch("flights-0", "5" * 32, 9)]))
    assert Broker(broker.storage).log().epochs == [(0, 0)]


def test_a_batch_of_an_epoch_far_above_the_logs_own_file_is_no_damage_if_the_epoch_was_begun():
    """Recovery takes an epoch that is far from possible for damage."""
    broker = Broker()
    led(broker, 5_000, 0)
    broker.settle()
    broker.append(b"a")
    assert power_cut(broker).log().log_end_offset == 1


def test_a_thousand_logs_begin_their_epochs_with_one_write():
    broker = Broker(partitions=1000)
    syncs = broker.storage.directory_syncs
    write = led(broker, 1, *range(1000))
    assert broker.manager.take_syncs() == [write]
    broker.run([write])
    assert len(in_file(broker)) == 1000 and broker.storage.directory_syncs == syncs


def test_epochs_that_begin_while_a_write_runs_share_the_next_write():
    """An older version of the file must not replace a newer one."""
    broker = Broker(partitions=3)
    first = led(broker, 1, 0)
    assert broker.manager.take_syncs() == [first]
    second = led(broker, 2, 1)
    assert led(broker, 3, 2) is second is not first
    assert broker.manager.take_syncs() == []
    broker.run([first])
    assert first.is_done and not second.is_done and in_file(broker) == [("flights-0", 1)]
    broker.settle()
    assert second.is_done and in_file(broker) == [("flights-0", 1), ("flights-1", 2), ("flights-2", 3)]


def test_an_order_that_comes_late_takes_no_later_epoch_out_of_the_file():
    broker = Broker(partitions=1)
    for epoch in (7, 5):
        led(broker, epoch, 0)
    broker.settle()
    assert in_file(broker) == [("flights-0", 7)]


def test_a_write_that_fails_says_so_and_the_next_one_has_its_epochs():
    broker = Broker(partitions=2)
    broker.storage.free_bytes = 0
    write = led(broker, 1, 0)
    broker.settle()
    assert not write.is_done and write.error.full and "leader epochs" in broker.lines[-1]
    broker.storage.free_bytes = None
    led(broker, 2, 1)
    broker.settle()
    assert in_file(broker) == [("flights-0", 1), ("flights-1", 2)]


def test_a_server_alone_writes_no_such_file():
    broker = filled()
    broker.round()
    broker.manager.close()
    assert FILE not in broker.storage.files


# --- truncation ------------------------------------------------------------------------------------------------------


def test_a_truncation_takes_the_epoch_out_of_the_file():
    """Otherwise a start would begin it again, and the log would diverge from its leader's once more."""
    broker = filled()
    led(broker, 11, 0)
    broker.settle()
    broker.truncate(1 << 40)
    assert in_file(broker) == []
    assert power_cut(broker).log().epochs[-1][0] == 6


def test_a_truncation_that_keeps_an_epoch_writes_it_into_the_logs_own_file():
    broker = Broker()
    fill(broker, until=13)
    led(broker, 11, 0)
    broker.settle()
    broker.append(b"a")
    broker.append(b"b")
    broker.truncate(14)
    assert power_cut(broker).log().epochs == broker.log().epochs == [(0, 0), (3, 9), (11, 13)]


def test_a_deleted_log_leaves_the_file():
    broker = filled(partitions=2)
    led(broker, 11, 0, 1)
    broker.settle()
    broker.run([broker.manager.delete({"flights": [0]})])
    broker.settle()
    assert in_file(broker) == [("flights-1", 11)]


def test_the_write_is_a_job_for_a_thread():
    assert isinstance(led(Broker(), 1, 0), WriteEpochsBegun)
