"""The requests of a group member and the answers that matter, as operations of a `ClientCore`.

Each operation sends one request to the group's coordinator. An error code is a normal answer: the member decides what
it means.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from broker.client.api_versions import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from broker.client.core import Address, ClientCore, Steps
from broker.client.errors import BrokerError
from broker.client.group_assignor import NAME, assign
from broker.client.group_config import GroupMemberConfig
from broker.client.group_protocol import (
    NO_GENERATION,
    MemberSubscription,
    Partition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from broker.wire.errors import ErrorCode, WireError

GROUP, TRANSACTION = 0, 1  # key types of FindCoordinator
PROTOCOL_TYPE = "consumer"
NO_MEMBER_ID = ""
NO_EPOCH = -1
METADATA_CHARACTERS_MAX = 4_096  # offset.metadata.max.bytes of a broker by default; Kafka counts characters


class GroupIdentity(NamedTuple):
    """A member as its commits name it. Generation -1 without a member id is a client outside the group."""

    group_id: str
    generation: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None


class Joined(NamedTuple):
    """An answer to JoinGroup. `members` are the subscriptions of all members, for the leader; empty for others."""

    error: int
    member_id: str
    generation: int
    members: Mapping[str, MemberSubscription]
    skip_assignment: bool


class Synced(NamedTuple):
    """An answer to SyncGroup. `counts` are the partitions of all topics of the group, if the leader assigned them."""

    error: int
    partitions: tuple[Partition, ...] = ()
    counts: Mapping[str, int] | None = None


class CommittedOffset(NamedTuple):
    """A committed offset; offset -1 if the group has none."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


def find_coordinator(core: ClientCore, key: str, kind: int = GROUP) -> Steps[Address]:
    """Return the coordinator of a GROUP, or of a TRANSACTION's id. Raise BrokerError if it has none now."""
    yield from core.nodes()  # so that another broker is known when this one is gone
    response = yield from core.ask_any(FIND_COORDINATOR, {"key": key, "key_type": kind})
    if response.error_code:
        what = "group" if kind == GROUP else "transactional id"
        raise BrokerError(int(response.error_code), f"{what} {key}", response.error_message)
    return Address(response.host, int(response.port))


def join(
    core: ClientCore,
    coordinator: Address,
    who: GroupIdentity,
    subscription: MemberSubscription,
    config: GroupMemberConfig,
) -> Steps[Joined]:
    """Join the group, or join it again with `who.member_id`. The coordinator answers when all members have joined."""
    fields = {
        "group_id": who.group_id,
        "session_timeout": config.session_timeout_ms,
        "rebalance_timeout": config.max_poll_interval_ms,
        "member_id": who.member_id,
        "group_instance_id": who.instance_id,
        "protocol_type": PROTOCOL_TYPE,
        "protocols": [{"name": NAME, "metadata": encode_subscription(subscription)}],
        "reason": None,
    }
    response = yield from core.ask(coordinator, JOIN_GROUP, fields)
    members: dict[str, MemberSubscription] = {}
    for member in response.members:
        try:
            members[member.member_id] = decode_subscription(member.metadata)
        except WireError:
            members[member.member_id] = MemberSubscription(())  # a member that cannot be understood gets nothing
    return Joined(
        int(response.error_code), response.member_id, response.generation_id, members, response.skip_assignment
    )


def assign_and_sync(
    core: ClientCore, coordinator: Address, who: GroupIdentity, members: Mapping[str, MemberSubscription]
) -> Steps[Synced]:
    """Assign the partitions as the leader, and return the leader's own."""
    topics = sorted({topic for subscription in members.values() for topic in subscription.topics})
    counts = yield from partition_counts(core, topics)
    shares = {member: encode_assignment(share) for member, share in assign(members, counts).items()}
    synced = yield from sync(core, coordinator, who, shares)
    return synced._replace(counts=counts)


