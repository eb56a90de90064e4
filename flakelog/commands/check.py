"""`flakelog check`: look for damage in a data directory whose server is stopped."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flakelog.commands.exit_codes import fail
from flakelog.commands.progress import progress
from flakelog.commands.terminal import count_of, json_option, print_json

if TYPE_CHECKING:
    from flakelog.operations.directory_check import CheckedDirectories


@click.command()
@click.argument("data_dir", metavar="DATA-DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
def check(data_dir: Path, as_json: bool) -> None:
    """Look for damage in a data directory whose server is stopped.

    Reads every batch with its checksum, every id and every index entry, and changes nothing. Prints one line for each
    damage. Exit code 1 if there is any, or if a server would refuse to start. With the directory of a server of several
    --processes it checks those of all its brokers.
    """
    from flakelog.operations.directory_check import NothingToCheck, check_directories

    try:
        with check_directories(data_dir) as directories:
            _check(directories, data_dir, as_json)
    except NothingToCheck as error:
        fail(str(error))


def _check(directories: "CheckedDirectories", data_dir: Path, as_json: bool) -> None:
    """Print the damages and the totals, and exit."""
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
        sys.exit(1 if problems else 0)
    for line in directories.notes:
        click.echo(f"a start would say: {line}")
    parts = count_of(directories.partitions, "partition"), count_of(directories.segments, "segment")
    click.echo(f"{', '.join(parts)}, {count_of(directories.bytes, 'byte')}: {count_of(problems, 'damage')}")
    sys.exit(1 if problems else 0)
