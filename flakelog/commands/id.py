"""`flakelog id`: make, read and find Snowflake ids."""

from collections.abc import Collection, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from flakelog.commands.arguments import DIGITS_MAX, INT64_MAX, Addresses, Ensemble, TopicName, Whole, quoted
from flakelog.commands.command_config import given_id_tls, id_security_option
from flakelog.commands.exit_codes import NobodyAnswers, fail
from flakelog.commands.progress import progress
from flakelog.commands.record_format import message_of
from flakelog.commands.start import name_left_out
from flakelog.commands.terminal import (
    TimeType,
    client_of,
    count_of,
    describe_id,
    idgen_options,
    iso,
    json_option,
    layout_options,
    print_json,
    print_table,
    servers_option,
)
from flakelog.commands.waiting import answer_seconds, contact_seconds, greet, timeout_option, waiting_for
from flakelog.commands.zookeeper_session import open_existing

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from broker.client.errors import BrokerError
    from broker.client.group_protocol import Partition
    from broker.client.records import Record
    from idgen.config import IdgenConfig
    from idgen.layout import Layout
    from idgen.registry import Registry, Worker

SERVER = "127.0.0.1:7609"
AT_ONCE = 10_000  # ids in one request: about two ms of ids, and below a server's default limit, flakelog.ids.max.batch
VALUE_CHARS = 100  # characters shown of a found message; `flakelog consume` prints it whole


