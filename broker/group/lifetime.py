"""Restoring a group from its record, and the expiry of groups and offsets (KIP-211)."""

from broker.group.group import Group
from broker.group.offset_records import NO_TIME, StoredGroup
from broker.group.offsets import GroupOffsets, is_expired
from broker.group.states import GroupState
from broker.group.subscription import CONSUMER_PROTOCOL_TYPE


def restored(group_id: str, stored: StoredGroup, offsets: GroupOffsets) -> Group:
    """Return a group as stored in its record: stable with its members and their assignments, or empty.

    No session timer runs yet.
    """
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
    """Return True if a group has this offset and did not use it for `retention_ms`.

    No offset expires while the group rebalances, nor while it has members whose topics are not known.
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
    """Return True if members of the group may subscribe to the topic.

    If the subscriptions are not known, any group of the consumer protocol may.
    """
    if group.topics is None:
        return group.protocol_type == CONSUMER_PROTOCOL_TYPE
    return topic in group.topics


def is_idle(group: Group) -> bool:
    """Return True if the group has no members and no client was given an id to join with."""
    return group.state is GroupState.EMPTY and not group.pending


def is_abandoned(group: Group) -> bool:
    """Return True if the group is idle and has no offsets, so that it can be removed."""
    return is_idle(group) and not len(group.offsets)
