"""Stored progress is about one topic id up to one leader epoch (KIP-516, KIP-101, KIP-320)."""

import pytest

from broker.client.offset_spec import Earliest, Latest
from partition_manager.config import SpoutConfig
from partition_manager.coordinator import PartitionCoordinator
from partition_manager.offset_document import OffsetDocument
from partition_manager.ports import EpochEnd, Fetch, Fetched, FindEpochEnd, LoadOffset, Partitions, Recreated
from partition_manager.source import Source
from partition_manager.task_partition import Phase
from tests.partition_manager.world import World, record

CONFIG = SpoutConfig(spout_retry_jitter=0.0)


def world_of(messages):
    world = World()
    append(world, messages)
    return world


def append(world, messages):
    for _ in range(messages):
        world.log.append()


def coordinator_of(world, owner="run.1", start=Earliest(), config=CONFIG):
    coordinator = PartitionCoordinator(Source("flights", "t", "t", start, config), 0, 1, owner)
    coordinator.start(0)
    world.carry(coordinator, 0)
    return coordinator


def emit_all(coordinator, now_ms=0):
    ids = []
    while (emission := coordinator.next(now_ms)) is not None:
        ids.append(emission[0])
    return ids


def settle(world, coordinator, now_ms):
    """Settle and store all messages, and return their offsets."""
    ids = emit_all(coordinator, now_ms)
    for id in ids:
        coordinator.ack(id)
    world.carry(coordinator, now_ms)
    return [id.offset for id in ids]


def stop(world, coordinator, now_ms):
    coordinator.stop(now_ms)
    world.carry(coordinator, now_ms)
    assert coordinator.idle


def warned(coordinator):
    return [note.text for note in coordinator.take_notes() if note.level == "warn"]


def stored(world):
    answers = []
    world.store().ask(LoadOffset("flights", 0), answers.append)
    return OffsetDocument.decode(answers[0].document)


# --- another topic of the same name


@pytest.mark.parametrize("start, offsets", [(Earliest(), [0, 1, 2, 3, 4, 5]), (Latest(), [])])
def test_a_topic_recreated_between_two_runs_is_read_as_start_says(start, offsets):
    world = world_of(5)
    first = coordinator_of(world)
    settle(world, first, 2_000)
    stop(world, first, 3_000)
    world.log.recreate()
    append(world, 6)
    second = coordinator_of(world, "run.2", start)
    assert settle(world, second, 2_000) == offsets
    assert second.counts.recreated == 1
    (note,) = warned(second)
    assert "begins at offset" in note and "the topic was recreated: its id was " in note


def test_the_new_topic_id_is_stored_so_a_third_run_continues():
    world = world_of(2)
    stop(world, coordinator_of(world), 1_000)
    world.log.recreate()
    append(world, 3)
    second = coordinator_of(world, "run.2")
    settle(world, second, 2_000)
    stop(world, second, 3_000)
    assert stored(world).topic_id == world.log.topic_id
    third = coordinator_of(world, "run.3")
    assert settle(world, third, 2_000) == [] and third.counts.recreated == 0


def test_an_owner_that_still_knows_the_deleted_topic_continues_the_progress_of_the_new_one():
    """A member of a group looks topics up once a minute, and gets partitions from others in between."""
    world = world_of(5)
    deleted = world.log.topic_id
    world.log.recreate()
    append(world, 3)
    first = coordinator_of(world)
    assert settle(world, first, 2_000) == [0, 1, 2]
    stop(world, first, 3_000)
    second = PartitionCoordinator(Source("flights", "t", "t", Earliest(), CONFIG), 0, 1, "run.2")
    second.partitions_found("flights", Partitions((0,), "h", 1, deleted), 4_000)
    world.carry(second, 4_000)
    assert settle(world, second, 6_000) == [] and stored(world).topic_id == world.log.topic_id


