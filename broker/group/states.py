"""The states of a group in the classic protocol, and every way from one to the next.

A group divides work among its members in generations. Whenever its membership changes it rebalances, in two phases:

1. Join. All members send JoinGroup and wait. When all have come, or the rebalance timeout has passed, the coordinator
   counts a new generation, picks the protocol (the assignor) most members like best, and answers: to one member, the
   leader, with the list of all members and their subscriptions.
2. Sync. All members send SyncGroup; the leader's carries the assignment it worked out. The coordinator stores it in
   __consumer_offsets and answers each member with its share. It never looks inside.

         first join            all have joined           leader's assignment
    Empty --------> PreparingRebalance --------> CompletingRebalance --------> Stable
      ^                |      ^                     |                            |
      +----------------+      +---------------------+----------------------------+
       all have gone            a member comes, goes, fails or changes its mind

A group that is deleted or has expired is Dead, wherever it was. https://kafka.apache.org/documentation/#design and
KIP-62, KIP-134 (initial delay), KIP-345 (static members), KIP-394 (member ids first).
"""

from enum import Enum


class GroupState(Enum):
    """Values are the names Kafka shows in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Event(Enum):
    """What moves a group."""

    MEMBERSHIP_CHANGED = "a member came, went, failed or changed its subscription"
    MEMBERS_JOINED = "the join phase is over, with members"
    NOBODY_JOINED = "the join phase is over, and no member is left"
    ASSIGNED = "the leader sent the assignment"
    REMOVED = "the group was deleted or has expired"


TRANSITIONS: dict[tuple[GroupState, Event], GroupState] = {
    (GroupState.EMPTY, Event.MEMBERSHIP_CHANGED): GroupState.PREPARING_REBALANCE,
    (GroupState.EMPTY, Event.REMOVED): GroupState.DEAD,
    (GroupState.PREPARING_REBALANCE, Event.MEMBERS_JOINED): GroupState.COMPLETING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, Event.NOBODY_JOINED): GroupState.EMPTY,
    (GroupState.PREPARING_REBALANCE, Event.REMOVED): GroupState.DEAD,
    (GroupState.COMPLETING_REBALANCE, Event.ASSIGNED): GroupState.STABLE,
    (GroupState.COMPLETING_REBALANCE, Event.MEMBERSHIP_CHANGED): GroupState.PREPARING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, Event.REMOVED): GroupState.DEAD,
    (GroupState.STABLE, Event.MEMBERSHIP_CHANGED): GroupState.PREPARING_REBALANCE,
    (GroupState.STABLE, Event.REMOVED): GroupState.DEAD,
}


class InvalidTransition(AssertionError):
    """An event that cannot happen in the state a group is in: a fault of the coordinator, never of a client."""


def next_state(state: GroupState, event: Event) -> GroupState:
    """Where `event` leads from `state`; InvalidTransition where the table has no way."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        possible = sorted(e.name for s, e in TRANSITIONS if s is state)
        raise InvalidTransition(f"{event.name} in state {state.value}; possible: {', '.join(possible)}") from None


def can_rebalance(state: GroupState) -> bool:
    return (state, Event.MEMBERSHIP_CHANGED) in TRANSITIONS
