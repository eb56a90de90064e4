"""`flakelog quotas`: list, describe and alter the quotas of clients (KIP-546)."""

import math
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import quoted
from flakelog.commands.terminal import (
    Command,
    assignment,
    client_of,
    json_option,
    print_json,
    print_table,
    servers_option,
)

if TYPE_CHECKING:
    from flakelog.operations.quotas import Entity, Quota


def _entity_options(command: Command) -> Command:
    """Add --client-id, --user and --ip; the command gets an `entity`."""

    @wraps(command)
    def chosen(client_id: str | None, user: str | None, ip: str | None, **more: Any) -> Any:
        given = (("client-id", client_id), ("ip", ip), ("user", user))
        entity = tuple((kind, name or None) for kind, name in given if name is not None)
        return command(entity=entity, **more)

    options: list[Callable[[Command], Command]] = [
        click.option("--client-id", metavar="NAME", help='Clients of this id; "" is the default of all.'),
        click.option("--user", metavar="NAME", help='Clients of this user; "" is the default of all.'),
        click.option("--ip", metavar="ADDRESS", help='Connections from this address; "" is the default of all.'),
    ]
    made: Command = chosen
    for option in reversed(options):
        made = option(made)
    return made


@click.group()
def quotas() -> None:
    """List, describe and alter the quotas of clients.

    There are producer_byte_rate and consumer_byte_rate (bytes/s), request_percentage, controller_mutation_rate, and for
    an --ip connection_creation_rate.
    """


@quotas.command("list")
@_entity_options
@servers_option
@json_option
def list_quotas(entity: "Entity", servers: str, as_json: bool) -> None:
    """List the quotas of all clients, or those that name this client id, user or address."""
    _show(entity, servers, strict=False, as_json=as_json)


@quotas.command()
@_entity_options
@servers_option
@json_option
def describe(entity: "Entity", servers: str, as_json: bool) -> None:
    """Show the quotas of exactly one: a client id, a user, both together, or an address."""
    if not entity:
        raise click.UsageError("say whose quotas: --client-id, --user or --ip")
    _show(entity, servers, strict=True, as_json=as_json)


@quotas.command()
@_entity_options
@click.option("--set", "assignments", multiple=True, metavar="NAME=RATE", help="Set a quota; repeatable.")
@click.option("--unset", "names", multiple=True, metavar="NAME", help="Remove a quota; repeatable.")
@servers_option
@json_option
def alter(
    entity: "Entity", assignments: tuple[str, ...], names: tuple[str, ...], servers: str, as_json: bool
) -> None:
    """Set and remove quotas, from now on and after restarts."""
    from flakelog.operations.quotas import alter_quotas

    if not entity:
        raise click.UsageError("say whose quotas: --client-id, --user or --ip")
    values: dict[str, float | None] = dict(_rate(text) for text in assignments)
    values |= dict.fromkeys(names)
    if not values:
        raise click.UsageError("nothing to alter: give --set NAME=RATE or --unset NAME")
    with client_of(servers) as client:
        alter_quotas(client, entity, values)
    _show(entity, servers, strict=True, as_json=as_json)


def _rate(text: str) -> tuple[str, float]:
    name, value = assignment(text, "--set")
    try:
        rate = float(value)
    except ValueError:
        rate = math.nan
    if not math.isfinite(rate):
        raise click.BadParameter(f"{quoted(value)} is no number", param_hint="--set")
    return name, rate


def _show(entity: "Entity", servers: str, *, strict: bool, as_json: bool) -> None:
    from flakelog.operations import quotas

    with client_of(servers) as client:
        listed = quotas.list_quotas(client, entity, strict=strict)
    if as_json:
        for quota in listed:
            print_json({"entity": dict(quota.entity), "quotas": quota.values})
    elif listed:
        rows = [
            (_named(quota), name, f"{rate:.15g}") for quota in listed for name, rate in sorted(quota.values.items())
        ]
        print_table(("CLIENTS", "QUOTA", "RATE"), rows)
    else:
        click.echo("there are no quotas", err=True)


def _named(quota: "Quota") -> str:
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in quota.entity)
