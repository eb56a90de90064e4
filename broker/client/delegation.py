"""Acting for another principal over a connection of a broker: an operation for a shell to run (KIP-590)."""

from broker.client.api_versions import ENVELOPE
from broker.client.core import Address, Steps
from broker.client.errors import NotAuthenticated
from broker.client.exchange import Exchange
from broker.wire import cold
from broker.wire.errors import ErrorCode
from broker.wire.principal_data import encode_principal


def act_for(address: Address, principal: str) -> Steps[None]:
    """Let a new connection act for a principal, "User:NAME". Raise NotAuthenticated if the broker does not allow it."""
    kind, _, name = principal.partition(":")
    fields = {
        "request_data": b"",
        "request_principal": encode_principal(kind, name),
        "client_host_address": b"",
    }
    answer = yield Exchange(address, ENVELOPE, 0, True, cold.encode(ENVELOPE, 0, "request", fields))
    code = cold.decode(ENVELOPE, 0, "response", answer, 0, 0).newest.error_code
    if code:
        reason = f"it does not let this broker act for {principal}: {ErrorCode(code).name}"
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            reason += "; brokers need cluster-action on the cluster, so make their user a super user"
        raise NotAuthenticated(str(address), reason)
