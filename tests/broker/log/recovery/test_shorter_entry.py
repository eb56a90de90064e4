"""A batch that is cut shared an entry of the id index with batches that stay: its shortening loses no id."""

import pytest

from broker.log.index.id_index import IdIndex
from broker.log.recovery.shorter_entry import SHORTER
from broker.log.recovery.synced import LogDamaged
from broker.log.storage import reserve
from broker.log.storage.memory_storage import MemoryStorage
from broker.wire.id_entries import ENTRY_BYTES
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


NOTE = IDS + SHORTER


def begun(number=1):
    """Return storage whose last start was killed before it cut the index: entries of one, three and one offsets."""
    storage = MemoryStorage()
    log, _ = reopen(storage)
    append(log, b"a", worker=new_worker())
    append_batches(log, [b"b"], [b"c"], [b"d"], **later(10))
    append(log, b"e", **later(20))
    ids = IdIndex(storage.open(IDS), 0)
    shorter = ids.entry(1)._replace(length=2)
    put(storage, NOTE, number.to_bytes(8, "big") + ids.packed(shorter))
    return storage


def refused(storage):
    """Check that the start refuses the partition by the file's name, and changes nothing. Return the reason."""
    before = {path: bytes(content.data) for path, content in storage.files.items()}
    with pytest.raises(LogDamaged, match=f"^{NOTE}: .*; nothing is cut. Restore") as error:
        reopen(storage)
    assert {path: bytes(content.data) for path, content in storage.files.items()} == before
    return str(error.value)


def test_a_sound_note_of_a_shortening_is_followed():
    """The log ends with the last batch that has an id."""
    assert reopen(storage := begun())[0].log_end_offset == 3
    assert len(data_of(storage, IDS)) == 2 * ENTRY_BYTES and not storage.exists(NOTE)


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        (b"", "it has 0 bytes, not 28"),
        (bytes(27), "it has 27 bytes, not 28"),
        (bytes(28), "the check of its entry fails"),
    ],
)
def test_a_note_that_is_no_note_takes_the_partition_offline_before_its_index_is_cut(note, reason):
    storage = begun()
    put(storage, NOTE, note)
    assert reason in refused(storage)


def test_each_flipped_bit_of_a_note_is_found_before_the_index_is_cut():
    """No check covers the number, so the entries of the index tell whether it is right."""
    whole = data_of(begun(), NOTE)
    for bit in range(8 * len(whole)):
        storage = begun()
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        put(storage, NOTE, data)
        refused(storage)


@pytest.mark.parametrize("number", [0, 2, 3, 4, 2**63])
def test_a_note_whose_number_is_another_one_is_refused(number):
    refused(begun(number))


def test_a_note_is_followed_over_the_torn_entry_that_a_crash_leaves_after_the_cut():
    for size in range(ENTRY_BYTES + 1):
        storage = begun()
        note = data_of(storage, NOTE)
        put(storage, IDS, data_of(storage, IDS)[:ENTRY_BYTES] + note[8 : 8 + size])
        assert reopen(storage)[0].log_end_offset == 3
        assert data_of(storage, IDS)[ENTRY_BYTES:] == note[8:]


@pytest.mark.parametrize("name", ["copy.idindex", "5.idindex", "0.x.idindex"])
def test_a_note_whose_name_has_no_offset_is_left_alone(name):
    storage = begun()
    storage.remove(NOTE)
    put(storage, f"flights-0/{name}", b"a copy")
    put(storage, f"flights-0/{name}{SHORTER}", b"of somebody's")
    assert reopen(storage)[0].log_end_offset == 5
    assert data_of(storage, f"flights-0/{name}{SHORTER}") == b"of somebody's"
