"""ApiVersions, v0 to v4.

Behaviour: the API table, as advertised. It must be readable by a client that knows nothing yet: the answer has header
v0 always, and a version unknown here is answered in v0 with UNSUPPORTED_VERSION and the table (KIP-511).
Version notes: from v3 the client names its software, which is checked as Kafka does.
"""

import re
from typing import Any

from broker.handlers.call import Call
from broker.now import Now
from broker.wire.errors import ErrorCode

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(call: Call, now: Now) -> dict[str, Any]:
    error = ErrorCode.NONE
    if call.version >= 3:
        name, version = call.request.client_software_name, call.request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            error = ErrorCode.INVALID_REQUEST
    return {
        "error_code": error,
        "api_keys": [
            {"api_key": key, "min_version": oldest, "max_version": newest}
            for key, oldest, newest in call.services.advertised
        ],
        "throttle_time": 0,
    }