def test_a_topic_recreated_while_it_is_read_is_opened_again_and_its_old_acks_are_stale():
    world = world_of(5)
    coordinator = coordinator_of(world)
    old = emit_all(coordinator)
    world.log.recreate()  # answers the fetch held at the end with Recreated
    append(world, 3)
    world.carry(coordinator, 0)
    new = emit_all(coordinator)
    assert [id.offset for id in new] == [0, 1, 2] and {id.topic_id for id in new} == {world.log.topic_id}
    assert not any(coordinator.ack(id) for id in old) and all(coordinator.ack(id) for id in new)
    counts = coordinator.counts
    assert (counts.recreated, counts.truncated, counts.acked, counts.fetched) == (1, 5, 3, 8)
    assert any("its messages in flight are forgotten" in note for note in warned(coordinator))


def test_a_refresh_that_shows_another_topic_id_opens_the_partition_again():
    """The fetcher of an old broker may not notice: it fetches by name."""
    world = world_of(5)
    coordinator = coordinator_of(world)
    settle(world, coordinator, 2_000)
    world.log.topic_id = "another"
    coordinator.partitions_found("flights", Partitions((0,), "h", 1, "another"), 3_000)
    assert coordinator.counts.recreated == 0, "the new opening has not compared the ids yet"
    world.carry(coordinator, 3_000)
    assert coordinator.counts.recreated == 1 and coordinator.status()[0].watermark == 0


def test_a_late_write_for_the_old_topic_is_forgotten():
    world = world_of(2)
    coordinator = coordinator_of(world)
    for id in emit_all(coordinator):
        coordinator.ack(id)
    (save,) = coordinator.take_asks(2_000)
    world.log.recreate()
    coordinator.partitions_found("flights", Partitions((0,), "h", 1, world.log.topic_id), 2_000)
    world.store().ask(save.request, lambda answer: coordinator.answered(save.number, answer, 2_000))
    world.carry(coordinator, 2_000)
    assert (stored(world).topic_id, stored(world).progress.offset) == (world.log.topic_id, 0)


def test_without_topic_ids_nothing_is_compared():
    world = world_of(3)
    world.log.topic_id = ""
    first = coordinator_of(world)
    settle(world, first, 2_000)
    stop(world, first, 3_000)
    world.log.recreate()
    append(world, 5)
    second = coordinator_of(world, "run.2")
    assert settle(world, second, 2_000) == [3, 4] and second.counts.recreated == 0


def test_a_broker_with_old_metadata_does_not_bring_the_deleted_topic_back():
    world = world_of(2)
    coordinator = coordinator_of(world)
    settle(world, coordinator, 2_000)
    before = world.log.topic_id
    world.log.recreate()
    world.carry(coordinator, 2_000)
    coordinator.partitions_found("flights", Partitions((0,), "h", 1, before), 3_000)
    assert coordinator.status()[0].phase is Phase.RUNNING and coordinator.counts.recreated == 1


# --- a log that was truncated


def test_a_truncation_between_two_runs_is_found_after_the_log_has_grown_again():
    world = world_of(10)
    first = coordinator_of(world)
    settle(world, first, 2_000)
    stop(world, first, 3_000)
    world.log.truncate(0, 4)
    append(world, 20)
    second = coordinator_of(world, "run.2")
    assert settle(world, second, 2_000) == list(range(4, 24))
    assert second.counts.truncations == 1
    (note,) = warned(second)
    assert "begins at offset 4: the log was truncated at 4, stored offset 10 is of records that are gone" in note


def test_a_second_truncation_is_found_too_though_the_run_between_them_read_nothing():
    """Found by the simulation: the run between them stored that it knew no epoch."""
    world = world_of(5)
    settle(world, coordinator_of(world), 2_000)
    world.log.truncate(0, 4)
    append(world, 1)
    coordinator_of(world, "run.2")  # it claims the partition, and is killed
    world.log.truncate(0, 1)
    append(world, 6)
    assert settle(world, coordinator_of(world, "run.3"), 2_000) == [1, 2, 3, 4, 5, 6]


