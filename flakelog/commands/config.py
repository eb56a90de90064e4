"""`flakelog config`: show and alter the settings of topics and of running brokers."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import BROKER, TopicName
from flakelog.commands.exit_codes import fail
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
    from broker.client.config_admin import ConfigValue, Resource


def _resource_options(command: Command) -> Command:
    """Add --topic, --broker and --all-brokers, of which one must be given; the command gets a `resource`."""

    @wraps(command)
    def chosen(topic: str | None, broker: int | None, all_brokers: bool, **more: Any) -> Any:
        from flakelog.operations.configs import broker_resource, topic_resource

        if (topic is not None) + (broker is not None) + all_brokers != 1:
            raise click.UsageError("say what has the settings: one of --topic NAME, --broker ID and --all-brokers")
        resource = broker_resource(broker) if topic is None else topic_resource(topic)
        return command(resource=resource, **more)

    options: list[Callable[[Command], Command]] = [
        click.option("--topic", type=TopicName(), metavar="NAME", help="A topic's own settings."),
        click.option("--broker", type=BROKER, metavar="ID", help="One broker's; `node.id` is its id."),
        click.option("--all-brokers", is_flag=True, help="What was altered of all brokers' settings."),
    ]
    made: Command = chosen
    for option in reversed(options):
        made = option(made)
    return made


@click.group()
def config() -> None:
    """Show and alter the settings of topics and brokers.

    `flakelog settings` explains the settings.
    """


@config.command()
@click.argument("names", nargs=-1, metavar="[SETTING]...")
@click.option("--all", "with_defaults", is_flag=True, help="Those too that have their defaults.")
@_resource_options
@servers_option
@json_option
def get(resource: "Resource", names: tuple[str, ...], with_defaults: bool, servers: str, as_json: bool) -> None:
    """Show the named SETTINGs, or all that are not at their defaults."""
    from flakelog.operations.configs import DEFAULT_SOURCE, describe_configs

    with client_of(servers) as client:
        values = describe_configs(client, resource, names)
    missing = sorted(set(names) - {value.name for value in values})
    if missing:
        fail(f"{resource.called} has no setting {', '.join(missing)}")
    if not (names or with_defaults):
        values = [value for value in values if value.source != DEFAULT_SOURCE]
    if as_json:
        for value in values:
            print_json(_described(value))
    elif values:
        rows = [(value.name, value.value, _source(value)) for value in values]
        print_table(("SETTING", "VALUE", "FROM"), rows)
    else:
        click.echo(f"all settings of {resource.called} have their defaults; --all shows them", err=True)


def _described(value: "ConfigValue") -> dict[str, Any]:
    return {"name": value.name, "value": value.value, "from": _source(value), "read_only": value.read_only}


def _source(value: "ConfigValue") -> str:
    from flakelog.operations.configs import SOURCES

    return SOURCES.get(value.source, str(value.source))


@config.command("set")
@click.argument("assignments", nargs=-1, required=True, metavar="NAME=VALUE...")
@_resource_options
@servers_option
@json_option
def set_configs(resource: "Resource", assignments: tuple[str, ...], servers: str, as_json: bool) -> None:
    """Set settings, from now on and after restarts; if one is refused, none is set."""
    _alter(resource, dict(assignment(text, "NAME=VALUE") for text in assignments), servers, as_json)


@config.command()
@click.argument("names", nargs=-1, required=True, metavar="SETTING...")
@_resource_options
@servers_option
@json_option
def delete(resource: "Resource", names: tuple[str, ...], servers: str, as_json: bool) -> None:
    """Delete settings made by `set`, so that the configured or default values apply again."""
    _alter(resource, dict.fromkeys(names), servers, as_json)


def _alter(resource: "Resource", values: "dict[str, str | None]", servers: str, as_json: bool) -> None:
    from flakelog.operations.configs import alter_configs, describe_configs

    with client_of(servers) as client:
        alter_configs(client, resource, values)
        altered = {value.name: value for value in describe_configs(client, resource, values)}
    for name in values:
        now = altered.get(name)
        if as_json:
            print_json({"name": name, "value": now.value if now else None})
        else:
            click.echo(f"{resource.called}: {name}{f'={now.value}' if now else ' is not set'}")