class IdType(click.ParamType[int]):
    """A Snowflake id on the command line."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and not (
            value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX and int(value) <= INT64_MAX
        ):
            self.fail(f"{quoted(value)} is no id: ids are decimal numbers in 0..2**63-1", param, ctx)
        return int(value)


@click.group("id")
def id() -> None:
    """Make, read and find Snowflake ids."""


# --- new ---------------------------------------------------------------------------------------------------------


@id.command()
@click.option("--count", type=Whole(1), default=1, show_default=True)
@click.option(
    "--servers",
    "--server",
    "server",
    type=Addresses(),
    envvar="FLAKELOG_IDS",
    show_envvar=True,
    metavar="HOST:PORT,...",
    help=f"Ask this id service, or the next one when it does not answer.  [default: {SERVER}]",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Make them here, not at a service, with a worker number kept in this directory (a server's: DATA-DIR/ids).",
)
@click.option(
    "--zookeeper",
    type=Ensemble(),
    metavar="HOST:PORT,...",
    help="Make them here, with a worker number from ZooKeeper.",
)
@id_security_option
@timeout_option
@json_option
@idgen_options
def new(
    count: int, server: str | None, directory: Path | None, zookeeper: str | None, as_json: bool, idgen: "IdgenConfig"
) -> None:
    """Print new ids, one a line, in increasing order."""
    zookeeper = zookeeper or None  # an empty variable of a script names none
    made_here = directory is not None or zookeeper is not None
    if directory is not None and zookeeper is not None:
        raise click.UsageError("a worker number comes from --directory or --zookeeper, not from both")
    if made_here and click.get_current_context().get_parameter_source("server") is ParameterSource.COMMANDLINE:
        raise click.UsageError("ids come from --servers, or are made here with --directory or --zookeeper, not both")
    source = _own_ids(count, directory, zookeeper, idgen) if made_here else _asked_ids(count, server or SERVER)
    shown = count if count > AT_ONCE else None
    with progress("ids", shown) as step:
        for ids in source:
            if as_json:
                for new_id in ids:
                    print_json(describe_id(new_id, idgen.layout))
            else:
                click.echo("\n".join(map(str, ids)))
            step(len(ids))


def _portions(count: int) -> Iterator[int]:
    for done in range(0, count, AT_ONCE):
        yield min(AT_ONCE, count - done)


def _asked_ids(count: int, server: str) -> Iterator[list[int]]:
    from idgen.client.blocking import IdClient
    from idgen.client.core import IdServiceError, IdServiceUnreachable

    tls = given_id_tls()
    try:
        addresses = (address.strip() for address in server.split(","))
        connected = IdClient(*addresses, user_agent="cli", timeout_ms=int(contact_seconds() * 1000), tls=tls)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--servers") from None
    with connected as client:
        try:
            for portion in _portions(count):
                with waiting_for(f"the id service at {server}"):
                    ids = client.get_ids(portion)
                yield ids
        except IdServiceError as error:
            fail(f"the id service at {server} refuses: {error}")
        except IdServiceUnreachable as error:
            why = "; ".join(map(_with_protocol, error.problems) if tls is None else error.problems)
            reason = f"no id service answers at {why}; start one with: flakelog server, or flakelog idgen"
            raise NobodyAnswers(reason) from None


def _with_protocol(problem: str) -> str:
    """Return the address and problem of a service without an answer; name the protocol if an HTTP server is there."""
    from broker.client.core import Address
    from flakelog.commands.command_client import speaks_http
    from idgen.client.core import NO_ANSWER, parse_address

    address, _, reason = problem.partition(": ")
    if reason.startswith(NO_ANSWER) and speaks_http(Address(*parse_address(address))):
        return f"{address}: it speaks HTTP, not the protocol of ids"
    return problem


def _own_ids(
    count: int, directory: Path | None, zookeeper: str | None, config: "IdgenConfig"
) -> Iterator[list[int]]:
    from coordination.port import CoordinationError
    from coordination.sessions import open_session
    from idgen.errors import IdError
    from idgen.snowflake import Snowflake

    timeout_ms = int(answer_seconds() * 1000)
    try:
        if zookeeper is not None:
            with closing(open_session(zookeeper=zookeeper, access=config.ids_zookeeper_access, wait=False)) as session:
                greet(session, zookeeper)
        with Snowflake(directory=directory, zookeeper=zookeeper, config=config, timeout_ms=timeout_ms) as snowflake:
            for portion in _portions(count):
                yield snowflake.next_ids(portion)
    except (IdError, CoordinationError, OSError) as error:
        fail(str(error))


# --- decode, range -----------------------------------------------------------------------------------------------


@id.command()
@click.argument("ids", type=IdType(), nargs=-1, required=True, metavar="ID...")
@json_option
@layout_options
def decode(ids: tuple[int, ...], as_json: bool, layout: "Layout") -> None:
    """Show the parts of ids: time, datacenter, worker and sequence."""
    described_ids = [describe_id(described_id, layout) for described_id in ids]
    if as_json:
        for fields in described_ids:
            print_json(fields)
        return
    names = ("id", "time", "datacenter", "worker", "sequence")
    print_table([name.upper() for name in names], [[fields[name] for name in names] for fields in described_ids])


@id.command("range", short_help="Print the ids of a time span.")
@click.argument("start", type=TimeType(), metavar="FROM")
@click.argument("end", type=TimeType(), metavar="TO")
@json_option
@layout_options
def id_range(start: int, end: int, as_json: bool, layout: "Layout") -> None:
    """Print the ids of a time range: FROM <= time < TO has the ids first <= id < end.

    Times are ISO 8601 (UTC if no zone is named), now, or Unix ms. Replay and Spark take this range as startingId and
    endingId.
    """
    from idgen.layout import ID_BITS

    if end < start:
        raise click.UsageError(f"the range ends at {iso(end)}, before its start {iso(start)}")
    first, last = layout.id_range(start, end)
    last = min(last, (1 << ID_BITS) - 1)  # the end of the layout's last millisecond does not fit into 63 bits
    if end <= layout.epoch_ms or start > layout.last_ms:
        click.echo(f"no ids: the layout has those of {iso(layout.epoch_ms)} to {iso(layout.last_ms)}", err=True)
        first = last
    if as_json:
        described = {"first": first, "first_str": str(first), "end": last, "end_str": str(last)}
        print_json(described | {"from": iso(start), "to": iso(end)})
    else:
        click.echo(f"{first} {last}")


# --- workers -----------------------------------------------------------------------------------------------------


@id.command(short_help="List worker numbers and who holds them.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Worker numbers kept in this directory (a server's: DATA-DIR/ids).",
)
@click.option("--zookeeper", type=Ensemble(), metavar="HOST:PORT,...", help="Those kept there. [default: as set]")
@timeout_option
@json_option
@idgen_options
def workers(directory: Path | None, zookeeper: str | None, as_json: bool, idgen: "IdgenConfig") -> None:
    """List worker numbers: each one's holder, its start, and its high-water mark, which limits the time of its ids.

    A number is held while its holder lives. After a crash it rests until the time of its holder's last possible id has
    passed; then it is free. Ids are unique among all holders in one list.
    """
    from coordination.directory import has_nodes
    from coordination.port import CoordinationError, run
    from idgen.claim import registry_of
    from idgen.clock import IdClock
    from idgen.errors import IdError
    from idgen.snowflake import IDS_DIRECTORY, connect

    where = None if directory else zookeeper or idgen.ids_zookeeper_connect
    if (directory and zookeeper) or not (directory or where):
        raise click.UsageError("name where worker numbers are kept: --directory or --zookeeper, one of both")
    if directory is not None and not has_nodes(directory):
        inside = directory / IDS_DIRECTORY
        instead = f"; {inside} has some" if has_nodes(inside) else ""
        fail(f"no worker numbers are kept in {directory}{instead}")
    registry = registry_of(idgen)
    try:
        coordinator = open_existing(where, idgen.ids_zookeeper_access) if where else connect(directory, None, idgen)
        try:
            nodes = run(coordinator, registry.workers())
        finally:
            coordinator.close()
    except (CoordinationError, IdError, OSError) as error:
        fail(str(error))
    now_ms = IdClock().now_ms()
    rows = [_describe_worker(node, registry, now_ms) for node in nodes]
    if as_json:
        print_json({"unique_in": coordinator.scope, "path": registry.path, "workers": rows})
        return
    names = ("number", "state", "holder", "role", "since", "high_water", "rest_ms")
    print_table([name.upper() for name in names], [[row[name] for name in names] for row in rows])
    for node in nodes:
        if node.problem is not None:
            click.echo(node.problem, err=True)
    click.echo(f"ids are unique in {coordinator.scope}, {registry.path}", err=True)


def _describe_worker(worker: "Worker", registry: "Registry", now_ms: int) -> dict[str, Any]:
    """Return what the list shows of a worker number.

    `rest_ms` is the time during which no other process could claim the number if its holder crashed now.
    """
    mark = worker.mark
    rest_ms = max(registry.passes_at_ms(mark) - now_ms, 0) if mark else None
    resting = "damaged" if worker.problem else "rests" if rest_ms else "free"
    return {
        "number": worker.number,
        "state": "held" if worker.living else resting,
        "holder": worker.address,
        "role": mark.role if mark else None,
        "since": iso(mark.start_ms) if mark else None,
        "high_water": iso(mark.high_water_ms) if mark else None,
        "high_water_ms": mark.high_water_ms if mark else None,
        "rest_ms": rest_ms,
    }


# --- find --------------------------------------------------------------------------------------------------------


@id.command()
@click.argument("id", type=IdType(), metavar="[ID]", required=False)
@click.option(
    "--time",
    "span",
    type=TimeType(),
    nargs=2,
    metavar="FROM TO",
    help="Not one message but those whose ids are of FROM <= time < TO: their offsets in each partition.",
)
@click.option("--topic", "topics", type=TopicName(), multiple=True, help="Only in this one; repeatable. [default: all]")
@servers_option
@json_option
@layout_options
def find(
    id: int | None, span: tuple[int, int] | None, topics: tuple[str, ...], servers: str, as_json: bool, layout: "Layout"
) -> None:
    """Find the message with an id, or the messages of a time span.

    Each partition's leader looks in its id index; nothing is scanned. An id's time is when the broker stamped the
    message. Times are ISO 8601 (UTC if no zone is named), now, or Unix ms.
    """
    if (id is None) == (span is None):
        raise click.UsageError("give an ID, or --time FROM TO")

    from flakelog.operations.partitions import partitions_of

    with client_of(servers) as client:
        partitions = partitions_of(client, topics)
        if id is not None:
            _find_one(client, partitions, id, as_json, layout)
        elif span is not None:
            _find_span(client, partitions, span, as_json, layout)


def _searched(partitions: "Collection[Partition]") -> str:
    topics = {topic for topic, _ in partitions}
    return f"looked in {count_of(len(partitions), 'partition')} of {count_of(len(topics), 'topic')}"


def _find_one(
    client: "Client", partitions: list[tuple[str, int]], id: int, as_json: bool, layout: "Layout"
) -> None:
    spans, errors = _search(client, partitions, id, min(id + 1, INT64_MAX))
    for (topic, partition), (offset, following) in spans.items():
        if offset < following:
            records, _ = client.fetch(topic, partition, offset, max_bytes=1, max_wait_ms=0)  # the batch that holds it
            for record in records:
                if record.id == id:
                    return _show(topic, partition, record, id, layout, as_json)
    name_left_out(errors)
    fail(f"no message has id {id} ({iso(layout.unpack(id).time_ms)}); {_searched(spans)}")


def _search(
    client: "Client", partitions: "list[Partition]", first_id: int, end_id: int
) -> "tuple[dict[Partition, tuple[int, int]], dict[Partition, BrokerError]]":
    """Return the offsets of all partitions as `_offsets_between` does, and the errors; show how far the search is."""
    from flakelog.operations.partitions import ask_in_portions

    with progress("partitions", len(partitions)) as step:
        return ask_in_portions(partitions, partial(_offsets_between, client, first_id, end_id), step)


def _offsets_between(
    client: "Client", id: int, end_id: int, partitions: "list[Partition]"
) -> "dict[Partition, tuple[int, int]]":
    """Return the first offset of each partition whose id is at least `id`, and the first with at least `end_id`."""
    from broker.client.offset_lookup import find_offsets
    from broker.client.offset_spec import AtId

    first, following = (client.run(find_offsets(client.core, partitions, AtId(bound))) for bound in (id, end_id))
    return {partition: (first[partition], following[partition]) for partition in partitions}


def _show(topic: str, partition: int, record: "Record", id: int, layout: "Layout", as_json: bool) -> None:
    key, value = record.key or b"", record.value or b""
    if as_json:
        where = {"topic": topic, "partition": partition, "offset": record.offset}
        print_json(where | describe_id(id, layout) | message_of(record))
        return
    text = value.decode(errors="replace")
    described = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "id time": iso(layout.unpack(id).time_ms),
        "timestamp": iso(record.timestamp_ms),
        "key": key.decode(errors="replace"),
        "value": text if len(text) <= VALUE_CHARS else f"{text[:VALUE_CHARS]}... ({len(value):,} bytes)",
    }
    for name, shown in described.items():
        click.echo(f"{name + ':':<11}{shown}".rstrip())


def _find_span(
    client: "Client", partitions: list[tuple[str, int]], span: tuple[int, int], as_json: bool, layout: "Layout"
) -> None:
    start, end = span
    if end < start:
        raise click.UsageError(f"the span ends at {iso(end)}, before its start {iso(start)}")
    first_id, end_id = (min(bound, INT64_MAX) for bound in layout.id_range(start, end))
    spans, errors = _search(client, partitions, first_id, end_id)
    located = [
        {"topic": topic, "partition": partition, "first_offset": first, "end_offset": following}
        for (topic, partition), (first, following) in spans.items()
        if first < following
    ]
    name_left_out(errors)
    if not located:
        fail(f"no message has an id of {iso(start)} to {iso(end)}; {_searched(spans)}")
    if as_json:
        for found_span in located:
            print_json(found_span)
        return
    print_table(
        ["TOPIC", "PARTITION", "FIRST OFFSET", "END OFFSET"], [list(found_span.values()) for found_span in located]
    )
