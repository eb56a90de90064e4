"""Kafka's access rules: a rule allows a principal an operation on resources, or denies it (KIP-11, KIP-290).

A rule names resources of one type by a pattern. A LITERAL pattern is a name, or "*" for all names; a PREFIXED pattern
is the begin of names. A filter selects rules. It leaves open whatever is ANY or None; a pattern type of MATCH selects
all rules that hold for a resource of the filter's name.

The numbers are those of Kafka's messages.
"""

from enum import IntEnum
from typing import NamedTuple

WILDCARD = "*"
"""The name of all resources of a type, and the host of all hosts."""
CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""
USER = "User"
EVERYBODY = "User:*"


class _Coded(IntEnum):
    """Numbers in messages. A number without a meaning is UNKNOWN."""

    @classmethod
    def _missing_(cls, value: object) -> "_Coded":
        return cls(0)


class ResourceType(_Coded):
    """The type of the resources that a rule names."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Coded):
    """How a rule names its resources. ANY and MATCH stand in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Coded):
    """The operations on resources."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(_Coded):
    """Whether a rule allows an operation."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS = {
    ResourceType.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations that there are on a resource, by its type."""


class AclBinding(NamedTuple):
    """An access rule. The principal is "User:NAME", the host an IP address."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclBindingFilter(NamedTuple):
    """Selects rules."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, rule: AclBinding) -> bool:
        """Return True if the filter selects a rule."""
        return self._matches_pattern(rule) and (
            self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (Operation.ANY, rule.operation)
            and self.permission in (Permission.ANY, rule.permission)
        )

    @property
    def is_unknown(self) -> bool:
        """Return True if a part of the filter has no meaning."""
        return 0 in (self.resource_type, self.pattern_type, self.operation, self.permission)

    def _matches_pattern(self, rule: AclBinding) -> bool:
        if self.resource_type not in (ResourceType.ANY, rule.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, rule.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.name == rule.name
        if rule.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(rule.name)
        return rule.name in (self.name, WILDCARD)


def check_binding(rule: AclBinding) -> str | None:
    """Return why there cannot be such a rule, in Kafka's words; None for a rule that can be."""
    if rule.resource_type is ResourceType.CLUSTER and rule.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not rule.name:
        return "Invalid empty resource name"
    if rule.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        return f"Invalid resourceType {rule.resource_type.name}"
    if rule.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {rule.pattern_type.name}"
    if rule.operation in (Operation.UNKNOWN, Operation.ANY):
        return f"Invalid operation {rule.operation.name}"
    if rule.permission not in (Permission.DENY, Permission.ALLOW):
        return f"Invalid permissionType {rule.permission.name}"
    return check_principal(rule.principal)


def check_principal(principal: str) -> str | None:
    """Return why a text is no principal, in Kafka's words; None for a principal."""
    kind, separator, _ = principal.partition(":")
    if kind and separator:
        return None
    return f"expected a string in format principalType:principalName but got {principal}"
