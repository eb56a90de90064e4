"""A follower takes its leader's batches as they are, and refuses an answer that cannot continue its log."""

from itertools import pairwise

import pytest

from broker.log import leader_epochs, log_appender, log_reader
from broker.log.copied_appender import CopyRefused, IdsBelowFloor, append_copied
from broker.log.storage.memory_storage import MemoryStorage
from broker.record.batch import BATCH_PREFIX, read_header, seal, walk
from broker.record.control import Marker
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import IdRegion
from broker.wire.id_entries import ENTRY_BYTES, pack_entry, seed_of
from tests.broker.log.compaction.cleaner_world import CleanerWorld
from tests.broker.log.conftest import NOW, START_MS, append, append_batches, mend, new_worker, reopen
from tests.broker.log.copying import (
    aborted_of,
    answer_of,
    bytes_of,
    committed_of,
    copy,
    follower_at,
    headers_of,
    ids_of,
    producers_of,
)


@pytest.fixture
def leader(log, worker):
    """Return a log in epoch 3 with five batches, of which the second to fourth were one write and share their ids."""
    log.start_leader_epoch(3)
    append(log, b"a", b"b", worker=worker)
    append_batches(log, [b"c"], [b"d", b"e"], [b"f"], worker=worker)
    append(log, b"g", b"h", worker=worker, timestamp_ms=START_MS + 5)
    return log


@pytest.fixture
def follower(leader):
    log = follower_at()
    log.follow(leader.leader_epoch)
    return log


def taken(follower, records, ids):
    return append_copied(follower, records, ids, NOW)


def refusal(follower, records, ids):
    """Return why an answer is refused, which leaves the follower as it was."""
    before = everything(follower)
    with pytest.raises(CopyRefused) as refused:
        taken(follower, records, ids)
    assert everything(follower) == before
    return str(refused.value)


def everything(log):
    segments = [(segment.base_offset, segment.next_offset) for segment in log.segments.all]
    ends = log.log_start_offset, log.log_end_offset, log.last_id, log.epochs
    return segments, ends, bytes_of(log), ids_of(log), producers_of(log), aborted_of(log)


def entries(base_offset, *id_runs):
    """Return the ids of an answer: entries (offset, number of offsets, first id)."""
    seed = seed_of(base_offset)
    packed = b"".join(pack_entry(seed, offset - base_offset, count, id) for offset, count, id in id_runs)
    return IdRegion(base_offset, packed)


# --- what is taken ---------------------------------------------------------------------------------------------------


def test_a_follower_has_the_leaders_bytes_and_ids(leader, follower):
    copy(leader, follower)
    assert bytes_of(follower) == bytes_of(leader) and ids_of(follower) == ids_of(leader)
    assert (follower.log_end_offset, follower.last_id) == (leader.log_end_offset, leader.last_id)
    assert follower.epochs == leader.epochs == [(3, 0)]


@pytest.mark.parametrize("size", range(1, 600, 37))
def test_answers_of_any_size_are_taken_up_to_their_last_whole_batch(leader, follower, size):
    copy(leader, follower, [size])
    assert bytes_of(follower) == bytes_of(leader) and ids_of(follower) == ids_of(leader)


def test_ids_of_an_entry_that_goes_beyond_the_records_on_both_sides_are_cut(leader, follower):
    """Rule I3: the ids are equal as runs, although the follower cuts its entries otherwise."""
    records, ids = answer_of(leader, 0)
    positions = [position for position, _ in walk(records)] + [len(records)]
    assert len(ids.entries) == 3 * ENTRY_BYTES, "three batches share an entry"
    for start, end in pairwise(positions):
        taken(follower, records[start:end], ids)
    assert ids_of(follower) == ids_of(leader)


def test_an_answer_is_written_at_once_and_in_segments_of_the_followers_own_size(worker):
    leader, _ = reopen(MemoryStorage(), config=TopicConfig(segment_bytes=1024))
    for n in range(40):
        append(leader, b"x" * 200, worker=worker, timestamp_ms=START_MS + n)
    answers = [answer_of(leader, segment.base_offset) for segment in leader.segments.all]
    follower = follower_at()
    for records, ids in answers:
        taken(follower, records, ids)
    assert len(answers) > 3 and len(follower.segments.all) == 1 and bytes_of(follower) == bytes_of(leader)
    smaller = follower_at(segment_bytes=1100)
    taken(smaller, *answer_of(follower, 0))
    assert all(800 < segment.size <= 1100 for segment in smaller.segments.all[:-1])
    assert bytes_of(smaller) == bytes_of(leader) and ids_of(smaller) == ids_of(leader)


