"""The disks of the simulations: a start syncs those of half of the seeds at once, and each file of the others.

`sync_all` waits for all files of ext4, XFS and btrfs, so that nearly all brokers start in the first way.
"""

from random import Random

from broker.log.storage.memory_storage import MemoryStorage


def can_sync_all(seed):
    """Return True if `sync_all` waits for the disk of this seed, an int or str. Worlds draw no less and no more."""
    return bool(Random(f"sync_all {seed}").randrange(2))


def new_disk(seed, kind=MemoryStorage):
    disk = kind()
    disk.syncs_all = can_sync_all(seed)
    return disk


def power_cut(disk, chance):
    """Return the same disk after a power cut, as `MemoryStorage.power_cut` has it."""
    after = disk.power_cut(chance)
    after.syncs_all = disk.syncs_all
    return after
