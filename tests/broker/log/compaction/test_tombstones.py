"""Tombstones stay for delete.retention.ms, and a reader gets past batches that the cleaner emptied (KIP-534)."""

from broker.log import log_reader
from broker.record.batch import read_header, walk
from broker.record.records import decode_records
from broker.wire.id_entries import read_entries
from tests.broker.log.compaction.cleaner_world import BACKOFF_MS, DAY_MS


def test_a_tombstone_stays_for_the_delete_retention_after_it_was_cleaned(world):
    """The retention begins with the first cleaning, not the write, so that slow readers see the tombstone (KIP-534)."""
    world.put(("a", "1"), ("b", "1"))
    world.put(("a", None))
    world.roll()
    world.ms += 10 * DAY_MS
    world.clean()
    assert world.records() == {1: (b"b", b"1"), 2: (b"a", None)}
    (tombstone,) = [header for header in world.batches() if header.base_offset == 2]
    assert tombstone.delete_horizon_ms == world.now.wall_ms + DAY_MS
    record = decode_records(world.log.segments.all[0].log.read(world.log.segments.all[0].find(2)[0], tombstone.size))[0]
    assert record.timestamp_ms == tombstone.max_timestamp, "its time stays"
    world.put(("c", "1"))
    world.roll()
    world.clean(DAY_MS - BACKOFF_MS - 1)
    assert (b"a", None) in world.records().values()
    world.put(("c", "2"))
    world.roll()
    world.clean(BACKOFF_MS + 1)
    assert world.records() == {1: (b"b", b"1"), 4: (b"c", b"2")}


def test_what_is_written_after_the_delete_stays(world):
    world.put(("a", "1"))
    world.put(("a", None))
    world.put(("a", "2"))
    world.roll()
    world.clean()
    assert world.records() == {2: (b"a", b"2")}


def test_a_reader_is_not_given_only_emptied_batches_while_there_are_records(world):
    """librdkafka takes such an answer for a batch that was cut ("might be too large to fetch")."""
    for _ in range(4):
        world.put(("a", "x" * 1100))
        world.roll()
    world.clean()
    assert [header.record_count for header in world.batches()] == [0, 0, 0, 1]
    for offset in range(4):
        region = log_reader.read(world.log, offset, 1, True, committed=bool(offset % 2)).records
        assert decode_records(region.file.read(region.position, region.length))[0].offset == 3


def test_where_nothing_but_an_emptied_batch_is_left_it_says_how_far_the_offsets_went(world):
    world.put(("a", None))
    world.roll()
    world.clean()
    world.log.cleaned_offset = 0
    world.clean(2 * DAY_MS)
    assert world.records() == {}
    region = log_reader.read(world.log, 0, 1, True).records
    assert read_header(region.file.read(region.position, region.length)).last_offset == 0


def test_behind_an_emptied_batch_is_what_the_reader_may_see(world):
    """A read_uncommitted reader gets the records of an open transaction. A read_committed reader does not, and a fetch
    does not search through them for it."""
    world.put(("a", None))
    world.roll()
    world.clean()
    world.log.cleaned_offset = 0
    world.clean(2 * DAY_MS)
    for sequence in range(1_000):
        world.put(("b", "x"), producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)
    assert world.log.last_stable_offset == 1
    for committed, first in ((False, 1), (True, 0)):
        before = sum(world.storage.bytes_read.values())
        region = log_reader.read(world.log, 0, 100, True, committed=committed).records
        assert read_header(region.file.read(region.position, region.length)).base_offset == first
        assert sum(world.storage.bytes_read.values()) - before < 40_000


def test_who_asks_for_ids_gets_those_of_what_is_left(world):
    for number in range(20):
        world.put((str(number % 3), "x" * 50), (str(number), "y"))
    ids = world.ids()
    world.roll()
    world.clean()
    for offset in range(40):
        read = log_reader.read(world.log, offset, 400, True, with_ids=True)
        data = read.records.file.read(read.records.position, read.records.length)
        entries = read.ids.entries.file.read(read.ids.entries.position, read.ids.entries.length)
        ids_by_offset = {}
        for entry in read_entries(entries, read.ids.base_offset):
            ids_by_offset |= {entry.offset + n: entry.first_id + n for n in range(entry.length)}
        for position, _ in walk(data):
            for record in decode_records(data, position):
                assert ids_by_offset[record.offset] == ids[record.offset]
