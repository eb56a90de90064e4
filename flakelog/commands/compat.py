"""`flakelog compat`: the supported part of Kafka's protocol and settings, and the differences."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.terminal import json_option, print_json, print_table

if TYPE_CHECKING:
    from broker.settings.kafka_settings import KafkaSetting
    from idgen.settings import Setting

PAGE = """# Compatibility with Apache Kafka {kafka}

Made by `flakelog compat --markdown > docs/compat.md`; a test holds this page to what the program does.
"""


@click.command()
@json_option
@click.option("--markdown", "as_page", is_flag=True, help="The page of the documentation.")
def compat(as_json: bool, as_page: bool) -> None:
    """Print APIs with their versions, settings, and differences from Kafka."""
    if as_json:
        print_json(report())
    elif as_page:
        click.echo(page(), nl=False)
    else:
        _print(report())


def report() -> dict[str, Any]:
    """Return the whole report as data for JSON."""
    from broker.settings.config import BrokerConfig, TopicConfig
    from broker.settings.group_config import GroupConfig
    from broker.settings.kafka_apis import DIFFERENCES, KAFKA
    from broker.settings.kafka_settings import broker_settings, topic_settings
    from flakelog.config import ServerConfig
    from idgen.settings import settings_of

    server = {
        setting.name: setting for config in (ServerConfig, BrokerConfig, GroupConfig) for setting in settings_of(config)
    }
    topic = {setting.name: setting for setting in settings_of(TopicConfig)}
    return {
        "kafka": KAFKA,
        "apis": list(_apis()),
        "broker_settings": [_setting(row, server.get(row.name)) for row in broker_settings()],
        "topic_settings": [_setting(row, topic.get(row.name)) for row in topic_settings()],
        "early_consumer_settings": list(_early_settings()),
        "differences": [{"what": what, "here": here} for what, here in DIFFERENCES],
    }


def _apis() -> Iterator[dict[str, Any]]:
    from broker.engine.api_table import APIS
    from broker.settings.kafka_apis import KAFKA_APIS, NOT_SERVED

    for key, (name, oldest, newest) in sorted(KAFKA_APIS.items()):
        api = APIS.get(key)
        served = None if api is None else [api.oldest, api.newest]
        reason = NOT_SERVED.get(name, "") if api is None else ""
        yield {"key": key, "name": name, "kafka": [oldest, newest], "served": served, "reason": reason}


def _early_settings() -> Iterator[dict[str, Any]]:
    """Yield the settings of Kafka 0.8's consumer, and what a ConsumerConnector does with each."""
    from broker.client.connector.connector_config import ConnectorConfig
    from broker.client.connector.early_settings import EARLY_SETTINGS
    from idgen.settings import settings_of

    ours = {setting.name: setting for setting in settings_of(ConnectorConfig)}
    for early in EARLY_SETTINGS:
        fields = {"name": early.name, "standing": early.standing, "ours": early.ours, "reason": early.reason}
        default = {"default": _text(ours[early.ours].default)} if early.ours in ours else {}
        yield fields | {"kafka_default": early.default} | default


def _setting(row: "KafkaSetting", ours: "Setting | None") -> dict[str, Any]:
    kafkas = _kafka_default(row)
    fields = {"name": row.name, "standing": row.standing, "reason": row.reason, "kafka_default": kafkas}
    return fields | ({"default": _text(ours.default)} if ours is not None else {})


def _kafka_default(row: "KafkaSetting") -> str | None:
    """Return Kafka's default, or that of its last synonym if it has none.

    For example, log.retention.ms is by default log.retention.hours=168.
    """
    from broker.settings.kafka_settings import SYNONYMS, broker_setting

    last = broker_setting(SYNONYMS[row.name][-1][0]) if row.name in SYNONYMS else None
    if row.default is not None or last is None or last.default is None:
        return row.default
    factor = SYNONYMS[row.name][-1][1]
    return last.default if factor == 1 else str(int(last.default) * factor)


