"""The transition table of a group (Kafka's ClassicGroupState and the diagram in its documentation)."""

import pytest

from broker.group.states import TRANSITIONS, Event, GroupState, InvalidTransition, can_rebalance, next_state


def test_every_living_state_can_be_left_and_dead_cannot():
    assert {state for state, _ in TRANSITIONS} == set(GroupState) - {GroupState.DEAD}


def test_every_state_but_the_first_can_be_reached():
    assert set(TRANSITIONS.values()) == set(GroupState)


@pytest.mark.parametrize(
    ("state", "possible"),
    [
        (GroupState.EMPTY, True),
        (GroupState.PREPARING_REBALANCE, False),
        (GroupState.COMPLETING_REBALANCE, True),
        (GroupState.STABLE, True),
        (GroupState.DEAD, False),
    ],
)
def test_a_rebalance_begins_from_these_states_only(state, possible):
    """The states are those of Kafka's ClassicGroup.canRebalance."""
    assert can_rebalance(state) is possible


def test_what_the_table_does_not_have_is_refused_by_name():
    with pytest.raises(InvalidTransition, match="ASSIGNED in state Empty; possible: MEMBERSHIP_CHANGED, REMOVED"):
        next_state(GroupState.EMPTY, Event.ASSIGNED)
