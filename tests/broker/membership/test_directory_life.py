"""Rule W1: a broker's data is whole unless a power cut may have taken what the broker confirmed."""

import pytest

from broker.cluster.documents import NEW_DIRECTORY, NO_LAST_LIFE, Life
from broker.log import json_lines
from broker.membership.directory_life import DirectoryLife, StoredLife, read_life


class Machine:
    """A data directory over starts, stops and power cuts; each step is on the disk when it returns."""

    def __init__(self):
        self.file, self.kernel = None, 1

    def start(self, *, stopped_cleanly=False, has_logs=True):
        before, _ = read_life(self.file)
        boot_id = str(self.kernel)
        self.life = DirectoryLife(before, boot_id=boot_id, stopped_cleanly=stopped_cleanly, has_logs=has_logs)
        self.write(self.life.begun())
        return self.life.life

    def write(self, stored):
        if stored is not None:
            self.file = stored.encode()
            self.life.written(stored)

    def order(self, broker_epoch):
        stored = self.life.ordered(broker_epoch)
        self.write(stored)
        return stored

    def cut_power(self):
        self.kernel += 1


@pytest.fixture
def machine():
    """A broker that has taken an order in its life 7."""
    machine = Machine()
    machine.start()
    machine.order(7)
    return machine


def test_a_directory_without_the_file_is_not_whole():
    assert Machine().start() == Life(whole=False, last=NO_LAST_LIFE)


def test_an_empty_directory_says_so_once():
    """What a broker has not had before its first order, no power cut takes from it."""
    machine = Machine()
    assert machine.start(has_logs=False) == Life(whole=False, last=NEW_DIRECTORY)
    machine.life.registered()
    assert machine.life.life == Life(whole=False, last=NO_LAST_LIFE)
    assert machine.start(has_logs=False) == Life(whole=False, last=NO_LAST_LIFE)
    machine.order(7)
    assert machine.start() == Life(whole=True, last=7)


@pytest.mark.parametrize("stopped_cleanly", [True, False])
def test_after_a_stop_and_after_a_kill_the_data_is_whole(machine, stopped_cleanly):
    assert machine.start(stopped_cleanly=stopped_cleanly) == Life(whole=True, last=7)


def test_after_a_clean_stop_the_kernel_may_be_another(machine):
    machine.cut_power()
    assert machine.start(stopped_cleanly=True) == Life(whole=True, last=7)


def test_after_a_power_cut_it_is_not_whole_until_the_first_order_of_the_next_life(machine):
    machine.cut_power()
    assert machine.start() == Life(whole=False, last=7)
    machine.order(9)
    assert machine.start() == Life(whole=True, last=9)


def test_the_mark_survives_a_second_crash_before_the_first_order(machine):
    machine.cut_power()
    machine.start()
    assert machine.start() == Life(whole=False, last=7)
    assert machine.start(stopped_cleanly=True) == Life(whole=False, last=7)


def test_a_life_without_an_order_is_not_the_last(machine):
    machine.start()
    assert machine.start() == Life(whole=True, last=7)


def test_a_log_that_went_offline_makes_the_next_process_not_whole(machine):
    machine.start()
    machine.order(9)
    machine.life.lost()
    machine.write(machine.life.unmarked())
    machine.order(11)
    assert machine.life.life == Life(whole=True, last=11), "this process refuses orders for the log"
    assert machine.start(stopped_cleanly=True) == Life(whole=False, last=11)
    machine.order(13)
    assert machine.start() == Life(whole=True, last=13)


def test_the_mark_of_a_log_that_went_offline_is_written_once(machine):
    machine.start()
    assert machine.life.unmarked() is None
    machine.life.lost()
    machine.write(machine.life.unmarked())
    assert machine.life.unmarked() is None


def test_a_file_without_the_mark_of_lost_logs_is_of_a_process_that_lost_none():
    fields = {"version": 1, "boot_id": "a", "whole": True, "broker_epoch": 3}
    assert read_life(json_lines.encode([fields])) == (StoredLife("a", True, 3), None)


def test_an_order_of_the_same_life_needs_no_write(machine):
    machine.start()
    assert machine.order(9) is not None and machine.order(9) is None and machine.order(11) is not None


def test_a_system_that_does_not_tell_its_boot_id_has_whole_data_after_a_clean_stop_only():
    before = StoredLife("", True, 7)
    assert not DirectoryLife(before, boot_id="", stopped_cleanly=False).life.whole
    assert DirectoryLife(before, boot_id="", stopped_cleanly=True).life.whole


@pytest.mark.parametrize("data", [b"", b"{}\n", b'{"version": 1}\n8f6a3c1b\n', StoredLife("a", True).encode()[:-3]])
def test_a_damaged_file_is_not_whole_and_says_why(data):
    before, reason = read_life(data)
    assert before is None and reason
    assert DirectoryLife(before, boot_id="1", stopped_cleanly=True).life == Life(whole=False, last=-1)


def test_a_file_of_another_version_is_damaged():
    stored = StoredLife("a", True, 3)
    assert read_life(stored.encode()) == (stored, None)
    other = json_lines.encode([{"version": 2, "boot_id": "a", "whole": True, "broker_epoch": 3}])
    assert read_life(other) == (None, "life: this program reads version 1")
