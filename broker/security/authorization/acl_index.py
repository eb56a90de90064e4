"""Finds the rules that hold for a resource, however many rules there are.

Rules stand by resource type and name. A name is looked up as it is, as "*", and as each of its begins that is as long
as some prefix among the rules. So a look-up takes as many steps as prefixes have different lengths.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from broker.security.authorization.acl import (
    EVERYBODY,
    WILDCARD,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

RulesByPrincipal: TypeAlias = dict[str, list[AclBinding]]
"""The rules of one pattern: those of each principal."""
_Patterns: TypeAlias = dict[str, RulesByPrincipal]

_IMPLIED_BY = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""The operations whose permission includes another. A rule that denies them denies nothing else."""


class AclIndex:
    """All rules of a cluster."""

    def __init__(self, rules: Iterable[AclBinding] = ()) -> None:
        self._literals: dict[ResourceType, _Patterns] = {}
        self._prefixes: dict[ResourceType, _Patterns] = {}
        self._prefix_lengths: dict[ResourceType, tuple[int, ...]] = {}
        for rule in rules:
            by_type = self._literals if rule.pattern_type is PatternType.LITERAL else self._prefixes
            by_principal = by_type.setdefault(rule.resource_type, {}).setdefault(rule.name, {})
            by_principal.setdefault(rule.principal, []).append(rule)
        for resource_type, prefixes in self._prefixes.items():
            self._prefix_lengths[resource_type] = tuple(sorted({len(prefix) for prefix in prefixes}))

    @staticmethod
    def decide(principal: str, host: str, operation: Operation, patterns: Sequence[RulesByPrincipal]) -> bool | None:
        """Return True if the rules of a resource's patterns allow an operation, False if not, None without a pattern.

        A rule that denies comes before all rules that allow.
        """
        is_allowed = False
        for by_principal in patterns:
            for owner in (principal, EVERYBODY):
                for rule in by_principal.get(owner, ()):
                    if rule.host not in (WILDCARD, host):
                        continue
                    if rule.permission is Permission.DENY:
                        if rule.operation in (Operation.ALL, operation):
                            return False
                    elif _allows(rule.operation, operation):
                        is_allowed = True
        return is_allowed if patterns else None

    def allows_on_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Return True if the rules allow an operation on one resource of a type at least, which need not exist.

        As in Kafka, the operation must be named, or be ALL: none is implied by another here.
        """
        literals, denied_literals = self._names(self._literals, principal, host, operation, resource_type)
        prefixes, denied_prefixes = self._names(self._prefixes, principal, host, operation, resource_type)
        if WILDCARD in denied_literals:
            return False
        if WILDCARD in literals:
            return True
        return any(
            not any(name.startswith(prefix) for prefix in denied_prefixes)
            for name in (*prefixes, *(literals - denied_literals))
        )

    def _names(
        self,
        by_type: dict[ResourceType, _Patterns],
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
    ) -> tuple[set[str], set[str]]:
        """Return the names for which rules of one pattern type allow an operation, and those for which they deny it."""
        names: dict[Permission, set[str]] = {Permission.ALLOW: set(), Permission.DENY: set()}
        for name, by_principal in by_type.get(resource_type, {}).items():
            for owner in (principal, EVERYBODY):
                for rule in by_principal.get(owner, ()):
                    if rule.host in (WILDCARD, host) and rule.operation in (Operation.ALL, operation):
                        names[rule.permission].add(name)
        return names[Permission.ALLOW], names[Permission.DENY]

    def patterns_of(self, resource_type: ResourceType, name: str) -> list[RulesByPrincipal]:
        """Return the rules of each pattern that a resource has. Resources with the same patterns have the same rights.
        """
        patterns = []
        literals = self._literals.get(resource_type)
        if literals is not None:
            if (by_principal := literals.get(name)) is not None:
                patterns.append(by_principal)
            if name != WILDCARD and (by_principal := literals.get(WILDCARD)) is not None:
                patterns.append(by_principal)
        prefixes = self._prefixes.get(resource_type)
        if prefixes is not None:
            for length in self._prefix_lengths[resource_type]:
                if length > len(name):
                    break
                if (by_principal := prefixes.get(name[:length])) is not None:
                    patterns.append(by_principal)
        return patterns


def _allows(granted: Operation, operation: Operation) -> bool:
    return granted in (Operation.ALL, operation) or granted in _IMPLIED_BY.get(operation, ())
