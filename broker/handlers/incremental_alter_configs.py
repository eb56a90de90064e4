"""IncrementalAlterConfigs, v0 to v1.

Behaviour: sets or deletes settings of topics and brokers, and appends values to lists or removes them, beginning with
the default if nothing is set (KIP-339). Each resource is altered or refused separately. A change takes effect at once,
and holds after a restart.
"""

from enum import IntEnum
from typing import Any

from broker.now import Now
from broker.services.config_resources import Answer, Properties, alter_each, refuse_null
from broker.services.context import RequestContext
from broker.settings.config import LISTS, BrokerConfig, TopicConfig
from broker.settings.kafka_settings import broker_setting, topic_setting
from broker.steps import Steps
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode
from idgen.settings import settings_of


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_LIST_DEFAULTS: dict[str, str] = {
    setting.name: setting.default for config in (BrokerConfig, TopicConfig) for setting in settings_of(config)
    if setting.name in LISTS
}


def handle(call: RequestContext, now: Now) -> Steps[Answer | Delayed[Answer]]:
    return alter_each(call, _changed, now)


def _changed(resource: Any, before: Properties) -> Properties:
    properties = dict(before)
    for config in resource.configs:
        _change(properties, config.name, config.config_operation, config.value)
    return properties


def _change(properties: dict[str, str], name: str, operation: int, value: str | None) -> None:
    if operation == Operation.DELETE:
        properties.pop(name, None)
        return
    text = refuse_null(name, value)
    if operation == Operation.SET:
        properties[name] = text
    elif operation not in (Operation.APPEND, Operation.SUBTRACT):
        wanted = "0 sets, 1 deletes, 2 appends, 3 subtracts"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no operation {operation}; {wanted}")
    elif not _is_list(name):
        reason = f"Can't {Operation(operation).name} to key {name} because its type is not LIST."
        raise ApiError(ErrorCode.INVALID_CONFIG, reason)
    else:
        properties[name] = _merged(properties.get(name, _LIST_DEFAULTS.get(name, "")), text, operation)


def _is_list(name: str) -> bool:
    """Return True for a list, including Kafka's lists that have no effect here, such as the throttled replicas."""
    row = topic_setting(name) or broker_setting(name)
    return name in LISTS or (row is not None and row.type == "list")


def _merged(before: str, text: str, operation: int) -> str:
    """Return a list with values appended or removed. Drop a comma at the end, but keep other empty values, so that the
    setting's check refuses them."""
    present = [part.strip() for part in before.split(",") if part.strip()]
    given = [part.strip() for part in text.rstrip(", ").split(",")]
    if operation == Operation.APPEND:
        return ",".join([*present, *(part for part in dict.fromkeys(given) if part not in present)])
    return ",".join(part for part in present if part not in given)
