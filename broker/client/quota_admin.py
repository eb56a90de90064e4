"""Administration of client quotas: operations over a `ClientCore`, as those of broker.client.admin (KIP-546)."""

from collections.abc import Mapping
from typing import NamedTuple

from broker.client.api_versions import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from broker.client.core import ClientCore, Steps
from broker.client.errors import BrokerError

EXACT, DEFAULT = 0, 1  # match types of DescribeClientQuotas
USER, CLIENT_ID, IP = "user", "client-id", "ip"

Entity = tuple[tuple[str, str | None], ...]
"""Pairs of a type and a name. The name None stands for the type's default: a quota for entities without their own."""


class Quota(NamedTuple):
    entity: Entity
    values: dict[str, float]


def describe_quotas(core: ClientCore, entity: Entity = (), strict: bool = False) -> Steps[list[Quota]]:
    """Return the quotas of entities that have the pairs of `entity`. With `strict`, leave out those with more pairs."""
    address = yield from core.controller()
    components = [
        {"entity_type": kind, "match_type": DEFAULT if name is None else EXACT, "match": name} for kind, name in entity
    ]
    answer = yield from core.ask(address, DESCRIBE_CLIENT_QUOTAS, {"components": components, "strict": strict})
    if answer.error_code:
        raise BrokerError(int(answer.error_code), "quotas", answer.error_message)
    return [
        Quota(
            tuple(sorted((part.entity_type, part.entity_name) for part in each.entity)),
            {value.key: float(value.value) for value in each.values},
        )
        for each in answer.entries or ()
    ]


def alter_quotas(core: ClientCore, entity: Entity, values: Mapping[str, float | None]) -> Steps[None]:
    """Change quotas of an entity. The value None removes one. Raise BrokerError."""
    address = yield from core.controller()
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()],
    }
    answer = yield from core.ask(address, ALTER_CLIENT_QUOTAS, {"entries": [entry], "validate_only": False})
    result = answer.entries[0]
    if result.error_code:
        raise BrokerError(int(result.error_code), "quotas", result.error_message)
