"""`flakelog topic`: create, list, describe, alter and delete topics."""

from typing import TYPE_CHECKING

import click

from broker.client.offset_spec import OffsetSpec
from flakelog.commands.arguments import INT16_MAX, INT32_MAX, PARTITION, TopicName, Whole
from flakelog.commands.completion import TopicType
from flakelog.commands.exit_codes import fail
from flakelog.commands.start import StartType, find_starts, name_left_out
from flakelog.commands.terminal import (
    assignment,
    client_of,
    confirm,
    count_of,
    json_option,
    print_json,
    print_none,
    print_table,
    servers_option,
)

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from broker.client.core import TopicInfo


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


@topic.command()
@click.argument("names", nargs=-1, required=True, type=TopicName(), metavar="NAME...")
@click.option("--partitions", type=Whole(1, INT32_MAX), help="[default: the broker's num.partitions]")
@click.option(
    "--replication-factor",
    type=Whole(1, INT16_MAX),
    help="Copies of each partition.  [default: the brokers' default.replication.factor]",
)
@click.option(
    "--set",
    "--config",
    "configs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A topic setting: segment.bytes=1048576; repeatable. --config is an older name of --set.",
)
@servers_option
@json_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    servers: str,
    as_json: bool,
) -> None:
    """Create topics."""
    from flakelog.operations.topics import BROKER_DEFAULT, create_topic

    settings = dict(assignment(text, "--set") for text in configs)
    with client_of(servers) as client:
        for name in dict.fromkeys(names):
            create_topic(
                client,
                name,
                BROKER_DEFAULT if partitions is None else partitions,
                settings,
                replication_factor=BROKER_DEFAULT if replication_factor is None else replication_factor,
            )
            created = client.topic(name)
            if as_json:
                _print_json(created)
            else:
                copies = "" if replication_factor is None else f", replication factor {replication_factor}"
                click.echo(f"created {created.name}: {count_of(created.partitions, 'partition')}{copies}")


def _print_json(topic: "TopicInfo") -> None:
    print_json({"topic": topic.name, "topic_id": str(topic.id), "partitions": topic.partitions})


@topic.command("list")
@click.option("--all", "with_internal", is_flag=True, help="The broker's own topics too.")
@servers_option
@json_option
def list_topics(with_internal: bool, servers: str, as_json: bool) -> None:
    """List the topics."""
    from flakelog.operations import topics

    with client_of(servers) as client:
        listed = topics.list_topics(client, with_internal=with_internal)
        if not (listed or as_json):
            print_none(client, "topics", " yet; make one with: flakelog topic create NAME")
    if as_json:
        for info in listed:
            _print_json(info)
    elif listed:
        print_table(("TOPIC", "PARTITIONS"), [(info.name, info.partitions) for info in listed])


@topic.command()
@click.argument("names", nargs=-1, required=True, type=TopicType(), metavar="NAME...")
@servers_option
@json_option
def describe(names: tuple[str, ...], servers: str, as_json: bool) -> None:
    """Show the settings and partitions of topics: first offset, end offset, and the number of offsets between."""
    with client_of(servers) as client:
        for name in dict.fromkeys(names):
            _describe(client, name, as_json)


def _describe(client: "Client", name: str, as_json: bool) -> None:
    from flakelog.operations.partitions import errors_of
    from flakelog.operations.topics import describe_topic

    described = describe_topic(client, name)
    info = described.topic
    partitions = [
        {"partition": listed.partition, "begin": listed.begin, "end": listed.end, "offsets": listed.offsets}
        for listed in described.partitions
    ]
    if as_json:
        shown = {"topic": name, "topic_id": str(info.id), "partitions": partitions, "settings": described.settings}
        print_json(shown)
        return
    total = count_of(sum(listed.offsets or 0 for listed in described.partitions), "offset")
    if any(listed.offsets is None for listed in described.partitions):
        total = f"at least {total}"
    click.echo(f"{name}: {count_of(info.partitions, 'partition')}, {total}, id {info.id}")
    for setting, value in described.settings.items():
        click.echo(f"  {setting}={value}")
    print_table(("PARTITION", "BEGIN", "END", "OFFSETS"), [list(row.values()) for row in partitions])
    name_left_out(errors_of(described.partitions))


