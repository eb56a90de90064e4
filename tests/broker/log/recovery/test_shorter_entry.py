"""A batch that is cut shared an entry of the id index with batches that stay: its shortening loses no id."""

from broker.log.recovery.shorter_entry import SHORTER
from broker.log.storage import reserve
from broker.log.storage.memory_storage import MemoryStorage
from tests.broker.log.conftest import append, append_batches, new_worker, reopen
from tests.broker.log.recovery.test_recovery import IDS, LOG, copy_of, data_of, later, put
from tests.broker.log.truncation_world import Stopped, StoppingStorage


def test_an_entry_of_which_the_log_lost_the_end_is_shortened_on_the_disk_before_anything_follows_it():
    storage = MemoryStorage()
    log, _ = reopen(storage)
    append_batches(log, [b"a"], [b"b"], [b"c"], worker=new_worker())
    put(storage, LOG, data_of(storage, LOG)[:-1])
    log, _ = reopen(storage)
    assert storage.files[IDS].synced == data_of(storage, IDS) and log.log_end_offset == 2
    append(log, b"d", **later(10))
    for seed in range(200):
        torn = MemoryStorage()
        torn.make_directory("flights-0")
        for path in (LOG, IDS):
            put(torn, path, storage.files[path].after_power_cut(lambda n: seed * 31 % n))  # noqa: B023
        assert reopen(torn)[0].log_end_offset in (2, 3), "what had been recovered is there"


def test_a_start_that_is_killed_while_it_shortens_an_entry_loses_no_batch():
    whole = MemoryStorage()
    log, _ = reopen(whole)
    append_batches(log, [b"a"], [b"b"], [b"c"], worker=new_worker())
    steps, is_done = 0, False
    while not is_done:
        storage = StoppingStorage()
        storage.make_directory("flights-0")
        put(storage, LOG, data_of(whole, LOG)[:-1])
        put(storage, IDS, data_of(whole, IDS))
        storage.steps_left = steps
        try:
            reopen(storage)
            is_done = True
        except Stopped:
            storage.steps_left = 1 << 30
        assert reopen(copy_of(storage))[0].log_end_offset == 2, steps
        for kept in (lambda n: 0, lambda n: n - 1):
            assert reopen(storage.power_cut(kept))[0].log_end_offset == 2, steps
        steps += 1
    assert steps > 5


def test_an_entry_is_shortened_on_a_full_disk_with_the_reserve():
    storage = MemoryStorage()
    storage.replace(reserve.FILE, bytes(4096))
    log, _ = reopen(storage)
    append_batches(log, [b"a"], [b"b"], [b"c"], worker=new_worker())
    put(storage, LOG, data_of(storage, LOG)[:-1])
    storage.free_bytes, storage.gives_back = 0, True
    assert reopen(storage)[0].log_end_offset == 2
    assert not [path for path in storage.files if path.endswith(SHORTER)]
