"""DescribeClientQuotas, v0 to v1.

Behaviour: returns the quotas that were set and match the filter (KIP-546). See `alter_client_quotas`.
"""

from collections.abc import Mapping
from typing import Any

from broker.metadata.change import Entity
from broker.now import Now
from broker.quota.client_quotas import filter_of
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ApiError, ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    try:
        wanted = filter_of(call.request.components, call.request.strict)
    except ApiError as error:
        return {"throttle_time": 0, "error_code": error.code, "error_message": error.message, "entries": None}
    matching = [quota for quota in call.services.metadata.quotas.items() if wanted.matches(quota[0])]
    entries = LazyArray(matching, lambda quota: _entry(*quota))
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "error_message": "", "entries": entries}


def _entry(entity: Entity, values: Mapping[str, float]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
    }
