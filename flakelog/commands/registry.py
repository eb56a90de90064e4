"""`flakelog registry`: show the registry of early Kafka's consumers in ZooKeeper, move, copy and remove its groups."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from broker.client.offset_spec import OffsetSpec
from flakelog.commands.arguments import Addresses, Name, Seconds
from flakelog.commands.command_config import given_security, security_option
from flakelog.commands.exit_codes import fail
from flakelog.commands.start import move_options, name_at_end, print_move
from flakelog.commands.terminal import (
    client_of,
    confirm,
    count_of,
    iso,
    json_option,
    print_json,
    print_line,
    print_table,
)
from flakelog.commands.zookeeper_session import zookeeper_options, zookeeper_session

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from broker.client.registry.living_brokers import LivingBrokers
    from coordination.port import Coordinator
    from flakelog.operations.registry import OffsetMove, RegistryProgress
    from idgen.config import IdgenConfig

KAFKA, ZOOKEEPER = "kafka", "zookeeper"
_zookeeper_options = zookeeper_options("the registry")


class Session(NamedTuple):
    """A session with ZooKeeper, the brokers that are registered there, and a client of the brokers."""

    coordinator: "Coordinator"
    brokers: "LivingBrokers"
    client: "Client"


@click.group()
def registry() -> None:
    """Show the groups of early Kafka's consumers in ZooKeeper; move, copy and remove their offsets.

    The registry is what a ConsumerConnector and Kafka 0.8 keep below /consumers. Kafka's own groups have `flakelog
    group`. A protected ZooKeeper takes the server's settings: --set flakelog.ids.zookeeper.credentials.file=FILE, or
    --config.
    """


def _place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name ZooKeeper and the brokers: `zookeeper`, `servers`, `idgen`, and those of clients."""
    servers = click.option(
        "--servers",
        type=Addresses(),
        metavar="HOST:PORT,...",
        help="Brokers to ask for the logs, if others than those in ZooKeeper.",
    )
    options: Callable[..., Any] = _zookeeper_options(servers(security_option(command)))
    return options


@contextmanager
def _session(zookeeper: str, servers: str | None, idgen: "IdgenConfig") -> Iterator[Session]:
    from broker.client.errors import ClientError
    from flakelog.operations.registry import read_brokers, servers_of

    with zookeeper_session(zookeeper, idgen.ids_zookeeper_access) as coordinator:
        security = given_security()
        protocol = "PLAINTEXT" if security is None else security.settings.protocol
        brokers = read_brokers(coordinator, time.time_ns() // 1_000_000, protocol)
        try:
            addresses = servers or servers_of(brokers)
        except ClientError as error:
            fail(str(error))
        with client_of(addresses) as client:
            yield Session(coordinator, brokers, client)


# --- show ------------------------------------------------------------------------------------------------------------


@registry.command()
@_place_options
@json_option
def show(zookeeper: str, servers: str | None, idgen: "IdgenConfig", as_json: bool) -> None:
    """Show the brokers in ZooKeeper, the topics, and the groups with their consumers and lag."""
    from flakelog.operations import registry as operations

    with _session(zookeeper, servers, idgen) as (coordinator, brokers, client):
        topics = [topic for topic in client.topics() if not topic.name.startswith("__")]
        listed = [operations.progress(coordinator, client, name) for name in operations.list_groups(coordinator)]
    if brokers.problem is not None:
        print_line(f"left out: {brokers.problem}", err=True)
    if as_json:
        for broker_id, address in brokers.addresses.items():
            print_json({"broker": broker_id, "address": str(address)})
        for topic in topics:
            print_json({"topic": topic.name, "partitions": topic.partitions})
        for progress in listed:
            print_json(_document(progress))
        return
    print_table(("BROKER", "ADDRESS"), [(broker_id, address) for broker_id, address in brokers.addresses.items()])
    click.echo()
    print_table(("TOPIC", "PARTITIONS"), [(topic.name, topic.partitions) for topic in topics])
    click.echo()
    names = ("GROUP", "CONSUMERS", "PARTITIONS", "OWNED", "LAG", "TOUCHED")
    print_table(names, [_row(progress) for progress in listed])


@registry.command()
@click.argument("name", type=Name())
@_place_options
@json_option
def describe(name: str, zookeeper: str, servers: str | None, idgen: "IdgenConfig", as_json: bool) -> None:
    """Show the consumers of group NAME, and its offset, lag and owner in each partition."""
    from flakelog.operations import registry as operations

    with _session(zookeeper, servers, idgen) as (coordinator, _, client):
        progress = operations.progress(coordinator, client, name)
    for problem in progress.group.problems:
        print_line(f"left out: {problem}", err=True)
    if as_json:
        print_json(_document(progress))
        return
    consumers = count_of(len(progress.group.consumers), "consumer")
    print_line(f"{name}: {consumers}, lag {progress.lag:,}, touched {iso(progress.group.touched_ms)}")
    if progress.group.consumers:
        rows = [
            (consumer, registration.pattern, pattern, streams)
            for consumer, registration in progress.group.consumers.items()
            for pattern, streams in registration.subscription.items()
        ]
        print_table(("CONSUMER", "PATTERN", "TOPICS", "STREAMS"), rows)
        click.echo()
    print_table(
        ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "OWNER"),
        [(at.topic, at.partition, at.offset, at.end, at.lag, at.owner) for at in progress.positions],
    )


def _row(progress: "RegistryProgress") -> tuple[Any, ...]:
    group = progress.group
    return (
        group.name, len(group.consumers), len(progress.positions), len(group.owners), progress.lag,
        iso(group.touched_ms),
    )  # fmt: skip


def _document(progress: "RegistryProgress") -> dict[str, Any]:
    group = progress.group
    return {
        "group": group.name,
        "touched": iso(group.touched_ms),
        "consumers": [
            {"consumer": consumer, "pattern": registration.pattern, "subscription": dict(registration.subscription)}
            for consumer, registration in group.consumers.items()
        ],
        "partitions": [position._asdict() | {"lag": position.lag} for position in progress.positions],
        "problems": list(group.problems),
    }


# --- change ----------------------------------------------------------------------------------------------------------


@registry.command()
@click.argument("name", type=Name())
@move_options
@_place_options
@json_option
def move(
    name: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    start: OffsetSpec,
    execute: bool,
    zookeeper: str,
    servers: str | None,
    idgen: "IdgenConfig",
    as_json: bool,
) -> None:
    """Move group NAME to another PLACE: in all partitions it has offsets of, or in those named.

    With --execute the group must have no consumers; one that starts meanwhile stops the move, and nothing is changed.
    Without --execute the changes are only shown. An offset that a log does not have is refused.
    """
    from flakelog.operations import registry as operations

    with _session(zookeeper, servers, idgen) as (coordinator, _, client):
        plan = operations.plan_move(coordinator, client, name, start, topics, partitions)
        if execute:
            operations.carry_out_move(coordinator, plan)
    print_move(plan.before, plan.after, as_json)
    name_at_end(plan.at_end)
    if execute:
        _say_done(plan, "moved")
    else:
        _say_planned(plan, "--execute does it")


@registry.command()
@click.argument("name", type=Name())
@click.option(
    "--to", "goal", type=click.Choice((KAFKA, ZOOKEEPER)), required=True, help="Where the offsets are written."
)
@click.option("--as", "new_name", type=Name(), metavar="GROUP", help="The group there, if it has another name.")
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be written, and write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_place_options
@json_option
def copy(
    name: str,
    goal: str,
    new_name: str | None,
    only_plan: bool,
    yes: bool,
    zookeeper: str,
    servers: str | None,
    idgen: "IdgenConfig",
    as_json: bool,
) -> None:
    """Copy the offsets of group NAME from ZooKeeper to Kafka's group of that name, or back.

    Both groups must be stopped. Partitions that the brokers do not have are left out.
    """
    from flakelog.operations import registry as operations

    there = new_name or name
    with _session(zookeeper, servers, idgen) as (coordinator, _, client):
        if goal == KAFKA:
            plan = operations.plan_copy_to_kafka(coordinator, client, name, there)
        else:
            plan = operations.plan_copy_from_kafka(coordinator, client, name, there)
        if not only_plan:
            if not yes:
                confirm(f"write {count_of(len(plan.after), 'offset')} of group {there} to {goal}?")
            if goal == KAFKA:
                operations.carry_out_to_kafka(client, plan)
            else:
                operations.carry_out_from_kafka(coordinator, client, plan, name)
    print_move(plan.before, plan.after, as_json)
    if only_plan:
        _say_planned(plan, "without --plan it is")
    else:
        _say_done(plan, f"copied to {goal}")


def _say_done(plan: "OffsetMove", done: str) -> None:
    click.echo(f"{count_of(len(plan.after), 'offset')} {done}", err=True)


def _say_planned(plan: "OffsetMove", how: str) -> None:
    stop = f"; stop its {count_of(plan.members, 'consumer')} first" if plan.members else ""
    click.echo(f"nothing is changed yet; {how}{stop}", err=True)


@registry.command()
@click.argument("names", nargs=-1, type=Name(), metavar="[NAME]...")
@click.option(
    "--untouched-for",
    "seconds",
    type=Seconds(),
    required=True,
    metavar="SECONDS",
    help="Only groups none of whose nodes was written for so long; a consumer writes when it starts, claims, commits.",
)
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_zookeeper_options
@json_option
def remove(
    names: tuple[str, ...],
    seconds: float,
    only_plan: bool,
    yes: bool,
    zookeeper: str,
    idgen: "IdgenConfig",
    as_json: bool,
) -> None:
    """Remove groups NAME, or all, that have no consumers and that nobody has touched, with all their offsets.

    ZooKeeper's clock tells when a node was written. A group whose consumer starts meanwhile is kept.
    """
    from broker.client.errors import ClientError
    from flakelog.operations import registry as operations

    before_ms = int((time.time() - seconds) * 1000)
    with zookeeper_session(zookeeper, idgen.ids_zookeeper_access) as coordinator:
        try:
            listed = operations.untouched(coordinator, names, before_ms)
            if listed and not only_plan and not yes:
                confirm(f"remove {', '.join(group.name for group in listed)} with their offsets?")
            for group in listed:
                if not only_plan:
                    operations.remove(coordinator, group)
                offsets, touched = len(group.offsets), iso(group.touched_ms)
                if as_json:
                    print_json({"group": group.name, "offsets": offsets, "touched": touched, "removed": not only_plan})
                else:
                    verb = "would remove" if only_plan else "removed"
                    print_line(f"{verb} {group.name}: {count_of(offsets, 'offset')}, touched {touched}")
        except ClientError as error:
            fail(str(error))
    if not listed:
        click.echo("no group without consumers has been untouched for so long", err=True)
