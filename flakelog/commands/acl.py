"""`flakelog acl`: list, add and remove access rules, as kafka-acls does."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.terminal import (
    Command,
    client_of,
    confirm,
    json_option,
    print_json,
    print_table,
    servers_option,
)
from flakelog.visible_text import count_of

if TYPE_CHECKING:
    from broker.security.authorization.acl import AclBinding, AclBindingFilter

OPERATIONS = (
    "all", "read", "write", "create", "delete", "alter", "describe", "cluster-action", "describe-configs",
    "alter-configs", "idempotent-write", "create-tokens", "describe-tokens", "two-phase-commit",
)  # fmt: skip
CLUSTER_NAME = "kafka-cluster"


def _resource_options(command: Command) -> Command:
    """Add the options that name resources; the command gets `resources`, pairs of a type and a name, and `prefix`."""

    @wraps(command)
    def chosen(
        topic: tuple[str, ...],
        group: tuple[str, ...],
        transactional_id: tuple[str, ...],
        user: tuple[str, ...],
        cluster: bool,
        **more: Any,
    ) -> Any:
        given = (("TOPIC", topic), ("GROUP", group), ("TRANSACTIONAL_ID", transactional_id), ("USER", user))
        resources = [(kind, name) for kind, names in given for name in names]
        return command(resources=resources + ([("CLUSTER", CLUSTER_NAME)] if cluster else []), **more)

    options: list[Callable[[Command], Command]] = [
        click.option("--topic", multiple=True, metavar="NAME", help='A topic; "*" is all. Repeatable.'),
        click.option("--group", multiple=True, metavar="NAME", help='A consumer group; "*" is all. Repeatable.'),
        click.option("--transactional-id", multiple=True, metavar="ID", help="A transactional id. Repeatable."),
        click.option("--user", multiple=True, metavar="NAME", help="A user whose tokens are meant. Repeatable."),
        click.option("--cluster", is_flag=True, help="The cluster."),
        click.option("--prefix", is_flag=True, help="The names are begins of names."),
    ]
    made: Command = chosen
    for option in reversed(options):
        made = option(made)
    return made


_principal_option = click.option("--principal", metavar="User:NAME", help="Only rules of this principal.")


@click.group()
def acl() -> None:
    """List, add and remove access rules.

    The broker keeps and checks them if its `authorizer.class.name` is set. A rule that denies comes before all rules
    that allow.
    """


@acl.command("list")
@_resource_options
@_principal_option
@servers_option
@json_option
def list_acls(
    resources: list[tuple[str, str]], prefix: bool, principal: str | None, servers: str, as_json: bool
) -> None:
    """List all rules, or those of these resources and this principal."""
    from flakelog.operations import acls

    with client_of(servers) as client:
        bindings = [acl for chosen in _filters(resources, prefix, principal) for acl in acls.list_acls(client, chosen)]
    _show(bindings, as_json)
    if not bindings and not as_json:
        click.echo("there are no access rules", err=True)


@acl.command()
@_resource_options
@click.option("--allow", multiple=True, metavar="User:NAME", help='Whom to allow; "User:*" is everybody. Repeatable.')
@click.option("--deny", multiple=True, metavar="User:NAME", help="Whom to deny. Repeatable.")
@click.option("--host", multiple=True, default=("*",), metavar="ADDRESS", help="Only from this address. Repeatable.")
@click.option(
    "--operation",
    multiple=True,
    type=click.Choice(OPERATIONS),
    required=True,
    metavar="OPERATION",
    help=f"One of {', '.join(OPERATIONS)}. Repeatable.",
)
@servers_option
@json_option
def add(
    resources: list[tuple[str, str]],
    prefix: bool,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    host: tuple[str, ...],
    operation: tuple[str, ...],
    servers: str,
    as_json: bool,
) -> None:
    """Allow or deny operations on resources."""
    from broker.security.authorization.acl import AclBinding, Operation, PatternType, Permission, ResourceType
    from flakelog.operations import acls

    if not resources:
        raise click.UsageError("say on what: --topic, --group, --transactional-id, --user or --cluster")
    if not allow and not deny:
        raise click.UsageError("say whom: --allow User:NAME or --deny User:NAME")
    pattern = PatternType.PREFIXED if prefix else PatternType.LITERAL
    whom = [*((name, Permission.ALLOW) for name in allow), *((name, Permission.DENY) for name in deny)]
    bindings = [
        AclBinding(ResourceType[kind], pattern, name, principal, address, _operation(Operation, verb), permission)
        for kind, name in resources
        for principal, permission in whom
        for address in host
        for verb in operation
    ]
    with client_of(servers) as client:
        acls.add_acls(client, bindings)
    _show(bindings, as_json)


@acl.command()
@_resource_options
@_principal_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@servers_option
@json_option
def remove(
    resources: list[tuple[str, str]], prefix: bool, principal: str | None, yes: bool, servers: str, as_json: bool
) -> None:
    """Remove the rules of these resources, or of this principal."""
    from flakelog.operations import acls

    if not resources and principal is None:
        raise click.UsageError("say which: --topic, --group, --transactional-id, --user, --cluster or --principal")
    filters = _filters(resources, prefix, principal)
    with client_of(servers) as client:
        bindings = [acl for chosen in filters for acl in acls.list_acls(client, chosen)]
        if bindings and not yes:
            _show(bindings, as_json=False)
            confirm(f"remove {count_of(len(bindings), 'access rule')}?")
        removed = acls.remove_acls(client, filters) if bindings else []
    if as_json:
        _show(removed, as_json)
    else:
        click.echo(f"{count_of(len(removed), 'access rule')} removed", err=True)


def _operation(operations: Any, name: str) -> Any:
    return operations[name.replace("-", "_").upper()]


def _filters(resources: list[tuple[str, str]], prefix: bool, principal: str | None) -> list["AclBindingFilter"]:
    from broker.security.authorization.acl import AclBindingFilter, PatternType, ResourceType

    if not resources:
        return [AclBindingFilter(principal=principal)]
    pattern = PatternType.PREFIXED if prefix else PatternType.LITERAL
    return [AclBindingFilter(ResourceType[kind], pattern, name, principal) for kind, name in resources]


def _show(bindings: list["AclBinding"], as_json: bool) -> None:
    rows = []
    for binding in bindings:
        fields = binding._asdict()
        if as_json:
            print_json({name: value if isinstance(value, str) else value.name for name, value in fields.items()})
        pattern = f"{binding.name} ({binding.pattern_type.name.lower()})"
        kind = binding.resource_type.name.lower().replace("_", "-")
        operation = binding.operation.name.lower().replace("_", "-")
        rows.append((kind, pattern, binding.permission.name.lower(), binding.principal, binding.host, operation))
    if rows and not as_json:
        print_table(("RESOURCE", "NAME", "PERMISSION", "PRINCIPAL", "HOST", "OPERATION"), rows)
