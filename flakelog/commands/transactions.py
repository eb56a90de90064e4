"""`flakelog transactions`: list and describe transactions; find and abort those that hang (KIP-664)."""

import time
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import PARTITION, Name, Seconds, Whole
from flakelog.commands.completion import TopicType
from flakelog.commands.exit_codes import fail
from flakelog.commands.start import ask_each, name_left_out
from flakelog.commands.terminal import (
    client_of,
    confirm,
    count_of,
    iso,
    json_option,
    print_json,
    print_line,
    print_table,
    servers_option,
)

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from broker.client.transaction_admin import ActiveProducer

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")


@click.group()
def transactions() -> None:
    """List and describe transactions; find and abort those that hang."""


@transactions.command("list")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="Only in this state; repeatable.")
@servers_option
@json_option
def list_transactions(states: tuple[str, ...], servers: str, as_json: bool) -> None:
    """List the transactional ids, with their producers and states."""
    from broker.client import transaction_admin

    with client_of(servers) as client:
        found = client.run(transaction_admin.list_transactions(client.core, states))
    if as_json:
        for each in found:
            print_json(each._asdict())
    elif found:
        print_table(("TRANSACTIONAL ID", "PRODUCER ID", "STATE", "COORDINATOR"), found)
    else:
        click.echo("there are no transactions", err=True)


@transactions.command()
@click.argument("name", type=Name(), metavar="TRANSACTIONAL-ID")
@servers_option
@json_option
def describe(name: str, servers: str, as_json: bool) -> None:
    """Show the state of a transactional id, and the partitions of its open transaction."""
    from broker.client import transaction_admin

    with client_of(servers) as client:
        found = client.run(transaction_admin.describe_transaction(client.core, name))
    partitions = [f"{topic}-{number}" for topic, number in found.partitions]
    described: dict[str, Any] = found._asdict() | {"partitions": partitions}
    described["started"] = iso(described.pop("started_ms"))
    if as_json:
        print_json(described)
        return
    for key, value in described.items():
        text = ", ".join(value) if isinstance(value, list) else value
        print_line(f"{key.replace('_', ' ') + ':':<18}{'-' if text in (None, '') else text}")


@transactions.command("find-hanging")
@click.argument("topics", nargs=-1, type=TopicType(), metavar="[TOPIC]...")
@click.option(
    "--older-than",
    "seconds",
    type=Seconds(),
    default=900.0,
    show_default=True,
    metavar="SECONDS",
    help="Open for longer: the longest transaction that producers make.",
)
@servers_option
@json_option
def find_hanging(topics: tuple[str, ...], seconds: float, servers: str, as_json: bool) -> None:
    """Find open transactions in the TOPICs, or in all, that no coordinator will end. They hold up readers."""
    with client_of(servers) as client:
        rows = _hanging(client, topics, seconds)
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        names = list(rows[0])
        print_table([name.upper().replace("_", " ") for name in names], [[row[name] for name in names] for row in rows])
    else:
        click.echo("no transaction hangs", err=True)


def _hanging(client: "Client", topics: tuple[str, ...], seconds: float) -> list[dict[str, Any]]:
    from broker.client import transaction_admin

    chosen = [client.topic(name) for name in topics] or client.topics()
    places = [(each.name, number) for each in chosen for number in range(each.partitions)]
    ongoing = {each.producer_id for each in client.run(transaction_admin.list_transactions(client.core, ("Ongoing",)))}
    before_ms = time.time() * 1000 - seconds * 1000
    describe_all = transaction_admin.describe_producers_of
    found, errors = ask_each(places, lambda some: client.run(describe_all(client.core, some)))
    name_left_out(errors)
    return [
        {"topic": topic, "partition": partition, "start_offset": each.first_offset}
        | {"producer_id": each.producer_id, "epoch": each.producer_epoch, "last_time": iso(each.last_timestamp_ms)}
        for (topic, partition), producers in found.items()
        for each in producers
        if each.first_offset is not None and each.producer_id not in ongoing and each.last_timestamp_ms <= before_ms
    ]


@transactions.command()
@click.argument("topic", type=TopicType())
@click.argument("partition", type=PARTITION)
@click.option("--start-offset", type=Whole(0), required=True, help="Where it begins: see find-hanging.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@servers_option
@json_option
def abort(topic: str, partition: int, start_offset: int, yes: bool, servers: str, as_json: bool) -> None:
    """Abort the transaction that begins at an offset of a partition, without its coordinator.

    Only for one that hangs: a producer that still writes in it would lose a part of its transaction.
    """
    from broker.client import transaction_admin

    with client_of(servers) as client:
        producers = client.run(transaction_admin.describe_producers(client.core, topic, partition))
        producer = _of(producers, topic, partition, start_offset)
        if not yes:
            asked = f"abort the transaction of producer {producer.producer_id} in {topic}-{partition}?"
            confirm(asked)
        client.run(transaction_admin.abort_transaction(client.core, topic, partition, producer))
    if as_json:
        print_json({"topic": topic, "partition": partition, "producer_id": producer.producer_id, "aborted": True})
    else:
        click.echo(f"aborted the transaction of producer {producer.producer_id} in {topic}-{partition}")


def _of(producers: "list[ActiveProducer]", topic: str, partition: int, start: int) -> "ActiveProducer":
    """Return the producer whose open transaction begins at offset `start`. End with an error if none does."""
    begun = [each for each in producers if each.first_offset is not None]
    for each in begun:
        if each.first_offset == start:
            return each
    offsets = ", ".join(str(each.first_offset) for each in begun)
    there = f"; they begin at {offsets}" if offsets else ""
    fail(f"{topic}-{partition} has {count_of(len(begun), 'open transaction')}, none from offset {start}{there}")
