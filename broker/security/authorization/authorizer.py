"""The authorizer: decides whether a client may do an operation on a resource.

A super user may do everything. For any other the rules decide. A resource that no rule is about is closed, or open
where `allow.everyone.if.no.acl.found` says so.

Decisions are kept until the rules change, so that a client that does the same again and again costs one look-up. Names
come from clients, so the number of decisions has a limit; past it all are forgotten. A listing keeps no decision; the
rules by which it selects names are kept likewise.
"""

from collections.abc import Iterable

from broker.security.authorization.acl import OPERATIONS, AclBinding, AclBindingFilter, Operation, ResourceType
from broker.security.authorization.acl_index import AclIndex
from broker.security.authorization.listing import ListingRules

DECISIONS_MAX = 20_000
LISTINGS_MAX = 16
"""The clients, operations and types of resources for which the rules of listings are kept: each may be many rules."""
_ANY_NAME = "hardcode"
"""The name with which Kafka asks for a resource that no rule is about."""


class Authorizer:
    """The decisions by a set of rules."""

    def __init__(
        self,
        super_users: Iterable[str] = (),
        acls: frozenset[AclBinding] = frozenset(),
        *,
        allows_without_rules: bool = False,
    ) -> None:
        self._super_users = frozenset(super_users)
        self._allows_without_rules = allows_without_rules
        self._decisions: dict[tuple[str, str, Operation, ResourceType, str], bool] = {}
        self._listings: dict[tuple[str, str, Operation, ResourceType], ListingRules] = {}
        self.acls = acls
        self._index = AclIndex(acls)
        self.generation = 0
        """Differs after each change of the rules."""

    def use(self, acls: frozenset[AclBinding]) -> None:
        """Decide by these rules from now on."""
        if acls is self.acls:
            return
        self.acls = acls
        self._index = AclIndex(acls)
        self._decisions.clear()
        self._listings.clear()
        self.generation += 1

    def selected(self, acl_filter: AclBindingFilter) -> list[AclBinding]:
        """Return the rules that a filter selects, in an order that does not depend on how they came."""
        return sorted(rule for rule in self.acls if acl_filter.matches(rule))

    def allows(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return True if a principal may do an operation on a resource from a host."""
        key = principal, host, operation, resource_type, name
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            decision = self._decisions[key] = self._decide(*key)
        return decision

    def allowed(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, names: Iterable[str]
    ) -> set[str]:
        """Return those of many names on which a principal may do an operation from a host, as `allows` decides it.

        None of the decisions is kept. So a listing of all topics leaves the decisions of `allows` as they are, however
        many topics there are.
        """
        if principal in self._super_users:
            return set(names)
        key = principal, host, operation, resource_type
        rules = self._listings.get(key)
        if rules is None:
            if len(self._listings) >= LISTINGS_MAX:
                self._listings.clear()
            rules = self._index.listing_rules(*key, allows_without_rules=self._allows_without_rules)
            self._listings[key] = rules
        return rules.select(frozenset(names))

    def _decide(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        if principal in self._super_users:
            return True
        decision = self._index.decide(principal, host, operation, resource_type, name)
        return self._allows_without_rules if decision is None else decision

    def allows_on_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Return True if a principal may do an operation on one resource of a type at least (KIP-679)."""
        if self.allows(principal, host, operation, resource_type, _ANY_NAME):
            return True
        return self._index.allows_on_any(principal, host, operation, resource_type)

    def operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """Return the operations that a principal may do on a resource, a bit for each (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.allows(principal, host, operation, resource_type, name)
        )
