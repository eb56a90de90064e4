"""SaslAuthenticate, v0 to v2.

Behaviour: answers ILLEGAL_SASL_STATE, as Kafka does on a PLAINTEXT listener, which authenticates no client, and to a
client that is authenticated (broker.engine.authenticator answers all others).
"""

from typing import Any

from broker.handlers.sasl_handshake import NO_SASL
from broker.now import Now
from broker.services.context import RequestContext
from broker.wire.errors import ErrorCode

AUTHENTICATED = "SaslAuthenticate request received after successful authentication"


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    message = AUTHENTICATED if call.listener in call.services.sasl else NO_SASL
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "error_message": message, "auth_bytes": b""}
