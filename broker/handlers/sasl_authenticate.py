"""SaslAuthenticate, v0 to v2.

Behaviour: answers ILLEGAL_SASL_STATE, as Kafka does on a PLAINTEXT listener, which authenticates no client.
"""

from typing import Any

from broker.handlers.sasl_handshake import NO_SASL
from broker.now import Now
from broker.services.context import RequestContext
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "error_message": NO_SASL, "auth_bytes": b""}
