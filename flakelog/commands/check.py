"""`flakelog check`: look for damage in a data directory whose server is stopped."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flakelog.commands.exit_codes import fail
from flakelog.commands.progress import progress
from flakelog.commands.terminal import confirm, count_of, json_option, print_json

if TYPE_CHECKING:
    from flakelog.operations.directory_check import CheckedDirectories


@click.command()
@click.argument("data_dir", metavar="DATA-DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--new-checkpoint", is_flag=True, help="Begin a new checkpoint where it is damaged or missing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def check(data_dir: Path, new_checkpoint: bool, yes: bool, as_json: bool) -> None:
    """Look for damage in a data directory whose server is stopped.

    Reads every batch with its checksum, every id and every index entry, and changes nothing. Prints one line for each
    damage. Exit code 1 if there is any, or if a server would refuse to start. With the directory of a server of several
    --processes it checks those of all its brokers.

    A directory without its checkpoint does not tell damage from the end that a crash has left: the next start cuts each
    log at the first. --new-checkpoint says what it would cut, and asks.
    """
    from flakelog.operations.directory_check import NothingToCheck, check_directories

    try:
        with check_directories(data_dir, new_checkpoint=new_checkpoint) as directories:
            if new_checkpoint and not directories.without_checkpoint:
                fail(f"{data_dir} has a sound checkpoint: without --new-checkpoint, this looks for damage")
            has_damages = _check(directories, data_dir, as_json)
            if new_checkpoint:
                _begin_checkpoints(directories, yes=yes, as_json=as_json)
    except NothingToCheck as error:
        fail(str(error))
    sys.exit(1 if has_damages else 0)


def _begin_checkpoints(directories: "CheckedDirectories", *, yes: bool, as_json: bool) -> None:
    from broker.log.storage.port import StorageError

    names = ", ".join(map(str, directories.without_checkpoint))
    if not yes:
        confirm(f"Begin a new checkpoint in {names}? What the next start would cut is lost then")
    try:
        directories.begin_checkpoints()
    except StorageError as error:
        fail(str(error))
    if not as_json:
        click.echo(f"began a new checkpoint in {names}")


def _check(directories: "CheckedDirectories", data_dir: Path, as_json: bool) -> bool:
    """Print the damages and the totals. Return True if there are damages."""
    problems = 0
    with progress(str(data_dir), directories.size, in_bytes=True) as step:
        for line in directories.damages(step):
            problems += 1
            if as_json:
                print_json({"damage": line})
            else:
                click.echo(line)
    if as_json:
        totals = {"partitions": directories.partitions, "segments": directories.segments, "bytes": directories.bytes}
        print_json(totals | {"damages": problems, "notes": directories.notes})
        return bool(problems)
    for line in directories.notes:
        click.echo(f"a start would say: {line}")
    parts = count_of(directories.partitions, "partition"), count_of(directories.segments, "segment")
    click.echo(f"{', '.join(parts)}, {count_of(directories.bytes, 'byte')}: {count_of(problems, 'damage')}")
    return bool(problems)
