"""Shared parts of the handlers of settings: finding a resource, and altering it (KIP-133, KIP-226, KIP-339).

Topics and brokers have settings that can be altered. A broker's resource is named by its node id, or by "" for all
brokers. Groups have settings only for the consumer protocol of KIP-848, which is not served, so they have no settings
to show or set. Log levels and client metrics are not kept either, and requests for them are refused with that reason.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any

from broker.log.storage.port import StorageError
from broker.services.context import BrokerServices, RequestContext
from broker.services.metadata import Topic, check_name
from broker.services.topic_changes import alter_topics
from broker.settings.config import DYNAMIC, BrokerConfig, TopicConfig, near_name, with_properties
from broker.settings.config_entries import BrokerSources
from broker.settings.kafka_settings import HONOURED, broker_setting
from broker.wire.errors import ApiError, ErrorCode
from idgen.settings import InvalidSetting, settings_of

Properties = Mapping[str, str]
NewProperties = Callable[[Any, Properties], Properties]


class ResourceType(IntEnum):
    """Kafka's codes for types of resources."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def find_topic(services: BrokerServices, name: str) -> Topic:
    """Return the topic. Raise ApiError INVALID_TOPIC_EXCEPTION or UNKNOWN_TOPIC_OR_PARTITION."""
    check_name(name)
    topic = services.metadata.topic(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return topic


def check_broker(services: BrokerServices, name: str) -> None:
    """Raise ApiError unless the name is this node's id."""
    node_id = services.metadata.node.id
    if name != str(node_id):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"broker {name!r} is not here: this is {node_id}; '' means all")


def sources_of(services: BrokerServices) -> BrokerSources:
    altered = services.metadata.broker_properties
    return BrokerSources(services.given, altered.get("", {}), altered.get(str(services.metadata.node.id), {}))


# --- altering ----------------------------------------------------------------------------------------------------


def alter_each(call: RequestContext, new_properties: NewProperties) -> dict[str, Any]:
    """Alter each of the request's `resources` separately, and return the answer. `new_properties` returns the settings
    a resource is to have, given those it has; it may raise ApiError."""
    asked = [(each.resource_type, each.resource_name) for each in call.request.resources]
    named = Counter(asked)
    answers: dict[tuple[int, str], tuple[ErrorCode, str | None]] = {}
    topics: list[tuple[Topic, Properties]] = []
    for each in call.request.resources:
        key = each.resource_type, each.resource_name
        if named[key] > 1:
            answers[key] = ErrorCode.INVALID_REQUEST, "a resource stands in a request once; this one does not"
        else:
            answers[key] = _answered(call, key[1], lambda: _alter(call, each, new_properties, topics))
    altered = _answered(call, f"{len(topics)} topics", lambda: alter_topics(call.services, topics))
    answers.update(((ResourceType.TOPIC, topic.name), altered) for topic, _ in topics)
    return {
        "throttle_time": 0,
        "responses": [
            {"error_code": code, "error_message": message, "resource_type": kind, "resource_name": name}
            for kind, name in asked
            for code, message in (answers[kind, name],)
        ],
    }


def _answered(call: RequestContext, name: str, alter: Callable[[], None]) -> tuple[ErrorCode, str | None]:
    """Call `alter`, and return the error and message for the client."""
    try:
        alter()
    except ApiError as error:
        return error.code, error.message
    except InvalidSetting as error:
        return ErrorCode.INVALID_CONFIG, str(error)
    except StorageError as error:
        call.services.report(f"settings of {name or 'all brokers'} could not be altered: {error}")
        return ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    return ErrorCode.NONE, None


def _alter(
    call: RequestContext, resource: Any, new_properties: NewProperties, topics: list[tuple[Topic, Properties]]
) -> None:
    """Alter a resource. A topic that can be altered is added to `topics`, which are altered together."""
    _check_entries(resource.configs)
    kind = resource.resource_type
    if kind == ResourceType.TOPIC:
        altered = _altered_topic(call, resource, new_properties)
        if not call.request.validate_only:
            topics.append(altered)
    elif kind == ResourceType.BROKER:
        _alter_broker(call, resource, new_properties)
    elif kind == ResourceType.GROUP and resource.resource_name:
        raise ApiError(ErrorCode.INVALID_CONFIG, "groups have settings for the protocol of KIP-848 only: none here")
    elif kind in (ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{ResourceType(kind).name} is not kept; topics and brokers are")
    else:
        named = f"{resource.resource_name!r} of type {kind}"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no resource {named}; 2 is a topic, 4 a broker")


def _check_entries(configs: Iterable[Any]) -> None:
    names = Counter(each.name for each in configs)
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"settings stand in a request once; not so {', '.join(twice)}")


def refuse_null(name: str, value: str | None) -> str:
    """Return the value. Raise ApiError for null."""
    if value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} has no value (null); delete it to have its default")
    return value


def _altered_topic(call: RequestContext, resource: Any, new_properties: NewProperties) -> tuple[Topic, Properties]:
    """Return a topic and the settings it is to have. Raise ApiError or InvalidSetting."""
    if not resource.resource_name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a topic needs a name; all topics' defaults are brokers' settings")
    topic = find_topic(call.services, resource.resource_name)
    properties = new_properties(resource, topic.properties)
    TopicConfig.check_names(properties)
    call.services.config.topic_defaults.with_properties(properties).check_together()
    return topic, properties


def _alter_broker(call: RequestContext, resource: Any, new_properties: NewProperties) -> None:
    services, name = call.services, resource.resource_name
    if name:
        check_broker(services, name)
    before = services.metadata.broker_properties.get(name, {})
    properties = new_properties(resource, before)
    _check_dynamic(properties)
    try:
        with_properties(services.config, properties)
    except InvalidSetting as error:  # Kafka's code for a broker's setting, unlike a topic's (KAFKA-13609)
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
    if not call.request.validate_only:
        services.alter_broker(name, properties)


def _check_dynamic(properties: Properties) -> None:
    known = [each.name for each in settings_of(BrokerConfig)]
    for name, value in properties.items():
        if name in DYNAMIC:
            continue
        if name not in known and broker_setting(name) is None:
            raise InvalidSetting(name, value, f"brokers have no such setting; {near_name(name, sorted(DYNAMIC))}")
        raise ApiError(ErrorCode.INVALID_REQUEST, _why_not(name))


def _why_not(name: str) -> str:
    """Return why a known setting cannot be altered while the broker runs."""
    row = broker_setting(name)
    if row is not None and row.standing != HONOURED:
        return f"{name} has no effect here: {row.reason}"
    return f"{name} is read once, at the start: it cannot be altered here"