def _text(value: Any) -> str | None:
    """Return a default as Kafka writes it."""
    if value is None:
        return None
    if isinstance(value, float):
        return repr(value).replace("e+", "E")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _other_defaults(report_fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the honoured settings whose defaults differ from Kafka's."""
    rows = report_fields["broker_settings"] + report_fields["topic_settings"]
    return [row for row in rows if "default" in row and (row["default"] or "") != (row["kafka_default"] or "")]


def _by_reason(rows: list[dict[str, Any]], standing: str) -> dict[str, list[str]]:
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row["standing"] == standing:
            by_reason.setdefault(row["reason"], []).append(row["name"])
    return by_reason


def _versions(served: list[int] | None) -> str:
    if served is None:
        return "-"
    return str(served[0]) if served[0] == served[1] else f"{served[0]} to {served[1]}"


# --- for people ------------------------------------------------------------------------------------------------------


def _print(report_fields: dict[str, Any]) -> None:
    click.secho(f"APIs (Apache Kafka {report_fields['kafka']})", bold=True)
    rows = [
        (a["key"], a["name"], _versions(a["served"]), _versions(a["kafka"]), a["reason"]) for a in report_fields["apis"]
    ]
    print_table(("KEY", "NAME", "SERVED", "KAFKA", "WHY NOT"), rows)
    for scope in ("broker", "topic"):
        rows = report_fields[f"{scope}_settings"]
        click.secho(f"\nSettings of a {scope}", bold=True)
        print_table(("NAME", "STANDING", "WHY"), [(row["name"], row["standing"], row["reason"]) for row in rows])
    click.secho("\nSettings of early Kafka's consumer, for a ConsumerConnector", bold=True)
    early = [(row["name"], row["standing"], _early_treatment(row)) for row in report_fields["early_consumer_settings"]]
    print_table(("NAME", "STANDING", "AS, OR WHY NOT"), early)
    click.secho("\nDefaults that are others", bold=True)
    others = [
        (default["name"], default["default"] or "", default["kafka_default"] or "")
        for default in _other_defaults(report_fields)
    ]
    print_table(("NAME", "DEFAULT", "KAFKA'S"), others)
    click.secho("\nWhat differs", bold=True)
    for difference in report_fields["differences"]:
        click.echo(click.wrap_text(f"{difference['what']}: {difference['here']}", 100, "  ", "    "))


# --- the page --------------------------------------------------------------------------------------------------------


def page() -> str:
    """Return the text of docs/compat.md."""
    report_fields = report()
    sections: tuple[Callable[[dict[str, Any]], Iterator[str]], ...] = (
        _page_differences,
        _page_apis,
        _page_settings,
        _page_defaults,
        _page_early_consumer,
    )
    lines = [line for section in sections for line in section(report_fields)]
    return PAGE.format(kafka=report_fields["kafka"]) + "\n".join(lines) + "\n"


def _page_differences(report_fields: dict[str, Any]) -> Iterator[str]:
    yield "\n## What differs\n"
    for difference in report_fields["differences"]:
        yield f"- **{difference['what']}.** {difference['here']}"


def _page_apis(report_fields: dict[str, Any]) -> Iterator[str]:
    yield "\n## APIs\n\n| key | name | served | Kafka's | |\n|--:|---|---|---|---|"
    for api in report_fields["apis"]:
        versions = f"{_versions(api['served'])} | {_versions(api['kafka'])}"
        yield f"| {api['key']} | {api['name']} | {versions} | {api['reason']} |"


def _page_settings(report_fields: dict[str, Any]) -> Iterator[str]:
    for scope in ("broker", "topic"):
        rows = report_fields[f"{scope}_settings"]
        yield f"\n## Settings of a {scope}\n\nHonoured:\n"
        yield from (f"- `{row['name']}`" for row in rows if row["standing"] == "honoured")
        for standing, title in (("ignored", "Ignored, as leaving them out changes nothing"), ("refused", "Refused")):
            yield f"\n{title}:\n"
            for reason, names in _by_reason(rows, standing).items():
                yield f"- {reason}: " + ", ".join(f"`{name}`" for name in names)


def _page_defaults(report_fields: dict[str, Any]) -> Iterator[str]:
    yield "\n## Defaults that are others\n\n| setting | here | Kafka's |\n|---|---|---|"
    for default in _other_defaults(report_fields):
        yield f"| `{default['name']}` | {default['default'] or ''} | {default['kafka_default'] or ''} |"


def _page_early_consumer(report_fields: dict[str, Any]) -> Iterator[str]:
    yield "\n## Settings of early Kafka's consumer\n"
    yield "`ConnectorConfig.from_properties` takes them for a `ConsumerConnector`, or refuses one with the reason.\n"
    yield "| Kafka 0.8 | its default | | as, or why not | default here |\n|---|---|---|---|---|"
    for row in report_fields["early_consumer_settings"]:
        default = row.get("default") or ""
        yield f"| `{row['name']}` | {row['kafka_default']} | {row['standing']} | {_early_treatment(row)} | {default} |"


def _early_treatment(row: dict[str, Any]) -> str:
    """Return under what name a setting is taken, and what to know of that; or why it is refused."""
    name = "" if row["ours"] == row["name"] else row["ours"]
    return "; ".join(filter(None, (name and f"`{name}`", row["reason"])))
