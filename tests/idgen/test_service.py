"""idgen.service: answers and refusals of Thrift calls."""

import re

import pytest

from coordination.memory import Ensemble, MemoryCoordinator
from idgen.config import IdgenConfig
from idgen.errors import ClockMovedBackwards, InvalidCount, InvalidUserAgent, SequenceExhausted
from idgen.service import IdService, flat
from idgen.wire import Call, decode_reply
from tests.idgen.driving import NOW, claim, settle


@pytest.fixture
def coordinator():
    return MemoryCoordinator(Ensemble())


@pytest.fixture
def service(coordinator):
    return IdService(settle(claim(number=103), coordinator, NOW), IdgenConfig(ids_max_batch=3_000_000 // 3))


def ask(service, method, user_agent=None, count=None, now_ms=NOW, skew_ms=0):
    return decode_reply(service.answer(Call(method, 9, user_agent, count), now_ms, skew_ms)[4:])


def test_twitters_four_methods(service):
    first = ask(service, "get_id", "agent-1")
    assert service.decode(first.value) == (NOW, 3, 7, 0, 103)
    assert first.seqid == 9
    assert ask(service, "get_worker_id").value == 7
    assert ask(service, "get_datacenter_id").value == 3
    assert ask(service, "get_timestamp", now_ms=NOW + 5).value == NOW + 5


def test_many_ids_of_one_answer_rise(service):
    ids = ask(service, "get_ids", "agent", 10_000).value
    assert len(ids) == 10_000 and ids == sorted(set(ids))


@pytest.mark.parametrize("user_agent", [None, "", "1agent", "-a", "a b", "a_b", "agent\n", "a" * 101, "é"])
@pytest.mark.parametrize("method", ["get_id", "get_ids"])
def test_a_user_agent_must_match_in_full(service, method, user_agent):
    """IdWorker.scala validUseragent: [a-zA-Z][a-zA-Z\\-0-9]*"""
    assert ask(service, method, user_agent, 1).error.startswith("InvalidUserAgent: user agent")
    assert service.counters.exceptions == {"InvalidUserAgent": 1}
    assert service.counters.ids == 0


@pytest.mark.parametrize("count", [None, 0, -1, 1_000_001])
def test_a_count_out_of_bounds_is_refused_by_the_settings_name(service, count):
    assert "flakelog.ids.max.batch" in ask(service, "get_ids", "agent", count).error
    with pytest.raises(InvalidCount):
        service.next_ids("agent", count, NOW, 0)


def test_an_unknown_method_is_answered_with_those_there_are(service):
    assert "get_id, get_ids" in ask(service, "get_bananas").error


def test_ids_spent_ahead_of_the_clock_are_the_shells_to_wait_for(service):
    service.next_ids("agent", 1_000_000, NOW, 0)
    service.next_ids("agent", 1_000_000, NOW, 0)
    with pytest.raises(SequenceExhausted):
        service.answer(Call("get_ids", 1, "agent", 60_000), NOW, 0)
    assert service.counters.ids == 2_000_000


def test_a_wall_clock_set_back_too_far_is_a_typed_error_until_it_has_caught_up(service):
    """Past flakelog.ids.max.skew.ms the id service refuses, while the log continues to stamp."""
    assert ask(service, "get_id", "agent", skew_ms=10_000).error is None
    assert ask(service, "get_id", "agent", skew_ms=10_001).error.startswith("ClockMovedBackwards: ")
    with pytest.raises(ClockMovedBackwards, match="set back by 10001 ms"):
        service.next_ids("agent", 1, NOW, 10_001)
    service.claim.worker.next_id(NOW)


def test_before_a_number_is_held_the_answer_says_what_is_waited_for(coordinator):
    service = IdService(claim(), IdgenConfig())
    assert ask(service, "get_id", "agent").error == "NoWorkerNumber: no worker number: it is still being claimed"
    assert ask(service, "get_worker_id").error.startswith("NoWorkerNumber")


def test_a_fenced_worker_is_answered_as_such(service, coordinator):
    service.claim.close(NOW)
    assert ask(service, "get_id", "agent").error.startswith("Fenced: worker number 103 issues no id")


def test_user_agents_are_counted_by_name_up_to_a_limit(coordinator):
    """Twitter's service kept a counter for every user agent it ever saw."""
    service = IdService(settle(claim(), coordinator, NOW), IdgenConfig(ids_max_user_agents=2))
    for agent in ("a", "b", "c", "d", "a"):
        service.next_id(agent, NOW, 0)
    service.next_ids("e", 10, NOW, 0)
    assert service.counters.by_user_agent == {"a": 2, "b": 1, "(others)": 12}
    assert service.counters.ids == 15


def test_the_ids_of_a_time_span_and_what_is_in_an_id(service):
    first, end = decode_reply(service.answer(Call("get_id_range", 1, numbers=(NOW, NOW + 1)), NOW, 0)[4:]).value
    id = service.next_id("agent", NOW, 0)
    assert first <= id < end == first + (1 << 22)
    assert decode_reply(service.answer(Call("decode_id", 1, numbers=(id,)), NOW, 0)[4:]).value == list(
        service.decode(id)
    )
    assert service.id_range(0, 1 << 62) == (0, (1 << 63) - 1)  # fits an i64


@pytest.mark.parametrize(
    "method, numbers, reason",
    [
        ("get_id_range", (2, 1), "InvalidTimeRange: the range ends at 1"),
        ("get_id_range", (2,), "InvalidTimeRange: get_id_range takes two numbers of i64, start_ms .+; the call has 1"),
        ("decode_id", (), "InvalidId: decode_id takes one number of i64, the id .1.; the call has 0"),
        ("decode_id", (-1,), "InvalidId: -1 is no id"),
    ],
)
def test_a_question_about_ids_that_is_wrong_is_told_what_would_be_right(service, method, numbers, reason):
    assert re.match(reason, decode_reply(service.answer(Call(method, 1, numbers=numbers), NOW, 0)[4:]).error)


def test_ids_from_all_methods_are_one_rising_sequence(service):
    ids = [service.next_id("a", NOW, 0), *flat(service.next_ids("a", 5000, NOW, 0)), service.next_id("a", NOW, 0)]
    assert ids == sorted(set(ids))


def test_an_invalid_user_agent_is_shown_cut(service):
    with pytest.raises(InvalidUserAgent) as refused:
        service.next_id("!" * 10_000, NOW, 0)
    assert len(str(refused.value)) < 300
