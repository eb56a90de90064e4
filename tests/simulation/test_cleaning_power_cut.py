"""Seeded power cuts during compaction and deletion: no synced key is lost or gets another record or id.

Each seed is a life of many generations of one compacted log: appends, rolls, checkpoints, slices of the cleaner and
record deletions. The power cut or kill may come at any of them. `MemoryStorage.power_cut` models the disk.

    replay a failing seed:   FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/simulation/test_cleaning_power_cut.py
"""

import os
from random import Random

import pytest

from broker.log.io_jobs import SyncLog
from tests.broker.log.compaction.cleaner_world import BACKOFF_MS, CleanerWorld
from tests.simulation.disks import new_disk, power_cut

AGAIN = "FLAKELOG_SEED={} .venv/bin/python -m pytest tests/simulation/test_cleaning_power_cut.py -k one_seed"
FIRST = int(os.environ.get("FLAKELOG_SEED", "0"))
TOPIC = {"cleanup_policy": "compact,delete", "retention_ms": -1, "segment_bytes": 2000, "delete_retention_ms": 10**12}


class Life:
    def __init__(self, seed):
        self.random = Random(seed)
        self.world = CleanerWorld(new_disk(seed), **TOPIC)
        self.written = {}  # offset -> (key, value, id): appended and not known to be lost
        self.synced = 0
        self.deleted = 0
        self.syncs = []

    def live(self, generations):
        for _ in range(generations):
            for _ in range(self.random.randrange(2, 30)):
                self.random.choice((self.put, self.put, self.put, self.roll, self.turn, self.turn, self.delete))()
            self.end()

    # --- steps ---------------------------------------------------------------------------------------------------

    def put(self):
        size = self.random.choice((3, 60, 400, 900))
        pairs = [(str(self.random.randrange(6)), str(self.random.random()).ljust(size)) for _ in range(2)]
        done = self.world.put(*pairs)
        ids = [first + n for first, count in done.runs for n in range(count)]
        for n, (key, value) in enumerate(pairs):
            self.written[done.base_offset + n] = key.encode(), value.encode(), ids[n]

    def roll(self):
        self.world.log.roll()
        self.world.manager.syncs.start_round()

    def delete(self):
        if not self.random.randrange(4):
            low, high = self.world.log.log_start_offset, self.world.log.high_watermark
            self.deleted = self.random.randrange(low, high + 1)
            self.world.manager.delete_records(self.world.log, self.deleted, self.world.now)

    def turn(self):
        """Let time pass, and run some or all of the scheduled work."""
        self.world.ms += self.random.choice((0, 1000, BACKOFF_MS))
        self.world.manager.tick(self.world.now)
        self.syncs += self.world.manager.take_syncs()
        for _ in range(self.random.randrange(6)):
            if self.syncs:
                sync = self.syncs.pop(0)
                self.world.run(sync)
                if isinstance(sync, SyncLog):
                    self.synced = max(self.synced, sync.position.offset)
            self.world.manager.tick(self.world.now)
            self.syncs += self.world.manager.take_syncs()

    def end(self):
        storage, later = self.world.storage, self.world.ms
        if self.random.randrange(2):
            storage = power_cut(storage, self.random.randrange)
        else:
            self.synced = self.world.log.log_end_offset  # killed: written data is in the page cache
        self.syncs = []
        self.world = self.world.reopened(storage, **TOPIC)
        self.world.ms = later
        self.check()

    # --- the oracle ----------------------------------------------------------------------------------------------

    def check(self):
        world = self.world
        assert not world.manager.offline, world.manager.offline
        end = world.log.log_end_offset
        assert end >= self.synced and world.log.log_start_offset <= self.deleted
        records, ids = world.records(), world.ids()
        for offset, pair in records.items():
            assert (*pair, ids[offset]) == self.written[offset], f"offset {offset} is not what was written there"
        surviving = {offset: record for offset, record in self.written.items() if offset < end}
        last = {key: offset for offset, (key, _, _) in surviving.items() if offset >= world.log.log_start_offset}
        assert all(offset in records for offset in last.values()), "a key has lost its last record"
        self.written = surviving
        self.synced = world.log.durability.flushed.offset  # later ones may yet be lost
        self.deleted = world.log.log_start_offset


def live(seed, generations):
    try:
        Life(seed).live(generations)
    except Exception as error:
        error.add_note("again: " + AGAIN.format(seed))
        raise


@pytest.fixture(autouse=True)
def short_slices(monkeypatch):
    monkeypatch.setattr("broker.log.compaction.cleaner.SLICE_BYTES", 1500)


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_no_key_is_lost_whatever_the_cleaner_was_at(start):
    for seed in range(start, start + 20):
        live(seed, generations=4)


def test_one_seed():
    """The seed of FLAKELOG_SEED, or 0, passes."""
    live(FIRST, generations=20)


@pytest.mark.soak
def test_no_key_is_lost_for_3000_seeds():
    for seed in range(3_000):
        live(seed, generations=8)
