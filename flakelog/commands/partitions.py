"""`flakelog partitions`: list partitions with their nodes, offsets and sizes; describe one with its producers."""

from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import PARTITION
from flakelog.commands.completion import TopicType
from flakelog.commands.exit_codes import fail
from flakelog.commands.start import name_left_out
from flakelog.commands.terminal import client_of, iso, json_option, print_json, print_line, print_table, servers_option

if TYPE_CHECKING:
    from flakelog.operations.partitions import ListedPartition


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
    from flakelog.operations.partitions import errors_of
    from flakelog.operations.partitions import list_partitions as partitions_of

    with client_of(servers) as client:
        listed = partitions_of(client, topics, with_internal=with_internal)
    name_left_out(errors_of(listed))
    rows = [_row(partition) for partition in listed if partition.has_problem or not problems]
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        names = ("topic", "partition", "leader", "epoch", "replicas", "in_sync", "begin", "end", "bytes")
        shown = [[_text(row[name]) for name in names] for row in rows]
        print_table([name.upper().replace("_", " ") for name in names], shown)
    else:
        click.echo("no partition has a problem" if problems else "there are no partitions", err=True)


def _row(partition: "ListedPartition") -> dict[str, Any]:
    nodes = partition.nodes
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "leader": partition.leader,
        "epoch": nodes.leader_epoch,
        "replicas": list(nodes.replicas),
        "in_sync": list(nodes.in_sync),
        "begin": partition.begin,
        "end": partition.end,
        "bytes": partition.bytes,
        "error": None if partition.error is None else str(partition.error),
    }


def _text(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list) else value


@partitions.command()
@click.argument("topic", type=TopicType())
@click.argument("partition", type=PARTITION)
@servers_option
@json_option
def describe(topic: str, partition: int, servers: str, as_json: bool) -> None:
    """Show one partition: leader, offsets, last stable offset, bytes, and the producers that it remembers."""
    from flakelog.operations.partitions import bounds_of, errors_of, list_partitions
    from flakelog.operations.transactions import describe_producers

    with client_of(servers) as client:
        listed = list_partitions(client, (topic,))
        name_left_out(errors_of(listed))
        described = [_row(line) for line in listed if line.partition == partition]
        if not described:
            fail(f"{topic} has partitions 0 to {len(listed) - 1}, not {partition}")
        stable = bounds_of(client, topic, partition, committed=True)[1]
        producers = describe_producers(client, topic, partition)
    shown = described[0] | {"last_stable": stable}
    rows = [
        {
            "producer_id": producer.producer_id,
            "epoch": producer.producer_epoch,
            "last_sequence": producer.last_sequence,
            "last_time": iso(producer.last_timestamp_ms),
            "transaction_from": producer.first_offset,
        }
        for producer in producers
    ]
    if as_json:
        print_json(shown | {"producers": rows})
        return
    for name, value in shown.items():
        print_line(f"{name.replace('_', ' ') + ':':<13}{'-' if value is None else _text(value)}")
    if rows:
        names = list(rows[0])
        print_table([name.upper().replace("_", " ") for name in names], [[row[name] for name in names] for row in rows])
