"""`flakelog spout`: run a topology, and look after its progress and its dead letters."""

import click

from flakelog.commands.spout_dead import dead
from flakelog.commands.spout_progress import progress
from flakelog.commands.spout_run import run


@click.group()
def spout() -> None:
    """Run a topology; show, export and move its progress; list, send back and drop its dead letters."""


for command in (run, progress, dead):
    spout.add_command(command)
