"""A follower compacts its log, and a new leader takes its newest batches away: the next sequences must be known."""

import pytest

from broker.log import log_appender
from broker.record.control import Marker
from broker.wire.errors import ApiError, ErrorCode
from tests.broker.log.compaction.cleaner_world import CleanerWorld


def produce(world, sequence, *records, epoch=0, transactional=False):
    sent = {"producer_id": 7, "producer_epoch": epoch, "base_sequence": sequence}
    return world.put(*records, transactional=transactional, **sent)


def truncated(world, offset):
    """Return the world once its log is truncated to an offset."""
    world.manager.truncate({("flights", 0): offset})
    while syncs := world.manager.take_syncs():
        world.run(*syncs)
    (outcome,) = world.manager.take_truncated()
    world.log = outcome.log
    return world


def bases(world):
    return [header.base_offset for header in world.batches()]


def check_sequence_is_known(world, sequence, *records, epoch=0):
    """Check that batch `sequence` was the producer's last: it is a duplicate, and a gap after it is refused."""
    assert produce(world, sequence, *records, epoch=epoch).duplicate
    with pytest.raises(ApiError) as refused:
        produce(world, sequence + 2, *records, epoch=epoch)
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def with_two_segments():
    """Return a world whose producer 7 has two batches in the first of two segments; the last record has their key."""
    world = CleanerWorld()
    produce(world, 0, ("a", "1"))
    produce(world, 1, ("a", "2"))
    world.put(("a", "3"))
    world.roll()
    return world


@pytest.mark.parametrize("later_batches", range(1, 8))
def test_a_truncated_log_knows_a_sequence_that_its_producer_had_gone_past(later_batches):
    """The broker remembers five batches of a producer, so after five more it does not know where the last one was."""
    world = with_two_segments()
    for sequence in range(2, 2 + later_batches):
        produce(world, sequence, ("b", "1"))
    world.log.move_replicated_to(3)
    world.clean()
    assert bases(world)[:2] == [1, 2], "offset 0 is neither the last of its key nor of its producer"
    check_sequence_is_known(truncated(world, 3), 1, ("a", "2"))


def test_a_sequence_is_known_from_a_part_that_was_cleaned_before():
    world = with_two_segments()
    world.clean()
    world.put(("c", "1"), ("c", "2"))
    world.roll()
    for sequence in range(2, 8):
        produce(world, sequence, ("b", "1"))
    world.log.move_replicated_to(5)
    world.clean()
    assert bases(world)[:3] == [1, 2, 3]
    check_sequence_is_known(truncated(world, 5), 1, ("a", "2"))


def test_a_sequence_is_known_when_a_restart_has_read_the_later_ones_from_the_snapshot():
    world = with_two_segments()
    produce(world, 2, ("b", "1"))
    world.round()
    world = world.reopened()
    world.log.move_replicated_to(3)
    world.clean()
    assert bases(world)[:2] == [1, 2]
    check_sequence_is_known(truncated(world, 3), 1, ("a", "2"))


@pytest.mark.parametrize("sends_more", [False, True])
def test_a_sequence_is_known_when_the_truncation_takes_a_marker_with_a_later_epoch(sends_more):
    """KIP-890: the marker that ends a transaction raises the producer's epoch."""
    world = with_two_segments()
    produce(world, 2, ("b", "1"), transactional=True)
    log_appender.append_marker(world.log, 7, 1, Marker(True, 0), world.worker, world.now)
    if sends_more:
        produce(world, 0, ("b", "2"), epoch=1)
    world.log.move_replicated_to(3)
    world.clean()
    assert bases(world)[:2] == [1, 2]
    check_sequence_is_known(truncated(world, 3), 1, ("a", "2"))


def test_an_epoch_is_known_when_its_marker_is_emptied_and_the_log_is_truncated():
    world = CleanerWorld(delete_retention_ms=0)
    produce(world, 0, ("a", "1"), transactional=True)
    log_appender.append_marker(world.log, 7, 1, Marker(True, 0), world.worker, world.now)
    for value in "234":
        world.put(("a", value))
        world.roll()
        world.clean()
    emptied = [header for header in world.batches() if header.is_control]
    assert [header.record_count for header in emptied] == [0]
    world = truncated(world, 4)
    assert world.log.producers.epoch_of(7) == 1
    with pytest.raises(ApiError) as refused:
        produce(world, 1, ("a", "5"))
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_the_batches_of_a_producer_go_once_later_ones_are_replicated():
    world = with_two_segments()
    produce(world, 2, ("a", "4"))
    world.roll()
    world.clean()
    assert bases(world) == [3]
