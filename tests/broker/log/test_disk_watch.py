"""DiskWatch: when the disk of the data directory counts as full, and what the log says of it."""

import pytest

from broker.log.disk_watch import CHECK_EVERY_MS, CHECK_FULL_EVERY_MS, LINES_EVERY_MS, RETRY_MS, DiskWatch
from broker.log.storage import reserve
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.port import StorageError
from broker.now import Now
from broker.settings.config import BrokerConfig
from broker.waiting.pending import Pending

LEAST = BrokerConfig().disk_full_bytes
WALL_MS = 1_700_000_000_000
FULL = StorageError("flights-0/x.log", "No space left on device", full=True)


class Watched:
    """A watch on a disk in memory, and the lines that it reports."""

    def __init__(self):
        self.storage = MemoryStorage()
        self.storage.replace(reserve.FILE, bytes(LEAST))
        self.lines = []
        self.jobs = []
        self.watch = DiskWatch(self.storage, BrokerConfig(), self.lines.append, Pending(), self.jobs.append)
        self.now_ms = 0
        self.check(free_bytes=100 * LEAST)

    def check(self, later_ms=CHECK_EVERY_MS, free_bytes=None):
        if free_bytes is not None:
            self.storage.free_bytes = free_bytes
        self.now_ms += later_ms
        self.watch.check(Now(self.now_ms, WALL_MS + self.now_ms))
        return self.watch.is_full


@pytest.fixture
def disk():
    return Watched()


def test_a_disk_with_space_is_looked_at_now_and_then(disk):
    assert not disk.watch.is_full and disk.lines == [] and disk.watch.usable_bytes == 100 * LEAST
    assert disk.watch.next_deadline_ms(disk.now_ms) == disk.now_ms + CHECK_EVERY_MS


def test_a_disk_with_little_space_is_full_before_a_write_fails(disk):
    assert disk.check(free_bytes=LEAST - 1)
    assert disk.watch.full_since_ms == WALL_MS + disk.now_ms
    (line,) = disk.lines
    assert line.startswith(f"the disk of /memory is full: {LEAST - 1} bytes are usable.")


def test_a_failed_write_is_looked_at_at_once(disk):
    disk.storage.free_bytes = 5 * LEAST
    disk.watch.failed(FULL)
    assert disk.watch.next_deadline_ms(disk.now_ms) == disk.now_ms
    assert disk.check(later_ms=0)
    assert "x.log: No space left on device" in disk.lines[0]


def test_another_error_is_none_of_a_full_disk(disk):
    disk.watch.failed(StorageError("flights-0/x.log", "Input/output error"))
    assert not disk.check(later_ms=0)


def test_it_ends_when_there_is_space_and_says_for_how_long_it_lasted(disk):
    disk.check(free_bytes=0)
    assert disk.check(later_ms=5 * CHECK_FULL_EVERY_MS, free_bytes=2 * LEAST - 1)
    assert not disk.check(later_ms=CHECK_FULL_EVERY_MS, free_bytes=2 * LEAST)
    assert disk.lines[1:] == [f"the disk of /memory has space again: {2 * LEAST} bytes are usable, after 6 s"]


def test_where_a_large_batch_failed_more_space_than_then_ends_it(disk):
    disk.storage.free_bytes = 5 * LEAST
    disk.watch.failed(FULL)
    disk.check(later_ms=0)
    assert disk.check(later_ms=CHECK_FULL_EVERY_MS)
    assert not disk.check(later_ms=CHECK_FULL_EVERY_MS, free_bytes=6 * LEAST)


def test_a_quota_that_the_system_does_not_show_ends_when_writes_no_longer_fail(disk):
    for _ in range(3):
        disk.watch.failed(FULL)
        assert disk.check(later_ms=CHECK_FULL_EVERY_MS)
    assert disk.check(later_ms=RETRY_MS - 1)
    assert not disk.check(later_ms=CHECK_FULL_EVERY_MS)


def test_a_disk_that_is_full_again_and_stays_so_is_told_a_minute_after_the_line_before(disk):
    disk.check(free_bytes=0)
    disk.check(CHECK_FULL_EVERY_MS, free_bytes=100 * LEAST)
    assert disk.check(free_bytes=0) and len(disk.lines) == 2
    while disk.now_ms < 2 * LINES_EVERY_MS:
        assert disk.check(CHECK_FULL_EVERY_MS)
    assert len(disk.lines) == 3 and "is full: 0 bytes are usable" in disk.lines[2]
    assert not disk.check(CHECK_FULL_EVERY_MS, free_bytes=100 * LEAST)
    assert "has space again" in disk.lines[3]


def test_space_that_comes_and_goes_is_told_slowly(disk):
    for _ in range(20):
        disk.check(free_bytes=0, later_ms=1_000 if disk.watch.is_full else CHECK_EVERY_MS)
        disk.watch.failed(FULL)
        disk.check(later_ms=1)
        disk.check(free_bytes=100 * LEAST, later_ms=CHECK_FULL_EVERY_MS)
    assert len(disk.lines) <= 2 * (1 + disk.now_ms // LINES_EVERY_MS)
