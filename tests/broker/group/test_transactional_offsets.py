"""Offsets in transactions (KIP-98, KIP-447): the order of the records decides which of several commits counts."""

import pytest

from broker.group.offset_records import OffsetKey
from broker.group.offsets import CommittedOffset
from broker.group.transactional_offsets import TransactionalOffsets

AT, BESIDE = OffsetKey("g", "flights", 0), OffsetKey("h", "flights", 0)


def at(offset):
    return CommittedOffset(offset, -1, "", 0)


def ended(offsets, producer_id, commit=True):
    return [(partition, committed.offset) for partition, committed in offsets.end(producer_id, commit)]


@pytest.fixture
def offsets():
    return TransactionalOffsets()


def test_what_was_committed_counts_at_the_commit_and_never_after_an_abort(offsets):
    offsets.put(1, AT, at(10))
    offsets.put(2, BESIDE, at(20))
    assert offsets.is_open(AT) and offsets.has("g") and not offsets.is_open(OffsetKey("g", "flights", 1))
    assert ended(offsets, 1) == [(AT, 10)]
    assert ended(offsets, 2, commit=False) == []
    assert not offsets.is_open(AT) and not offsets.has("g") and not offsets.has("h")


def test_of_two_commits_in_one_transaction_the_later_counts(offsets):
    offsets.put(1, AT, at(10))
    offsets.put(1, AT, at(5))
    assert ended(offsets, 1) == [(AT, 5)] and ended(offsets, 1) == []


def test_a_plain_commit_written_later_overtakes(offsets):
    offsets.put(1, AT, at(10))
    offsets.overtake(AT)
    assert ended(offsets, 1) == []


def test_a_plain_commit_that_could_not_be_written_overtakes_nothing(offsets):
    offsets.put(1, AT, at(10))
    offsets.put(2, AT, at(20))
    overtaken = offsets.open_of(AT)
    offsets.overtake(AT)
    assert not offsets.is_open(AT)
    offsets.restore(AT, overtaken)
    assert ended(offsets, 2) == [(AT, 20)] and ended(offsets, 1) == []
    assert not offsets.is_open(AT) and not offsets.has("g")


def test_of_two_transactions_the_one_written_later_counts_whichever_ends_last(offsets):
    offsets.put(1, AT, at(10))
    offsets.put(2, AT, at(20))
    assert ended(offsets, 2) == [(AT, 20)]
    assert ended(offsets, 1) == []
    offsets.put(1, AT, at(30))
    offsets.put(2, AT, at(40))
    assert ended(offsets, 1) == [(AT, 30)] and ended(offsets, 2) == [(AT, 40)]


def test_offsets_of_a_deleted_topic_never_count(offsets):
    offsets.put(1, AT, at(10))
    offsets.put(1, OffsetKey("g", "other", 0), at(20))
    assert offsets.of_topics({"flights"}.__contains__) == [AT]
    offsets.overtake(AT)
    assert ended(offsets, 1) == [(OffsetKey("g", "other", 0), 20)]
