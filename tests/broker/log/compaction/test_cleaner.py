"""Compaction: the records that stay, and their offsets and ids (https://kafka.apache.org/documentation/#compaction,
KIP-58, KIP-354, KIP-534)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.log.compaction.cleaner import CleanLog
from broker.log.compaction.cleaner_keys import ENTRY_BYTES, KeyOffsets
from broker.log.compaction.cleaner_plan import plan
from broker.log.io_jobs import WriteCheckpoint
from broker.log.log_walk import SLICE
from broker.record.batch import read_header, verify, walk
from broker.record.compression import Codec
from broker.record.control import Marker
from broker.record.records import decode_records
from broker.settings.config import BrokerConfig
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.id_entries import read_entries
from tests.broker.log.compaction.cleaner_world import BACKOFF_MS, CleanerWorld
from tests.broker.log.conftest import START_MS

DAY_MS = 86_400_000


@pytest.fixture
def world():
    return CleanerWorld()


# --- keys --------------------------------------------------------------------------------------------------------


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
    assert world.log.offset_of_id(first.runs[0][0]) == 1, "the first offset whose id is not below it"
    assert world.log.ids_of(0, 2) == ((before[1], 1),)


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
    assert world.log.read(0, 1000, True).records


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
    emptied = world.log.segments[0]
    assert (len(emptied.times), emptied.max_timestamp_ms, emptied.newest_ms) == (0, -1, 77)
    again = world.reopened().log.segments[0]
    assert (len(again.times), again.newest_ms) == (0, 77)


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_keeps_its_codec_its_times_and_its_header(world, codec):
    world.put(("a", "x" * 100), ("b", "y" * 100), ("a", "z" * 100), codec=codec, timestamp_ms=77)
    world.roll()
    world.clean()
    (header,) = world.batches()
    assert (header.compression, header.base_offset, header.last_offset_delta) == (codec, 0, 2)
    assert (header.record_count, header.max_timestamp) == (2, 77)
    data = world.log.segments[0].log.read(0, header.size)
    verify(data, header)
    assert [(r.offset, r.timestamp_ms, r.key) for r in decode_records(data)] == [(1, 77, b"b"), (2, 77, b"a")]


def test_a_batch_of_which_all_stays_is_not_touched(world):
    world.put(("a", "1"), ("b", "1"))
    world.put(("c", "1"), ("c", "2"))
    world.roll()
    size = world.batches()[0].size
    before = world.log.segments[0].log.read(0, size)
    world.clean()
    assert world.log.segments[0].log.read(0, size) == before


def test_times_and_offsets_are_found_in_what_is_left():
    world = CleanerWorld(index_interval_bytes=0, segment_bytes=1 << 20)
    for number in range(50):
        world.put((str(number % 7), "x" * 50), timestamp_ms=1000 + number)
    world.roll()
    world.clean()
    left = world.records()
    for number in range(50):
        expected = min(offset for offset in left if offset >= number)
        assert world.log.offset_of_time(1000 + number) == (expected, 1000 + expected)
        region = world.log.read(number, 10, True).records
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
    assert slices > 4 and world.log.cleaned_offset == world.log.segments[-1].base_offset
    assert len(world.records()) == len(world.latest()) == len(range(0, 2 * keys, 50)) * 50
    assert set(world.latest().values()) == {b"1"}


def test_the_keys_of_a_pass_are_bounded_and_a_long_key_is_not_taken_for_its_hash():
    keys = KeyOffsets(2 * ENTRY_BYTES)
    assert keys.put(b"a" * 100, 1) and keys.put(b"b", 2) and keys.put(b"b", 3)
    assert not keys.put(b"c", 4)
    assert (keys.last(b"a" * 100), keys.last(b"b"), keys.last(b"c")) == (1, 3, -1)
    (digest,) = (name for name in keys._offsets if len(name) > 1)
    assert keys.last(digest) == -1


# --- tombstones ----------------------------------------------------------------------------------------------------


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
    record = decode_records(world.log.segments[0].log.read(world.log.segments[0].find(2)[0], tombstone.size))[0]
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
        region = world.log.read(offset, 1, True, committed=bool(offset % 2)).records
        assert decode_records(region.file.read(region.position, region.length))[0].offset == 3


def test_where_nothing_but_an_emptied_batch_is_left_it_says_how_far_the_offsets_went(world):
    world.put(("a", None))
    world.roll()
    world.clean()
    world.log.cleaned_offset = 0
    world.clean(2 * DAY_MS)
    assert world.records() == {}
    region = world.log.read(0, 1, True).records
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
        region = world.log.read(0, 100, True, committed=committed).records
        assert read_header(region.file.read(region.position, region.length)).base_offset == first
        assert sum(world.storage.bytes_read.values()) - before < 40_000


def test_who_asks_for_ids_gets_those_of_what_is_left(world):
    for number in range(20):
        world.put((str(number % 3), "x" * 50), (str(number), "y"))
    ids = world.ids()
    world.roll()
    world.clean()
    for offset in range(40):
        read = world.log.read(offset, 400, True, with_ids=True)
        data = read.records.file.read(read.records.position, read.records.length)
        entries = read.ids.entries.file.read(read.ids.entries.position, read.ids.entries.length)
        found = {}
        for entry in read_entries(entries, read.ids.base_offset):
            found |= {entry.offset + n: entry.first_id + n for n in range(entry.length)}
        for position, _ in walk(data):
            for record in decode_records(data, position):
                assert found[record.offset] == ids[record.offset]


# --- limits and schedule -------------------------------------------------------------------------------------------


def test_only_what_the_checkpoint_on_the_disk_covers_is_cleaned(world):
    """Past the checkpoint recovery needs every offset in its place."""
    world.put(("a", "1"))
    world.put(("a", "2"))
    world.log.roll()
    assert plan(world.log, world.now.wall_ms) is None
    world.round()
    assert plan(world.log, world.now.wall_ms).end == 2


def test_what_only_waits_for_the_checkpoint_has_it_written_and_is_cleaned_then(world):
    """max.compaction.lag.ms may be less than log.flush.offset.checkpoint.interval.ms."""
    world.put(("a", "1"))
    world.put(("a", "2"))
    world.log.roll()
    assert world.clean() > 0 and world.records() == {1: (b"a", b"2")}


def test_a_log_that_closes_segments_all_the_time_has_the_checkpoint_written_once_in_the_cleaners_rest(world):
    checkpoints = 0
    world.ms += BACKOFF_MS
    for number in range(20):
        world.put(("a", str(number)))
        world.log.roll()
        world.manager.tick(world.now)
        syncs = world.manager.take_syncs()
        checkpoints += sum(isinstance(sync, WriteCheckpoint) for sync in syncs)
        world.run(*syncs)
    assert checkpoints == 1


def test_what_is_not_due_has_no_checkpoint_written():
    world = CleanerWorld(min_cleanable_dirty_ratio=1)
    world.put(("a", "1"))
    world.log.roll()
    world.clean()
    assert world.log.checkpointed.offset == 0


def test_records_younger_than_the_lag_stay():
    world = CleanerWorld(min_compaction_lag_ms=BACKOFF_MS)
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    world.put(("a", "3"), ("a", "4"), timestamp_ms=2**60)
    world.roll()
    assert world.clean(BACKOFF_MS - 1) == 0
    world.clean(BACKOFF_MS)
    assert world.records() == {1: (b"a", b"2"), 2: (b"a", b"3"), 3: (b"a", b"4")}


def test_a_log_is_cleaned_when_enough_of_it_is_dirty():
    world = CleanerWorld(min_cleanable_dirty_ratio=0.5, segment_bytes=1 << 20)
    world.put(*((str(n), "x" * 10) for n in range(100)))
    world.roll()
    world.clean()
    world.put(("0", "new"))
    world.roll()
    assert world.clean() == 0
    world.put(*((str(n), "y" * 10) for n in range(120)))
    world.roll()
    assert world.clean() > 0 and len(world.records()) == 120


def test_a_record_that_is_overdue_is_cleaned_whatever_the_ratio():
    """The maximum lag is from KIP-354."""
    world = CleanerWorld(min_cleanable_dirty_ratio=1, max_compaction_lag_ms=DAY_MS)
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    assert world.clean() == 0
    assert world.clean(DAY_MS) > 0 and len(world.records()) == 1


def test_a_compacted_topic_closes_its_segments_in_time_for_it():
    """Kafka does the same; otherwise the last records of the log would never be compacted."""
    world = CleanerWorld(max_compaction_lag_ms=1000)
    world.put(("a", "1"), timestamp_ms=5000)
    world.put(("a", "2"), timestamp_ms=6000)
    assert len(world.bases()) == 1
    world.put(("a", "3"), timestamp_ms=6001)
    assert len(world.bases()) == 2


def test_the_dirtiest_log_is_first():
    world = CleanerWorld()
    other = CleanerWorld.open(world, 1)
    world.put(("a", "1"), ("b", "1"))
    world.roll()
    world.clean()
    world.put(("a", "2"))
    clean, world.log = world.log, other
    world.put(("a", "1"), ("a", "2"))
    world.log.roll()
    world.log = clean
    world.roll()
    world.ms += BACKOFF_MS
    world.manager.tick(world.now)
    (work,) = world.manager.take_syncs()
    assert work.log is other


def test_the_cleaner_can_be_off():
    world = CleanerWorld(config=BrokerConfig(log_cleaner_enable=False))
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    assert world.clean() == 0


def test_how_far_a_log_is_cleaned_outlives_the_process(world):
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    world.clean()
    world.round()
    again = world.reopened()
    assert again.log.cleaned_offset == 2 and again.clean() == 0


def test_a_long_log_is_cleaned_in_slices(monkeypatch):
    """A thread that is asked to end, or a stop of the broker, waits for one slice at most."""
    monkeypatch.setattr("broker.log.compaction.cleaner.SLICE_BYTES", 1000)
    world = CleanerWorld()
    for number in range(20):
        world.put((str(number % 3), "x" * 300))
    world.roll()
    assert world.clean() > 10 and len(world.records()) == 3


# --- concurrent work -----------------------------------------------------------------------------------------------


def test_a_reader_goes_on_in_what_it_has(world):
    world.put(("a", "1"))
    world.put(("a", "2"))
    region = world.log.read(0, 1 << 20, True).records
    before = region.file.read(region.position, region.length)
    world.roll()
    world.clean()
    assert region.file.read(region.position, region.length) == before


def test_what_is_appended_meanwhile_is_there(world):
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    world.ms += BACKOFF_MS
    world.manager.tick(world.now)
    (work,) = world.manager.take_syncs()
    world.put(("a", "3"))
    world.run(work)
    world.clean(0)
    assert world.records() == {1: (b"a", b"2"), 2: (b"a", b"3")}


def begun(world):
    """Begin a pass and return it when its first segment is written but not yet in its place."""
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    world.ms += BACKOFF_MS
    world.manager.tick(world.now)
    (work,) = world.manager.take_syncs()
    world.run(work)
    assert work.cleaned is not None and world.files(".cleaned")
    return work


def test_a_topic_deleted_meanwhile_is_not_brought_back(world):
    begun(world)
    world.manager.delete({"flights": [0]})
    world.log = world.open()
    world.put(("new", "1"))
    world.clean(0)
    assert world.records() == {0: (b"new", b"1")} and not world.files(".cleaned")


def test_segments_that_retention_took_meanwhile_are_not_brought_back():
    world = CleanerWorld(cleanup_policy="compact,delete")
    begun(world)
    world.manager.delete_records(world.log, 2, world.now)
    world.clean(0)
    assert world.bases() == [2] and not world.files(".cleaned")


def test_a_log_of_which_records_were_deleted_is_cleaned_from_its_start():
    world = CleanerWorld(cleanup_policy="compact,delete")
    world.put(("a", "1"), ("b", "1"))
    world.roll()
    world.put(("a", "2"), ("a", "3"))
    world.roll()
    world.manager.delete_records(world.log, 2, world.now)
    world.clean()
    assert world.records() == {3: (b"a", b"3")}


def test_a_corrupt_batch_is_named_and_the_log_left_alone(world):
    world.put(("a", "1"))
    world.put(("a", "2"))
    world.roll()
    content = world.storage.files["flights-0/00000000000000000000.log"]
    content.data[-1] ^= 0xFF
    before = bytes(content.data)
    world.clean()
    assert "00000000000000000000.log at byte" in world.lines[-1] and "CRC" in world.lines[-1]
    assert bytes(content.data) == before and not world.files(".cleaned") and world.log.offline is None
    said = len(world.lines)
    assert world.clean() == 0 and len(world.lines) == said


def test_a_full_disk_is_said_once_and_tried_again(world):
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    world.storage.free_bytes = 0
    world.clean()
    world.clean()
    assert [line for line in world.lines if "cleaned" in line and "No space left" in line] == world.lines[-1:]
    assert not world.files(".cleaned") and len(world.records()) == 2
    world.storage.free_bytes = None
    world.clean()
    assert len(world.records()) == 1


# --- producers and transactions ------------------------------------------------------------------------------------


def test_the_last_batch_of_a_producer_stays_as_a_header(world):
    """Otherwise the producer's next sequence would be unknown (KIP-98)."""
    world.put(("a", "1"), producer_id=7, producer_epoch=0, base_sequence=0)
    world.put(("a", "2"), producer_id=7, producer_epoch=0, base_sequence=1)
    world.put(("a", "3"))
    world.roll()
    world.clean()
    assert [(header.base_offset, header.record_count) for header in world.batches()] == [(1, 0), (2, 1)]
    for name in world.files(".snapshot"):
        world.storage.remove(f"flights-0/{name}")
    world = world.reopened()
    assert world.put(("a", "2"), producer_id=7, producer_epoch=0, base_sequence=1).duplicate
    with pytest.raises(ApiError) as refused:
        world.put(("a", "9"), producer_id=7, producer_epoch=0, base_sequence=9)
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def transaction(world, producer_id, commit, *records, sequence=0):
    fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
    world.put(*records, **fields)
    if commit is not None:
        world.log.append_marker(producer_id, 0, Marker(commit, 0), world.worker, world.now)


