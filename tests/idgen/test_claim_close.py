"""A claim that is closed or abandoned gives its number back, or leaves it to rest, and issues no further id."""

import pytest

from coordination.port import Delete, Get, NoNode
from idgen.claim_state import ClaimState
from idgen.errors import Fenced
from tests.idgen.claims import held, mark
from tests.idgen.driving import NOW, claim, settle, step


def test_a_clean_close_lowers_the_mark_and_the_number_is_taken_again_immediately(session, other):
    c = held(session)
    last = c.worker.next_id(NOW + 100)
    c.close(NOW + 200)
    settle(c, session, NOW + 200)
    assert c.state is ClaimState.CLOSED
    assert mark(session, 0)["high_water_ms"] == NOW + 101
    with pytest.raises(NoNode):
        session.execute(Get("/snowflake-servers/0"))
    with pytest.raises(Fenced, match="closed"):
        c.worker.next_id(NOW + 300)
    successor = held(other, "b", NOW + 200)
    assert successor.number == 0
    assert successor.worker.next_id(NOW + 200) > last


def test_a_close_leaves_the_node_of_whoever_has_taken_the_number_over(session, other):
    """The claim does not know yet that it lost its number, but the node is its live successor's."""
    c = held(session, "a")
    session.execute(Delete("/snowflake-servers/0"))
    held(other, "b", NOW + 30_000, number=0)
    c.close(NOW + 30_000)
    settle(c, session, NOW + 30_000)
    assert c.state is ClaimState.CLOSED
    assert session.execute(Get("/snowflake-servers/0")).owner == other.session_id


def test_a_claim_closed_before_it_held_anything_is_closed_immediately(session):
    c = claim()
    c.close(NOW)
    assert c.state is ClaimState.CLOSED and c.take_operation() is None


@pytest.mark.parametrize("after", range(5))
def test_a_claim_closed_in_the_middle_gives_back_what_it_got_and_issues_nothing(session, other, after):
    c = claim("a")
    for _ in range(after):
        step(c, session, NOW)
    c.tick(NOW)
    operation = c.take_operation()
    c.close(NOW)
    if operation is not None:
        try:
            c.answered(session.execute(operation), NOW)
        except NoNode as error:
            c.failed(error, NOW)
    if c.worker is not None:
        with pytest.raises(Fenced):
            c.worker.next_id(NOW)
    settle(c, session, NOW)
    assert c.state is ClaimState.CLOSED
    assert held(other, "b", NOW).number == 0


def test_a_close_that_cannot_reach_the_registry_ends_and_the_number_rests(session, other):
    c = held(session)
    session.cut()
    c.close(NOW + 1)
    settle(c, session, NOW + 1)
    assert c.state is ClaimState.CLOSED
    assert mark(other, 0)["high_water_ms"] == NOW + 30_000


def test_an_abandoned_claim_touches_nothing_of_its_holders(session):
    """A forked child abandons its parent's claim (idgen.fork)."""
    c = held(session)
    c.tick(NOW + 10_000)
    c.abandon("forked; make one of its own")
    assert (c.state, c.take_operation(), c.next_deadline_ms) == (ClaimState.CLOSED, None, None)
    with pytest.raises(Fenced, match="make one of its own"):
        c.worker.next_id(NOW)
    c.answered(1, NOW)
    c.close(NOW)
    assert c.take_operation() is None
