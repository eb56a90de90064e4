"""The cleaner reads large batches by columns, and leaves the same bytes as one that decodes each record."""

import random
from dataclasses import replace

import pytest

from broker.record import retained
from broker.record.compression import Codec
from tests.broker.log.compaction.cleaner_world import BROKER, DAY_MS, CleanerWorld

TOMBSTONES = 0.003  # of the records of some batches


def cleaned(seed, buffer_bytes):
    """Write, clean and reopen a log by a seed. Return its files after each step."""
    chance = random.Random(seed)
    config = replace(BROKER, log_cleaner_dedupe_buffer_size=buffer_bytes)
    world = CleanerWorld(config=config, segment_bytes=1 << 16, max_message_bytes=1 << 20)
    keys = [b"%0*d" % (chance.choice((8, 8, 8, 40)), number) for number in range(chance.choice((30, 3000)))]
    size = chance.choice(((100, 100), (0, 80)))
    found = []
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
        found.append({path: bytes(file.data) for path, file in world.storage.files.items() if "flights-0/" in path})
        assert not world.lines
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("keys", [1 << 20, 500])
def test_the_files_are_as_if_each_record_was_decoded(monkeypatch, seed, keys):
    found = cleaned(seed, keys * 200)
    monkeypatch.setattr(retained, "COLUMNS_RECORDS_MIN", 1 << 30)
    assert found == cleaned(seed, keys * 200)


def test_a_batch_of_which_nothing_or_all_is_retained_is_decoded_once(monkeypatch):
    """Its keys are noted in the first reading, and the second one needs the notes only."""
    world = CleanerWorld(segment_bytes=1 << 16)
    old, new = ([(b"%08d" % number, value) for number in range(300)] for value in (b"old", b"new"))
    for pairs in (old, new, new[:150], [(b"x%07d" % number, b"other") for number in range(300)]):
        world.put(*pairs)
    world.roll()
    decoded, real = [], retained.columns_of

    def columns_of(data, header):
        decoded.append(header.base_offset)
        return real(data, header)

    monkeypatch.setattr(retained, "columns_of", columns_of)
    world.clean()
    assert decoded == [0, 300, 600, 750, 300], "only of the second batch a part is retained"
    assert len(world.records()) == 600
