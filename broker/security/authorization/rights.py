"""The rights of one client at one API: what a handler asks before it does something.

The API's row says which operations on which resources the API may ask for (`ApiRights`), so that the rows tell all that
is checked. The principal is that of the connection at the time of the request: a client may log in anew.

Without an authorizer a request has no rights (None), and its client may do everything: `may`, `sees` and `check`.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from broker.security.authorization.acl import CLUSTER_NAME, USER, Operation, ResourceType
from broker.security.authorization.audit_log import AuditLog
from broker.security.authorization.authorizer import Authorizer
from broker.wire.errors import ApiError, ErrorCode

Need: TypeAlias = tuple[ResourceType, Operation]
AUTHORIZATION_FAILED = {
    ResourceType.TOPIC: ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    ResourceType.GROUP: ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    ResourceType.CLUSTER: ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
    ResourceType.TRANSACTIONAL_ID: ApiError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactional Id authorization failed."
    ),
}
"""The error of a client that lacks a right, by what it asked for, in Kafka's words."""


GRANTED_MAX = 64
"""The topics of a connection and an API that `Rights.granted` keeps."""
_NAME_CHARACTERS_MAX = 249  # of a topic; a longer name has none


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


class AskedApi(Protocol):
    """An API, with the rights that it asks for."""

    name: str
    rights: ApiRights


class Peer(Protocol):
    """The other side of a connection."""

    @property
    def address(self) -> str:
        """The peer's address."""


class Rights:
    """The rights of a connection's client at one API.

    Produce and Fetch ask for one operation on topics in each request. So the topics that the client may do it to are
    kept until the rules change, and such a request calls nothing here:

        topic in rights.granted and rights.granted_generation == rights.authorizer.generation
    """

    __slots__ = (
        "authorizer", "_audit", "_host", "principal", "api", "row", "is_asked_first", "granted", "granted_generation"
    )  # fmt: skip

    def __init__(
        self, authorizer: Authorizer, audit: AuditLog, host: str, user: str, api: str, row: ApiRights
    ) -> None:
        self.authorizer = authorizer
        self._audit = audit
        self._host = host
        self.principal = f"{USER}:{user}"
        self.api = api
        self.row = row
        self.is_asked_first = bool(row.cluster or row.named or row.waits)
        """True if a request is refused as a whole without a right, or judged again after a wait."""
        self.granted: set[str | UUID] = set()
        """Topics, by name or id, that `may_on_topic` allowed under the rules of `granted_generation`."""
        self.granted_generation = authorizer.generation

    @property
    def generation(self) -> int:
        """Return a number that differs after each change of the rules."""
        return self.authorizer.generation

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return True if the client may do an operation. If not, note that it was denied."""
        is_allowed = self.authorizer.allows(self.principal, self._host, operation, resource_type, name)
        if not is_allowed:
            self._audit.denied(self.principal, self._host, operation, resource_type, name, self.api)
        return is_allowed

    def may_on_topic(self, operation: Operation, topic: str | UUID, name: str) -> bool:
        """Return what `may` does for the one operation of the API on topics, and keep a topic in `granted`.

        `topic` is the name or the id in the request, and `name` the topic's name. An id keeps its name for ever.
        """
        generation = self.authorizer.generation
        if self.granted_generation != generation or len(self.granted) >= GRANTED_MAX:
            self.granted.clear()
            self.granted_generation = generation
        is_allowed = self.may(operation, ResourceType.TOPIC, name)
        if is_allowed and len(name) <= _NAME_CHARACTERS_MAX:
            self.granted.add(topic)
        return is_allowed

    def sees(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return True if the client may do an operation. If not, it was not asked for, and nothing is noted."""
        return self.authorizer.allows(self.principal, self._host, operation, resource_type, name)

    def visible(self, operation: Operation, resource_type: ResourceType, names: Iterable[str]) -> set[str]:
        """Return those of many names on which the client may do an operation, as `sees` decides it for one."""
        return self.authorizer.allowed(self.principal, self._host, operation, resource_type, names)

    def may_on_cluster(self, *operations: Operation) -> bool:
        """Return True if the client may do one of these on the cluster. If not, note that the last one was denied."""
        others, last = operations[:-1], operations[-1]
        is_allowed = any(self.sees(operation, ResourceType.CLUSTER, CLUSTER_NAME) for operation in others)
        return is_allowed or self.may(last, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_on_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return True if the client may do an operation on one resource of a type at least."""
        return self.authorizer.allows_on_any(self.principal, self._host, operation, resource_type)

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the operations that the client may do on a resource, a bit for each (KIP-430)."""
        return self.authorizer.operations(self.principal, self._host, resource_type, name)


class ConnectionRights(dict[tuple[AskedApi, str], Rights]):
    """The rights of one connection's client, by API and user: `conn.rights[api, conn.user]`.

    The user is part of the key, so that no request has the rights of the user from before a login. Rights are made when
    they are first asked for; each later request finds them without a call.
    """

    __slots__ = ("_authorizer", "_audit", "_peer")

    def __init__(self, authorizer: Authorizer, audit: AuditLog, peer: Peer) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self._peer = peer

    def __missing__(self, key: tuple[AskedApi, str]) -> Rights:
        api, user = key
        rights = self[key] = Rights(self._authorizer, self._audit, self._peer.address, user, api.name, api.rights)
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
        raise AUTHORIZATION_FAILED[resource_type]
