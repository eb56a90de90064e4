"""`flakelog check`: look for damage in a data directory whose server is stopped."""

import sys
from pathlib import Path

import click

from flakelog.commands.exit_codes import fail
from flakelog.commands.progress import progress
from flakelog.commands.terminal import count_of, json_option, print_json


@click.command()
@click.argument("data_dir", metavar="DATA-DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
def check(data_dir: Path, as_json: bool) -> None:
    """Look for damage in a data directory whose server is stopped.

    Reads every batch with its checksum, every id and every index entry, and changes nothing. Prints one line for each
    damage. Exit code 1 if there is any, or if a server would refuse to start.
    """
    import uuid

    from broker.log.checkpoint import CheckpointDamaged
    from broker.log.directory_check import DirectoryCheck
    from broker.log.log_manager import LogManager
    from broker.log.storage.os_storage import OsStorage
    from broker.log.storage.overlay_storage import OverlayStorage
    from broker.log.storage.port import StorageError
    from broker.metadata.document import FILE as METADATA
    from broker.metadata.document import MetadataDamaged
    from broker.metadata.image import RegisteredBroker
    from broker.metadata.local_metadata import FileMetadataStore, LocalMetadata
    from broker.services.context import BrokerServices
    from broker.services.start import open_logs
    from broker.settings.config import BrokerConfig
    from broker.waiting.purgatory import Purgatory

    try:
        is_empty = not any(data_dir.iterdir())
    except OSError as error:
        fail(f"{data_dir} cannot be checked: {error.strerror}")
    if is_empty:
        fail(f"{data_dir} is empty: there is nothing to check; name the data directory of a server")
    notes: list[str] = []
    storage = OsStorage(str(data_dir))
    try:
        storage.lock()
        overlay = OverlayStorage(storage)
        config = BrokerConfig()
        own = RegisteredBroker(config.node_id, {"": ("localhost", 1)})
        local = LocalMetadata(FileMetadataStore(overlay), own, uuid.uuid4)
        local.load()
        logs = LogManager(overlay, config, notes.append)
        purgatory = Purgatory(0, config.max_delayed_operations)
        open_logs(BrokerServices(config, local, logs, purgatory, notes.append))
    except (StorageError, MetadataDamaged, CheckpointDamaged) as error:
        fail(str(error))
    problems = 0
    checked = DirectoryCheck(logs)
    if not checked.partitions and not storage.exists(METADATA):
        fail(f"{data_dir} is no data directory: it has no {METADATA} and no partitions; a server's has both")
    with progress(str(data_dir), checked.size, in_bytes=True) as step:
        for line in checked.damages(step):
            problems += 1
            if as_json:
                print_json({"damage": line})
            else:
                click.echo(line)
    other_notes = [line for line in notes if " is offline: " not in line]
    if as_json:
        totals = {"partitions": checked.partitions, "segments": checked.segments, "bytes": checked.bytes}
        print_json(totals | {"damages": problems, "notes": other_notes})
        sys.exit(1 if problems else 0)
    for line in other_notes:
        click.echo(f"a start would say: {line}")
    parts = count_of(checked.partitions, "partition"), count_of(checked.segments, "segment")
    click.echo(f"{', '.join(parts)}, {count_of(checked.bytes, 'byte')}: {count_of(problems, 'damage')}")
    sys.exit(1 if problems else 0)
