"""Access rules at the engine: each connection has its client's rights, and a request without them is refused.

A request is refused here if its client lacks a right for all of it. The handler leaves out, or refuses, the single
things that a client has no right to.
"""

from typing import Any

from broker.channel.connection import Connection
from broker.engine.api_table import Api
from broker.security.authorization.acl import ResourceType
from broker.security.authorization.audit_log import AuditLog
from broker.security.authorization.authorizer import Authorizer
from broker.security.authorization.rights import FAILED, ConnectionRights, Rights
from broker.services.context import RequestContext
from broker.wire.errors import ApiError

_NAMED_IN = {
    ResourceType.GROUP: ("group_id",),
    ResourceType.TRANSACTIONAL_ID: ("transactional_id", "v3_and_below_transactional_id"),
}
"""The fields in which a request names a group or a transactional id."""


def rights_of(conn: Connection, authorizer: Authorizer, audit: AuditLog) -> ConnectionRights:
    """Return the rights of a connection's client."""
    return ConnectionRights(lambda api, row: Rights(authorizer, audit, conn, api, row))


def refusal(api: Api, call: RequestContext, rights: Rights) -> dict[str, Any] | None:
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


def _error(call: RequestContext, rights: Rights) -> ApiError | None:
    row = rights.row
    if row.cluster and not rights.may_on_cluster(*row.cluster):
        return FAILED[ResourceType.CLUSTER]
    for resource_type, operation in row.named:
        if not rights.may(operation, resource_type, _name(call, resource_type)):
            return FAILED[resource_type]
    return None


def _name(call: RequestContext, resource_type: ResourceType) -> str:
    for field in _NAMED_IN[resource_type]:
        name = getattr(call.request, field, None)
        if name is not None:
            return str(name)
    return ""
