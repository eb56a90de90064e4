"""Shared parts of the handlers of settings: finding a resource, and altering it (KIP-133, KIP-226, KIP-339).

Topics and brokers have settings that can be altered. A broker's resource is named by its node id, or by "" for all
brokers. Groups have settings only for the consumer protocol of KIP-848, which is not served, so they have no settings
to show or set. Log levels and client metrics are not kept either, and requests for them are refused with that reason.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from broker.metadata.changes import Planned
from broker.metadata.staged import Staged
from broker.metadata.topic import Topic, check_name, topic_keys
from broker.now import Now
from broker.security.authorization import acl
from broker.security.authorization.rights import check
from broker.security.references import has_reference
from broker.services.context import BrokerServices, RequestContext
from broker.services.kafka_messages import in_kafkas_words, invalid_value, not_hosted, unknown_topic
from broker.services.topic_changes import plan_alteration
from broker.settings.config import DYNAMIC, TopicConfig, near_name, with_properties
from broker.settings.config_entries import BrokerSources
from broker.settings.kafka_settings import broker_setting, why_not_alterable
from broker.steps import CHANGES_AT_ONCE, LazyArray, Steps
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode
from idgen.settings import InvalidSetting, settings_of

Answer: TypeAlias = dict[str, Any]
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
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, not_hosted(name))
    return topic


def check_broker(services: BrokerServices, name: str, or_all: str = "") -> None:
    """Raise ApiError unless the name is this node's id. `or_all` says, for the message, that it may be empty too."""
    node_id = services.node.id
    if name != str(node_id):
        reason = f"Unexpected broker id, expected {node_id}{or_all}, but received {name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, reason)


def check_rights(call: RequestContext, operation: acl.Operation, kind: int, name: str) -> None:
    """Raise ApiError unless the client may do an operation with the settings of a resource."""
    if kind == ResourceType.TOPIC:
        check(call.rights, operation, acl.ResourceType.TOPIC, name)
    elif kind == ResourceType.GROUP:
        check(call.rights, operation, acl.ResourceType.GROUP, name)
    else:
        check(call.rights, operation, acl.ResourceType.CLUSTER, acl.CLUSTER_NAME)


def sources_of(services: BrokerServices) -> BrokerSources:
    altered = services.metadata.broker_properties
    return BrokerSources(services.given, altered.get("", {}), altered.get(str(services.node.id), {}))


# --- altering ----------------------------------------------------------------------------------------------------


class _Altered(NamedTuple):
    """The resources that a request alters, with the settings they are to have."""

    topics: dict[str, tuple[Topic, Properties]]
    brokers: dict[str, Properties]


def alter_each(call: RequestContext, new_properties: NewProperties, now: Now) -> Steps[Answer | Delayed[Answer]]:
    """Alter each of the request's `resources` separately, and return the answer. `new_properties` returns the settings
    a resource is to have, given those it has; it may raise ApiError."""
    twice: dict[int, ApiError] = {}
    for number, resource in enumerate(call.request.resources):
        if number and number % CHANGES_AT_ONCE == 0:
            now = yield
        if (error := _entries_error(resource.configs)) is not None:
            twice[number] = error
    if call.request.validate_only:
        return _check(call, new_properties, twice)[1](None, {})
    resources = call.request.resources
    # Settings of brokers are also defaults of topics, so they share their write with no other change.
    names = (resource.resource_name for resource in resources if resource.resource_type == ResourceType.TOPIC)
    keys = None if any(resource.resource_type == ResourceType.BROKER for resource in resources) else topic_keys(names)
    return call.services.changes.submit(keys, lambda at: _begin(call, new_properties, twice), now)


def _begin(call: RequestContext, new_properties: NewProperties, twice: Mapping[int, ApiError]) -> Answer | Planned:
    altered, outcome = _check(call, new_properties, twice)
    if not altered.topics and not altered.brokers:
        return outcome(None, {})
    staged = plan_alteration(call.services, list(altered.topics.values()))
    if altered.brokers:
        properties = {**call.services.metadata.broker_properties, **altered.brokers}
        staged = Staged(replace(staged.change, broker_properties=properties))

    staged.on_end = partial(_note, call, altered, call.services.metadata.broker_properties, staged)
    return Planned(staged, lambda error, at: outcome(error, staged.errors))


def _note(call: RequestContext, altered: _Altered, before: Mapping[str, Properties], staged: Staged) -> None:
    """Write the audit lines of the topics and brokers whose settings have changed, and report what failed."""
    if staged.error is not None:
        names = ", ".join([*altered.topics, *(name or "all brokers" for name in altered.brokers)])
        call.services.report(f"settings of {names} could not be altered: {staged.error}")
    topics = (name for name, (topic, properties) in altered.topics.items() if properties != topic.properties)
    brokers = (
        f"broker {name}" if name else "all brokers"
        for name, properties in altered.brokers.items() if properties != before.get(name, {})
    )  # fmt: skip
    call.note_topics("altered settings of", topics, staged)
    call.note_change("altered settings of ", brokers, staged.error)


