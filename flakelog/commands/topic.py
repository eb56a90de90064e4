"""`flakelog topic`: make, list, describe and delete topics."""

from typing import TYPE_CHECKING

import click

from flakelog.commands.progress import progress
from flakelog.commands.terminal import client_of, count_of, json_option, print_json, print_table, servers_option

if TYPE_CHECKING:
    from broker.client.blocking import BlockingClient

INTERNAL = "__"  # Kafka's own topics begin so


@click.group()
def topic() -> None:
    """Make, list, describe and delete topics."""


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), help="[default: the broker's num.partitions]")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="A topic setting: segment.bytes=1048576")
@servers_option
@json_option
def create(name: str, partitions: int | None, configs: tuple[str, ...], servers: str, as_json: bool) -> None:
    """Make topic NAME."""
    settings = dict(_assignment(each) for each in configs)
    with client_of(servers) as client:
        client.create_topic(name, -1 if partitions is None else partitions, settings)
        made = client.topic(name)
    if as_json:
        print_json({"topic": made.name, "topic_id": str(made.id), "partitions": made.partitions})
    else:
        click.echo(f"created {made.name}: {count_of(made.partitions, 'partition')}")


def _assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.BadParameter(f"{text!r} is no setting; give NAME=VALUE", param_hint="--config")
    return name.strip(), value.strip()


@topic.command("list")
@click.option("--all", "with_internal", is_flag=True, help="The broker's own topics too.")
@servers_option
@json_option
def list_topics(with_internal: bool, servers: str, as_json: bool) -> None:
    """List the topics."""
    with client_of(servers) as client:
        topics = [each for each in client.topics() if with_internal or not each.name.startswith(INTERNAL)]
    topics.sort(key=lambda each: each.name)
    if as_json:
        for each in topics:
            print_json({"topic": each.name, "topic_id": str(each.id), "partitions": each.partitions})
    elif topics:
        print_table(("TOPIC", "PARTITIONS"), [(each.name, each.partitions) for each in topics])
    else:
        click.echo("there are no topics yet; make one with: flakelog topic create NAME", err=True)


@topic.command()
@click.argument("name")
@servers_option
@json_option
def describe(name: str, servers: str, as_json: bool) -> None:
    """Show the partitions of topic NAME: the offsets they begin and end at, and how many lie between."""
    with client_of(servers) as client:
        described = client.topic(name)
        bounds = []
        with progress("partitions", described.partitions) as step:
            for partition in range(described.partitions):
                bounds.append(bounds_of(client, name, partition))
                step()
    partitions = [
        {"partition": partition, "begin": begin, "end": end, "offsets": end - begin}
        for partition, (begin, end) in enumerate(bounds)
    ]
    if as_json:
        print_json({"topic": name, "topic_id": str(described.id), "partitions": partitions})
        return
    total = sum(each["offsets"] for each in partitions)
    click.echo(f"{name}: {count_of(described.partitions, 'partition')}, {count_of(total, 'offset')}, id {described.id}")
    print_table(("PARTITION", "BEGIN", "END", "OFFSETS"), [list(each.values()) for each in partitions])


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@servers_option
@json_option
def delete(name: str, yes: bool, servers: str, as_json: bool) -> None:
    """Delete topic NAME with all its messages, and what groups have committed for it."""
    with client_of(servers) as client:
        there = client.topic(name)
        if not yes:
            click.confirm(f"delete {name} with {count_of(there.partitions, 'partition')}?", abort=True, err=True)
        client.delete_topic(name)
    if as_json:
        print_json({"topic": name, "topic_id": str(there.id), "deleted": True})
    else:
        click.echo(f"deleted {name}")


def bounds_of(client: "BlockingClient", topic: str, partition: int) -> tuple[int, int]:
    """(the first offset there is, the one the next message gets)."""
    from broker.client.core import EARLIEST, LATEST

    return client.find_offset(topic, partition, EARLIEST), client.find_offset(topic, partition, LATEST)