def test_records_of_aborted_transactions_go_and_hide_nothing(world):
    world.put(("a", "1"), ("b", "1"))
    transaction(world, 7, False, ("a", "2"), ("c", "2"))
    transaction(world, 8, True, ("b", "3"))
    world.roll()
    world.clean()
    assert world.records() == {0: (b"a", b"1"), 5: (b"b", b"3")}


def test_an_open_transaction_and_what_follows_it_is_not_cleaned(world):
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    transaction(world, 7, None, ("a", "3"), ("a", "4"))
    world.roll()
    world.put(("a", "5"), ("a", "6"))
    world.roll()
    world.clean()
    assert sorted(world.records()) == [1, 2, 3, 4, 5]


def test_a_record_stays_until_the_end_of_the_transaction_that_overtakes_it_is_on_the_disk(world):
    """A power cut that loses the marker has the transaction aborted, and then the older record is the last one."""
    world.put(("a", "old"))
    world.roll()
    transaction(world, 7, None, ("a", "new"))
    world.roll()
    world.log.append_marker(7, 0, Marker(True, 0), world.worker, world.now)
    asked = world.clean_before_the_checkpoint()
    cut = world.reopened(world.storage.power_cut(lambda n: 0))
    assert cut.log.producers.has_open(7), "the marker is gone"
    cut.log.append_marker(7, 0, Marker(False, 0), cut.worker, cut.now)
    cut.roll()
    cut.clean()
    assert cut.latest() == {b"a": b"old"}
    world.run(*asked)
    world.clean()
    assert world.records() == {1: (b"a", b"new")}, "by now the marker is on the disk"


