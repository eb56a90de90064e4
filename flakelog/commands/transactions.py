"""`flakelog transactions`: list and describe transactions; find and abort those that hang (KIP-664)."""

import time
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import PARTITION, Name, Seconds, Whole
from flakelog.commands.completion import TopicType
from flakelog.commands.start import name_left_out
from flakelog.commands.terminal import (
    client_of,
    confirm,
    iso,
    json_option,
    print_json,
    print_line,
    print_none,
    print_table,
    servers_option,
)

if TYPE_CHECKING:
    from flakelog.operations.transactions import HangingTransaction

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
    from flakelog.operations import transactions

    with client_of(servers) as client:
        listed = transactions.list_transactions(client, states)
        if not (listed or as_json):
            print_none(client, "transactions")
    if as_json:
        for transaction in listed:
            print_json(transaction._asdict())
    elif listed:
        print_table(("TRANSACTIONAL ID", "PRODUCER ID", "STATE", "COORDINATOR"), listed)


@transactions.command()
@click.argument("name", type=Name(), metavar="TRANSACTIONAL-ID")
@servers_option
@json_option
def describe(name: str, servers: str, as_json: bool) -> None:
    """Show the state of a transactional id, and the partitions of its open transaction."""
    from flakelog.operations.transactions import describe_transaction

    with client_of(servers) as client:
        transaction = describe_transaction(client, name)
    partitions = [f"{topic}-{number}" for topic, number in transaction.partitions]
    described: dict[str, Any] = transaction._asdict() | {"partitions": partitions}
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
    from flakelog.operations.partitions import partitions_of
    from flakelog.operations.transactions import find_hanging

    before_ms = int((time.time() - seconds) * 1000)
    with client_of(servers) as client:
        hanging, errors = find_hanging(client, partitions_of(client, topics), before_ms)
    name_left_out(errors)
    rows = [_row(transaction) for transaction in hanging]
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        names = list(rows[0])
        print_table([name.upper().replace("_", " ") for name in names], [[row[name] for name in names] for row in rows])
    else:
        click.echo("no transaction hangs", err=True)


def _row(hanging: "HangingTransaction") -> dict[str, Any]:
    producer = hanging.producer
    return {
        "topic": hanging.topic,
        "partition": hanging.partition,
        "start_offset": hanging.start_offset,
        "producer_id": producer.producer_id,
        "epoch": producer.producer_epoch,
        "last_time": iso(producer.last_timestamp_ms),
    }


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
    from flakelog.operations.transactions import abort_transaction, producer_of

    with client_of(servers) as client:
        producer = producer_of(client, topic, partition, start_offset)
        if not yes:
            confirm(f"abort the transaction of producer {producer.producer_id} in {topic}-{partition}?")
        abort_transaction(client, topic, partition, producer)
    if as_json:
        print_json({"topic": topic, "partition": partition, "producer_id": producer.producer_id, "aborted": True})
    else:
        click.echo(f"aborted the transaction of producer {producer.producer_id} in {topic}-{partition}")
