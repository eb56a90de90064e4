"""`flakelog cluster`: describe the cluster, the placement of its partitions, and its disks; elect leaders."""

from typing import TYPE_CHECKING, Any

import click

from coordination.listing import listed
from flakelog.commands.arguments import BROKER, PARTITION
from flakelog.commands.completion import TopicType
from flakelog.commands.exit_codes import fail
from flakelog.commands.terminal import (
    client_of,
    confirm,
    count_of,
    json_option,
    print_json,
    print_line,
    print_table,
    servers_option,
)
from flakelog.commands.transfer import size_of
from flakelog.commands.zookeeper_session import zookeeper_options, zookeeper_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.client.core import Partition
    from broker.client.errors import BrokerError
    from flakelog.operations.cluster import LogDir
    from flakelog.operations.elections import ElectionKind
    from flakelog.operations.placement import PlacedPartition, Placement
    from idgen.config import IdgenConfig

OFFLINE_SHOWN = 10
WHAT_TO_DO_OFFLINE = (
    "start the brokers of ISR and ELR. If they never come back, `flakelog cluster elect --unclean --topic TOPIC` lets "
    "a live copy lead, and the messages that it lacks are lost"
)


@click.group()
def cluster() -> None:
    """Describe the cluster: brokers, leaders and disks; elect leaders. `flakelog config` has its settings."""


@cluster.command()
@click.option("--partitions", "with_all", is_flag=True, help="List all partitions with their copies instead.")
@click.option("--under-replicated", is_flag=True, help="List those with a copy that is not in sync.")
@click.option("--under-min-isr", is_flag=True, help="List those with fewer in sync than min.insync.replicas.")
@click.option("--at-min-isr", is_flag=True, help="List those with exactly as many in sync.")
@click.option("--offline", is_flag=True, help="List those without a leader.")
@servers_option
@json_option
def describe(
    with_all: bool,
    under_replicated: bool,
    under_min_isr: bool,
    at_min_isr: bool,
    offline: bool,
    servers: str,
    as_json: bool,
) -> None:
    """Show the cluster's id, its controller, its brokers, the partitions that each leads, and those offline.

    A broker that is not live is listed while partitions have a copy on it. With several of the options that list
    partitions, those are listed that one of them names. LAG is the number of committed messages that each copy lacks.
    """
    from flakelog.operations.placement import find_placement

    with client_of(servers) as client:
        placement = find_placement(client)
    if with_all or under_replicated or under_min_isr or at_min_isr or offline:
        _list_partitions(
            [
                partition
                for partition in placement.placed
                if with_all
                or (under_replicated and partition.is_under_replicated)
                or (under_min_isr and partition.is_under_min_isr)
                or (at_min_isr and partition.is_at_min_isr)
                or (offline and partition.is_offline)
            ],
            as_json,
        )
        if offline and placement.offline and not as_json:
            click.echo(WHAT_TO_DO_OFFLINE, err=True)
        return
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
    _describe_problems(placement)
    if placement.offline:
        names = [f"{topic}-{number}" for topic, number in placement.offline[:OFFLINE_SHOWN]]
        more = len(placement.offline) - len(names)
        others = f" and {more} more: `flakelog partitions list --all --problems` lists all" if more else ""
        print_line(f"offline: {', '.join(names)}{others}")
    _describe_replication(placement)
    if placement.all_on_broker is not None:
        click.echo(
            f"all partitions are on broker {placement.all_on_broker}: new topics are spread over all live brokers, "
            "partitions that exist stay where they are"
        )


def _describe_problems(placement: "Placement") -> None:
    """Print the problems that brokers see, each once."""
    brokers_of: dict[str, list[int]] = {}
    for broker, problems in placement.problems.items():
        for problem in problems:
            brokers_of.setdefault(problem, []).append(broker)
    for problem, brokers in brokers_of.items():
        print_line(f"{_brokers(brokers)}: {problem}")