def test_a_marker_goes_when_its_records_are_gone_and_readers_had_their_time(world):
    transaction(world, 7, False, ("a", "1"))
    transaction(world, 8, True, ("a", "2"))
    transaction(world, 7, True, ("b", "1"), sequence=1)
    transaction(world, 8, True, ("b", "2"), sequence=1)
    world.put(("b", "3"), ("a", "3"))
    world.roll()

    def markers():
        return [header.base_offset for header in world.batches() if header.is_control]

    assert markers() == [1, 3, 5, 7]
    world.clean()
    assert markers() == [1, 3, 5, 7], "a batch of each was met"
    for ms in (BACKOFF_MS, 2 * DAY_MS):
        world.put(("b", "4"), ("a", "4"))
        world.roll()
        world.clean(ms)
    assert markers() == [5, 7], "batches of their last transactions stay as headers, for the sequence"


def test_the_index_of_aborted_transactions_speaks_of_those_that_are_left(world):
    transaction(world, 7, False, ("a", "1"))
    transaction(world, 9, False, ("a", "2"))
    transaction(world, 7, True, ("b", "1"), sequence=1)
    world.roll()
    assert len(world.log.aborted_transactions(0, 10)) == 2
    world.clean()
    assert len(world.log.aborted_transactions(0, 10)) == 2, "for who is on his way through them"
    world.put(("c", "1"))
    world.roll()
    world.clean()
    left = world.log.aborted_transactions(0, 10)
    assert [(each.producer_id, each.first_offset) for each in left] == [(9, 2)], "its last batch is there as a header"
    again = world.reopened()
    assert again.log.aborted_transactions(0, 10) == left and not again.lines


