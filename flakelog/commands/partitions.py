"""`flakelog partitions`: list partitions with their nodes, offsets and sizes; describe one with its producers."""

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import PARTITION
from flakelog.commands.completion import TopicType
from flakelog.commands.exit_codes import fail
from flakelog.commands.start import name_left_out
from flakelog.commands.terminal import client_of, iso, json_option, print_json, print_line, print_table, servers_option

if TYPE_CHECKING:
    from broker.client.blocking import Client

INTERNAL = "__"
UNKNOWN = (None, None)


@click.group()
def partitions() -> None:
    """List and describe partitions. `flakelog topic add-partitions` adds some."""


@partitions.command("list")
@click.argument("topics", nargs=-1, type=TopicType(), metavar="[TOPIC]...")
@click.option("--all", "with_internal", is_flag=True, help="The broker's own topics too.")
@click.option("--problems", is_flag=True, help="Only those offline, without a leader, or with replicas not in sync.")
@servers_option
@json_option
def list_partitions(
    topics: tuple[str, ...], with_internal: bool, problems: bool, servers: str, as_json: bool
) -> None:
    """List the partitions of the TOPICs, or of all: leader, replicas, offsets and bytes."""
    with client_of(servers) as client:
        rows = _rows(client, topics, with_internal, problems)
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        names = ("topic", "partition", "leader", "epoch", "replicas", "in_sync", "begin", "end", "bytes")
        shown = [[_text(row[name]) for name in names] for row in rows]
        print_table([name.upper().replace("_", " ") for name in names], shown)
    else:
        click.echo("no partition has a problem" if problems else "there are no partitions", err=True)


def _rows(
    client: "Client", topics: tuple[str, ...], with_internal: bool, problems: bool
) -> list[dict[str, Any]]:
    from broker.client import admin, cluster_admin
    from broker.client.errors import no_leader
    from flakelog.operations.partitions import ask_each, bounds_of_all

    found = client.run(cluster_admin.replicas(client.core, topics))
    wanted = {
        place: each
        for place, each in found.items()
        if topics or with_internal or not place[0].startswith(INTERNAL)
    }
    led = [place for place, each in wanted.items() if each.leader >= 0]
    offline = {place: no_leader(*place) for place, each in wanted.items() if each.leader < 0}
    sizes = client.run(admin.partition_sizes(client.core)) if led else {}
    bounds, errors = ask_each(led, partial(bounds_of_all, client))
    errors |= offline
    name_left_out(errors)
    if problems:
        wanted = {
            place: each
            for place, each in wanted.items()
            if set(each.in_sync) != set(each.replicas) or place in errors
        }
    return [
        {
            "topic": place[0],
            "partition": place[1],
            "leader": each.leader if each.leader >= 0 else None,
            "epoch": each.leader_epoch,
            "replicas": list(each.replicas),
            "in_sync": list(each.in_sync),
            "begin": bounds.get(place, UNKNOWN)[0],
            "end": bounds.get(place, UNKNOWN)[1],
            "bytes": sizes.get(place),
            "error": str(errors[place]) if place in errors else None,
        }
        for place, each in wanted.items()
    ]


def _text(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list) else value


@partitions.command()
@click.argument("topic", type=TopicType())
@click.argument("partition", type=PARTITION)
@servers_option
@json_option
def describe(topic: str, partition: int, servers: str, as_json: bool) -> None:
    """Show one partition: leader, offsets, last stable offset, bytes, and the producers that it remembers."""
    from flakelog.operations.partitions import bounds_of
    from flakelog.operations.transactions import describe_producers

    with client_of(servers) as client:
        found = [row for row in _rows(client, (topic,), True, False) if row["partition"] == partition]
        if not found:
            fail(f"{topic} has partitions 0 to {client.topic(topic).partitions - 1}, not {partition}")
        stable = bounds_of(client, topic, partition, committed=True)[1]
        producers = describe_producers(client, topic, partition)
    described = found[0] | {"last_stable": stable}
    rows = [
        {
            "producer_id": each.producer_id,
            "epoch": each.producer_epoch,
            "last_sequence": each.last_sequence,
            "last_time": iso(each.last_timestamp_ms),
            "transaction_from": each.first_offset,
        }
        for each in producers
    ]
    if as_json:
        print_json(described | {"producers": rows})
        return
    for name, value in described.items():
        print_line(f"{name.replace('_', ' ') + ':':<13}{'-' if value is None else _text(value)}")
    if rows:
        names = list(rows[0])
        print_table([name.upper().replace("_", " ") for name in names], [[row[name] for name in names] for row in rows])
