"""Compaction keeps the last record of each key, with its offset and its id
(https://kafka.apache.org/documentation/#compaction, KIP-58)."""

import pytest

from broker.log import log_reader
from broker.log.compaction.cleaner_keys import ENTRY_BYTES, KeyOffsets
from broker.record.batch import verify
from broker.record.compression import Codec
from broker.record.keyed import Keys
from broker.record.records import decode_records
from broker.settings.config import BrokerConfig
from tests.broker.log.compaction.cleaner_world import DAY_MS, CleanerWorld


def test_the_last_record_of_each_key_stays_where_it_was(world):
    world.put(("a", "1"), ("b", "1"), ("a", "2"))
    world.put(("a", "3"), ("c", "1"))
    ids = world.ids()
    world.roll()
    world.clean()
    assert world.records() == {1: (b"b", b"1"), 3: (b"a", b"3"), 4: (b"c", b"1")}
    assert (world.log.log_start_offset, world.log.log_end_offset) == (0, 5)
    assert world.ids() == ids, "both batches have records left"


def test_what_is_not_closed_is_not_cleaned(world):
    world.put(("a", "1"))
    world.put(("a", "2"))
    world.round()
    assert world.clean() == 0 and len(world.records()) == 2


def test_a_batch_of_which_nothing_is_left_goes_with_its_ids(world):
    first = world.put(("a", "1"))
    world.put(("a", "2"))
    world.roll()
    before = world.ids()
    world.clean()
    assert [header.base_offset for header in world.batches()] == [1]
    assert world.ids() == {1: before[1]}
    assert log_reader.offset_of_id(world.log, first.runs[0][0]) == 1, "the first offset whose id is not below it"
    assert log_reader.ids_of(world.log, 0, 2) == ((before[1], 1),)


def test_the_last_batch_of_a_segment_stays_as_a_header(world):
    """The next segment then follows without a gap (Kafka keeps the last batch of the cleaned range)."""
    world.put(("a", "1"))
    world.put(("b", None))
    world.roll()
    world.put(("a", "2"))
    world.put(("b", None))
    world.roll()
    world.clean()
    world.log.config = world.topic
    world.clean(2 * DAY_MS)
    assert world.latest() == {b"a": b"2"}
    assert log_reader.read(world.log, 0, 1000, True).records


def test_records_without_a_key_go(world):
    """Produce refuses such records, but a topic that was not always compacted may have some."""
    world.put((None, "x"), ("a", "1"))
    world.roll()
    world.clean()
    assert world.records() == {1: (b"a", b"1")}


def test_neighbours_that_fit_become_one_segment(world):
    for number in range(6):
        world.put(("a", "x" * 500), (str(number), "y"))
        world.roll()
    before = world.latest()
    world.clean()
    assert world.bases() == [0, 12], "by what is left of them, not by what they were"
    assert len(world.batches()) == 6 and world.latest() == before


def test_an_emptied_batch_has_no_time_and_its_segment_is_as_old_as_it_was(world):
    """Kafka's dump tool checks the time index against it. With retention on too, the segment's age is its file's."""
    world.storage.wall_ms = 77
    world.put(("a", "x" * 1100))
    world.roll()
    world.storage.wall_ms = 99
    world.put(("a", "y" * 1100))
    world.roll()
    world.clean()
    emptied = world.log.segments.all[0]
    assert (len(emptied.times), emptied.max_timestamp_ms, emptied.newest_ms) == (0, -1, 77)
    again = world.reopened().log.segments.all[0]
    assert (len(again.times), again.newest_ms) == (0, 77)


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_keeps_its_codec_its_times_and_its_header(world, codec):
    world.put(("a", "x" * 100), ("b", "y" * 100), ("a", "z" * 100), codec=codec, timestamp_ms=77)
    world.roll()
    world.clean()
    (header,) = world.batches()
    assert (header.compression, header.base_offset, header.last_offset_delta) == (codec, 0, 2)
    assert (header.record_count, header.max_timestamp) == (2, 77)
    data = world.log.segments.all[0].log.read(0, header.size)
    verify(data, header)
    assert [(r.offset, r.timestamp_ms, r.key) for r in decode_records(data)] == [(1, 77, b"b"), (2, 77, b"a")]


def test_a_batch_of_which_all_stays_is_not_touched(world):
    world.put(("a", "1"), ("b", "1"))
    world.put(("c", "1"), ("c", "2"))
    world.roll()
    size = world.batches()[0].size
    before = world.log.segments.all[0].log.read(0, size)
    world.clean()
    assert world.log.segments.all[0].log.read(0, size) == before


def test_times_and_offsets_are_found_in_what_is_left():
    world = CleanerWorld(index_interval_bytes=0, segment_bytes=1 << 20)
    for number in range(50):
        world.put((str(number % 7), "x" * 50), timestamp_ms=1000 + number)
    world.roll()
    world.clean()
    records = world.records()
    for number in range(50):
        expected = min(offset for offset in records if offset >= number)
        assert log_reader.offset_of_time(world.log, 1000 + number) == (expected, 1000 + expected)
        region = log_reader.read(world.log, number, 10, True).records
        assert decode_records(region.file.read(region.position, region.length))[0].offset == expected


def test_more_keys_than_memory_holds_take_several_passes():
    config = BrokerConfig(log_cleaner_dedupe_buffer_size=1 << 16)
    world = CleanerWorld(config=config, segment_bytes=1 << 20)
    keys = (1 << 16) // ENTRY_BYTES
    for round in range(2):
        for start in range(0, 2 * keys, 50):
            world.put(*((f"key {n}", str(round)) for n in range(start, start + 50)))
    world.roll()
    slices = world.clean()
    assert slices > 4 and world.log.cleaned_offset == world.log.segments.active.base_offset
    assert len(world.records()) == len(world.latest()) == len(range(0, 2 * keys, 50)) * 50
    assert set(world.latest().values()) == {b"1"}


def test_the_keys_of_a_pass_are_bounded_and_a_long_key_is_not_taken_for_its_hash():
    keys = KeyOffsets(2 * ENTRY_BYTES)
    assert keys.put(1, batch_of(b"a" * 100)) and keys.put(2, batch_of(b"b")) and keys.put(3, batch_of(b"b"))
    assert not keys.put(4, batch_of(b"b", b"c"))
    assert keys.end_offset == 5, "what came before the key without a place is noted"
    assert [keys.last(key) for key in (b"a" * 100, b"b", b"c")] == [1, 4, -1]
    (digest,) = (name for name in keys._last if len(name) > 1)
    assert keys.last(digest) == -1


def batch_of(*keys):
    return Keys(list(keys), range(len(keys)), [], [])
