import pytest

from broker.membership.peer_calls import TIMEOUT_MS, UNDER_WAY_MAX, WAITING_MAX, PeerCalls
from broker.now import Now
from broker.waiting.pending import Pending


class Answers:
    """The answers that requests received, in order, as (request, response)."""

    def __init__(self, calls):
        self.calls = calls
        self.received = []

    def ask(self, broker_id, request, now_ms=0, **timeout):
        self.calls.ask(broker_id, request, lambda response, now: self.received.append((request, response)), at(now_ms),
                       **timeout)  # fmt: skip


@pytest.fixture
def calls():
    return PeerCalls(Pending())


@pytest.fixture
def answers(calls):
    return Answers(calls)


def at(now_ms):
    return Now(now_ms, 0)


def test_a_request_is_sent_once_and_its_answer_returned(calls, answers):
    answers.ask(2, "question")
    (call,) = calls.take()
    assert (call.broker_id, call.request) == (2, "question")
    assert calls.take() == []
    calls.called(call, "answer", at(5))
    assert answers.received == [("question", "answer")]
    assert calls.next_deadline_ms() is None


def test_a_request_that_waited_for_room_is_told_of_once_another_is_answered(calls, answers):
    for number in range(UNDER_WAY_MAX + 1):
        answers.ask(2, number)
    first, *_ = calls.take()
    calls.pending.calls = False

    calls.called(first, "answer", at(5))

    assert calls.pending.calls
    assert [call.request for call in calls.take()] == [UNDER_WAY_MAX]


def test_a_broker_that_was_not_reached_answers_none(calls, answers):
    answers.ask(2, "question")
    calls.called(calls.take()[0], None, at(5))
    assert answers.received == [("question", None)]


def test_a_late_answer_is_ignored(calls, answers):
    answers.ask(2, "question")
    (call,) = calls.take()
    assert 0 < calls.next_deadline_ms() <= TIMEOUT_MS
    calls.tick(at(TIMEOUT_MS - 1))
    assert answers.received == []
    calls.tick(at(TIMEOUT_MS))
    assert answers.received == [("question", None)]
    calls.called(call, "answer", at(TIMEOUT_MS + 1))
    calls.called(call, "answer", at(TIMEOUT_MS + 2))
    assert answers.received == [("question", None)]


def test_a_request_that_was_never_sent_ends_with_its_time_too(calls, answers):
    answers.ask(2, "question", timeout_ms=10)
    calls.tick(at(10))
    assert answers.received == [("question", None)]
    assert calls.take() == []


def test_a_broker_has_a_limit_of_requests_under_way_and_the_others_follow_in_order(calls, answers):
    for number in range(UNDER_WAY_MAX + 2):
        answers.ask(2, number)
    answers.ask(3, "of another broker")
    under_way = calls.take()
    assert [call.request for call in under_way] == [*range(UNDER_WAY_MAX), "of another broker"]
    calls.called(under_way[1], "answer", at(5))
    assert [call.request for call in calls.take()] == [UNDER_WAY_MAX]


def test_a_timeout_makes_room_for_the_next_request(calls, answers):
    for number in range(UNDER_WAY_MAX + 1):
        answers.ask(2, number, timeout_ms=10 + number)
    calls.take()
    calls.tick(at(10))
    assert [call.request for call in calls.take()] == [UNDER_WAY_MAX]


def test_a_request_too_many_is_answered_none_at_the_next_tick(calls, answers):
    for number in range(WAITING_MAX + 1):
        answers.ask(2, number)
    assert answers.received == []  # not inside `ask`, whose caller may be in the middle of something
    assert calls.next_deadline_ms() == 0
    calls.tick(at(1))
    assert answers.received == [(WAITING_MAX, None)]


def test_a_broker_that_dies_answers_all_its_requests_none(calls, answers):
    for number in range(UNDER_WAY_MAX + 1):
        answers.ask(2, number)
    answers.ask(3, "of another broker")
    under_way = calls.take()
    calls.lost(2, at(5))
    calls.lost(2, at(6))
    calls.called(under_way[0], "answer", at(7))
    calls.tick(at(TIMEOUT_MS - 1))
    assert answers.received == [(number, None) for number in range(UNDER_WAY_MAX + 1)]


def test_a_request_that_is_repeated_at_a_death_goes_to_the_next_life(calls, answers):
    calls.ask(2, "first", lambda response, now: answers.ask(2, "second", now.ms), at(0))
    calls.take()
    calls.lost(2, at(5))
    assert [call.request for call in calls.take()] == ["second"]
    assert answers.received == []


def test_a_request_that_is_repeated_at_its_timeout_has_its_whole_time(calls, answers):
    calls.ask(2, "first", lambda response, now: answers.ask(2, "second", now.ms, timeout_ms=10), at(0), timeout_ms=10)
    calls.tick(at(10))
    calls.tick(at(19))
    assert answers.received == []
    calls.tick(at(20))
    assert answers.received == [("second", None)]