def sync(
    core: ClientCore, coordinator: Address, who: GroupIdentity, shares: Mapping[str, bytes] | None = None
) -> Steps[Synced]:
    """Return this member's partitions, as soon as the leader has assigned them."""
    fields = {
        "group_id": who.group_id,
        "generation_id": who.generation,
        "member_id": who.member_id,
        "group_instance_id": who.instance_id,
        "protocol_type": PROTOCOL_TYPE,
        "protocol_name": NAME,
        "assignments": [{"member_id": member, "assignment": share} for member, share in (shares or {}).items()],
    }
    response = yield from core.ask(coordinator, SYNC_GROUP, fields)
    return Synced(int(response.error_code), decode_assignment(response.assignment))


def partition_counts(core: ClientCore, topics: Iterable[str]) -> Steps[dict[str, int]]:
    """Return the number of partitions of each topic, without the topics that do not exist."""
    counts = {}
    for topic in topics:
        try:
            infos = yield from core.metadata([topic])
        except BrokerError as error:
            if error.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
                raise
        else:
            counts[topic] = infos[0].partitions
    return counts


def heartbeat(core: ClientCore, coordinator: Address, who: GroupIdentity) -> Steps[int]:
    """Return the error code of a heartbeat."""
    fields = {
        "group_id": who.group_id,
        "generation_id": who.generation,
        "member_id": who.member_id,
        "group_instance_id": who.instance_id,
    }
    response = yield from core.ask(coordinator, HEARTBEAT, fields)
    return int(response.error_code)


def leave(core: ClientCore, coordinator: Address, who: GroupIdentity) -> Steps[int]:
    """Leave the group; return the error code."""
    member = {"member_id": who.member_id, "group_instance_id": who.instance_id, "reason": None}
    response = yield from core.ask(coordinator, LEAVE_GROUP, {"group_id": who.group_id, "members": [member]})
    return int(response.error_code)


def commit_offsets(
    core: ClientCore, coordinator: Address, who: GroupIdentity, offsets: Mapping[Partition, CommittedOffset]
) -> Steps[dict[Partition, ErrorCode]]:
    """Commit offsets; return each partition's error code. A commit of an older generation is refused."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, number), (offset, epoch, metadata) in offsets.items():
        partition = {
            "partition_index": number,
            "committed_offset": offset,
            "committed_leader_epoch": epoch,
            "committed_metadata": metadata,
        }
        topics.setdefault(topic, []).append(partition)
    fields = {
        "group_id": who.group_id,
        "generation_id_or_member_epoch": who.generation,
        "member_id": who.member_id,
        "group_instance_id": who.instance_id,
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }
    response = yield from core.ask(coordinator, OFFSET_COMMIT, fields)
    return {
        (str(topic.name), int(partition.partition_index)): ErrorCode(int(partition.error_code))
        for topic in response.topics
        for partition in topic.partitions
    }


def fetch_offsets(
    core: ClientCore,
    coordinator: Address,
    group_id: str,
    partitions: Iterable[Partition],
    *,
    require_stable: bool = True,
) -> Steps[dict[Partition, CommittedOffset]]:
    """Return the committed offsets of these partitions. Raise BrokerError if one of them has an error.

    With `require_stable` an offset that an open transaction may change is the error UNSTABLE_OFFSET_COMMIT (KIP-447):
    the former owner's transaction has to end first.
    """
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    fields = {
        "group_id": group_id,
        "topics": [{"name": topic, "partition_indexes": tuple(numbers)} for topic, numbers in topics.items()],
        "require_stable": require_stable,
    }
    response = yield from core.ask(coordinator, OFFSET_FETCH, fields)
    if response.error_code:
        raise BrokerError(int(response.error_code), f"group {group_id}")
    offsets = {}
    for answer in response.topics:
        for partition in answer.partitions:
            if partition.error_code:
                where = f"group {group_id}, {answer.name}-{partition.partition_index}"
                raise BrokerError(int(partition.error_code), where)
            committed = CommittedOffset(
                partition.committed_offset, partition.committed_leader_epoch, partition.metadata or ""
            )
            offsets[str(answer.name), int(partition.partition_index)] = committed
    return offsets