def _describe_replication(placement: "Placement") -> None:
    """Print which partitions lack copies, if partitions have several."""
    if placement.has_copies:
        waiting = [partition for partition in placement.placed if partition.untrusted]
        for partition in waiting[:OFFLINE_SHOWN]:
            print_line(why_waiting(partition, placement.problems.get(placement.controller, ())))
        for option, names in _lacking(placement).items():
            some = f": {', '.join(names[:OFFLINE_SHOWN])}" if names else ""
            more = f" and more: `--{option}` lists all" if len(names) > OFFLINE_SHOWN else ""
            print_line(f"{option}: {len(names)}{some}{more}")
    if placement.coordinators_with_one_copy:
        from broker.metadata.coordinator_topics import one_copy_warning

        for topic in placement.coordinators_with_one_copy:
            click.echo(one_copy_warning(topic))


def why_waiting(partition: "PlacedPartition", problems: "Sequence[str]") -> str:
    """Return why an offline partition has no leader although brokers with copies are live.

    `problems` are those that its controller sees. Without a word of its own about these brokers, they may have all
    records: an unclean election would lose some for nothing.
    """
    from broker.cluster.leader_election import MAY_LACK

    away, here = _brokers(partition.waits_for), _brokers(partition.untrusted)
    if any(f": {here} {MAY_LACK}" in problem for problem in problems):
        return f"{partition.name} waits for {away}: {here} {MAY_LACK}"
    return f"{partition.name} has no leader now: an election is under way, or /health of the controller says why not"


def _brokers(broker_ids: "Sequence[int]") -> str:
    ids = ", ".join(map(str, broker_ids))
    return f"broker{'s' if len(broker_ids) > 1 else ''} {ids}" if ids else "the controller"


def _lacking(placement: "Placement") -> dict[str, list[str]]:
    """Return the names of partitions that lack copies, by the option that lists them."""
    return {
        "under-replicated": [partition.name for partition in placement.placed if partition.is_under_replicated],
        "under-min-isr": [partition.name for partition in placement.placed if partition.is_under_min_isr],
    }


def _list_partitions(partitions: "Sequence[PlacedPartition]", as_json: bool) -> None:
    rows = [_partition_row(partition) for partition in partitions]
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        heads = [name.upper().replace("_", " ") for name in rows[0]]
        print_table(heads, [[_cell(value) for value in row.values()] for row in rows])
    else:
        click.echo("none of the partitions is in that state", err=True)


def _partition_row(partition: "PlacedPartition") -> dict[str, Any]:
    nodes, eligible = partition.nodes, partition.eligible_leaders
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "leader": partition.leader,
        "preferred": partition.preferred_leader,
        "replicas": list(nodes.replicas),
        "isr": list(nodes.in_sync),
        "elr": None if eligible is None else list(eligible),
        "offline": list(nodes.offline),
        "untrusted": list(partition.untrusted),
        "min_isr": partition.min_in_sync,
        "lag": {str(broker): lag for broker, lag in partition.lags.items()},
    }


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        value = [f"{broker}:{lag}" for broker, lag in value.items()]
    return (",".join(map(str, value)) or None) if isinstance(value, list) else value


def _placement_json(placement: "Placement") -> dict[str, Any]:
    described: dict[str, Any] = {
        "cluster_id": placement.cluster_id,
        "controller": placement.controller,
        "topics": placement.topics,
        "partitions": placement.partitions,
        "offline": [{"topic": topic, "partition": number} for topic, number in placement.offline],
        "all_on_broker": placement.all_on_broker,
        "brokers": [broker._asdict() for broker in placement.brokers],
    }
    if placement.has_copies:
        described |= {option.replace("-", "_"): names for option, names in _lacking(placement).items()}
    if placement.problems:
        described["problems"] = {str(broker): list(problems) for broker, problems in placement.problems.items()}
    if placement.coordinators_with_one_copy:
        described["coordinators_with_one_copy"] = list(placement.coordinators_with_one_copy)
    return described