def test_ranges_settled_above_a_truncation_are_forgotten():
    world = world_of(10)
    first = coordinator_of(world)
    for id in emit_all(first):
        if id.offset not in (3, 7):
            first.ack(id)
    stop(world, first, 2_000)
    assert stored(world).progress == (3, ((4, 7), (8, 10)))
    world.log.truncate(0, 5)
    append(world, 7)
    second = coordinator_of(world, "run.2")
    assert settle(world, second, 2_000) == [3, *range(5, 12)]
    assert second.counts.truncations == 0, "the watermark's messages are all there"


def test_a_new_epoch_without_a_truncation_changes_nothing():
    world = world_of(10)
    first = coordinator_of(world)
    settle(world, first, 2_000)
    stop(world, first, 3_000)
    world.log.truncate(0, 10)  # begins an epoch at the end and removes nothing
    append(world, 2)
    second = coordinator_of(world, "run.2")
    assert settle(world, second, 2_000) == [10, 11] and second.counts.truncations == 0
    assert stored(world).leader_epoch == 1


def test_ranges_of_a_later_epoch_than_the_records_that_are_read_again_stay_settled():
    """Found by the simulation: the ranges were stored with the epoch of the records below them."""
    world = world_of(4)
    world.log.truncate(0, 4)  # a new leader, and nothing is lost
    append(world, 2)
    first = coordinator_of(world)
    held, *settled = emit_all(first)
    for id in settled:
        first.ack(id)
    stop(world, first, 3_000)
    assert stored(world).progress == (0, ((1, 6),)) and stored(world).leader_epoch == 1
    second = coordinator_of(world, "run.2", config=SpoutConfig(spout_retry_jitter=0.0, spout_fetch_max_records=2))
    assert settle(world, second, 2_000) == [0]
    stop(world, second, 3_000)
    assert settle(world, coordinator_of(world, "run.3"), 2_000) == []


def test_a_truncation_while_reading_is_found_though_the_log_has_grown_past_the_position():
    """The fetch succeeds, but its records are of another epoch, so where ours ended is asked for first (KIP-320)."""
    world = world_of(6)
    coordinator = coordinator_of(world)
    emitted = emit_all(coordinator)
    held = world.log._held.pop()  # the fetch at offset 6 is answered late
    world.log.truncate(0, 2)
    append(world, 6)
    world.log.ask(*held)
    world.carry(coordinator, 0)
    assert [id.offset for id in emit_all(coordinator)] == [2, 3, 4, 5, 6, 7]
    assert [coordinator.ack(id) for id in emitted] == [True, True, False, False, False, False]
    assert (coordinator.counts.truncations, coordinator.counts.truncated) == (1, 4)


def test_an_epoch_the_broker_does_not_know_is_left_to_the_offsets():
    coordinator = PartitionCoordinator(Source("flights", "t", "t", Earliest(), CONFIG), 0, 1, "run.1")
    world = World()
    coordinator.start(0)
    world.carry(coordinator, 0)
    partition = coordinator._all[0]
    partition._epoch = 3
    world.log._held.clear()
    partition._fetched(Fetched([record(0)], 1, 1, (), 7), 0)
    (ask,) = coordinator.take_asks(0)
    assert ask.request == FindEpochEnd("flights", 0, 3)
    coordinator.answered(ask.number, EpochEnd(-1, -1), 0)
    assert [id.offset for id in emit_all(coordinator)] == [0]


def test_a_fetch_names_the_topic_id_and_recreated_leads_to_the_named_one():
    world = world_of(0)
    coordinator = coordinator_of(world)
    ((request, answer),) = world.log._held
    assert isinstance(request, Fetch) and request.topic_id == world.log.topic_id
    world.log._held.clear()
    answer(Recreated("new-id"))
    asks = coordinator.take_asks(0)
    assert [ask.request for ask in asks] == [LoadOffset("flights", 0)]
    assert coordinator._all[0].topic_id == "new-id"
