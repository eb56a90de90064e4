"""Idempotent producers (KIP-98, KIP-360): duplicates are recognised, gaps are refused, and the state survives in
Kafka's format."""

import struct

import pytest
from crc32c import crc32c

from broker.log.producer_state import ProducerState
from broker.record.batch import BatchHeader
from broker.wire.errors import ApiError, ErrorCode

LAST = 2**31 - 1


def header(sequence, count=1, producer=7, epoch=0, time_ms=1_000):
    return BatchHeader(0, 100, 0, 2, 0, 0, count - 1, time_ms, time_ms, producer, epoch, sequence, count)


@pytest.fixture
def state():
    return ProducerState(3)


def send(state, batch_header, offset, seen_ms=1_000):
    duplicate = state.check(batch_header)
    if duplicate is None:
        state.appended(batch_header, offset, seen_ms)
    return duplicate


def refused(state, batch_header, code):
    with pytest.raises(ApiError) as caught:
        state.check(batch_header)
    assert caught.value.code is code


def test_sequences_follow_each_other(state):
    assert send(state, header(0, 5), 100) is None
    assert send(state, header(5), 105) is None
    refused(state, header(7), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_of_two_batches_with_the_same_sequences_the_later_one_is_repeated(state):
    """A leader that did not know the producer has taken the sequences again, and this replica has copied its batch."""
    state.appended(header(0, 2), 144)
    state.appended(header(0, 2), 355)
    assert state.check(header(0, 2)).base_offset == 355


def test_the_last_five_batches_are_recognised_as_duplicates_and_the_sixth_is_not(state):
    """An idempotent producer has at most five batches in flight (max.in.flight.requests.per.connection)."""
    for n in range(6):
        send(state, header(n * 10, 10), n * 10)
    for n in range(1, 6):
        assert state.check(header(n * 10, 10))[2:4] == (n * 10, n * 10 + 9)
    refused(state, header(0, 10), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_a_batch_that_only_begins_like_an_appended_one_is_no_duplicate(state):
    send(state, header(0, 5), 0)
    refused(state, header(0, 4), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_a_new_producer_may_begin_anywhere(state):
    """Its state may have expired, or its records may have been deleted (KIP-360)."""
    assert send(state, header(1234), 0) is None
    assert send(state, header(1235), 1) is None


def test_sequences_wrap_to_zero(state):
    send(state, header(LAST - 1), 0)
    across = header(LAST, 3)
    assert send(state, across, 1) is None
    assert state.check(across)[:2] == (LAST, 1)
    assert send(state, header(2), 4) is None


def test_an_older_epoch_is_fenced(state):
    send(state, header(0, epoch=3), 0)
    refused(state, header(1, epoch=2), ErrorCode.INVALID_PRODUCER_EPOCH)


def test_an_epoch_below_none_at_all_is_fenced(state):
    """This holds for an unknown producer too."""
    refused(state, header(0, epoch=-2), ErrorCode.INVALID_PRODUCER_EPOCH)


def test_a_newer_epoch_begins_at_zero(state):
    send(state, header(0, epoch=3), 0)
    refused(state, header(1, epoch=4), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert send(state, header(0, epoch=4), 1) is None
    assert send(state, header(1, epoch=4), 2) is None
    refused(state, header(0, epoch=3), ErrorCode.INVALID_PRODUCER_EPOCH)


@pytest.mark.parametrize("producer", [-1, -5])
def test_batches_without_a_producer_leave_no_state(state, producer):
    state.appended(header(-1, producer=producer), 0)
    assert len(state) == 0


def test_past_the_limit_the_least_recent_producer_is_evicted(state):
    """The limit is flakelog.max.producers.per.partition."""
    for producer in (1, 2, 3):
        send(state, header(0, producer=producer), producer)
    send(state, header(1, producer=1), 4)
    send(state, header(0, producer=9), 5)
    assert len(state) == 3
    refused(state, header(9, producer=1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert state.check(header(9, producer=2)) is None, "unknown again"


def test_silent_producers_expire_and_others_stay(state):
    send(state, header(0, producer=1), 0, seen_ms=1_000)
    send(state, header(0, producer=2), 1, seen_ms=1_500)
    state.expire(now_ms=2_100, silence_ms=1_000)
    assert len(state) == 1 and state.check(header(0, producer=2)) is not None


def test_producers_found_in_the_log_are_taken_as_just_heard_of(state):
    """The times of batches are the clients' own, so a replay of old data must not make a producer look silent."""
    state.appended(header(0, time_ms=0), 0)
    state.expire(now_ms=10_000, silence_ms=1_000)
    assert len(state) == 1
    state.expire(now_ms=11_001, silence_ms=1_000)
    assert len(state) == 0


def test_a_snapshot_brings_the_last_five_batches_of_each_back(state):
    for n in range(6):
        send(state, header(n * 10, 10), 100 + n * 10)
    send(state, header(LAST, 3, producer=8), 160)
    loaded = ProducerState(3)
    loaded.load(state.snapshot(), 163)
    for n in range(1, 6):
        assert loaded.check(header(n * 10, 10))[:4] == (n * 10, n * 10 + 9, 100 + n * 10, 109 + n * 10)
    assert loaded.check(header(LAST, 3, producer=8))[:4] == (LAST, 1, 160, 162)
    refused(loaded, header(0, 10), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    refused(loaded, header(61), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert loaded.snapshot() == state.snapshot()


def test_a_snapshot_brings_no_batch_of_an_earlier_epoch_back(state):
    send(state, header(0, 2), 100)
    send(state, header(0, 3, epoch=1), 102)
    loaded = ProducerState(3)
    loaded.load(state.snapshot(), 105)
    assert loaded.check(header(0, 3, epoch=1))[2:4] == (102, 104)
    refused(loaded, header(0, 2), ErrorCode.INVALID_PRODUCER_EPOCH)


def test_a_snapshot_says_what_has_changed_since_the_one_before(state):
    """The encoded entry of a producer is cached until the producer changes."""
    state.appended(header(0, time_ms=0), 0)
    send(state, header(0, producer=8), 1, seen_ms=1)
    state.snapshot()
    state.expire(now_ms=10_000, silence_ms=1 << 40)
    send(state, header(1, producer=8), 2, seen_ms=2)
    fresh = ProducerState(3)
    fresh.appended(header(0, time_ms=0), 0, 10_000)
    for at in (0, 1):
        send(fresh, header(at, producer=8), at + 1, seen_ms=at + 1)
    assert state.snapshot() == fresh.snapshot()


def test_a_snapshot_is_laid_out_as_kafkas():
    """The layout is ProducerStateManager.PRODUCER_SNAPSHOT_SCHEMA (version 1), which Kafka's dump tool reads.

    Kafka writes one entry for each producer. If it reads several, the last entry counts.
    """
    state = ProducerState(3)
    send(state, header(4, 2, producer=7, epoch=1), 100, seen_ms=9)
    send(state, header(6, 3, producer=7, epoch=1), 102, seen_ms=10)
    body = struct.pack(">i", 2)
    for last_sequence, last_offset, offset_delta in ((5, 101, 1), (8, 104, 2)):
        body += struct.pack(">qhiqiqiq", 7, 1, last_sequence, last_offset, offset_delta, 10, -1, -1)
    assert state.snapshot() == struct.pack(">hI", 1, crc32c(body)) + body


def test_a_damaged_snapshot_is_refused_wherever_it_is_damaged(state):
    send(state, header(0), 0)
    snapshot = state.snapshot()
    for at in range(len(snapshot)):
        for broken in (snapshot[:at], snapshot[:at] + bytes([snapshot[at] ^ 1]) + snapshot[at + 1 :]):
            with pytest.raises(ValueError, match="snapshot"):
                ProducerState(3).load(broken, 1)
