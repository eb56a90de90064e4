"""A claim that loses its session, its number or an answer issues no id twice."""

import json

import pytest

from coordination.port import Children, Create, Delete, Get, Set
from idgen.claim_state import ClaimState
from idgen.errors import Fenced, LayoutExhausted, LayoutMismatch, LeadExhausted
from idgen.layout import Layout
from idgen.registry import CorruptMark, Registry
from tests.idgen.claims import held, mark
from tests.idgen.driving import NOW, claim, settle, step


def test_ids_go_on_without_the_registry_for_the_lead_and_go_on_again_after(session):
    """Ids continue for flakelog.ids.lead.ms without ZooKeeper."""
    c = held(session)
    session.cut()
    settle(c, session, NOW + 1)
    assert c.state is ClaimState.SUSPENDED
    for after_ms in range(0, 30_000, 500):
        settle(c, session, NOW + after_ms)
        c.worker.next_id(NOW + after_ms)
    settle(c, session, NOW + 60_000)
    with pytest.raises(LeadExhausted):
        c.worker.next_id(NOW + 60_000)
    session.heal()
    settle(c, session, NOW + 60_001)
    assert (c.state, c.number, c.worker.limit_ms) == (ClaimState.HELD, 0, NOW + 90_001)
    c.worker.next_id(NOW + 60_001)


def test_a_session_that_expired_is_replaced_and_the_number_kept(session):
    """Twitter's service reconnected and continued without its node; ours creates it again."""
    c = held(session)
    session.cut()
    session.expire()
    settle(c, session, NOW + 1)
    session.heal()
    settle(c, session, NOW + 2)
    assert (c.state, c.number) == (ClaimState.HELD, 0)
    assert session.execute(Get("/snowflake-servers/0")).owner == session.session_id


def test_a_zombie_is_fenced_by_its_next_set_and_claims_anew(session, other):
    """A process stopped by SIGSTOP for longer than the lead loses its number."""
    zombie = held(session, "a")
    last = zombie.worker.next_id(NOW + 29_999)
    session.expire()
    session.take_events()  # the paused process does not see them
    successor = held(other, "b", NOW + 30_000, number=0)
    with pytest.raises(LeadExhausted):
        zombie.worker.next_id(NOW + 40_000)
    old_worker = zombie.worker
    settle(zombie, session, NOW + 40_000)
    with pytest.raises(Fenced, match="number 0 was claimed by host-b:1; another number is being claimed"):
        old_worker.next_id(NOW + 40_000)
    assert (zombie.state, zombie.number) == (ClaimState.HELD, 1)
    assert successor.worker.next_id(NOW + 40_000) > last


def taken_over_in_a_session_that_lives(session, other, **more):
    """Return a claim that paused before it created its node, while another claim took its number and ended."""
    slow = claim("a", **more)
    while slow.number is None:
        assert step(slow, session, NOW)
    held(other, "b", NOW + 30_000, number=0)
    other.execute(Delete("/snowflake-servers/0"))  # the other claim has ended
    settle(slow, session, NOW + 30_000)
    return slow


def test_a_number_lost_is_not_shown_as_held_any_more(session, other):
    """A node left behind would keep the number from every other claim as long as the loser's session lives."""
    slow = taken_over_in_a_session_that_lives(session, other)
    assert (slow.state, slow.number) == (ClaimState.HELD, 1)
    assert session.execute(Children("/snowflake-servers")) == ("1",)


def test_a_configured_number_lost_is_claimed_again_past_ones_own_node(session, other):
    """A node of the claim's session does not block the claim, because it would wait for itself for ever."""
    slow = taken_over_in_a_session_that_lives(session, other, number=0)
    settle(slow, session, NOW + 60_000)
    assert (slow.state, slow.number) == (ClaimState.HELD, 0)
    assert session.execute(Get("/snowflake-servers/0")).owner == session.session_id


@pytest.mark.parametrize("fault", ["lose_answers", "lose_requests"])
@pytest.mark.parametrize("at", range(8))
def test_whichever_answer_of_a_claim_gets_lost_one_number_is_held_in_the_end(session, other, fault, at):
    """After ConnectionLost the outcome is unknown (ZooKeeper FAQ, "How should I handle the CONNECTION_LOSS error?")."""
    c = claim("a")
    steps = 0
    now = NOW
    while c.state is not ClaimState.HELD or c.next_deadline_ms is None or steps <= at:
        setattr(session, fault, int(steps == at))
        if not step(c, session, now):
            now = c.next_deadline_ms
        steps += 1
        assert steps < 100
    setattr(session, fault, 0)
    assert c.number == 0
    assert mark(session, 0)["high_water_ms"] == c.worker.limit_ms
    assert held(other, "b", now).number == 1


@pytest.mark.parametrize("fault", ["lose_answers", "lose_requests"])
def test_a_raise_whose_answer_got_lost_counts_only_when_it_is_known(session, fault):
    c = held(session)
    setattr(session, fault, 1)
    settle(c, session, NOW + 10_000)
    assert (c.state, c.worker.limit_ms) == (ClaimState.SUSPENDED, NOW + 30_000)
    settle(c, session, NOW + 11_000)
    assert (c.state, c.worker.limit_ms) == (ClaimState.HELD, NOW + 41_000)
    assert mark(session, 0)["high_water_ms"] == NOW + 41_000


def test_a_late_set_of_our_own_is_recognised_by_its_token(session, other):
    """A set may be applied after the claim gave it up: its version is not the known one, but the mark is still ours."""
    c = held(session)
    node = other.execute(Get("/snowflake-servers-marks/0"))
    other.execute(Set("/snowflake-servers-marks/0", node.data, node.version))
    settle(c, session, NOW + 10_000)
    assert (c.state, c.worker.limit_ms) == (ClaimState.HELD, NOW + 40_000)


def test_another_layout_than_the_recorded_one_does_not_start(session, other):
    held(session)
    wrong = settle(claim("b", registry=Registry(layout=Layout(42, 5, 4, 12))), other, NOW)
    assert wrong.state is ClaimState.CLOSED
    assert isinstance(wrong.failure, LayoutMismatch)
    assert "Set the recorded layout" in str(wrong.failure)
    assert wrong.next_deadline_ms is None


def test_a_mark_that_cannot_be_read_is_never_given_out(session):
    session.execute(Create("/snowflake-servers-marks/0", b"{}"))
    session.execute(Create("/snowflake-servers-marks/1", b"12"))
    session.execute(Set("/snowflake-servers-marks", json.dumps({"layout": Layout().to_dict()}).encode(), 0))
    assert held(session).number == 2
    refused = settle(claim("b", number=1), session, NOW)
    assert isinstance(refused.failure, CorruptMark)


def test_a_deleted_mark_fences_its_holder(session, other):
    c = held(session)
    other.execute(Delete("/snowflake-servers-marks/0"))
    old_worker = c.worker
    settle(c, session, NOW + 10_000)
    with pytest.raises(Fenced, match="marks/0 was deleted"):
        old_worker.next_id(NOW + 10_000)


def test_past_the_layouts_last_millisecond_no_number_is_claimed(session):
    late = settle(claim(), session, Layout().last_ms + 1)
    assert late.state is ClaimState.CLOSED and isinstance(late.failure, LayoutExhausted)
