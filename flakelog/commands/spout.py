"""`flakelog spout`: run a topology, and look after its progress and its dead letters."""

import click

from flakelog.commands.spout_dead import dead
from flakelog.commands.spout_progress import progress
from flakelog.commands.spout_run import run
from flakelog.commands.spout_storm import storm


@click.group()
def spout() -> None:
    """Run a topology, or write it for Apache Storm.

    Also show, export and move its progress; list, send back and drop its dead letters.
    """


for command in (run, storm, progress, dead):
    spout.add_command(command)
