"""Access rules: list, add and remove them (KIP-140)."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from broker.client.api_versions import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from broker.client.blocking import Client
from broker.client.errors import BrokerError
from broker.security.authorization.acl import (
    AclBinding,
    AclBindingFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

_CODED: dict[str, type[IntEnum]] = {
    "resource_type": ResourceType,
    "pattern_type": PatternType,
    "operation": Operation,
    "permission": Permission,
}
"""The fields of a rule and of a filter that are numbers in messages, with their values."""


def list_acls(client: Client, selected: AclBindingFilter) -> list[AclBinding]:
    """Return the rules that a filter selects, ordered by their resources."""
    fields = _filter_fields(selected)
    controller = client.run(client.core.controller())
    answer = client.run(client.core.ask(controller, DESCRIBE_ACLS, fields))
    if answer.error_code:
        raise BrokerError(int(answer.error_code), "access rules", answer.error_message)
    return sorted(_binding(resource, acl) for resource in answer.resources for acl in resource.acls)


def add_acls(client: Client, bindings: Iterable[AclBinding]) -> None:
    """Add rules. Raise BrokerError for the first one that is refused; the others are added."""
    added = tuple(bindings)
    creations = [_creation_fields(binding) for binding in added]
    controller = client.run(client.core.controller())
    answer = client.run(client.core.ask(controller, CREATE_ACLS, {"creations": creations}))
    for binding, result in zip(added, answer.results, strict=True):
        if result.error_code:
            rule = f"access rule for {binding.principal} on {binding.resource_type.name} {binding.name}"
            raise BrokerError(int(result.error_code), rule, result.error_message)


def remove_acls(client: Client, filters: Iterable[AclBindingFilter]) -> list[AclBinding]:
    """Remove the rules that any of the filters selects; return them, ordered by their resources.

    Raise BrokerError for the first filter, or rule, that is refused; the rules of the others are removed.
    """
    fields = {"filters": [_filter_fields(selected) for selected in filters]}
    controller = client.run(client.core.controller())
    answer = client.run(client.core.ask(controller, DELETE_ACLS, fields))
    removed = set()
    for result in answer.filter_results:
        for outcome in (result, *result.matching_acls):
            if outcome.error_code:
                raise BrokerError(int(outcome.error_code), "access rules", outcome.error_message)
        removed |= {_binding(acl, acl) for acl in result.matching_acls}
    return sorted(removed)


def _creation_fields(binding: AclBinding) -> dict[str, Any]:
    _check_values(binding)
    return {
        "resource_type": int(binding.resource_type),
        "resource_name": binding.name,
        "resource_pattern_type": int(binding.pattern_type),
        "principal": binding.principal,
        "host": binding.host,
        "operation": int(binding.operation),
        "permission_type": int(binding.permission),
    }


def _filter_fields(selected: AclBindingFilter) -> dict[str, Any]:
    _check_values(selected)
    return {
        "resource_type_filter": int(selected.resource_type),
        "resource_name_filter": selected.name,
        "pattern_type_filter": int(selected.pattern_type),
        "principal_filter": selected.principal,
        "host_filter": selected.host,
        "operation": int(selected.operation),
        "permission_type": int(selected.permission),
    }


def _check_values(rule: AclBinding | AclBindingFilter) -> None:
    """Raise ValueError for a field with a value of the wrong type, such as a text."""
    for name, values in _CODED.items():
        value = getattr(rule, name)
        if not isinstance(value, values):
            names = ", ".join(member.name for member in values if member)
            raise ValueError(f"{name}={value!r} is no {values.__name__}, which has {names}")


def _binding(resource: Any, acl: Any) -> AclBinding:
    return AclBinding(
        ResourceType(resource.resource_type),
        PatternType(resource.pattern_type),
        resource.resource_name,
        acl.principal,
        acl.host,
        Operation(acl.operation),
        Permission(acl.permission_type),
    )