def test_segments_roll_by_the_followers_own_age(worker):
    leader, _ = reopen(MemoryStorage())
    for n in range(10):
        append(leader, b"x", worker=worker, timestamp_ms=START_MS + n * 1_000)
    follower = follower_at(segment_ms=2_500)
    copy(leader, follower)
    assert [segment.base_offset for segment in follower.segments.all] == [0, 3, 6, 9]
    one_by_one = follower_at(segment_ms=2_500)
    copy(leader, one_by_one, [1])
    assert [segment.base_offset for segment in one_by_one.segments.all] == [0, 3, 6, 9]


def test_reads_of_a_followers_log_find_each_offset_id_and_time(leader, follower):
    copy(leader, follower)
    for offset in range(leader.log_end_offset):
        assert answer_of(follower, offset)[0] == answer_of(leader, offset)[0]
        (first, _), *_ = log_reader.ids_of(leader, offset, offset + 1)
        assert log_reader.offset_of_id(follower, first) == offset
    for time_ms in (0, START_MS, START_MS + 1, START_MS + 5, START_MS + 6):
        assert log_reader.offset_of_time(follower, time_ms) == log_reader.offset_of_time(leader, time_ms)


def test_the_gaps_of_a_compacted_log_are_copied(follower):
    world = CleanerWorld()
    for n in range(20):
        world.put((f"k{n % 3}" if n % 4 else f"own{n}", str(n)))
    world.put(("last", "1"))
    world.roll()
    world.put(("newest", "1"))
    world.clean()
    ends = [header.last_offset + 1 for header in headers_of(world.log)]
    assert any(header.base_offset > end for header, end in zip(headers_of(world.log)[1:], ends, strict=False))
    for sizes in ([1], [150], [1 << 20]):
        log = follower_at(segment_bytes=1024)
        copy(world.log, log, sizes)
        assert bytes_of(log) == bytes_of(world.log) and ids_of(log) == ids_of(world.log)


def test_an_epoch_begins_with_its_first_batch(leader, worker, follower):
    """A follower names the newest epoch that has begun in its log (rule T1)."""
    leader.start_leader_epoch(5)
    append(leader, b"i", worker=worker)
    leader.start_leader_epoch(9)
    follower.follow(9)
    assert follower.epochs == [(0, 0)] and follower.leader_epoch == 9
    with pytest.raises(ApiError) as refused:
        follower.check_leader_epoch(5)
    assert refused.value.code == ErrorCode.FENCED_LEADER_EPOCH
    copy(leader, follower)
    assert follower.epochs == [(3, 0), (5, 8)] and follower.leader_epoch == 9
    assert not follower.durability.epochs_stored


def test_an_epoch_whose_first_batches_were_compacted_begins_with_the_gap_that_they_left():
    """Otherwise an old leader that comes back would keep the batches that it alone has at the offsets of the gap."""
    world = CleanerWorld()
    world.put(("a", "1"))
    old_leader = follower_at()
    copy(world.log, old_leader)
    append(old_leader, b"nobody else has it", worker=world.worker, now=world.now)
    world.log.start_leader_epoch(2)
    for n in range(3):
        world.put(("b", str(n)))
    world.roll()
    world.put(("c", "1"))
    world.clean()
    assert [header.base_offset for header in headers_of(world.log)] == [0, 3, 4]
    for sizes in ([1], [1 << 20]):
        storage = MemoryStorage()
        new_leader = follower_at(storage=storage)
        copy(world.log, new_leader, sizes)
        reopened, _ = reopen(storage)
        for log in (new_leader, reopened):
            assert log.epochs == [(0, 0), (2, 1)]
            assert leader_epochs.divergence(log.epochs, 0, old_leader.log_end_offset, 0, log.log_end_offset) == (0, 1)


# --- producers and transactions --------------------------------------------------------------------------------------


