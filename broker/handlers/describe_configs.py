"""DescribeConfigs, v1 to v4.

Behaviour: returns the settings in effect for topics and brokers, those asked for or all; each resource is answered
once. For the broker "" (all brokers) it returns only the settings altered at run time. Log levels and client metrics
are not kept and are refused; a group has no settings (see `config_resources`).
Version notes: v1 has sources and synonyms (KIP-226); v3 types and documentation (KIP-569).
"""

from typing import Any

from broker.now import Now
from broker.security.authorization.acl import Operation
from broker.services.config_resources import ResourceType, check_broker, check_rights, find_topic, sources_of
from broker.services.context import RequestContext
from broker.settings.config_entries import ConfigEntry, broker_entries, default_entries, topic_entries
from broker.steps import LazyArray
from broker.wire.errors import ApiError, ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    # Answer each resource once, because a name of a few bytes has an answer of some ten thousand.
    resources = {(resource.resource_type, resource.resource_name): resource for resource in call.request.resources}
    return {"throttle_time": 0, "results": LazyArray(resources.values(), lambda resource: _describe(call, resource))}


def _describe(call: RequestContext, resource: Any) -> dict[str, Any]:
    named = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        check_rights(call, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
        entries = _entries(call, resource.resource_type, resource.resource_name)
    except ApiError as error:
        return named | {"error_code": error.code, "error_message": error.message, "configs": ()}
    wanted = set(resource.configuration_keys or ())
    configs = [_config(call, entry) for entry in entries if not wanted or entry.name in wanted]
    return named | {"error_code": ErrorCode.NONE, "error_message": "", "configs": configs}


def _entries(call: RequestContext, kind: int, name: str) -> list[ConfigEntry]:
    services = call.services
    sources = sources_of(services)
    if kind == ResourceType.TOPIC:
        topic = find_topic(services, name)
        return topic_entries(services.config_of(topic), topic.properties, sources)
    if kind == ResourceType.BROKER:
        if not name:
            return default_entries(sources.altered_for_all)
        check_broker(services, name, " or empty string")
        own = services.config, services.tls.config, services.sasl.config
        configs = *own, services.group_config, services.transaction_config, *services.fixed_configs
        return broker_entries(configs, sources)
    if kind == ResourceType.GROUP and name:
        return []
    if kind in (ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{ResourceType(kind).name} is not kept; topics and brokers are")
    raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind} of {name!r}; 2 is a topic, 4 a broker")


def _config(call: RequestContext, entry: ConfigEntry) -> dict[str, Any]:
    synonyms = entry.synonyms if call.request.include_synonyms else ()
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.shown_source,
        "is_sensitive": entry.sensitive,
        "synonyms": [synonym._asdict() for synonym in synonyms],
        "config_type": entry.type,
        "documentation": entry.documentation if call.request.include_documentation else None,
    }
