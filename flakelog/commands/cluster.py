"""`flakelog cluster`: describe the cluster, the placement of its partitions, and its disks."""

from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import BROKER
from flakelog.commands.terminal import (
    client_of,
    count_of,
    json_option,
    print_json,
    print_line,
    print_table,
    servers_option,
)
from flakelog.commands.transfer import size_of

if TYPE_CHECKING:
    from flakelog.operations.cluster import LogDir
    from flakelog.operations.placement import Placement

OFFLINE_SHOWN = 10


@click.group()
def cluster() -> None:
    """Describe the cluster: brokers, leaders and disks. `flakelog config --all-brokers` has its settings."""


@cluster.command()
@servers_option
@json_option
def describe(servers: str, as_json: bool) -> None:
    """Show the cluster's id, its controller, its brokers, the partitions that each leads, and those offline.

    A broker that is not live is listed while partitions have a copy on it.
    """
    from flakelog.operations.placement import find_placement

    with client_of(servers) as client:
        placement = find_placement(client)
    if as_json:
        print_json(_placement_json(placement))
        return
    counts = f"{count_of(placement.topics, 'topic')}, {count_of(placement.partitions, 'partition')}"
    click.echo(f"cluster {placement.cluster_id}: {counts}, {len(placement.offline)} offline")
    rows = [
        (
            broker.id,
            broker.address,
            broker.rack,
            "yes" if broker.live else "no",
            broker.leads,
            "controller" if broker.id == placement.controller else None,
        )
        for broker in placement.brokers
    ]
    print_table(("BROKER", "ADDRESS", "RACK", "LIVE", "LEADS", "ROLE"), rows)
    if placement.offline:
        names = [f"{topic}-{number}" for topic, number in placement.offline[:OFFLINE_SHOWN]]
        more = len(placement.offline) - len(names)
        others = f" and {more} more: `flakelog partitions list --all --problems` lists all" if more else ""
        print_line(f"offline: {', '.join(names)}{others}")
    if placement.all_on_broker is not None:
        click.echo(
            f"all partitions are on broker {placement.all_on_broker}: new topics are spread over all live brokers, "
            "partitions that exist stay where they are"
        )


def _placement_json(placement: "Placement") -> dict[str, Any]:
    return {
        "cluster_id": placement.cluster_id,
        "controller": placement.controller,
        "topics": placement.topics,
        "partitions": placement.partitions,
        "offline": [{"topic": topic, "partition": number} for topic, number in placement.offline],
        "all_on_broker": placement.all_on_broker,
        "brokers": [broker._asdict() for broker in placement.brokers],
    }


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
