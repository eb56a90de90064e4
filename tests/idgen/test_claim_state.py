"""The table of states of a claim: a test goes through each of its rows (idgen.claim_state)."""

from contextlib import suppress

import pytest

from coordination.port import ConnectionLost, Delete, NoNode, SessionSuspended
from idgen.claim_state import TRANSITIONS, ClaimState, Turn
from tests.idgen.driving import NOW, claim, settle, step


def at_state(state, session, other):
    """Return a claim in this state; for FENCED, `other` takes its number away."""
    c = claim("a")
    if state is ClaimState.CLAIMING:
        return c
    settle(c, session, NOW)
    if state is ClaimState.SUSPENDED:
        c.happened(SessionSuspended(), NOW)
    if state is ClaimState.FENCED:
        other.execute(Delete("/snowflake-servers-marks/0"))
        c.tick(NOW + 10_000)
        session.cut()
        while c.state is not ClaimState.FENCED:
            with suppress(NoNode):
                other.execute(c.take_operation())
            c.failed(NoNode("/snowflake-servers-marks/0"), NOW + 10_000)
    return c


def turn_claimed(c, session, other):
    settle(c, session, NOW + 10_000)


def turn_cut_off(c, session, other):
    c.tick(NOW + 10_000)
    c.take_operation()
    c.failed(ConnectionLost("cut"), NOW + 10_000)


def turn_taken(c, session, other):
    other.execute(Delete("/snowflake-servers-marks/0"))
    seen = set()
    while ClaimState.FENCED not in seen and step(c, session, NOW + 10_000):
        seen.add(c.state)
    assert ClaimState.FENCED in seen


def turn_closed(c, session, other):
    c.close(NOW)
    settle(c, session, NOW)


TURNS = {
    Turn.CLAIMED: turn_claimed,
    Turn.CONFIRMED: turn_claimed,
    Turn.CUT_OFF: turn_cut_off,
    Turn.TAKEN: turn_taken,
    Turn.CLOSED: turn_closed,
}


@pytest.mark.parametrize("row", TRANSITIONS, ids=lambda row: f"{row[0].name} {row[1].name}")
def test_each_row_of_the_table_is_gone_through(row, session, other):
    state, turn = row
    c = at_state(state, session, other)
    assert c.state is state
    session.heal()
    TURNS[turn](c, session, other)
    assert c.state is TRANSITIONS[row]


def test_every_state_can_be_closed_and_nothing_leaves_closed():
    assert {state for state, turn in TRANSITIONS if turn is Turn.CLOSED} == set(ClaimState) - {ClaimState.CLOSED}
    assert all(state is not ClaimState.CLOSED for state, _ in TRANSITIONS)
    assert set(TRANSITIONS.values()) == set(ClaimState)
