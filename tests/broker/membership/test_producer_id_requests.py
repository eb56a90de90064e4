"""The producer ids of a broker of a cluster: it asks the controller for blocks (KIP-730)."""

from datetime import timedelta

import pytest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.errors import ErrorCode as SchemaErrorCode

from broker.membership.peer_calls import TIMEOUT_MS, PeerCalls
from broker.membership.producer_id_requests import RETRY_MS, ProducerIdRequests
from broker.metadata.image import NO_CONTROLLER, Image, RegisteredBroker
from broker.metadata.producer_ids import AHEAD, NoProducerIds, ProducerIds
from broker.now import Now
from broker.waiting.pending import Pending
from broker.wire.errors import ErrorCode


class Member:
    """A broker 1 whose producer ids come from the controller, at first broker 3."""

    def __init__(self):
        self.calls, self.ids, self.image = PeerCalls(Pending()), ProducerIds(), Image()
        self.image.register(RegisteredBroker(node_id, {"": ("localhost", 9092)}) for node_id in (1, 2, 3))
        self.image.controller_id = 3
        self.epoch = 40
        self.added, self.reported = [], []
        self.requests = ProducerIdRequests(
            self.calls, self.ids, self.image, 1, lambda: self.epoch, self.added.append, self.reported.append
        )

    def take(self, now_ms=0):
        """Tick at a moment; return the calls to send."""
        self.requests.tick(Now(now_ms, 0))
        return self.calls.take()

    def answer(self, call, start=0, number=1_000, error=ErrorCode.NONE, now_ms=0):
        response = AllocateProducerIdsResponse(
            throttle_time=timedelta(0),
            error_code=SchemaErrorCode(error),
            producer_id_start=start,
            producer_id_len=number,
        )
        self.calls.called(call, response, Now(now_ms, 0))


@pytest.fixture
def member():
    return Member()


def test_the_first_id_that_is_wanted_has_a_block_allocated(member):
    assert member.take() == [] and member.requests.next_deadline_ms() is None
    with pytest.raises(NoProducerIds):
        member.ids.take()
    assert member.requests.next_deadline_ms() == 0
    (call,) = member.take()
    assert (call.broker_id, call.request.broker_id, call.request.broker_epoch) == (3, 1, 40)
    member.answer(call, 5_000, now_ms=7)
    assert member.added == [Now(7, 0)] and member.ids.take() == 5_000
    assert member.take() == [] and member.requests.next_deadline_ms() is None


def test_one_request_is_under_way_at_a_time(member):
    member.requests.reserve()
    (call,) = member.take()
    member.requests.reserve()
    assert member.take() == [] and member.requests.next_deadline_ms() is None
    member.answer(call, 0)
    assert member.take() == []


def test_the_next_block_comes_before_the_last_id_is_gone(member):
    member.requests.reserve()
    member.answer(*member.take(), 0, AHEAD + 1)
    member.ids.take()
    assert member.take() == []
    member.ids.take()
    member.answer(*member.take(), 9_000)
    assert [member.ids.take() for _ in range(AHEAD)] == [*range(2, AHEAD + 1), 9_000]


def test_another_controller_is_asked_after_a_pause(member):
    member.requests.reserve()
    (call,) = member.take()
    member.image.controller_id, member.epoch = 2, 41
    member.answer(call, error=ErrorCode.NOT_CONTROLLER)
    assert member.take(RETRY_MS - 1) == [] and member.requests.next_deadline_ms() == RETRY_MS
    (call,) = member.take(RETRY_MS)
    assert (call.broker_id, call.request.broker_epoch) == (2, 41)
    member.answer(call, 1_000)
    assert member.ids.take() == 1_000


def test_the_block_of_a_lost_answer_stays_unused(member):
    member.requests.reserve()
    (lost,) = member.take()
    member.calls.tick(Now(TIMEOUT_MS, 0))
    (call,) = member.take(TIMEOUT_MS + RETRY_MS)
    member.answer(lost, 1_000)
    member.answer(call, 2_000)
    assert member.ids.left == 1_000 and member.ids.take() == 2_000


def test_a_cluster_without_a_controller_is_waited_for_and_reported_once(member):
    member.image.controller_id = NO_CONTROLLER
    member.requests.reserve()
    assert member.take(0) == member.take(RETRY_MS) == []
    member.image.controller_id = 2
    member.answer(*member.take(2 * RETRY_MS), 0)
    assert member.ids.left == 1_000 and len(member.reported) == 1


def test_a_controller_that_died_is_not_asked(member):
    member.image.register([member.image.brokers[1], member.image.brokers[2]])
    member.requests.reserve()
    assert member.take() == []
