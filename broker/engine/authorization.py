"""Access rules at the engine: each connection has its client's rights, and a request without them is refused.

A request is refused here if its client lacks a right for all of it. The handler leaves out, or refuses, the single
things that a client has no right to.
"""

from collections.abc import Callable
from typing import Any

from broker.channel.connection import Connection
from broker.engine.api_table import Api
from broker.now import Now
from broker.security.authorization.acl import ResourceType
from broker.security.authorization.audit_log import AuditLog
from broker.security.authorization.authorizer import Authorizer
from broker.security.authorization.rights import AUTHORIZATION_FAILED, ConnectionRights, Peer, Rights
from broker.services.context import BrokerServices, RequestContext
from broker.services.delegation import DelegatedClient
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError

_NAMED_IN = {
    ResourceType.GROUP: ("group_id",),
    ResourceType.TRANSACTIONAL_ID: ("transactional_id", "v3_and_below_transactional_id"),
}
"""The fields in which a request names a group or a transactional id."""


def rights_of(client: Peer, authorizer: Authorizer, audit: AuditLog) -> ConnectionRights:
    """Return the rights of a connection's client."""
    return ConnectionRights(authorizer, audit, client)


def delegate(conn: Connection, client: DelegatedClient, services: BrokerServices) -> None:
    """Let a connection act for another client, with the rights of that one."""
    conn.user = client.user
    if services.authorizer is not None:
        conn.rights = rights_of(client, services.authorizer, services.audit)


def handle_authorized(api: Api, call: RequestContext, rights: Rights, now: Now) -> Any:
    """Call the handler of a request, unless its client lacks a right for all of it."""
    row = rights.row
    if row.cluster or row.named:
        answer = _refusal(api, call, rights)
        if answer is not None:
            return answer
    response = api.handle(call, now)
    if row.waits and isinstance(response, Delayed):
        _check_again(api, call, rights, response)
    return response


def _refusal(api: Api, call: RequestContext, rights: Rights) -> dict[str, Any] | None:
    """Return the answer to a request that its client has no right to, None if the handler may have it."""
    error = _error(call, rights)
    if error is None:
        return None
    # Imported here, because they load kio, which takes longer than all other modules.
    from broker.wire.error_answer import AnsweredError, mirror
    from broker.wire.schema import schema

    answered = AnsweredError(error.code, error.message)
    cls = schema(api.key, call.version, "response")
    return mirror(cls, type(call.original), call.original, answered, at_top=not rights.row.lists_all)


def _check_again(api: Api, call: RequestContext, rights: Rights, response: Delayed[Any]) -> None:
    """Refuse a waiting request at its end if its client has lost the right to it."""
    generation = rights.generation

    def checked(answer: Callable[[Now], Any]) -> Callable[[Now], Any]:
        def ended(now: Now) -> Any:
            ending = answer(now)
            if ending is None or rights.generation == generation:
                return ending
            return _refusal(api, call, rights) or ending

        return ended

    response.try_complete, response.expire = checked(response.try_complete), checked(response.expire)


def _error(call: RequestContext, rights: Rights) -> ApiError | None:
    row = rights.row
    if row.cluster and not rights.may_on_cluster(*row.cluster):
        return AUTHORIZATION_FAILED[ResourceType.CLUSTER]
    for resource_type, operation in row.named:
        if not rights.may(operation, resource_type, _name(call, resource_type)):
            return AUTHORIZATION_FAILED[resource_type]
    return None


def _name(call: RequestContext, resource_type: ResourceType) -> str:
    for field in _NAMED_IN[resource_type]:
        name = getattr(call.request, field, None)
        if name is not None:
            return str(name)
    return ""
