"""The states of a group in the classic protocol, and all transitions between them.

A group divides work among its members in generations. Whenever its membership changes it rebalances, in two phases:

1. Join. All members send JoinGroup and wait. When all have come, or the rebalance timeout has passed, the coordinator
   counts a new generation, picks the protocol (the assignor) most members prefer, and answers. The answer to one
   member, the leader, lists all members and their subscriptions.
2. Sync. All members send SyncGroup; the leader's request has the assignment it computed. The coordinator stores it in
   __consumer_offsets and answers each member with its part. It never decodes the assignment.

         first join            all have joined           leader's assignment
    Empty --------> PreparingRebalance --------> CompletingRebalance --------> Stable
      ^                |      ^                     |                            |
      +----------------+      +---------------------+----------------------------+
       all have left            a member joins, leaves, fails or changes its subscription

A group that is deleted or has expired becomes Dead from any state. Sources:
https://kafka.apache.org/documentation/#design and KIP-62, KIP-134 (initial delay), KIP-345 (static members),
KIP-394 (member ids first).
"""

from enum import Enum


class GroupState(Enum):
    """The state of a group. Values are the names in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Event(Enum):
    """An event that changes the state of a group."""

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
    """An event that cannot happen in the group's state: a bug of the coordinator, never a fault of a client."""


def next_state(state: GroupState, event: Event) -> GroupState:
    """Return the state after `event`. Raise InvalidTransition if the table has no entry."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        possible = sorted(e.name for s, e in TRANSITIONS if s is state)
        raise InvalidTransition(f"{event.name} in state {state.value}; possible: {', '.join(possible)}") from None


def can_rebalance(state: GroupState) -> bool:
    return (state, Event.MEMBERSHIP_CHANGED) in TRANSITIONS
