"""ApiVersions, v0 to v4.

Behaviour: returns the advertised API table. A listener of brokers shows the requests of brokers too, because
Kafka's brokers send some of them only if they are advertised. A client that knows nothing yet must be able to read the
answer, so it always has header v0. A request of a version unknown here is answered in v0, with UNSUPPORTED_VERSION and
the row of ApiVersions only (KIP-511).
Version notes: from v3 the client names its software, which is validated as in Kafka (an invalid name gets an error and
no table), and the answer has features. Features that change what clients do (transaction.version of 2, group.version)
are not among them.
"""

import re
from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.wire.errors import ErrorCode

# The oldest and the newest version of each feature. 7 is 3.3-IV3, the first that Kafka 4 knows; 25 is 4.0-IV3, the last
# of Kafka 4.0. Admin tools show it as the cluster's version.
FEATURES = {"metadata.version": (7, 25)}

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    error, services = ErrorCode.NONE, call.services
    serves_brokers = services.serves_brokers(call.listener)
    advertised = services.advertised_to_brokers if serves_brokers else services.advertised
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
