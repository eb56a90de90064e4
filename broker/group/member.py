"""A member of a group (Kafka's ClassicGroupMember)."""

from collections.abc import Set

from broker.group.alarms import Alarm
from broker.group.results import DescribedMember, GroupProtocol, JoinedMember, JoinResult, Pending, SyncResult


class Member:
    """A member's identity, protocols, assignment, and the answers it waits for.

    `session` rings when its session expires. `is_new` is True until its first join is answered. `joining` and
    `syncing` are the answers it waits for. While it waits, its session cannot expire, because it cannot send a
    heartbeat. The session of a new member does expire, so that a client that left while waiting is removed.
    """

    __slots__ = (
        "member_id", "instance_id", "client_id", "client_host", "session_timeout_ms", "rebalance_timeout_ms",
        "protocols", "assignment", "is_new", "joining", "syncing", "session",
    )  # fmt: skip

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client: tuple[str, str],
        timeouts_ms: tuple[int, int],
        protocols: tuple[GroupProtocol, ...],
        assignment: bytes = b"",
    ) -> None:
        """Make a member. `client` is its (client id, host), `timeouts_ms` its (session, rebalance) timeouts."""
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id, self.client_host = client
        self.session_timeout_ms, self.rebalance_timeout_ms = timeouts_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        self.joining: Pending[JoinResult] | None = None
        self.syncing: Pending[SyncResult] | None = None
        self.session: Alarm | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def need_not_heartbeat(self) -> bool:
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for the leader under this protocol; empty if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: Set[str]) -> str:
        """Return the first candidate in the member's order of preference."""
        return next(name for name, _ in self.protocols if name in candidates)

    def renamed(self, member_id: str) -> "Member":
        """Return the same static member under a new id, after its process was restarted."""
        client, timeouts_ms = (self.client_id, self.client_host), (self.session_timeout_ms, self.rebalance_timeout_ms)
        return Member(member_id, self.instance_id, client, timeouts_ms, self.protocols, self.assignment)

    def for_leader(self, protocol_name: str | None) -> JoinedMember:
        return JoinedMember(self.member_id, self.instance_id, self.metadata(protocol_name))

    def describe(self, protocol_name: str | None) -> DescribedMember:
        """Return the member for DescribeGroups, without metadata if `protocol_name` is None."""
        return DescribedMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.metadata(protocol_name),
            self.assignment,
        )
