"""The rights of one client at one API: what a handler asks before it does something.

The API's row says which operations on which resources the API may ask for (`ApiRights`), so that the rows tell all that
is checked. The principal is that of the connection at the time of the question: a client may log in anew.

Without an authorizer a request has no rights (None), and its client may do everything: `may`, `sees` and `check`.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeAlias

from broker.security.authorization.acl import CLUSTER_NAME, USER, Operation, ResourceType
from broker.security.authorization.audit_log import AuditLog
from broker.security.authorization.authorizer import Authorizer
from broker.wire.errors import ApiError, ErrorCode

Need: TypeAlias = tuple[ResourceType, Operation]
FAILED = {
    ResourceType.TOPIC: ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    ResourceType.GROUP: ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    ResourceType.CLUSTER: ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
    ResourceType.TRANSACTIONAL_ID: ApiError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactional Id authorization failed."
    ),
}
"""The error of a client that lacks a right, by what it asked for, in Kafka's words."""


class ApiRights(NamedTuple):
    """The rights that an API asks for.

    A request lacks a right as a whole unless its client has one of `cluster` on the cluster, and each of `named` on the
    group or the transactional id that the request names. The handler asks for those of `items`, of each thing in the
    request or in the answer.
    """

    cluster: tuple[Operation, ...] = ()
    named: tuple[Need, ...] = ()
    items: tuple[Need, ...] = ()
    waits: bool = False
    """True if a request that has waited is judged again before it is answered, in case the rules have changed."""
    lists_all: bool = False
    """True if the answer to a request that lacks a right as a whole has the error at the top and beside each thing that
    the request names; otherwise an error at the top is all."""


class Peer(Protocol):
    """The other side of a connection."""

    user: str

    @property
    def address(self) -> str:
        """The peer's address."""


class Rights:
    """The rights of a connection's client at one API."""

    __slots__ = ("_authorizer", "_audit", "_peer", "_host", "_user", "_principal", "api", "row")

    def __init__(self, authorizer: Authorizer, audit: AuditLog, peer: Peer, api: str, row: ApiRights) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self._peer = peer
        self._host = peer.address
        self._user = peer.user
        self._principal = f"{USER}:{peer.user}"
        self.api = api
        self.row = row

    @property
    def principal(self) -> str:
        """Return "User:NAME" of the client."""
        if self._peer.user is not self._user:
            self._user = self._peer.user
            self._principal = f"{USER}:{self._user}"
        return self._principal

    @property
    def generation(self) -> int:
        """Return a number that differs after each change of the rules."""
        return self._authorizer.generation

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return True if the client may do an operation. If not, note that it was denied."""
        principal = self._principal if self._peer.user is self._user else self.principal
        is_allowed = self._authorizer.allows(principal, self._host, operation, resource_type, name)
        if not is_allowed:
            self._audit.denied(principal, self._host, operation, resource_type, name, self.api)
        return is_allowed

    def sees(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return True if the client may do an operation. If not, it was not asked for, and nothing is noted."""
        return self._authorizer.allows(self.principal, self._host, operation, resource_type, name)

    def visible(self, operation: Operation, resource_type: ResourceType, names: Iterable[str]) -> set[str]:
        """Return those of many names on which the client may do an operation, as `sees` decides it for one."""
        return self._authorizer.allowed(self.principal, self._host, operation, resource_type, names)

    def may_on_cluster(self, *operations: Operation) -> bool:
        """Return True if the client may do one of these on the cluster. If not, note that the last one was denied."""
        others, last = operations[:-1], operations[-1]
        is_allowed = any(self.sees(operation, ResourceType.CLUSTER, CLUSTER_NAME) for operation in others)
        return is_allowed or self.may(last, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_on_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return True if the client may do an operation on one resource of a type at least."""
        return self._authorizer.allows_on_any(self.principal, self._host, operation, resource_type)

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the operations that the client may do on a resource, a bit for each (KIP-430)."""
        return self._authorizer.operations(self.principal, self._host, resource_type, name)


class ConnectionRights:
    """The rights of one connection's client, by API."""

    __slots__ = ("_make", "_by_api")

    def __init__(self, make: Callable[[str, ApiRights], Rights]) -> None:
        self._make = make
        self._by_api: dict[str, Rights] = {}

    def at(self, api: str, row: ApiRights) -> Rights:
        rights = self._by_api.get(api)
        if rights is None or rights.row is not row:
            rights = self._by_api[api] = self._make(api, row)
        return rights


def may(rights: Rights | None, operation: Operation, resource_type: ResourceType, name: str) -> bool:
    """Return True if a client may do an operation on a resource that its request names."""
    return rights is None or rights.may(operation, resource_type, name)


def sees(rights: Rights | None, operation: Operation, resource_type: ResourceType, name: str) -> bool:
    """Return True if a client may do an operation on a resource that its request does not name."""
    return rights is None or rights.sees(operation, resource_type, name)


def check(rights: Rights | None, operation: Operation, resource_type: ResourceType, name: str) -> None:
    """Raise the ApiError of a client that may not do an operation on a resource."""
    if rights is not None and not rights.may(operation, resource_type, name):
        raise FAILED[resource_type]