@cluster.command()
@click.option("--preferred", "kind", flag_value="preferred", help="The first of the copies leads, if it is in sync.")
@click.option("--unclean", "kind", flag_value="unclean", help="A live copy leads, and what it lacks is lost.")
@click.option("--topic", type=TopicType(), help="Only of this topic.  [default: all]")
@click.option("--partition", "numbers", type=PARTITION, multiple=True, help="Only this one of --topic; repeatable.")
@click.option("--yes", is_flag=True, help="Do not ask before an unclean election.")
@servers_option
@json_option
def elect(
    kind: "ElectionKind | None", topic: str | None, numbers: tuple[int, ...], yes: bool, servers: str, as_json: bool
) -> None:
    """Elect leaders of the partitions that need it, as Kafka's kafka-leader-election.

    --preferred is for partitions that another broker leads than the first of their copies. --unclean is for partitions
    without a leader whose copies in sync will not come back: start their brokers first if you can.
    """
    from flakelog.operations.elections import elect_leaders, partitions_to_elect

    if kind is None:
        raise click.UsageError("say which election: --preferred or --unclean")
    if numbers and topic is None:
        raise click.UsageError("--partition needs --topic")
    with client_of(servers) as client:
        if topic is not None and numbers:
            partitions = [(topic, number) for number in numbers]
        else:
            partitions = partitions_to_elect(client, kind, () if topic is None else (topic,))
        if kind == "unclean" and partitions and not yes:
            names = [f"{name}-{number}" for name, number in partitions]
            lost = "lose for good the acknowledged messages that it lacks"
            confirm(f"let a live copy lead {listed(names, OFFLINE_SHOWN)}, and {lost}?")
        outcomes = elect_leaders(client, kind, partitions)
    _show_elections(kind, outcomes, as_json)


def _show_elections(kind: "ElectionKind", outcomes: "dict[Partition, BrokerError | None]", as_json: bool) -> None:
    """Print what became of each election. End with code 1 if one has failed; one that is not needed has not."""
    from broker.wire.errors import ErrorCode

    for (topic, number), error in outcomes.items():
        if as_json:
            code = None if error is None else error.code.name
            done = {"elected": error is None, "error": code}
            print_json({"topic": topic, "partition": number, "election": kind} | done)
        else:
            print_line(f"{topic}-{number}: elected" if error is None else str(error))
    if not outcomes:
        election = "an unclean election" if kind == "unclean" else "a preferred election"
        click.echo(f"no partition needs {election}", err=True)
    failed = [e for e in outcomes.values() if e is not None and e.code is not ErrorCode.ELECTION_NOT_NEEDED]
    if failed:
        fail(f"{count_of(len(failed), 'partition')} of {len(outcomes):,} got no leader by this election")


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
    print_table(heads, [[disk_cell(name, row[name]) for name in names] for row in rows])


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


def disk_cell(name: str, value: Any) -> Any:
    """Return the value of a column of `disks` as the table has it: bytes with a unit, and counts in full."""
    return size_of(value) if name.endswith("bytes") and value is not None and value >= 1_000 else value


@cluster.command("zookeeper-acl")
@click.argument("acl", type=click.Choice(("secure", "unsecure")))
@zookeeper_options("the cluster")
@json_option
def zookeeper_acl(acl: str, zookeeper: str, idgen: "IdgenConfig", as_json: bool) -> None:
    """Let only brokers change the nodes of the cluster in ZooKeeper (secure), or everyone (unsecure).

    New nodes follow `zookeeper.set.acl` of the broker that makes them; this command is for those that exist. So set it
    for each broker first, restart one after the other, and then run this, as Kafka's zookeeper-security-migration. It
    needs the brokers' credentials: --config server.properties, or --set
    flakelog.ids.zookeeper.credentials.file=FILE.
    """
    from dataclasses import replace

    from broker.cluster.protected_nodes import cluster_access
    from flakelog.operations.zookeeper_acls import replace_acls
    from idgen.claim import registry_of

    if not idgen.has_zookeeper_identity:
        wanted = "needs the credentials of the brokers: --config server.properties, or --set"
        raise click.BadParameter(f"{wanted} flakelog.ids.zookeeper.credentials.file=FILE", param_hint="ACL")
    access = cluster_access(replace(idgen.ids_zookeeper_access, set_acl=False), set_acl=acl == "secure")
    worker_numbers = registry_of(idgen)
    with zookeeper_session(zookeeper, access) as session:
        nodes = replace_acls(session, access, (worker_numbers.path, worker_numbers.marks_path))
    if as_json:
        print_json({"acl": acl, "nodes": nodes})
    else:
        click.echo(f"{acl}: {count_of(nodes, 'node')}")
