"""A batch with a valid CRC whose records cannot be decoded stays as it is, and the log around it is still cleaned."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.log import log_appender
from broker.log.compaction.cleaner import POISON_NAMED_MAX
from broker.record.batch import HEADER_BYTES, CorruptBatch, read_header
from broker.record.compression import Codec
from broker.record.keyed import body_of, keys_of
from broker.record.records import BatchRecord, decode_records, encode_batch
from broker.settings.config import LONG_MAX
from tests.broker.log.compaction.cleaner_world import DAY_MS, CleanerWorld
from tests.poison import BOMB, POISON, RECORDS, resealed

UNDECODABLE = {name: batch for name, batch in POISON.items() if batch != BOMB}  # the cleaner's limit is 128 MiB


def put_poison(world, batch):
    """Append a batch as it came before Produce checked records; return its bytes in the log."""
    copy = memoryview(bytearray(batch))
    log_appender.append(world.log, copy, read_header(copy), world.worker, world.now)
    world.manager.appended(world.log)
    return bytes(copy)


def stored(world):
    """Return the bytes of every batch in the log, by base offset."""
    return {
        header.base_offset: segment.log.read(position, header.size)
        for segment in world.log.segments.all
        for position, header in segment.batches()
    }


@pytest.mark.parametrize("name", UNDECODABLE)
def test_it_is_kept_byte_for_byte_and_the_records_around_it_are_compacted(world, name):
    world.put(("a", "1"), ("b", "1"))
    poison = put_poison(world, UNDECODABLE[name])
    world.put(("a", "2"))
    world.roll()
    world.clean()
    batches = stored(world)
    assert batches[2] == poison
    assert [record.key for record in decode_records(batches[0])] == [b"b"]
    assert world.log.uncleanable is None and world.log.cleaned_offset == world.log.log_end_offset


def test_a_key_in_it_removes_no_record_of_another_producer(world):
    """Its offsets go beyond its last one, so they would look newer than the records that follow it."""
    deltas = [BatchRecord(delta, 0, b"a", b"crafted") for delta in (0, 500)]
    batch = resealed(encode_batch(deltas, base_timestamp_ms=0), last_offset_delta=1)
    world.put(("a", "1"))
    put_poison(world, batch)
    world.put(("b", "2"))
    world.roll()
    world.clean()
    assert [record.value for record in decode_records(stored(world)[0])] == [b"1"]


def test_it_is_counted_and_named_once_however_often_the_log_is_cleaned(world):
    put_poison(world, POISON["rubbish"])
    for value in "123":
        world.put(("a", value))
        world.roll()
        world.clean()
    (line,) = world.lines
    named = "the batch of offsets 0 to 19: "
    assert line.startswith(f"partition flights-0: the cleaner keeps what it cannot decode, {named}")
    assert world.manager.cleaner.poison_batches == 1


def test_a_log_full_of_them_is_told_in_a_few_lines(world):
    for _ in range(POISON_NAMED_MAX + 3):
        put_poison(world, POISON["rubbish"])
    world.roll()
    world.clean()
    assert len(world.lines) == POISON_NAMED_MAX + 1 and "keeps 3 more batches" in world.lines[-1]
    assert world.manager.cleaner.poison_batches == POISON_NAMED_MAX + 3


def test_the_log_can_be_opened_again_after_it(world):
    poison = put_poison(world, POISON["rubbish"])
    world.put(("a", "1"))
    world.roll()
    world.clean()
    reopened = world.reopened()
    assert reopened.log.offline is None and stored(reopened)[0] == poison


def test_a_delete_retention_without_end_leaves_tombstones_where_they_are():
    """wall time and retention would add up to more than 64 bits."""
    world = CleanerWorld(delete_retention_ms=LONG_MAX)
    world.put(("a", "1"))
    world.put(("a", None))
    world.roll()
    world.clean()
    assert world.log.uncleanable is None and world.records() == {1: (b"a", None)}


def test_a_tombstone_with_the_lowest_time_of_all_does_not_stop_the_cleaner(world):
    """Its time, counted from the delete horizon, would have more than 64 bits."""
    world.put(("a", None), timestamp_ms=-LONG_MAX)
    world.roll()
    world.clean(DAY_MS)
    assert world.log.uncleanable is None and world.records() == {0: (b"a", None)}


LAYOUTS = {
    "of one size": [BatchRecord(n, n, b"key", b"value") for n in range(RECORDS)],
    "of many sizes": [BatchRecord(n, -n, b"k" * n, b"v" * (n % 5)) for n in range(RECORDS)],
    "with headers, tombstones and without keys": [
        BatchRecord(2 * n, n, b"key" if n % 3 else None, b"v" if n % 4 else None, (("h", b"x"),) * (n % 2))
        for n in range(RECORDS)
    ],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=100)
@given(
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3),
    codec=st.sampled_from([Codec.NONE, Codec.SNAPPY]),
)
def test_the_cleaner_rejects_exactly_what_a_reader_rejects(layout, changes, codec):
    """Otherwise the cleaner would change a batch that readers skip, or keep one that they read."""
    batch = encode_batch(LAYOUTS[layout], base_timestamp_ms=0, codec=codec)
    for position, byte in changes:
        batch[HEADER_BYTES + position % (len(batch) - HEADER_BYTES)] = byte
    changed = resealed(batch)
    assert _has_keys(changed) == _decodes(changed)


def _has_keys(batch):
    header = read_header(batch)
    try:
        keys_of(body_of(batch, 0, header), header)
    except CorruptBatch:
        return False
    return True


def _decodes(batch):
    try:
        decode_records(batch)
    except CorruptBatch:
        return False
    return True
