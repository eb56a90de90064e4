"""SaslAuthenticate, v0 to v2.

Behaviour: ILLEGAL_SASL_STATE, as Kafka answers on a PLAINTEXT listener: nobody is asked who it is.
"""

from typing import Any

from broker.handlers.call import Call
from broker.handlers.sasl_handshake import NO_SASL
from broker.now import Now
from broker.wire.errors import ErrorCode


def handle(call: Call, now: Now) -> dict[str, Any]:
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "error_message": NO_SASL, "auth_bytes": b""}
