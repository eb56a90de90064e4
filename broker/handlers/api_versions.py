"""ApiVersions, v0 to v4.

Behaviour: the API table, as advertised. It must be readable by a client that knows nothing yet: the answer has header
v0 always, and a version unknown here is answered in v0 with UNSUPPORTED_VERSION and its own row only (KIP-511).
Version notes: from v3 the client names its software, which is checked as Kafka does (whose name is none gets an error
and no table), and is told of features. Those
that change what clients do (transaction.version of 2, group.version) are not among them.
"""

import re
from typing import Any

from broker.handlers.call import Call
from broker.now import Now
from broker.wire.errors import ErrorCode

# By name: the oldest and the newest version. 7 is 3.3-IV3, the first that Kafka 4 knows; 25 is 4.0-IV3, the last of
# Kafka 4.0. Admin tools show it as the cluster's version.
FEATURES = {"metadata.version": (7, 25)}

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(call: Call, now: Now) -> dict[str, Any]:
    error, advertised = ErrorCode.NONE, call.services.advertised
    if call.version >= 3:
        name, version = call.request.client_software_name, call.request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            error, advertised = ErrorCode.INVALID_REQUEST, ()
    return {
        "error_code": error,
        "api_keys": [
            {"api_key": key, "min_version": oldest, "max_version": newest}
            for key, oldest, newest in advertised
        ],
        "throttle_time": 0,
        "supported_features": [
            {"name": name, "min_version": oldest, "max_version": newest}
            for name, (oldest, newest) in FEATURES.items()
        ],
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "min_version_level": newest, "max_version_level": newest}
            for name, (_, newest) in FEATURES.items()
        ],
    }
