"""ListConfigResources, v0 to v1.

Behaviour: returns the resources that DescribeConfigs can describe: topics and this broker. Groups and client metrics
have no settings here, so none are listed; log levels are not kept.
Version notes: v0 (ListClientMetricsResources, KIP-714) lists client metrics only; v1 has types, and without types lists
all (KIP-1142).
"""

from typing import Any

from broker.now import Now
from broker.services.config_resources import ResourceType
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ErrorCode

TYPES_VERSION = 1


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    kinds = set(call.request.resource_types)
    if call.version < TYPES_VERSION:
        kinds = {ResourceType.CLIENT_METRICS}
    if not kinds <= set(ResourceType):
        return {"throttle_time": 0, "error_code": ErrorCode.UNSUPPORTED_VERSION, "config_resources": ()}
    metadata = call.services.metadata
    names = {
        ResourceType.TOPIC: [topic.name for topic in metadata.topics()],
        ResourceType.BROKER: [str(broker_id) for broker_id in metadata.brokers],
    }
    resources_named = [
        (kind, name) for kind, names_of_kind in names.items() if not kinds or kind in kinds for name in names_of_kind
    ]
    resources = LazyArray(
        resources_named, lambda resource: {"resource_name": resource[1], "resource_type": resource[0]}
    )
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "config_resources": resources}
