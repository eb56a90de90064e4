"""Access rules and users, as their pages show them."""

from collections.abc import Sequence
from typing import NamedTuple

from broker.security.authorization.acl import (
    OPERATIONS,
    WILDCARD,
    AclBinding,
    AclBindingFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from coordination.errors import quoted
from flakelog.console.topics import Pages, pages_of
from flakelog.console.visit import BadField, Fields
from flakelog.operations.users import ScramCredentials


def word_of(value: ResourceType | Operation) -> str:
    """Return a kind of resource, or an operation, as `flakelog acl` names it."""
    return value.name.lower().replace("_", "-")


KINDS = {word_of(kind): kind for kind in OPERATIONS}
"""The kinds of resources that rules are about."""
_OPERATIONS = sorted({operation for operations in OPERATIONS.values() for operation in operations})
VERBS = {word_of(operation): operation for operation in (*_OPERATIONS, Operation.ALL)}
"""The operations; `all` comes last, so that no form begins with it."""


class RulesQuery(NamedTuple):
    """The rules asked for: those about a resource, those that hold for a name, or those of a principal."""

    kind: str = ""
    name: str = ""
    principal: str = ""

    @property
    def acl_filter(self) -> AclBindingFilter:
        """Return Kafka's filter. A name selects all rules that hold for it, prefixes and * included (KIP-290)."""
        return AclBindingFilter(
            KINDS.get(self.kind, ResourceType.ANY),
            PatternType.MATCH if self.name else PatternType.ANY,
            self.name or None,
            self.principal or None,
        )


class RulesPage(NamedTuple):
    """A page of access rules. `is_guarded` is False without an authorizer, which keeps no rules."""

    query: RulesQuery
    rows: Sequence[AclBinding]
    pages: Pages
    is_guarded: bool = True


class UsersPage(NamedTuple):
    """A page of the users that have passwords for SCRAM."""

    rows: Sequence[ScramCredentials]
    pages: Pages
    search: str
    users: int


def sentence_of(binding: AclBinding) -> str:
    """Return a rule in words: User:ada has the right read on topic orders, from all hosts."""
    is_all, is_denied = binding.operation is Operation.ALL, binding.permission is Permission.DENY
    right = "all rights" if is_all else f"the right {word_of(binding.operation)}"
    kind = word_of(binding.resource_type).replace("-", " ")
    begins = "s that begin with" if binding.pattern_type is PatternType.PREFIXED else ""
    resource = "the cluster" if binding.resource_type is ResourceType.CLUSTER else f"{kind}{begins} {binding.name}"
    hosts = "all hosts" if binding.host == WILDCARD else f"host {binding.host}"
    return f"{binding.principal} {'is denied' if is_denied else 'has'} {right} on {resource}, from {hosts}"


def query_of(fields: Fields) -> RulesQuery:
    """Return the rules that a form asks for. Raise BadField."""
    kind, principal = fields.text("kind"), fields.text("principal").strip()
    if kind and kind not in KINDS:
        raise BadField(f"rules are about {', '.join(KINDS)}, not about {quoted(kind)}")
    return RulesQuery(kind, fields.text("name").strip(), as_principal(principal))


def as_principal(text: str) -> str:
    """Return a principal; a text without a type is the name of a user."""
    return f"User:{text}" if text and ":" not in text else text


def rules_page(query: RulesQuery, bindings: Sequence[AclBinding], page: int) -> RulesPage:
    """Return a page of these rules, those of one resource together."""
    pages = pages_of(len(bindings), page)
    return RulesPage(query, bindings[pages.start : pages.end], pages)


def users_page(described: Sequence[ScramCredentials], search: str, page: int) -> UsersPage:
    """Return a page of the users whose names contain `search`."""
    needle = search.strip().lower()
    matching = [credentials for credentials in described if needle in credentials.user.lower()]
    pages = pages_of(len(matching), page)
    return UsersPage(matching[pages.start : pages.end], pages, search.strip(), len(described))