def _check(
    call: RequestContext, new_properties: NewProperties, twice: Mapping[int, ApiError]
) -> tuple[_Altered, Callable[[ApiError | None, Mapping[str, ApiError]], Answer]]:
    """Return the resources that can be altered, and the answer, given the error of all or None, and those of topics.

    `twice` has an error for each resource, by its place, that names a setting twice.
    """
    resources = [
        (asked_resource.resource_type, asked_resource.resource_name) for asked_resource in call.request.resources
    ]
    named = Counter(resources)
    refused: dict[tuple[int, str], tuple[ErrorCode, str | None]] = {}
    altered = _Altered({}, {})
    for number, asked_resource in enumerate(call.request.resources):
        key = asked_resource.resource_type, asked_resource.resource_name
        try:
            if named[key] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if number in twice:
                raise twice[number]
            check_rights(call, acl.Operation.ALTER_CONFIGS, *key)
            _alter(call, asked_resource, new_properties, altered)
        except ApiError as error:
            refused[key] = error.code, error.message
        except InvalidSetting as error:
            refused[key] = ErrorCode.INVALID_CONFIG, in_kafkas_words(error)

    def answered(error: ApiError | None, errors: Mapping[str, ApiError]) -> Answer:
        def result(resource: tuple[int, str]) -> tuple[ErrorCode, str | None]:
            kind, name = resource
            failure = error or (errors.get(name) if kind == ResourceType.TOPIC else None)
            return (ErrorCode.NONE, None) if failure is None else (failure.code, failure.message)

        def response(resource: tuple[int, str]) -> Answer:
            code, message = refused.get(resource) or result(resource)
            kind, name = resource
            return {"error_code": code, "error_message": message, "resource_type": kind, "resource_name": name}

        return {"throttle_time": 0, "responses": LazyArray(resources, response)}

    return altered, answered


def _alter(call: RequestContext, resource: Any, new_properties: NewProperties, altered: _Altered) -> None:
    """Add a resource to those that can be altered. Raise ApiError or InvalidSetting."""
    kind, name = resource.resource_type, resource.resource_name
    if kind == ResourceType.TOPIC:
        altered.topics[name] = _altered_topic(call, resource, new_properties)
    elif kind == ResourceType.BROKER:
        altered.brokers[name] = _altered_broker(call, resource, new_properties)
    elif kind == ResourceType.GROUP:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        raise ApiError(ErrorCode.INVALID_CONFIG, "groups have settings for the protocol of KIP-848 only: none here")
    elif kind in (ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{ResourceType(kind).name} is not kept; topics and brokers are")
    else:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}; 2 is a topic, 4 a broker")


def _entries_error(configs: Sequence[Any]) -> ApiError | None:
    """Return the error of a resource that names a setting twice."""
    if len(configs) < 2:
        return None
    names = Counter(config.name for config in configs)
    twice = sorted(name for name, count in names.items() if count > 1)
    if not twice:
        return None
    return ApiError(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys: {', '.join(twice)}")


def refuse_null(name: str, value: str | None) -> str:
    """Return the value. Raise ApiError for null."""
    if value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    return value


def _altered_topic(call: RequestContext, resource: Any, new_properties: NewProperties) -> tuple[Topic, Properties]:
    """Return a topic and the settings it is to have. Raise ApiError or InvalidSetting."""
    if not resource.resource_name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a topic needs a name; all topics' defaults are brokers' settings")
    check_name(resource.resource_name)
    topic = call.services.metadata.topic(resource.resource_name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, unknown_topic(resource.resource_name))
    properties = new_properties(resource, topic.properties)
    TopicConfig.check_names(properties)
    call.services.config.topic_defaults.with_properties(properties).check_together()
    return topic, properties


def _altered_broker(call: RequestContext, resource: Any, new_properties: NewProperties) -> Properties:
    """Return the settings that a node, or with "" all nodes, is to have. Raise ApiError or InvalidSetting."""
    services, name = call.services, resource.resource_name
    if name:
        check_broker(services, name)
    before = services.metadata.broker_properties.get(name, {})
    properties = new_properties(resource, before)
    _refuse_references({key: value for key, value in properties.items() if before.get(key) != value})
    _check_dynamic(services, properties, all_brokers=not name)
    try:
        with_properties(services.config, properties)
    except InvalidSetting as error:  # Kafka's code for a broker's setting, unlike a topic's (KAFKA-13609)
        raise ApiError(ErrorCode.INVALID_REQUEST, in_kafkas_words(error)) from error
    try:
        services.check_broker_settings(properties)
    except InvalidSetting as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, in_kafkas_words(error)) from error
    return properties


def _refuse_references(altered: Properties) -> None:
    """Raise ApiError for a value that refers to a file or variable of the broker's machine.

    Kafka resolves such a reference if the alteration, or one before it, has `config.providers` too. Then a client that
    may alter settings reads files of the broker, because DescribeConfigs shows the value.
    """
    for name, value in altered.items():
        if has_reference(value):
            reason = "a value that is altered at run time is not resolved; refer to it in the broker's own settings"
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} refers to a file, directory or variable: {reason}")


def _check_dynamic(services: BrokerServices, properties: Properties, all_brokers: bool) -> None:
    """Raise InvalidSetting or ApiError unless all settings can be altered at run time, as in Kafka (KIP-226).

    Settings that are dynamic in Kafka and have no effect here are accepted, since Kafka's tools set such.
    """
    fixed = services.group_config, services.transaction_config, *services.fixed_configs
    names = {setting.name for config in (services.config, *fixed) for setting in settings_of(type(config))}
    for name, value in properties.items():
        if name in DYNAMIC:
            continue
        row = broker_setting(name)
        if row is None and name not in names:
            raise InvalidSetting(name, value, f"brokers have no such setting; {near_name(name, sorted(DYNAMIC))}")
        why_not = why_not_alterable(name, all_brokers)
        if why_not is not None:
            raise ApiError(ErrorCode.INVALID_REQUEST, why_not)
        flaw = row.flaw(value) if row is not None else None
        if flaw is not None:
            raise ApiError(ErrorCode.INVALID_REQUEST, invalid_value(name, value, flaw))
