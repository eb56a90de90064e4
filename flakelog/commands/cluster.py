"""`flakelog cluster`: describe the cluster and its disks."""

from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import BROKER
from flakelog.commands.terminal import client_of, count_of, json_option, print_json, print_table, servers_option
from flakelog.commands.transfer import size_of

if TYPE_CHECKING:
    from flakelog.operations.cluster import LogDir


@click.group()
def cluster() -> None:
    """Describe the cluster: brokers, versions and disks. `flakelog config --all-brokers` has its settings."""


@cluster.command()
@servers_option
@json_option
def describe(servers: str, as_json: bool) -> None:
    """Show the cluster's id, its controller, its brokers, and how many topics and partitions it has."""
    from flakelog.operations.cluster import describe_cluster

    with client_of(servers) as client:
        described = describe_cluster(client)
        topics = client.topics()
    partitions = sum(topic.partitions for topic in topics)
    if as_json:
        shown = {"cluster_id": described.id, "controller": described.controller, "topics": len(topics)}
        brokers = [broker._asdict() for broker in described.brokers]
        print_json(shown | {"partitions": partitions, "brokers": brokers})
        return
    click.echo(f"cluster {described.id}: {count_of(len(topics), 'topic')}, {count_of(partitions, 'partition')}")
    roles = {described.controller: "controller"}
    rows = [(broker.id, broker.address, broker.rack, roles.get(broker.id)) for broker in described.brokers]
    print_table(("BROKER", "ADDRESS", "RACK", "ROLE"), rows)


@cluster.command()
@click.option("--broker", type=BROKER, metavar="ID", help="The node's `node.id`.  [default: all]")
@servers_option
@json_option
def disks(broker: int | None, servers: str, as_json: bool) -> None:
    """Show the data directories of the brokers: bytes of the logs, and free space of the disk."""
    from flakelog.operations.cluster import log_dirs

    with client_of(servers) as client:
        directories = log_dirs(client)
    rows = [_row(directory) for directory in directories if broker is None or directory.broker == broker]
    if as_json:
        for row in rows:
            print_json(row)
        return
    names = ("broker", "path", "partitions", "bytes", "usable_bytes", "total_bytes", "error")
    heads = [name.upper().replace("_", " ") for name in names]
    print_table(heads, [[_shown(row[name]) for name in names] for row in rows])


def _row(directory: "LogDir") -> dict[str, Any]:
    from broker.wire.errors import ErrorCode

    return {
        "broker": directory.broker,
        "path": directory.path,
        "partitions": len(directory.sizes),
        "bytes": sum(directory.sizes.values()),
        "usable_bytes": directory.usable_bytes,
        "total_bytes": directory.total_bytes,
        "error": ErrorCode(directory.error).name if directory.error else None,
    }


def _shown(value: Any) -> Any:
    return size_of(value) if isinstance(value, int) and value >= 1_000 else value
