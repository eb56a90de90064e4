"""One member of a group (Kafka's ClassicGroupMember)."""

from collections.abc import Set

from broker.group.alarms import Alarm
from broker.group.results import DescribedMember, GroupProtocol, JoinedMember, JoinResult, Pending, SyncResult


class Member:
    """Who a member is, what it supports, its share, and the answers it waits for.

    `session` rings when its session has expired. `is_new` until its first join is answered. `joining` and `syncing`
    are the answers it waits for: while it does, its session cannot expire (it has no way to send a heartbeat), unless
    it is new, for a client that went away while waiting would never be missed.
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
        """`client` is its id and host, `timeouts_ms` those of session and rebalance."""
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
        """What the member says to the leader under this protocol; empty for one it does not support."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: Set[str]) -> str:
        """The candidate the member likes best."""
        return next(name for name, _ in self.protocols if name in candidates)

    def renamed(self, member_id: str) -> "Member":
        """The same static member under a new id, after its process was restarted."""
        client, timeouts_ms = (self.client_id, self.client_host), (self.session_timeout_ms, self.rebalance_timeout_ms)
        return Member(member_id, self.instance_id, client, timeouts_ms, self.protocols, self.assignment)

    def for_leader(self, protocol_name: str | None) -> JoinedMember:
        return JoinedMember(self.member_id, self.instance_id, self.metadata(protocol_name))

    def describe(self, protocol_name: str | None) -> DescribedMember:
        """For DescribeGroups; without metadata when no protocol is named."""
        return DescribedMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.metadata(protocol_name),
            self.assignment,
        )