# --- against a model -----------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", "c", "d", "e" * 40])
BATCH = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.text("xyz", max_size=3))), min_size=1, max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), BATCH, st.sampled_from(list(Codec))),
        st.tuples(st.sampled_from(["roll", "clean", "later", "reopen"])),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(STEPS, st.sampled_from([1 << 10, 1 << 20]), st.sampled_from([0, 100, 4096]))
def test_a_reader_of_all_is_left_with_what_was_written_last(steps, segment_bytes, interval_bytes):
    world = CleanerWorld(segment_bytes=segment_bytes, index_interval_bytes=interval_bytes)
    written, model, ids = {}, {}, {}
    for step, *arguments in steps:
        if step == "put":
            batch, codec = arguments
            done = world.put(*batch, codec=codec)
            pairs = [(key.encode(), None if value is None else value.encode()) for key, value in batch]
            written |= {done.base_offset + n: pair for n, pair in enumerate(pairs)}
            model |= dict(pairs)
            ids |= {done.base_offset + n: id for n, id in enumerate(_each(done.runs))}
        elif step == "reopen":
            world.round()
            later = world.ms
            world = world.reopened(segment_bytes=segment_bytes, index_interval_bytes=interval_bytes)
            world.ms = later
        elif step == "later":
            world.ms += 2 * DAY_MS
        else:
            {"roll": world.roll, "clean": world.clean}[step]()
    found = world.records()
    assert world.latest() == {key: value for key, value in model.items() if value is not None}
    assert all(written[offset] == pair for offset, pair in found.items())
    assert world.log.log_end_offset == len(written) and not world.lines
    left = world.ids()
    assert left.items() <= ids.items() and found.keys() <= left.keys()
    if world.log.cleaned_offset == len(written):
        assert len({key for key, _ in found.values()}) == len(found)


