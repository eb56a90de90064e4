"""Access rules: list, add and remove them (KIP-140)."""

from collections.abc import Iterable
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


def list_acls(client: Client, selected: AclBindingFilter) -> list[AclBinding]:
    """Return the rules that a filter selects, ordered by their resources."""
    controller = client.run(client.core.controller())
    answer = client.run(client.core.ask(controller, DESCRIBE_ACLS, _filter_fields(selected)))
    if answer.error_code:
        raise BrokerError(int(answer.error_code), "access rules", answer.error_message)
    return sorted(_binding(resource, acl) for resource in answer.resources for acl in resource.acls)


def add_acls(client: Client, bindings: Iterable[AclBinding]) -> None:
    """Add rules. Raise BrokerError for the first one that is refused; the others are added."""
    controller = client.run(client.core.controller())
    creations = [
        {
            "resource_type": int(binding.resource_type),
            "resource_name": binding.name,
            "resource_pattern_type": int(binding.pattern_type),
            "principal": binding.principal,
            "host": binding.host,
            "operation": int(binding.operation),
            "permission_type": int(binding.permission),
        }
        for binding in bindings
    ]
    answer = client.run(client.core.ask(controller, CREATE_ACLS, {"creations": creations}))
    for result in answer.results:
        if result.error_code:
            raise BrokerError(int(result.error_code), "access rules", result.error_message)


def remove_acls(client: Client, selected: AclBindingFilter) -> list[AclBinding]:
    """Remove the rules that a filter selects, and return them."""
    controller = client.run(client.core.controller())
    answer = client.run(client.core.ask(controller, DELETE_ACLS, {"filters": [_filter_fields(selected)]}))
    (result,) = answer.filter_results
    if result.error_code:
        raise BrokerError(int(result.error_code), "access rules", result.error_message)
    return sorted(_binding(acl, acl) for acl in result.matching_acls)


def _filter_fields(selected: AclBindingFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": int(selected.resource_type),
        "resource_name_filter": selected.name,
        "pattern_type_filter": int(selected.pattern_type),
        "principal_filter": selected.principal,
        "host_filter": selected.host,
        "operation": int(selected.operation),
        "permission_type": int(selected.permission),
    }


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
