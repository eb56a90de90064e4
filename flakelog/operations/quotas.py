"""Quotas of clients: list and alter them (KIP-546)."""

from collections.abc import Mapping
from typing import NamedTuple

from broker.client.api_versions import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from broker.client.blocking import Client
from broker.client.errors import BrokerError

EXACT, DEFAULT = 0, 1  # match types of DescribeClientQuotas

Entity = tuple[tuple[str, str | None], ...]
"""Pairs of a type and a name. The name None stands for the type's default: a quota for entities without their own."""


class Quota(NamedTuple):
    entity: Entity
    values: dict[str, float]


def list_quotas(client: Client, entity: Entity = (), *, strict: bool = False) -> list[Quota]:
    """Return the quotas of entities that have the pairs of `entity`. With `strict`, leave out those with more pairs."""
    controller = client.run(client.core.controller())
    components = [
        {"entity_type": kind, "match_type": DEFAULT if name is None else EXACT, "match": name} for kind, name in entity
    ]
    fields = {"components": components, "strict": strict}
    answer = client.run(client.core.ask(controller, DESCRIBE_CLIENT_QUOTAS, fields))
    if answer.error_code:
        raise BrokerError(int(answer.error_code), "quotas", answer.error_message)
    return [
        Quota(
            tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)),
            {value.key: float(value.value) for value in entry.values},
        )
        for entry in answer.entries or ()
    ]


def alter_quotas(client: Client, entity: Entity, values: Mapping[str, float | None]) -> None:
    """Change quotas of an entity. The value None removes one."""
    controller = client.run(client.core.controller())
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()],
    }
    fields = {"entries": [entry], "validate_only": False}
    answer = client.run(client.core.ask(controller, ALTER_CLIENT_QUOTAS, fields))
    result = answer.entries[0]
    if result.error_code:
        raise BrokerError(int(result.error_code), "quotas", result.error_message)
