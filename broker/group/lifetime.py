"""How a group comes back from its records, and what of it has expired (KIP-211)."""

from broker.group.group import Group
from broker.group.offset_records import NO_TIME, StoredGroup
from broker.group.offsets import GroupOffsets, is_expired
from broker.group.states import GroupState
from broker.group.subscription import CONSUMER_PROTOCOL_TYPE


def restored(group_id: str, stored: StoredGroup, offsets: GroupOffsets) -> Group:
    """A group as its record has it: stable with its members and their shares, or empty. No session runs yet."""
    group = Group(group_id, None if stored.state_since_ms == NO_TIME else stored.state_since_ms)
    group.offsets = offsets
    group.is_stored = True
    for member in stored.members:
        group.add(member, stored.protocol_type)
    group.protocol_type = stored.protocol_type or None
    group.protocol_name = stored.protocol_name
    group.generation = stored.generation
    if group.members:
        group.leader_id = stored.leader_id if stored.leader_id in group.members else group.leader_id
        group.state = GroupState.STABLE
    group.learn_topics()
    return group


def is_expired_in(group: Group, topic: str, partition: int, now_wall_ms: int, retention_ms: int) -> bool:
    """Whether one of a group's offsets is there, and nobody has used it for `retention_ms`.

    Nothing expires while a group rebalances, nor in one with members where the topics they read are not known.
    """
    committed = group.offsets.get(topic, partition)
    if committed is None or not _may_expire(group) or reads(group, topic):
        return False
    return is_expired(committed, _unused_since_ms(group), now_wall_ms, retention_ms)


def _may_expire(group: Group) -> bool:
    if group.protocol_type is None or group.state is GroupState.EMPTY:
        return True
    return group.state is GroupState.STABLE and group.topics is not None


def _unused_since_ms(group: Group) -> int | None:
    is_left = group.protocol_type is not None and group.state is GroupState.EMPTY
    return group.state_since_ms if is_left else None


def reads(group: Group, topic: str) -> bool:
    """Whether members of the group subscribe to the topic; where that cannot be known, a consumers' group may."""
    if group.topics is None:
        return group.protocol_type == CONSUMER_PROTOCOL_TYPE
    return topic in group.topics


def is_idle(group: Group) -> bool:
    """Without members, and nobody on the way."""
    return group.state is GroupState.EMPTY and not group.pending


def is_abandoned(group: Group) -> bool:
    """Idle, and without offsets: not worth remembering."""
    return is_idle(group) and not len(group.offsets)
