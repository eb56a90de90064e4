"""The idempotent producer of a mirror: order, sequence numbers and retries of each partition."""

import pytest

from broker.client.errors import Unreachable
from broker.client.mirror.sender import IN_FLIGHT_MAX, RETRY_MS, Sender
from broker.client.mirror.source_batch import outgoing
from broker.record.batch import read_header
from broker.wire.errors import ErrorCode
from tests.broker.client.mirror.batches import source_batch

A, B = ("orders", 0), ("orders", 1)
CONNECTION_CLOSED = Unreachable("127.0.0.1:1", "it closed the connection")


def sender_of(number, key=A, records=3):
    """Return a sender with batches for a partition, and the list of the offsets that are acknowledged."""
    sender, offsets = Sender(), []
    sender.identify(9, 3)
    add(sender, number, key, records, offsets)
    return sender, offsets


def add(sender, number, key=A, records=3, offsets=None):
    offsets = [] if offsets is None else offsets
    for _ in range(number):
        (batch,) = outgoing(source_batch(deltas=tuple(range(records))))
        sender.add(key, batch, offsets.append)


def take_all(sender, now_ms=0):
    """Return all requests that may be sent now."""
    requests = []
    while more := sender.take(sender.ready(now_ms), 1 << 20):
        requests += more
    return requests


def sequences(requests):
    return [read_header(request.data).base_sequence for request in requests]


def test_batches_of_a_partition_are_numbered_and_five_are_in_flight():
    sender, _ = sender_of(7)
    requests = take_all(sender)
    assert sequences(requests) == [0, 3, 6, 9, 12] and len(requests) == IN_FLIGHT_MAX
    sender.answered(requests[0], ErrorCode.NONE, 100, None, 0)
    assert sequences(take_all(sender)) == [15]


def test_a_request_has_one_batch_of_each_partition():
    sender, _ = sender_of(2)
    add(sender, 2, B)
    assert [request.key for request in sender.take(sender.ready(0), 1 << 20)] == [A, B]


def test_acknowledgements_tell_the_offsets_and_give_room_back():
    sender, offsets = sender_of(2)
    for number, request in enumerate(take_all(sender)):
        sender.answered(request, ErrorCode.NONE, 100 + 3 * number, None, 0)
    assert offsets == [100, 103] and sender.queued_bytes == 0


def test_after_a_failure_the_rest_goes_again_in_order_with_the_same_numbers():
    sender, offsets = sender_of(4)
    requests = take_all(sender)
    sender.answered(requests[0], ErrorCode.NONE, 100, None, 0)
    sender.answered(requests[1], ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, None, 0)
    assert not sender.ready(10_000)  # two batches are still in flight
    sender.answered(requests[3], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, None, 0)
    sender.unanswered(requests[2], CONNECTION_CLOSED, 0)
    assert not sender.ready(RETRY_MS - 1) and sender.next_retry_ms() == RETRY_MS
    assert sequences(take_all(sender, RETRY_MS)) == [3, 6, 9]
    assert offsets == [100] and not sender.needs_id


def test_a_repeated_batch_that_the_broker_has_is_acknowledged():
    sender, offsets = sender_of(1)
    (request,) = take_all(sender)
    sender.answered(request, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1, None, 0)
    assert offsets == [None] and sender.queued_bytes == 0


@pytest.mark.parametrize("code", (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID))
def test_a_sequence_that_the_broker_has_lost_needs_a_new_producer_id(code):
    sender, _ = sender_of(2)
    requests = take_all(sender)
    sender.answered(requests[0], code, -1, None, 0)
    assert not sender.needs_id  # one batch is still in flight
    sender.answered(requests[1], code, -1, None, 0)
    assert sender.needs_id and not sender.ready(10_000)
    sender.identify(10, 0)
    requests = take_all(sender, 10_000)
    assert sequences(requests) == [0, 3]
    assert {read_header(request.data).producer_id for request in requests} == {10}


def test_an_error_that_no_retry_can_mend_stops_the_partition_only():
    sender, _ = sender_of(7)
    add(sender, 1, B)
    requests = take_all(sender)
    for request in requests:
        code = ErrorCode.MESSAGE_TOO_LARGE if request.key == A else ErrorCode.NONE
        sender.answered(request, code, 0, "1,048,588 bytes", 0)
    ((key, error),) = sender.take_stopped()[:1]
    assert key == A and "MESSAGE_TOO_LARGE (1,048,588 bytes)" in str(error)
    assert sender.queued_bytes == 0  # so that what waited for it takes no room from others
    add(sender, 1, A)
    add(sender, 1, B)
    assert sender.ready(10_000) == [B] and sender.queued_bytes == len(requests[-1].data)


def test_a_partition_that_was_handed_over_is_not_sent_again():
    sender, offsets = sender_of(6)
    requests = take_all(sender)
    sender.drop([A])
    sender.answered(requests[0], ErrorCode.NONE, 100, None, 0)
    for request in requests[1:]:
        sender.unanswered(request, CONNECTION_CLOSED, 0)
    assert offsets == [] and sender.queued_bytes == 0
    assert sender.needs_id  # the broker misses the numbers of the batches that were dropped
    sender.identify(10, 0)
    add(sender, 1)
    assert sequences(take_all(sender, 10_000)) == [0]


def test_numbers_wrap_around_to_zero():
    sender, _ = sender_of(3, records=2)
    sender._queues[A].next_sequence = (1 << 31) - 2
    requests = take_all(sender)
    assert sequences(requests) == [(1 << 31) - 2, 0, 2]
    for request in requests:
        sender.unanswered(request, CONNECTION_CLOSED, 0)
    assert sequences(take_all(sender, RETRY_MS)) == [(1 << 31) - 2, 0, 2]
