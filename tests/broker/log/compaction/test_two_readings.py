"""The cleaner reads keys without decoding records, and marks instead of keys the second time.

It leaves the same bytes as one that decodes each record twice.
"""

import random
from dataclasses import replace

import pytest

from broker.log.compaction import cleaner, cleaner_keys
from broker.log.compaction.cleaner_keys import ENTRY_BYTES, KeyOffsets
from broker.record import keyed
from broker.record.compression import Codec
from tests.broker.log.compaction.cleaner_world import BROKER, DAY_MS, CleanerWorld
from tests.broker.log.compaction.test_kept_poison import put_poison
from tests.poison import POISON

TOMBSTONES = 0.003  # of the records of some batches


def cleaned(seed, buffer_bytes):
    """Write, clean and reopen a log by a seed. Return its files after each step."""
    chance = random.Random(seed)
    config = replace(BROKER, log_cleaner_dedupe_buffer_size=buffer_bytes)
    world = CleanerWorld(config=config, segment_bytes=1 << 16, max_message_bytes=1 << 20)
    keys = [b"%0*d" % (chance.choice((8, 8, 8, 40)), number) for number in range(chance.choice((30, 3000)))]
    size = chance.choice(((100, 100), (0, 80)))
    snapshots = []
    for _ in range(6):
        for _ in range(4):
            number, tombstones = chance.choice((1, 20, 100, 700)), chance.choice((0, 0, TOMBSTONES))
            pairs = [
                (chance.choice(keys), None if chance.random() < tombstones else bytes(chance.randint(*size)))
                for _ in range(number)
            ]
            world.put(*pairs, codec=chance.choice((Codec.NONE, Codec.NONE, Codec.GZIP)))
        world.roll()
        world.clean()
        world.ms += chance.choice((0, 2 * DAY_MS))
        snapshots.append({path: bytes(file.data) for path, file in world.storage.files.items() if "flights-0/" in path})
        assert not world.lines
    return snapshots


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("keys", [1 << 20, 500])
def test_the_files_are_as_if_each_record_was_decoded_twice(monkeypatch, seed, keys):
    snapshots = cleaned(seed, keys * ENTRY_BYTES)
    monkeypatch.setattr(keyed, "_keys", lambda body, header: None)
    monkeypatch.setattr(KeyOffsets, "marks", lambda self, base_offset, last_offset: None)
    assert snapshots == cleaned(seed, keys * ENTRY_BYTES)


@pytest.mark.parametrize("seed", range(2))
def test_the_files_are_the_same_if_memory_holds_the_marks_of_few_offsets(monkeypatch, seed):
    snapshots = cleaned(seed, 3000 * ENTRY_BYTES)
    monkeypatch.setattr(KeyOffsets, "_marks_max", 900)
    windows, real = [], KeyOffsets._make_window
    monkeypatch.setattr(KeyOffsets, "_make_window", lambda self, first: windows.append(first) or real(self, first))
    assert snapshots == cleaned(seed, 3000 * ENTRY_BYTES)
    assert len(windows) > 6, "more than one for each pass"


@pytest.fixture
def opened(monkeypatch):
    """The base offsets of the batches whose keys the cleaner reads, in order."""
    base_offsets, real = [], cleaner.keys_of

    def keys_of(body, header):
        base_offsets.append(header.base_offset)
        return real(body, header)

    monkeypatch.setattr(cleaner, "keys_of", keys_of)
    return base_offsets


def test_the_keys_of_each_batch_are_read_once(opened):
    """The second time marks decide, whether nothing, a part or all of it is retained."""
    world = CleanerWorld(segment_bytes=1 << 16)
    old, new = ([(b"%08d" % number, value) for number in range(300)] for value in (b"old", b"new"))
    for pairs in (old, new, new[:150], [(b"x%07d" % number, b"other") for number in range(300)], [(b"a", None)]):
        world.put(*pairs)
    world.roll()
    world.clean()
    assert opened == [0, 300, 600, 750, 1050]
    assert len(world.records()) == 601


def test_a_log_full_of_what_cannot_be_decoded_takes_no_memory_for_it(monkeypatch, opened):
    """From a limit on, the cleaner no longer notes such batches, and reads the keys of all batches again."""
    monkeypatch.setattr(cleaner_keys, "EXCEPTIONS_MAX", 2)
    world = CleanerWorld()
    for value in "12":
        world.put(("a", value))
        for _ in range(3):
            put_poison(world, POISON["rubbish"])
    world.roll()
    world.clean()
    poison = [n for base in (1, 62) for n in range(base, base + 60, 20)]
    assert opened == [0, *poison[:3], 61, *poison[3:]] * 2
    assert [header.base_offset for header in world.batches()] == [*poison[:3], 61, *poison[3:]]
