"""A group of the classic protocol: its members, leader, protocol and state (Kafka's ClassicGroup).

This module keeps the state of a group; `rebalance.py` runs the two phases, with their timers and answers. Invariants:

- All members share at least one protocol.
- The leader is a member, and a group with members has a leader.
- An instance id belongs to one static member.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from broker.group.alarms import Alarm
from broker.group.member import Member
from broker.group.offsets import GroupOffsets
from broker.group.results import NO_LEADER, GroupProtocol, JoinedMember, JoinResult, Pending
from broker.group.states import Event, GroupState, can_rebalance, next_state
from broker.group.subscription import subscribed_topics
from broker.wire.errors import ErrorCode


@dataclass
class InitialDelay:
    """The delay in which an empty group waits for more members; it may be extended by at most `left_ms`."""

    left_ms: int
    member_added: bool = False


class Group:
    """A group; see the module. `state_since_ms` is wall time, None if a record of an old schema lacks it.

    `pending` maps each id given to a client that has not joined with it yet (KIP-394) to its alarm. `unsynced` holds
    the members whose SyncGroup of this generation has not arrived. `topics` are the topics the members subscribe to,
    None if they are not known. `number` orders the groups of a broker by when they were made or loaded.
    """

    def __init__(self, group_id: str, state_since_ms: int | None) -> None:
        self.group_id = group_id
        self.number = 0
        self.state = GroupState.EMPTY
        self.state_since_ms = state_since_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.pending: dict[str, Alarm] = {}
        self.unsynced: set[str] = set()
        self.topics: frozenset[str] | None = None
        self.offsets = GroupOffsets()
        self.initial_delay: InitialDelay | None = None
        self.join_alarm: Alarm | None = None
        self.sync_alarm: Alarm | None = None
        self.is_stored = False  # __consumer_offsets has a record of the group
        self._static_ids: dict[str, str] = {}  # instance id -> member id
        self._supporters: Counter[str] = Counter()  # protocol -> number of members that support it
        self.awaiting_join = 0  # number of members whose JoinGroup waits

    # State

    def happened(self, event: Event, wall_ms: int) -> None:
        """Change the state by the transition table. Raise InvalidTransition if the table has no entry."""
        self.state = next_state(self.state, event)
        self.state_since_ms = wall_ms

    @property
    def can_rebalance(self) -> bool:
        return can_rebalance(self.state)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def next_generation(self, wall_ms: int) -> None:
        """End the join phase: count a generation and choose its protocol."""
        self.generation += 1
        self.unsynced.clear()
        self.initial_delay = None
        self.protocol_name = self.select_protocol() if self.members else None
        self.learn_topics()
        self.happened(Event.MEMBERS_JOINED if self.members else Event.NOBODY_JOINED, wall_ms)

    def learn_topics(self) -> None:
        """Read the members' subscribed topics, if the group uses the consumer protocol."""
        metadata = (member.metadata(self.protocol_name) for member in self.members.values())
        self.topics = subscribed_topics(self.protocol_type, metadata)

    # Members

    def add(self, member: Member, protocol_type: str | None) -> None:
        """Add a member. The first member sets the group's protocol type and becomes the leader."""
        if not self.members:
            self.protocol_type = protocol_type
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id
        self._supporters.update(_names(member.protocols))

    def remove(self, member: Member) -> None:
        """Remove a member. If it was the leader, another member leads. The caller has answered its join and sync."""
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._static_ids[member.instance_id]
        self._supporters -= Counter(_names(member.protocols))
        self.unsynced.discard(member.member_id)
        if self.is_leader(member):
            self.leader_id = next(iter(self.members), None)

    def update(self, member: Member, protocols: tuple[GroupProtocol, ...], timeouts_ms: tuple[int, int]) -> None:
        self._supporters -= Counter(_names(member.protocols))
        self._supporters.update(_names(protocols))
        member.protocols = protocols
        member.session_timeout_ms, member.rebalance_timeout_ms = timeouts_ms

    def replace_static(self, old: Member, member_id: str) -> Member:
        """Give a returning static member its new id. It keeps its assignment and, if it was the leader, the lead."""
        leads = self.is_leader(old)
        self.remove(old)
        member = old.renamed(member_id)
        self.add(member, self.protocol_type)
        if leads:
            self.leader_id = member_id
        return member

    def static_member(self, instance_id: str | None) -> Member | None:
        """Return the member with this instance id, or None."""
        member_id = None if instance_id is None else self._static_ids.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE, UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member has the instance id now (KIP-345)."""
        if instance_id is not None:
            current = self._static_ids.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # The join phase

    def is_leader(self, member: Member) -> bool:
        return self.leader_id == member.member_id

    @property
    def leader_or_none(self) -> str:
        return self.leader_id or NO_LEADER

    def set_joining(self, member: Member, pending: Pending[JoinResult] | None) -> None:
        """Set the join a member waits for, or None if it waits no longer."""
        self.awaiting_join += (pending is not None) - (member.joining is not None)
        member.joining = pending

    @property
    def all_joined(self) -> bool:
        return self.awaiting_join == len(self.members) and not self.pending

    def elect_joined_leader(self) -> bool:
        """Ensure that the leader has joined; otherwise elect a member that has. Return False if no member has joined.
        """
        if self.leader_id is not None and self.members[self.leader_id].joining is not None:
            return True
        joined = next((member.member_id for member in self.members.values() if member.joining is not None), None)
        if joined is not None:
            self.leader_id = joined
        return joined is not None

    def supports(self, protocol_type: str, protocols: Iterable[GroupProtocol]) -> bool:
        """Return True if a member with these protocols fits: the group is empty or all its members support one of them.
        """
        names = _names(protocols)
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and names)
        everybody = len(self.members)
        return protocol_type == self.protocol_type and any(self._supporters[name] == everybody for name in names)

    def select_protocol(self) -> str:
        """Return the protocol most members prefer among those all members support; in a tie, the first voted for."""
        everybody = len(self.members)
        candidates = {name for name, supporters in self._supporters.items() if supporters == everybody}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def for_leader(self) -> tuple[JoinedMember, ...]:
        return tuple(member.for_leader(self.protocol_name) for member in self.members.values())


def _names(protocols: Iterable[GroupProtocol]) -> set[str]:
    """Return the distinct names, because a client that lists a protocol twice must not count as two members."""
    return {name for name, _ in protocols}
