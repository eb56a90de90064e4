"""UpdateFeatures, v0 to v2.

Behaviour: the features of this program are fixed. A request for the version that a feature has is granted. Any other
version is refused, as Kafka refuses a version it does not have (KIP-584, KIP-1022). A single refusal refuses the whole
request.
Version notes: v0 marks a downgrade by a flag, v1 by a type; up to v1 each feature is answered, from v2 only the
request.
"""

from typing import Any

from broker.handlers.api_versions import FEATURES
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.controller_requests import check_controller
from broker.steps import LazyArray
from broker.wire.errors import ApiError, ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    try:
        check_controller(call.services)
    except ApiError as refusal:
        return {"throttle_time": 0, "results": (), "error_code": refusal.code, "error_message": refusal.message}
    updates = call.request.feature_updates
    refused = next((why for update in updates if (why := _refusal(update.feature, update.max_version_level))), None)
    done = {"error_code": ErrorCode.NONE, "error_message": None}
    if refused:
        error = {"error_code": ErrorCode.INVALID_UPDATE_VERSION, "error_message": refused}
        return {"throttle_time": 0, "results": ()} | error
    return {"throttle_time": 0, "results": LazyArray(updates, lambda update: {"feature": update.feature} | done)} | done


def _refusal(feature: str, level: int) -> str | None:
    reason = "The update failed for all features since the following feature had an error: "
    reason += f"Invalid update version {level} for feature {feature}"
    if feature not in FEATURES:
        return f"{reason}. There are {', '.join(FEATURES)}."
    newest = FEATURES[feature][1]
    return None if level == newest else f"{reason}. It is {newest}, and nothing else."
