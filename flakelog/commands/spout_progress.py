"""`flakelog spout progress`: show, export and move the progress that spouts have stored."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from broker.client.offset_spec import Earliest, OffsetSpec
from flakelog.commands.exit_codes import fail
from flakelog.commands.start import find_starts, move_options, print_move
from flakelog.commands.terminal import client_of, idgen_options, json_option, print_json, print_table, servers_option
from flakelog.commands.waiting import timeout_option
from flakelog.commands.zookeeper_session import open_existing

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from broker.client.group_protocol import Partition
    from coordination.port import Coordinator
    from flakelog.stored_progress import Stored
    from idgen.config import IdgenConfig

ZOOKEEPER = "zookeeper://"


@click.group()
def progress() -> None:
    """Show, export and move the progress that spouts have stored in a directory or in ZooKeeper.

    A protected ZooKeeper takes the server's settings: --set flakelog.ids.zookeeper.credentials.file=FILE, or --config.
    The progress of store="kafka" is a consumer group's: `flakelog group describe` and `flakelog group reset-offsets`.
    """


def _store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    option = click.option(
        "--store",
        default="flakelog-progress",
        show_default=True,
        help="The LogSpout's store: a directory, or zookeeper://host:port/chroot.",
    )
    return option(command)


@progress.command()
@click.argument("id", required=False)
@_store_option
@servers_option
@json_option
@idgen_options
def show(id: str | None, store: str, servers: str, as_json: bool, idgen: "IdgenConfig") -> None:
    """Show the progress of spout ID, or of all: the watermark of each partition, ranges above it, and its lag.

    The id is <topology id>.<component>, unless the LogSpout has another.
    """
    from flakelog.operations.partitions import ends_of

    with _session(store, idgen) as coordinator, client_of(servers) as client:
        listed = _stored_progress(coordinator, store, id)
        documents = [stored.document for stored in listed if stored.document is not None]
        ends = ends_of(client, {(document.topic, document.partition) for document in documents})
        rows = [_row(stored, ends) for stored in listed]
    if as_json:
        for row in rows:
            print_json(row)
        return
    names = ("id", "topic", "partition", "watermark", "done_above", "end", "lag", "error")
    print_table([name.upper().replace("_", " ") for name in names], [[row[name] for name in names] for row in rows])


@progress.command()
@click.argument("id", required=False)
@_store_option
@timeout_option
@idgen_options
def export(id: str | None, store: str, idgen: "IdgenConfig") -> None:
    """Print the stored documents of spout ID, or of all, as JSON: one object a line, with the path of its node."""
    with _session(store, idgen) as coordinator:
        for stored in _stored_progress(coordinator, store, id):
            print_json(stored.to_json())


@progress.command()
@click.argument("id")
@move_options
@_store_option
@servers_option
@json_option
@idgen_options
def move(
    id: str,
    start: OffsetSpec,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    execute: bool,
    store: str,
    servers: str,
    as_json: bool,
    idgen: "IdgenConfig",
) -> None:
    """Move the stored progress of spout ID to another PLACE, while its topology is stopped.

    Messages from there on are processed, again if they were before; messages skipped are not. A topology that runs and
    publishes its figures is refused by name. One that does not publish stops reading the moved partitions.
    """
    from coordination.port import BadVersion
    from flakelog import stored_progress

    with _session(store, idgen) as coordinator, client_of(servers) as client:
        progress_of_id = _stored_progress(coordinator, store, id)
        listed = [stored for stored in progress_of_id if _is_wanted(stored, topics, partitions)]
        if not listed:
            fail(f"{id} has stored no progress of that topic and partition")
        _refuse_running(client, listed)
        documents = [stored.document for stored in listed if stored.document is not None]  # wanted ones are readable
        # All are looked up before the first is moved, so that an offset that one log does not have moves none.
        spans = find_starts(client, [(document.topic, document.partition) for document in documents], start)
        before, after = {}, {}
        for stored, document, span in zip(listed, documents, spans, strict=True):
            partition = document.topic, document.partition
            before[partition], after[partition] = document.progress.offset, span.offset
            if execute:
                try:
                    stored_progress.move(coordinator, stored, span.offset)
                except BadVersion:
                    fail(f"{stored.path} was written meanwhile: stop the topology that uses it first")
    print_move(before, after, as_json)
    if not execute:
        click.echo("nothing is changed yet; --execute does it", err=True)


@contextmanager
def _session(store: str, idgen: "IdgenConfig") -> "Iterator[Coordinator]":
    from coordination.directory import has_nodes
    from coordination.port import CoordinationError
    from coordination.sessions import open_session

    if store == "kafka":
        raise click.BadParameter("use `flakelog group describe` and `reset-offsets`", param_hint="--store")
    if not store.startswith(ZOOKEEPER) and not os.path.isdir(store):  # False too without permission to look
        fail(f"there is no directory {store}; give the store of the LogSpout by --store")
    if not store.startswith(ZOOKEEPER) and not has_nodes(store):
        fail(f"{store} has no progress of any spout; give the store of the LogSpout by --store")
    coordinator: Coordinator
    try:
        if store.startswith(ZOOKEEPER):
            coordinator = open_existing(store.removeprefix(ZOOKEEPER), idgen.ids_zookeeper_access)
        else:
            coordinator = open_session(directory=store)
    except CoordinationError as error:
        fail(str(error))
    try:
        yield coordinator
    except CoordinationError as error:
        fail(f"{store}: {error}")
    finally:
        coordinator.close()


def _stored_progress(coordinator: "Coordinator", store: str, id: str | None) -> "list[Stored]":
    """Return the progress of one spout, or of all; fail if there is none."""
    from flakelog.stored_progress import progress_of, spouts_in

    ids = spouts_in(coordinator)
    if id is not None and id not in ids:
        fail(f"{store} has no progress of {id!r}; it has that of: {', '.join(ids) or 'no spout'}")
    return [stored for spout_id in (ids if id is None else [id]) for stored in progress_of(coordinator, spout_id)]


def _row(stored: "Stored", ends: "dict[Partition, int]") -> dict[str, Any]:
    from flakelog.operations.groups import lag_of

    document = stored.document
    row: dict[str, Any] = {"id": stored.id, "path": stored.path, "error": stored.error or None}
    if document is None:
        return row | dict.fromkeys(("topic", "partition", "watermark", "done_above", "end", "lag"))
    end = ends.get((document.topic, document.partition))
    progress = document.progress
    return row | {
        "topic": document.topic,
        "partition": document.partition,
        "watermark": progress.offset,
        "done_above": sum(last - first for first, last in progress.done),
        "ranges": [list(done_range) for done_range in progress.done],
        "end": end,
        "lag": lag_of(progress.offset, end),
        "owner": document.owner,
    }


def _is_wanted(stored: "Stored", topics: tuple[str, ...], partitions: tuple[int, ...]) -> bool:
    document = stored.document
    if document is None:
        return False
    return (not topics or document.topic in topics) and (not partitions or document.partition in partitions)


def _refuse_running(client: "Client", progress: "list[Stored]") -> None:
    """Fail if a process that publishes its figures runs the topology of this progress."""
    ids = {stored.document.topology_id for stored in progress if stored.document is not None}
    for topology in running_topologies(client):
        if topology.get("topology_id") in ids:
            process = f"{topology['host']}, process {topology['pid']}"
            fail(f"topology {topology['topology_id']} runs on {process}: stop it first")


def running_topologies(client: "Client") -> list[dict[str, Any]]:
    """Return the documents of the topologies that run; see spout/figures/document.py."""
    import time

    from flakelog.commands.consume import span_records
    from spout.figures.document import TOPIC, running

    if TOPIC not in [topic.name for topic in client.topics()]:
        return []
    (span,) = find_starts(client, [(TOPIC, 0)], Earliest())
    records = ((record.key, record.value) for record in span_records(client, span))
    return running(records, time.time_ns() // 1_000_000)
