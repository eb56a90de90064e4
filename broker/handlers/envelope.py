"""Envelope, v0 to v0.

Behaviour: lets the connection of a broker act for the principal in the request, from its host, until it is closed.
Another broker sends it for the web console of its process. This broker then checks the console's requests by the
console's principal. As in Kafka, a sender needs ClusterAction, because it can act for every user (KIP-590).

Kafka's brokers send each request of a client in an Envelope of its own. Here `request_data` is empty, and the client's
requests follow as they are. A request with data is refused with INVALID_REQUEST. A connection acts for one principal
only: a second Envelope is judged by the rights of the first one's.
"""

from ipaddress import IPv6Address, ip_address
from typing import Any

from broker.address import LOCAL_HOST
from broker.now import Now
from broker.security.authorization.acl import EVERYBODY, USER
from broker.services.context import RequestContext
from broker.services.delegation import DelegatedClient, Delegation
from broker.wire.errors import ErrorCode, WireError


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    from broker.wire.principal_data import decode_principal  # it loads kio

    if call.request.request_data:
        return _answer(ErrorCode.INVALID_REQUEST)
    try:
        kind, user = decode_principal(call.request.request_principal or b"")
        packed = bytes(call.request.client_host_address)
        address = _address(packed) if packed else LOCAL_HOST
    except (WireError, ValueError):
        return _answer(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
    if kind != USER or not user or f"{USER}:{user}" == EVERYBODY:
        return _answer(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
    return Delegation(DelegatedClient(user, address), _answer(ErrorCode.NONE))


def _address(packed: bytes) -> str:
    """Return an address as rules name it: an IPv4 address in the form of IPv6 is the IPv4 address."""
    address = ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def _answer(code: ErrorCode) -> dict[str, Any]:
    return {"response_data": None, "error_code": code}
