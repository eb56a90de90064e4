"""Actions on access rules: create and delete one. CreateAcls has no `validate_only`, so a plan lists the rules."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from broker.client.blocking import Client
from broker.security.authorization.acl import (
    CLUSTER_NAME,
    EVERYBODY,
    OPERATIONS,
    WILDCARD,
    AclBinding,
    AclBindingFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_binding,
)
from coordination.errors import quoted
from flakelog.console.actions import Action, Done, Planned, Task
from flakelog.console.rules import KINDS, VERBS, as_principal, sentence_of, word_of
from flakelog.console.visit import BadField, Fields
from flakelog.operations import acls

FIELDS = ("kind", "name", "pattern", "permission", "principal", "host", "operation")
PATTERNS = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED}
PERMISSIONS = {"allow": Permission.ALLOW, "deny": Permission.DENY}
RULES = "/console/rules"

T = TypeVar("T")


def _plan_rule(client: Client, fields: Fields) -> Planned:
    binding = _new_rule(fields)
    if acls.list_acls(client, _exactly(binding)):
        raise BadField("there is such a rule already")
    sentence = f"From then on, {sentence_of(binding)}."
    return Planned(sentence, "Create it", warning=" ".join(_effects(binding)))


def _create_rule(client: Client, fields: Fields, task: Task) -> Done:
    binding = _new_rule(fields)
    acls.add_acls(client, [binding])
    return Done(f"The rule was created: {sentence_of(binding)}.", RULES)


def _plan_removal(client: Client, fields: Fields) -> Planned:
    binding = _present(client, fields)
    warning = "What it denies is allowed then, if another rule allows it. " * (binding.permission is Permission.DENY)
    warning += "It holds for requests that wait too. Clients that need it are refused at once."
    return Planned(f"Delete the rule by which {sentence_of(binding)}.", "Delete it", warning=warning)


def _remove_rule(client: Client, fields: Fields, task: Task) -> Done:
    binding = _present(client, fields)
    acls.remove_acls(client, [_exactly(binding)])
    return Done(f"The rule was deleted by which {sentence_of(binding)}.", RULES)


def _present(client: Client, fields: Fields) -> AclBinding:
    """Return the rule that the fields describe. Raise BadField if there is no such rule."""
    binding = _rule(fields.text)
    if not acls.list_acls(client, _exactly(binding)):
        raise BadField("there is no such rule; it may have been deleted meanwhile")
    return binding


def _rule(text: Callable[..., str]) -> AclBinding:
    """Return the rule that fields describe; `text` returns one by its name. Raise BadField."""
    kind = _one_of(KINDS, text("kind"), "kind of resource")
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else text("name")
    if not name:
        raise BadField(f"name the {text('kind')}, or give * for all")
    principal = as_principal(text("principal"))
    if not principal:
        raise BadField("name the principal, as in User:ada, or User:* for everybody")
    binding = AclBinding(
        kind,
        _one_of(PATTERNS, text("pattern", "literal"), "pattern"),
        name,
        principal,
        text("host") or WILDCARD,
        _one_of(VERBS, text("operation"), "operation"),
        _one_of(PERMISSIONS, text("permission", "allow"), "permission"),
    )
    wrong = check_binding(binding)
    if wrong is not None:
        raise BadField(wrong)
    return binding


def _new_rule(fields: Fields) -> AclBinding:
    """Return a rule to create, without the spaces around what a visitor typed.

    Raise BadField, also for an operation that there is not on such a resource.
    """
    binding = _rule(lambda *field: fields.text(*field).strip())
    operations = Operation.ALL, *OPERATIONS[binding.resource_type]
    if binding.operation not in operations:
        words = ", ".join(map(word_of, operations))
        kind, verb = word_of(binding.resource_type), word_of(binding.operation)
        raise BadField(f"there is no {verb} on a {kind}; there are {words}")
    return binding


def _one_of(values: Mapping[str, T], text: str, what: str) -> T:
    if text not in values:
        raise BadField(f"{quoted(text)} is no {what}; give {', '.join(values)}")
    return values[text]


def _exactly(binding: AclBinding) -> AclBindingFilter:
    """Return the filter that selects one rule."""
    return AclBindingFilter(*binding)


def _effects(binding: AclBinding) -> list[str]:
    """Return what a visitor may not expect of a new rule, a sentence for each."""
    effects = []
    if binding.permission is Permission.DENY:
        effects.append("A rule that denies comes before all rules that allow.")
    if binding.principal == EVERYBODY:
        effects.append("User:* is every client, those without a login too.")
    if binding.name == WILDCARD and binding.pattern_type is PatternType.LITERAL:
        effects.append("The name * stands for all, those that are made later too.")
    return effects


ACTIONS = {
    "create-rule": Action("Create an access rule", FIELDS, _plan_rule, _create_rule, "create_rule.html"),
    "delete-rule": Action("Delete an access rule", FIELDS, _plan_removal, _remove_rule),
}
