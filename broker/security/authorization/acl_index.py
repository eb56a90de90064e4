"""Finds the rules that hold for a resource, however many rules there are.

Rules stand by resource type and name. A name is looked up as it is, as "*", and as each of its begins that is as long
as some prefix among the rules. So a look-up takes as many steps as prefixes have different lengths.

They stand by resource type and principal too, for questions about all resources of a type.
"""

from collections.abc import Iterable, Iterator
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
from broker.security.authorization.listing import ListingRules, NamePatterns

_ByPrincipal: TypeAlias = dict[str, list[AclBinding]]
_Patterns: TypeAlias = dict[str, _ByPrincipal]

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
        self._of_principals: dict[tuple[ResourceType, str], list[AclBinding]] = {}
        self._ruled: dict[ResourceType, NamePatterns] = {}
        for rule in rules:
            self._of_principals.setdefault((rule.resource_type, rule.principal), []).append(rule)
            by_type = self._literals if rule.pattern_type is PatternType.LITERAL else self._prefixes
            by_principal = by_type.setdefault(rule.resource_type, {}).setdefault(rule.name, {})
            by_principal.setdefault(rule.principal, []).append(rule)
        for resource_type, prefixes in self._prefixes.items():
            self._prefix_lengths[resource_type] = tuple(sorted({len(prefix) for prefix in prefixes}))

    def decide(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool | None:
        """Return True if the rules allow an operation, False if they do not, None if no rule is about the resource.

        A rule that denies comes before all rules that allow.
        """
        is_named = is_allowed = False
        for by_principal in self._patterns_of(resource_type, name):
            is_named = True
            for owner in (principal, EVERYBODY):
                for rule in by_principal.get(owner, ()):
                    if rule.host not in (WILDCARD, host):
                        continue
                    if rule.permission is Permission.DENY:
                        if rule.operation in (Operation.ALL, operation):
                            return False
                    elif _allows(rule.operation, operation):
                        is_allowed = True
        return is_allowed if is_named else None

    def listing_rules(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        *,
        allows_without_rules: bool,
    ) -> ListingRules:
        """Return the rules by which a client lists resources of a type, so that each is decided as by `decide`."""
        names: dict[tuple[Permission, PatternType], list[str]] = {}
        for rule in self._rules_of(principal, host, resource_type):
            is_deny = rule.permission is Permission.DENY
            if rule.operation in (Operation.ALL, operation) if is_deny else _allows(rule.operation, operation):
                names.setdefault((rule.permission, rule.pattern_type), []).append(rule.name)
        allowed, denied = (
            NamePatterns(*(names.get((permission, kind), ()) for kind in (PatternType.LITERAL, PatternType.PREFIXED)))
            for permission in (Permission.ALLOW, Permission.DENY)
        )
        if not allows_without_rules:
            return ListingRules(allowed, denied, None)
        if resource_type not in self._ruled:
            literals, prefixes = self._literals.get(resource_type, ()), self._prefixes.get(resource_type, ())
            self._ruled[resource_type] = NamePatterns(literals, prefixes)
        return ListingRules(allowed, denied, self._ruled[resource_type])

    def allows_on_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Return True if the rules allow an operation on one resource of a type at least, which need not exist.

        As in Kafka, the operation must be named, or be ALL: none is implied by another here.
        """
        literals, denied_literals = self._names(PatternType.LITERAL, principal, host, operation, resource_type)
        prefixes, denied_prefixes = self._names(PatternType.PREFIXED, principal, host, operation, resource_type)
        if WILDCARD in denied_literals:
            return False
        if WILDCARD in literals:
            return True
        return any(
            not any(name.startswith(prefix) for prefix in denied_prefixes)
            for name in (*prefixes, *(literals - denied_literals))
        )

    def _names(
        self, kind: PatternType, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> tuple[set[str], set[str]]:
        """Return the names for which rules of one pattern type allow an operation, and those for which they deny it."""
        names: dict[Permission, set[str]] = {Permission.ALLOW: set(), Permission.DENY: set()}
        for rule in self._rules_of(principal, host, resource_type):
            if rule.pattern_type is kind and rule.operation in (Operation.ALL, operation):
                names[rule.permission].add(rule.name)
        return names[Permission.ALLOW], names[Permission.DENY]

    def _rules_of(self, principal: str, host: str, resource_type: ResourceType) -> Iterator[AclBinding]:
        """Return the rules about resources of a type that hold for a principal at a host."""
        for owner in dict.fromkeys((principal, EVERYBODY)):
            for rule in self._of_principals.get((resource_type, owner), ()):
                if rule.host in (WILDCARD, host):
                    yield rule

    def _patterns_of(self, resource_type: ResourceType, name: str) -> Iterator[_ByPrincipal]:
        """Return the rules of each pattern that a resource has."""
        literals = self._literals.get(resource_type)
        if literals is not None:
            if (by_principal := literals.get(name)) is not None:
                yield by_principal
            if name != WILDCARD and (by_principal := literals.get(WILDCARD)) is not None:
                yield by_principal
        prefixes = self._prefixes.get(resource_type)
        if prefixes is not None:
            for length in self._prefix_lengths[resource_type]:
                if length > len(name):
                    break
                if (by_principal := prefixes.get(name[:length])) is not None:
                    yield by_principal


def _allows(granted: Operation, operation: Operation) -> bool:
    return granted in (Operation.ALL, operation) or granted in _IMPLIED_BY.get(operation, ())
