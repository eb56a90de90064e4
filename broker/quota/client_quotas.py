"""Client quotas as stored and listed: entities, the quotas that exist, and filters (KIP-546).

broker.quota.quota_manager enforces them.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple

from broker.metadata.change import Entity, entity_of
from broker.settings.config import INT_MAX, LONG_MAX
from broker.wire.errors import ApiError, ErrorCode

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER, CONSUMER, REQUESTS = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATIONS, CONNECTIONS = "controller_mutation_rate", "connection_creation_rate"
EXACT, DEFAULT, SPECIFIED = 0, 1, 2

Quotas = Mapping[Entity, Mapping[str, float]]

# Each quota's largest value, and whether it may be a fraction (QuotaConfig).
_CLIENT_KEYS = {
    PRODUCER: (LONG_MAX, False),
    CONSUMER: (LONG_MAX, False),
    REQUESTS: (float("inf"), True),
    MUTATIONS: (float("inf"), True),
}
_IP_KEYS = {CONNECTIONS: (INT_MAX, False)}


class Filter(NamedTuple):
    """A filter for quota entities.

    An entity matches if it has each type of `exact` with that name, and each type of `types` with any name. If
    `strict`, it must have no other types.
    """

    exact: Mapping[str, str | None]
    types: frozenset[str]
    strict: bool

    def matches(self, entity: Entity) -> bool:
        parts = dict(entity)
        if any(kind not in parts or parts[kind] != name for kind, name in self.exact.items()):
            return False
        if not self.types <= parts.keys():
            return False
        return not self.strict or len(parts) == len(self.exact) + len(self.types)


# Kafka's text, with its missing space.
_NOT_WITH_IP = "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"


def _refuse(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


def filter_of(components: Iterable[Any], strict: bool) -> Filter:
    """Return the filter that a request describes. Raise ApiError INVALID_REQUEST or UNSUPPORTED_VERSION."""
    exact: dict[str, str | None] = {}
    types: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise _refuse("a part of the filter has no type; there are user, client-id, ip")
        if kind in exact or kind in types:
            raise _refuse(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            reason = f"Unsupported entity type {kind}; there are user, client-id, ip"
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, reason)
        if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
            raise _refuse(f"Unknown match type {component.match_type}; 0 is exact, 1 the default, 2 any")
        if (component.match is None) == (component.match_type == EXACT):
            name = ("EXACT", "DEFAULT", "SPECIFIED")[component.match_type]
            match = "null" if component.match is None else "a name"
            raise _refuse(f"Request specified MATCH_TYPE_{name}, but set match string to {match}.")
        if component.match_type == SPECIFIED:
            types.add(kind)
        else:
            exact[kind] = component.match
    if IP in exact.keys() | types and len(exact) + len(types) > 1:
        raise _refuse(_NOT_WITH_IP)
    return Filter(exact, frozenset(types), strict)


def check_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity whose quotas a request alters. Raise ApiError INVALID_REQUEST."""
    entity = entity_of(parts)
    kinds = [kind for kind, _ in entity]
    if not kinds:
        raise _refuse("Invalid empty client quota entity")
    for kind in kinds:
        if kind not in (USER, CLIENT_ID, IP):
            raise _refuse(f"Unhandled client quota entity type: {kind}")
        if kinds.count(kind) > 1:
            raise _refuse(f"the type {kind!r} stands in the entity more than once")
    if any(name == "" for _, name in entity):
        raise _refuse("a name is empty; the default's is null")
    if IP in kinds:
        if len(kinds) > 1:
            raise _refuse(_NOT_WITH_IP)
        _check_ip(entity[0][1])
    return entity


def _check_ip(name: str | None) -> None:
    try:
        if name is not None:
            ip_address(name)
    except ValueError:
        raise _refuse(f"{name!r} is no IP address") from None


def altered(values: Mapping[str, float], entity: Entity, operations: Iterable[Any]) -> Mapping[str, float]:
    """Return the quotas of an entity after operations on its quotas before. Raise ApiError."""
    after = dict(values)
    seen: set[str] = set()
    for operation in operations:
        if operation.key in seen:
            raise _refuse(f"{operation.key} stands in the request more than once")
        seen.add(operation.key)
        if operation.remove:
            after.pop(operation.key, None)
        else:
            _check_value(_IP_KEYS if entity[0][0] == IP else _CLIENT_KEYS, operation.key, operation.value)
            after[operation.key] = float(operation.value)
    return after


def _check_value(keys: Mapping[str, tuple[float, bool]], key: str, value: float) -> None:
    if key not in keys:
        raise _refuse(f"Invalid configuration key {key}; there are {', '.join(keys)}")
    most, fraction = keys[key]
    if not 0 < value <= most:
        raise _refuse(f"Quota {key} must be greater than 0, and at most {most}; it is {value}")
    if not fraction and abs(value % 1.0) > 1e-6:
        raise _refuse(f"{key} cannot be a fractional value.")


def quota_text(key: str, value: float) -> str:
    """Return a quota as Kafka's brokers write it to ZooKeeper: a rate of bytes as 1024, a percentage as 50.0."""
    _, fraction = (_CLIENT_KEYS | _IP_KEYS).get(key, (0, True))
    return repr(float(value)) if fraction else str(round(value))
