"""The filters of DescribeAcls and DeleteAcls."""

from typing import Any

from broker.security.authorization.acl import AclBindingFilter, Operation, PatternType, Permission, ResourceType


def acl_filter(wanted: Any) -> AclBindingFilter:
    """Return the filter of a message."""
    return AclBindingFilter(
        ResourceType(wanted.resource_type_filter),
        PatternType(wanted.pattern_type_filter),
        wanted.resource_name_filter,
        wanted.principal_filter,
        wanted.host_filter,
        Operation(wanted.operation),
        Permission(wanted.permission_type),
    )


def check_filter(wanted: AclBindingFilter) -> str | None:
    """Return why a filter has no meaning, in Kafka's words; None for one that has."""
    if ResourceType.UNKNOWN is wanted.resource_type or PatternType.UNKNOWN is wanted.pattern_type:
        return "Unknown patternFilter."
    return "Unknown entryFilter." if wanted.is_unknown else None
