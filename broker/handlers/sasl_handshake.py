"""SaslHandshake, v0 to v1.

Behaviour: answers ILLEGAL_SASL_STATE without a mechanism, as Kafka does on a PLAINTEXT listener, and to a client that
is authenticated and may not be again (broker.engine.authenticator answers all other handshakes). Clients of a PLAINTEXT
listener then give up, and not all say why, so the broker reports it to the operator.
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.wire.errors import ErrorCode

NO_SASL = "it asks for SASL; this listener is plain (security.protocol=PLAINTEXT)"


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    if call.listener not in call.services.sasl:
        call.services.report(f"connection of {call.peer}: {NO_SASL}")
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}
