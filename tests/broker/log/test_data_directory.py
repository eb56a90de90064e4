"""Logs in a directory of the machine's disk: file names, preallocated space, and writes that fail."""

import os

import pytest

from broker.log import log_reader
from broker.log.storage.os_storage import OsStorage
from broker.settings.config import BrokerConfig
from tests.broker.log.manager_world import LOG, Broker


def test_a_data_directory_closes_opens_and_loses_a_log_as_memory_does(tmp_path):
    """The directory holds the files that Kafka's dump tool knows, by their names."""
    first = Broker(OsStorage(str(tmp_path)), segment_bytes=1024)
    log, doomed = first.open(0), first.open(1)
    for _ in range(3):
        first.append(log, b"x" * 800)
    first.append(doomed, producer_id=7, producer_epoch=0, base_sequence=0)
    first.manager.close()
    first.delete(1)
    names = [f"{base:020d}{suffix}" for base in range(3) for suffix in (".idindex", ".index", ".log", ".timeindex")]
    assert sorted(path.name for path in (tmp_path / "flights-0").iterdir()) == names
    first.manager.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".stopped-cleanly", "checkpoint", "flights-0"]
    second = Broker(OsStorage(str(tmp_path)), segment_bytes=1024)
    opened = second.open(0)
    assert second.lines == [] and opened.log_end_offset == 3
    assert log_reader.ids_of(opened, 0, 3) == log_reader.ids_of(log, 0, 3)
    assert second.open(1).log_end_offset == 0


@pytest.fixture
def on_disk(tmp_path):
    """Return a broker, its log with preallocated space, and a function that counts the bytes preallocated past the
    end."""
    broker = Broker(OsStorage(str(tmp_path)))
    log = broker.open()

    def spare():
        stat = os.stat(tmp_path / LOG)
        return stat.st_blocks * 512 - stat.st_size

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
    spare = [stat.st_blocks * 512 - stat.st_size for stat in map(os.stat, (tmp_path / "flights-0").glob("*.log"))]
    assert len(spare) == 4 and sum(spare_bytes > 8192 for spare_bytes in spare) <= 2


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
    restarted = Broker(OsStorage(str(tmp_path))).open()  # after kill -9
    assert restarted.log_end_offset == 2 and log_reader.ids_of(restarted, 0, 2) == log_reader.ids_of(log, 0, 2)
