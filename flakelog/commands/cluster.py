"""`flakelog cluster`: describe the cluster and its disks."""

from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import BROKER
from flakelog.commands.terminal import client_of, count_of, json_option, print_json, print_table, servers_option
from flakelog.commands.transfer import size_of

if TYPE_CHECKING:
    from broker.client.cluster_admin import LogDir


@click.group()
def cluster() -> None:
    """Describe the cluster: brokers, versions and disks. `flakelog config --all-brokers` has its settings."""


@cluster.command()
@servers_option
@json_option
def describe(servers: str, as_json: bool) -> None:
    """Show the cluster's id, its controller, its brokers, and how many topics and partitions it has."""
    from broker.client import cluster_admin

    with client_of(servers) as client:
        found = client.run(cluster_admin.describe_cluster(client.core))
        topics = client.topics()
    partitions = sum(each.partitions for each in topics)
    if as_json:
        described = {"cluster_id": found.id, "controller": found.controller, "topics": len(topics)}
        brokers = [each._asdict() for each in found.brokers]
        print_json(described | {"partitions": partitions, "brokers": brokers})
        return
    click.echo(f"cluster {found.id}: {count_of(len(topics), 'topic')}, {count_of(partitions, 'partition')}")
    roles = {found.controller: "controller"}
    rows = [(each.id, each.address, each.rack, roles.get(each.id)) for each in found.brokers]
    print_table(("BROKER", "ADDRESS", "RACK", "ROLE"), rows)


@cluster.command()
@click.option("--broker", type=BROKER, metavar="ID", help="The node's `node.id`.  [default: all]")
@servers_option
@json_option
def disks(broker: int | None, servers: str, as_json: bool) -> None:
    """Show the data directories of the brokers: bytes of the logs, and free space of the disk."""
    from broker.client import cluster_admin

    with client_of(servers) as client:
        found = client.run(cluster_admin.log_dirs(client.core))
    rows = [_row(each) for each in found if broker is None or each.broker == broker]
    if as_json:
        for row in rows:
            print_json(row)
        return
    names = ("broker", "path", "partitions", "bytes", "usable_bytes", "total_bytes", "error")
    print_table([each.upper().replace("_", " ") for each in names], [[_shown(row[n]) for n in names] for row in rows])


def _row(each: "LogDir") -> dict[str, Any]:
    from broker.wire.errors import ErrorCode

    return {
        "broker": each.broker,
        "path": each.path,
        "partitions": len(each.sizes),
        "bytes": sum(each.sizes.values()),
        "usable_bytes": each.usable_bytes,
        "total_bytes": each.total_bytes,
        "error": ErrorCode(each.error).name if each.error else None,
    }


def _shown(value: Any) -> Any:
    return size_of(value) if isinstance(value, int) and value >= 1_000 else value
