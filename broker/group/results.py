"""What the group coordinator is asked and what it answers: values, without a wire format."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from broker.group.offsets import NO_EPOCH, CommittedOffset
from broker.wire.errors import ErrorCode

R = TypeVar("R")

UNKNOWN_MEMBER_ID = ""  # a member that has not been given an id yet
UNKNOWN_GENERATION = -1
NO_LEADER = ""
NO_RETENTION = -1


class Pending(Generic[R]):
    """An answer that may still be to come. `result` is None until then; `key` is what to watch in the purgatory."""

    __slots__ = ("key", "result")

    def __init__(self, key: Hashable, result: R | None = None) -> None:
        self.key = key
        self.result = result


def member_key(group_id: str, member_id: str) -> Hashable:
    """The purgatory's key of one member: touched when its join or sync can be answered."""
    return ("member", group_id, member_id)


class GroupProtocol(NamedTuple):
    """One assignor a member supports, and what it wants the leader to know (its subscription)."""

    name: str
    metadata: bytes


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """JoinGroup. Timeouts in ms. `protocols` in the order the member likes them.

    `member_id_suffix` is a fresh uuid, for the case that the member is given an id. `member_id_required` (v4, KIP-394)
    and `may_skip_assignment` (v9, KIP-814) are what the request's version allows.
    """

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    member_id_suffix: str
    member_id_required: bool = True
    may_skip_assignment: bool = False


class JoinedMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, kw_only=True)
class JoinResult:
    """The answer to JoinGroup; `members` is filled for the leader only."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str
    generation: int = UNKNOWN_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_LEADER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SyncRequest:
    """SyncGroup. `assignments` by member id, from the leader only; a null protocol (before v5) is not checked."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, kw_only=True)
class SyncResult:
    """The answer to SyncGroup: the member's share, in bytes only the assignor understands."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class MemberIdentity(NamedTuple):
    """A member as LeaveGroup names it: by id, or a static one by its instance id alone."""

    member_id: str
    instance_id: str | None = None


class LeaveResult(NamedTuple):
    """The answer to LeaveGroup; `members` in the order of the request."""

    error: ErrorCode
    members: tuple[tuple[MemberIdentity, ErrorCode], ...] = ()


class OffsetToCommit(NamedTuple):
    """One partition of an OffsetCommit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str | None = None


@dataclass(frozen=True, kw_only=True)
class CommitRequest:
    """OffsetCommit. Generation -1 without a member id is a consumer that assigns itself its partitions, or an
    administrator. `retention_ms` comes from v2-4 only. `unknown_group` is what the request's version calls a group
    that does not exist: since v9 GROUP_ID_NOT_FOUND. `producer` is given for TxnOffsetCommit: its id and epoch."""

    group_id: str
    member_id: str = UNKNOWN_MEMBER_ID
    instance_id: str | None = None
    generation: int = UNKNOWN_GENERATION
    retention_ms: int = NO_RETENTION
    unknown_group: ErrorCode = ErrorCode.ILLEGAL_GENERATION
    offsets: tuple[OffsetToCommit, ...] = ()
    producer: tuple[int, int] | None = None


class FetchedOffset(NamedTuple):
    """One partition of the answer to OffsetFetch; NO_COMMITTED_OFFSET where nothing was committed. `is_open`: a
    transaction that has not ended may change it."""

    topic: str
    partition: int
    committed: CommittedOffset
    is_open: bool = False


class ListedGroup(NamedTuple):
    """A group in ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


class DescribedMember(NamedTuple):
    """A member in DescribeGroups; `metadata` is filled while the group is stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group in DescribeGroups. One that nobody knows is Dead, with GROUP_ID_NOT_FOUND (which v0-5 do not send)."""

    error: ErrorCode
    group_id: str
    state: str
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()
