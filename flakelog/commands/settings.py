"""`flakelog settings`: every setting with its default and explanation."""

from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.exit_codes import fail
from flakelog.commands.terminal import json_option, print_json

if TYPE_CHECKING:
    from broker.settings.kafka_settings import KafkaSetting
    from idgen.settings import Setting


@click.command()
@click.argument("words", nargs=-1, metavar="[WORD]...")
@json_option
def settings(words: tuple[str, ...], as_json: bool) -> None:
    """Explain the settings of `flakelog server`, of topics, topologies, their spouts and sinks, and consumers.

    With WORDs, explain only those whose names contain one of them, and also how Kafka's settings that are not used here
    are treated.
    """
    listed = [scoped for scoped in _all() if not words or any(word in scoped[1].name for word in words)]
    unused = [scoped for scoped in _unused() if any(word in scoped[1].name for word in words)] if words else []
    if not listed and not unused:
        fail(f"no setting has {' or '.join(words)} in its name; `flakelog settings` lists them all")
    for scope, setting in listed:
        if as_json:
            print_json(_describe(scope, setting))
        else:
            click.secho(f"{setting.name}={_value(setting.default)}", bold=True, nl=False)
            click.echo(f"  ({', '.join(filter(None, (scope, setting.unit)))})")
            click.echo(click.wrap_text(_sentence(setting.doc), 100, "    ", "    ") + "\n")
    for scope, row in unused:
        if as_json:
            print_json({"name": row.name, "scope": scope, "standing": row.standing, "doc": row.reason})
        else:
            click.secho(row.name, bold=True, nl=False)
            click.echo(f"  ({scope}, {row.standing})")
            click.echo(click.wrap_text(_sentence(row.reason), 100, "    ", "    ") + "\n")


def _all() -> "list[tuple[str, Setting]]":
    from broker.client.connector.connector_config import ConnectorConfig
    from broker.client.consumer_config import ConsumerConfig
    from broker.client.fetch_config import FetchConfig
    from broker.client.group_config import GroupMemberConfig
    from broker.settings.config import TopicConfig
    from flakelog.settings import CONFIGS
    from idgen.settings import settings_of
    from partition_manager.config import SpoutConfig
    from spout.config import TopologyConfig
    from spout.multilang.config import StormConfig
    from spout.sink_config import SinkConfig

    of_server = [("server", setting) for config in CONFIGS for setting in settings_of(config)]
    listed = sorted(of_server, key=lambda one: one[1].name)
    listed += sorted((("topic", setting) for setting in settings_of(TopicConfig)), key=lambda one: one[1].name)
    of_topologies = (
        ("spout", SpoutConfig),
        ("group member", GroupMemberConfig),
        ("sink", SinkConfig),
        ("topology", TopologyConfig),
        ("storm", StormConfig),
    )
    for scope, config in of_topologies:
        listed += [(scope, setting) for setting in settings_of(config)]  # in the order of their subjects
    of_members = settings_of(GroupMemberConfig)
    listed += [("consumer", setting) for setting in settings_of(ConsumerConfig) if setting not in of_members]
    of_fetches = settings_of(FetchConfig)
    listed += [("connector", setting) for setting in settings_of(ConnectorConfig) if setting not in of_fetches]
    return listed


def _unused() -> "list[tuple[str, KafkaSetting]]":
    from broker.settings.kafka_settings import HONOURED, broker_settings, topic_settings

    scopes = (("server", broker_settings()), ("topic", topic_settings()))
    return [(scope, row) for scope, rows in scopes for row in rows if row.standing != HONOURED]


def _describe(scope: str, setting: "Setting") -> dict[str, Any]:
    return {"name": setting.name, "default": setting.default, "unit": setting.unit, "scope": scope, "doc": setting.doc}


def _value(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sentence(doc: str) -> str:
    return doc[0].upper() + doc[1:] + ("" if doc.endswith(".") else ".")