def _each(runs):
    return [first + n for first, count in runs for n in range(count)]


# --- many logs, and the cleaner's rate -------------------------------------------------------------------------------


def test_the_dirtiest_of_many_logs_is_cleaned_first_and_all_are_in_the_end():
    world = CleanerWorld(min_cleanable_dirty_ratio=0.1)
    world.put(("a", "x" * 500))
    world.roll()
    world.clean()
    assert world.manager.cleaner.max_dirty_ratio == 0, "all is clean"
    logs = [world.log]
    for partition in range(1, SLICE + 3):
        world.manager.open("flights", partition, world.topic)
        logs.append(world.manager.get("flights", partition))
    for world.log in logs:
        world.put(("a", "2"))
        world.roll()
    world.ms += BACKOFF_MS
    order = []
    while len(order) < len(logs):
        world.manager.tick(world.now)
        for sync in world.manager.take_syncs():
            if isinstance(sync, CleanLog) and sync.log not in order:
                order.append(sync.log)
            world.run(sync)
        world.ms += 10
    assert order[-1] is logs[0], "a part of it is clean"
    assert world.manager.cleaner.max_dirty_ratio == 1


def test_the_cleaner_reads_and_writes_no_more_in_a_second_than_it_may(monkeypatch):
    """The limit is log.cleaner.io.max.bytes.per.second."""
    monkeypatch.setattr("broker.log.compaction.cleaner.SLICE_BYTES", 1000)
    world = CleanerWorld(config=BrokerConfig(log_cleaner_io_max_bytes_per_second=1000), segment_bytes=5000)
    for n in range(8):
        world.put((str(n), "x" * 400))
    world.roll()
    began_ms = world.ms = world.ms + BACKOFF_MS
    while not world.manager.cleaner.passes:
        world.manager.tick(world.now)
        world.run(*world.manager.take_syncs())
        world.ms = max(world.manager.next_deadline_ms(world.ms), world.ms)
    figures = world.manager.cleaner
    took_ms = figures.last_ended_ms - START_MS - began_ms
    assert figures.bytes_read + figures.bytes_written > 8000
    assert took_ms > 6000 and figures.last_pass_ms == took_ms


def test_what_the_cleaner_has_done_is_counted(world):
    world.put(("a", "1"), ("b", "1"))
    world.put(("a", "2"))
    world.roll()
    assert world.manager.cleaner.passes == 0
    world.clean()
    figures = world.manager.cleaner
    assert (figures.passes, figures.records_read, figures.records_written) == (1, 3, 2)
    assert 0 < figures.bytes_written < figures.bytes_read
    assert figures.last_ended_ms == START_MS + world.ms