@topic.command()
@click.argument("name", type=TopicType())
@click.option("--set", "assignments", multiple=True, metavar="SETTING=VALUE", help="Set it; repeatable.")
@click.option("--unset", "names", multiple=True, metavar="SETTING", help="Put it back to its default; repeatable.")
@servers_option
@json_option
def alter(name: str, assignments: tuple[str, ...], names: tuple[str, ...], servers: str, as_json: bool) -> None:
    """Alter settings of topic NAME at once; if one is refused, none is altered. `add-partitions` adds partitions."""
    from flakelog.operations.configs import alter_configs, describe_configs, topic_resource

    values: dict[str, str | None] = dict(assignment(text, "--set") for text in assignments)
    values |= dict.fromkeys(names)
    if not values:
        raise click.UsageError("nothing to alter: give --set SETTING=VALUE or --unset SETTING")
    resource = topic_resource(name)
    with client_of(servers) as client:
        alter_configs(client, resource, values)
        now = {setting.name: setting.value for setting in describe_configs(client, resource, values)}
    if as_json:
        print_json({"topic": name, "settings": now})
    else:
        for setting, value in now.items():
            click.echo(f"{name}: {setting}={value}")


@topic.command("add-partitions")
@click.argument("name", type=TopicType())
@click.option("--to", "partitions", type=Whole(2, INT32_MAX), required=True, help="How many there are to be in all.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@servers_option
@json_option
def add_partitions(name: str, partitions: int, yes: bool, servers: str, as_json: bool) -> None:
    """Add partitions to topic NAME. Messages stay where they are, but keys may map to other partitions afterwards."""
    from flakelog.operations import topics

    with client_of(servers) as client:
        if not yes:
            before = count_of(client.topic(name).partitions, "partition")
            topics.add_partitions(client, name, partitions, validate_only=True)
            confirm(f"grow {name} from {before} to {partitions:,}, which cannot be undone?")
        topics.add_partitions(client, name, partitions)
    if as_json:
        print_json({"topic": name, "partitions": partitions})
    else:
        click.echo(f"{name}: {count_of(partitions, 'partition')}")


@topic.command("delete-records")
@click.argument("name", type=TopicType())
@click.option("--partition", "numbers", type=PARTITION, multiple=True, help="Only this one; repeatable.")
@click.option(
    "--before",
    "start",
    type=StartType(),
    required=True,
    metavar="PLACE",
    help="latest (all there is), an offset, @TIME (@2013-01-01T12:00Z, @Unix-ms), or id:ID.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@servers_option
@json_option
def delete_records(
    name: str, numbers: tuple[int, ...], start: OffsetSpec, yes: bool, servers: str, as_json: bool
) -> None:
    """Delete the messages of topic NAME before PLACE, for good."""
    from flakelog.operations import topics
    from flakelog.operations.partitions import bounds_of_all

    with client_of(servers) as client:
        partitions = client.topic(name).partitions
        wrong = [number for number in numbers if number >= partitions]
        if wrong:
            fail(f"{name} has partitions 0 to {partitions - 1}, not {', '.join(map(str, wrong))}")
        chosen = [(name, number) for number in sorted(set(numbers)) or range(partitions)]
        before = {span.partition: span.offset for span in find_starts(client, chosen, start)}
        begins = {number: begin for (_, number), (begin, _) in bounds_of_all(client, chosen).items()}
        if not yes:
            offsets = sum(max(before[number] - begins[number], 0) for number in before)
            confirm(f"delete {count_of(offsets, 'offset')} of {name}?")
        now = topics.delete_records(client, {(name, number): offset for number, offset in before.items()})
    rows = [(number, begins[number], begin) for (_, number), begin in now.items()]
    if as_json:
        for number, begin_before, begin in rows:
            print_json({"topic": name, "partition": number, "begin_before": begin_before, "begin": begin})
    else:
        print_table(("PARTITION", "BEGAN", "BEGINS"), rows)


@topic.command()
@click.argument("names", nargs=-1, required=True, type=TopicType(), metavar="NAME...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@servers_option
@json_option
def delete(names: tuple[str, ...], yes: bool, servers: str, as_json: bool) -> None:
    """Delete topics with all their messages, and the offsets that groups have committed for them."""
    from flakelog.operations.topics import delete_topic

    with client_of(servers) as client:
        topics = [client.topic(name) for name in dict.fromkeys(names)]
        if not yes:
            question = ", ".join(f"{info.name} with {count_of(info.partitions, 'partition')}" for info in topics)
            confirm(f"delete {question}?")
        for info in topics:
            delete_topic(client, info.name, id=str(info.id))
            if as_json:
                print_json({"topic": info.name, "topic_id": str(info.id), "deleted": True})
            else:
                click.echo(f"deleted {info.name}")
