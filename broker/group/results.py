"""Requests and answers of the group coordinator, as values without a wire format."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from broker.group.offsets import NO_EPOCH, CommittedOffset
from broker.wire.errors import ErrorCode

R = TypeVar("R")

UNKNOWN_MEMBER_ID = ""  # a member without an id yet
UNKNOWN_GENERATION = -1
NO_LEADER = ""
NO_RETENTION = -1


class Pending(Generic[R]):
    """An answer that may come later. `result` is None until then; the purgatory waits for `key`."""

    __slots__ = ("key", "result")

    def __init__(self, key: Hashable, result: R | None = None) -> None:
        self.key = key
        self.result = result


def member_key(group_id: str, member_id: str) -> Hashable:
    """Return the purgatory's key of a member, touched when its join or sync can be answered."""
    return ("member", group_id, member_id)


class GroupProtocol(NamedTuple):
    """An assignor a member supports, and the member's metadata for the leader (its subscription)."""

    name: str
    metadata: bytes


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request. Timeouts are in ms, `protocols` in the member's order of preference.

    `member_id_suffix` is a fresh uuid for a new member's id. `member_id_required` (since v4, KIP-394) and
    `may_skip_assignment` (since v9, KIP-814) follow from the request's version.
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
    """The answer to JoinGroup; only the leader's has `members`."""

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
    """A SyncGroup request. Only the leader sends `assignments`, as (member id, bytes). A null protocol (before v5) is
    not checked."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, kw_only=True)
class SyncResult:
    """The answer to SyncGroup: the member's assignment, in bytes only the assignor understands."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class MemberIdentity(NamedTuple):
    """A member in a LeaveGroup: named by its id, or a static member by its instance id alone."""

    member_id: str
    instance_id: str | None = None


class LeaveResult(NamedTuple):
    """The answer to LeaveGroup, with `members` in the order of the request."""

    error: ErrorCode
    members: tuple[tuple[MemberIdentity, ErrorCode], ...] = ()


class OffsetToCommit(NamedTuple):
    """A partition of an OffsetCommit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str | None = None


@dataclass(frozen=True, kw_only=True)
class CommitRequest:
    """An OffsetCommit request.

    Generation -1 without a member id comes from an administrator or from a consumer that assigns its partitions to
    itself. Only v2-4 have `retention_ms`. `unknown_group` is the request version's error for a missing group: since v9
    GROUP_ID_NOT_FOUND. `producer` is the (id, epoch) of a TxnOffsetCommit's producer.
    """

    group_id: str
    member_id: str = UNKNOWN_MEMBER_ID
    instance_id: str | None = None
    generation: int = UNKNOWN_GENERATION
    retention_ms: int = NO_RETENTION
    unknown_group: ErrorCode = ErrorCode.ILLEGAL_GENERATION
    offsets: tuple[OffsetToCommit, ...] = ()
    producer: tuple[int, int] | None = None


class FetchedOffset(NamedTuple):
    """A partition in the answer to OffsetFetch. `committed` is NO_COMMITTED_OFFSET if the group has none there.
    `is_open` is True if an open transaction may change it."""

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
    """A member in DescribeGroups; `metadata` is empty unless the group is stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group in DescribeGroups. An unknown group is Dead, with GROUP_ID_NOT_FOUND (which v0-5 do not send)."""

    error: ErrorCode
    group_id: str
    state: str
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()