def test_producers_and_transactions_follow_the_batches(leader, worker, follower):
    sent = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    append(leader, b"1", worker=worker, base_sequence=0, **sent)
    append(leader, b"2", worker=worker, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    log_appender.append_marker(leader, 7, 0, Marker(False, 4), worker, NOW)
    append(leader, b"3", worker=worker, base_sequence=1, **sent)
    log_appender.append_marker(leader, 8, 0, Marker(True, 4), worker, NOW)
    log_appender.append_marker(leader, 7, 1, Marker(False, 5), worker, NOW)
    append(leader, b"4", worker=worker, producer_id=9, producer_epoch=2, base_sequence=0)
    append(leader, b"5", worker=worker, base_sequence=0, **(sent | {"producer_epoch": 1}))
    for sizes in ([1], [250], [1 << 20]):
        log = follower_at()
        copy(leader, log, sizes)
        assert producers_of(log) == producers_of(leader)
        assert aborted_of(log) == aborted_of(leader) != []
        assert log.last_stable_offset == leader.last_stable_offset < log.log_end_offset
        assert committed_of(log) == committed_of(leader)
        assert list(log.producers.open_transactions().items()) == list(leader.producers.open_transactions().items())


def test_a_produce_repeated_at_the_new_leader_is_answered_its_first_ids(leader, worker, follower):
    """Rule I5."""
    sent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    first = append(leader, b"1", worker=worker, **sent)
    copy(leader, follower)
    follower.start_leader_epoch(4)
    again = append(follower, b"1", worker=new_worker(START_MS + 9, number=2), **sent)
    assert again.duplicate and (again.base_offset, again.runs) == (first.base_offset, tuple(map(tuple, first.runs)))
    new = append(follower, b"2", worker=new_worker(START_MS + 9, number=2), **(sent | {"base_sequence": 1}))
    assert new.runs[0][0] > leader.last_id


def test_an_ended_transaction_stays_unstable_until_its_marker_is_replicated(leader, worker, follower):
    append(leader, b"1", worker=worker, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log_appender.append_marker(leader, 7, 0, Marker(True, 4), worker, NOW)
    follower.move_replicated_to(0)
    copy(leader, follower)
    follower.move_replicated_to(9)
    assert follower.last_stable_offset == 8
    follower.move_replicated_to(10)
    assert follower.last_stable_offset == 10


# --- an empty log ----------------------------------------------------------------------------------------------------


def test_the_first_batch_of_an_empty_log_may_begin_below_the_leaders_log_start(leader, worker):
    """The leader deleted the first records of the batch (rule I2)."""
    leader.advance_start(4)
    storage = MemoryStorage()
    for _ in range(2):
        follower = follower_at(4, storage)
        copy(leader, follower)
        assert headers_of(follower)[0].base_offset == 3
        assert (follower.log_start_offset, follower.log_end_offset) == (4, leader.log_end_offset)
        assert follower.epochs == leader.epochs == [(3, 4)]
        assert ids_of(follower) == {offset: id for offset, id in ids_of(leader).items() if offset >= 3}
        assert bytes_of(follower) == answer_of(leader, 4)[0]
        assert all(segment in follower.unflushed_segments() for segment in follower.segments.all)


def test_no_other_batch_may_begin_below_the_logs_end(leader, follower):
    records, ids = answer_of(leader, 3)
    past = follower_at(5)
    past.follow(3)
    assert "offset 3 stands where 5 belongs" in refusal(past, records, ids)
    copy(leader, follower)
    assert "offset 3 stands where 8 belongs" in refusal(follower, records, ids)


def test_an_empty_log_knows_the_last_id_that_its_leader_tells(leader, follower):
    """Rule I7."""
    follower.know_last_id(500)
    follower.know_last_id(400)
    assert follower.last_id == follower.position().last_id == 500
    follower.know_last_id(leader.last_id)
    assert "was given before" in refusal(follower, *answer_of(leader, 0))


def test_a_log_without_records_is_told_the_last_id_with_which_it_could_go_on(leader, follower):
    """Another leader told it a later id, of records that were never committed."""
    follower.know_last_id(leader.last_id)
    with pytest.raises(IdsBelowFloor) as refused:
        taken(follower, *answer_of(leader, 0))
    anew = follower_at(0)
    anew.follow(3)
    anew.know_last_id(refused.value.last_id)
    copy(leader, anew)
    assert ids_of(anew) == ids_of(leader)


def test_a_log_with_records_goes_on_above_its_own_ids_only(leader, follower):
    records, _ = answer_of(leader, 0)
    with pytest.raises(CopyRefused) as refused:
        taken(follower, records, entries(0, (0, 2, 100), (2, 6, 50)))
    assert not isinstance(refused.value, IdsBelowFloor)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_an_answer_without_ids_is_refused(leader, follower):
    """Rule I2: ids are never stamped again."""
    assert "there are no ids" in refusal(follower, answer_of(leader, 0)[0], None)
    assert taken(follower, b"", None) == 0, "an answer without records needs none"


def test_an_answer_without_a_whole_batch_is_refused(leader, follower):
    records, ids = answer_of(leader, 0)
    assert "there is no whole batch in 60 bytes" in refusal(follower, records[:60], ids)


def test_the_same_answer_is_refused_the_second_time(leader, follower):
    answer = answer_of(leader, 0)
    assert taken(follower, *answer) == 5
    assert "offset 0 stands where 8 belongs" in refusal(follower, *answer)


@pytest.mark.parametrize("epoch, why", [(2, "2; it must be 3 to 3"), (4, "4; it must be 3 to 3"), (-1, "-1;")])
def test_an_epoch_falls_never_and_is_the_leaders_at_most(leader, follower, epoch, why):
    records, ids = answer_of(leader, 0)
    second = list(walk(records))[1]
    damaged = bytearray(records)
    BATCH_PREFIX.pack_into(damaged, second[0], second[1].base_offset, second[1].batch_length, epoch)
    assert f"offset 2 has leader epoch {why}" in refusal(follower, damaged, ids)


def test_an_older_epoch_than_the_newest_begun_is_refused(leader, follower):
    """Rule T1: the follower truncates first."""
    follower.start_leader_epoch(4)
    assert "offset 0 has leader epoch 3; it must be 4 to 4" in refusal(follower, *answer_of(leader, 0))


@pytest.mark.parametrize(
    "id_runs, why",
    [
        ([], "there is no id for offset 0"),
        ([(1, 7, 101)], "there is no id for offset 0"),
        ([(0, 7, 100)], "there is no id for offset 7"),
        ([(0, 2, 100), (3, 5, 103)], "there is no id for offset 2"),
        ([(0, 2, 100), (2, 6, 101)], "the id of offset 2 is 101, and 101 was given before"),
        ([(0, 2, 100), (1, 7, 102)], "offset 1 has two ids"),
        ([(0, 8, 20)], "the id of offset 0 is 20, and 50 was given before"),
    ],
)
def test_ids_must_be_exactly_those_of_the_batches_and_rise(leader, follower, id_runs, why):
    follower.know_last_id(50)
    assert why in refusal(follower, answer_of(leader, 0)[0], entries(0, *id_runs))


def test_an_offset_with_an_id_has_a_batch(leader, follower):
    """A batch with a wrong offset would pass for one after a gap."""
    records, _ = answer_of(leader, 0)
    batches = list(walk(records))
    moved = bytearray(records)
    position, header = batches[-1]
    BATCH_PREFIX.pack_into(moved, position, header.base_offset + 2, header.batch_length, header.leader_epoch)
    assert "offset 6 has an id and no batch" in refusal(follower, moved, entries(0, (0, 20, 100)))
    assert "offset 0 has an id and no batch" in refusal(follower, records[batches[1][0] :], entries(0, (0, 8, 100)))
    assert taken(follower, moved, entries(0, (0, 6, 100), (8, 2, 106))) == 5


def test_a_flipped_byte_anywhere_in_an_answer_is_refused_or_harmless(leader):
    """An epoch between the newest of the log and the leader's could be the batch's, so here there is none between."""
    records, ids = answer_of(leader, 0)
    for at in range(len(records) + len(ids.entries)):
        for flipped in (1, 0x80):
            damaged = bytearray(records + ids.entries)
            damaged[at] ^= flipped
            log = follower_at()
            log.start_leader_epoch(leader.leader_epoch)
            before = everything(log)
            try:
                taken(log, damaged[: len(records)], IdRegion(ids.base_offset, damaged[len(records) :]))
            except CopyRefused:
                assert everything(log) == before
            else:
                assert bytes_of(leader).startswith(bytes_of(log)), (at, flipped)
                assert ids_of(log).items() <= ids_of(leader).items()


def test_a_control_batch_without_a_sound_marker_is_refused(leader, worker, follower):
    append(leader, b"1", worker=worker, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log_appender.append_marker(leader, 7, 0, Marker(True, 4), worker, NOW)
    offset = leader.log_end_offset - 1
    records, ids = answer_of(leader, offset)
    header = read_header(records)
    cut = bytearray(records[:-8])
    seal(cut, header._replace(batch_length=header.batch_length - 8))
    log = follower_at(offset)
    log.follow(3)
    assert f"the control batch at offset {offset} has no sound marker" in refusal(log, cut, ids)


# --- failed writes ---------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_log_as_it_was(leader, worker, follower):
    append(leader, b"1", worker=worker, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log_appender.append_marker(leader, 7, 0, Marker(False, 4), worker, NOW)
    before = everything(follower)
    answer = answer_of(leader, 0)
    for free_bytes in range(len(answer[0])):
        follower._storage.free_bytes = free_bytes
        with pytest.raises(ApiError) as refused:
            taken(follower, *answer)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR and everything(follower) == before
        mend(follower)
    follower._storage.free_bytes = None
    taken(follower, *answer)
    assert everything(follower)[2:] == everything(leader)[2:]
