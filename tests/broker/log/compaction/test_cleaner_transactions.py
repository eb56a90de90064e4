"""Compaction of logs with idempotent producers and transactions (KIP-98)."""

import pytest

from broker.log import log_appender, log_reader
from broker.record.control import Marker
from broker.wire.errors import ApiError, ErrorCode
from tests.broker.log.compaction.cleaner_world import BACKOFF_MS, DAY_MS


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
        log_appender.append_marker(world.log, producer_id, 0, Marker(commit, 0), world.worker, world.now)


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
    log_appender.append_marker(world.log, 7, 0, Marker(True, 0), world.worker, world.now)
    jobs = world.clean_before_the_checkpoint()
    cut = world.reopened(world.storage.power_cut(lambda n: 0))
    assert cut.log.producers.has_open(7), "the marker is gone"
    log_appender.append_marker(cut.log, 7, 0, Marker(False, 0), cut.worker, cut.now)
    cut.roll()
    cut.clean()
    assert cut.latest() == {b"a": b"old"}
    world.run(*jobs)
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
    assert len(log_reader.aborted_transactions(world.log, 0, 10)) == 2
    world.clean()
    assert len(log_reader.aborted_transactions(world.log, 0, 10)) == 2, "for who is on his way through them"
    world.put(("c", "1"))
    world.roll()
    world.clean()
    aborted = log_reader.aborted_transactions(world.log, 0, 10)
    first_offsets = [(transaction.producer_id, transaction.first_offset) for transaction in aborted]
    assert first_offsets == [(9, 2)], "its last batch is there as a header"
    again = world.reopened()
    assert log_reader.aborted_transactions(again.log, 0, 10) == aborted and not again.lines
