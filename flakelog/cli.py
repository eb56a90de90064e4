"""The command line. Heavy packages are imported only when a command that needs them runs, so `--help` is quick."""

import errno
import os
import sys
from importlib import import_module
from typing import Any

import click

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)

COMMANDS = {
    "server": "flakelog.commands.server",
    "idgen": "flakelog.commands.server",
    "topic": "flakelog.commands.topic",
    "group": "flakelog.commands.group",
    "config": "flakelog.commands.config",
    "spout": "flakelog.commands.spout",
    "produce": "flakelog.commands.produce",
    "consume": "flakelog.commands.consume",
    "id": "flakelog.commands.id",
    "check": "flakelog.commands.check",
    "settings": "flakelog.commands.settings",
    "compat": "flakelog.commands.compat",
    "replay": "flakelog.commands.replay",
    "load": "flakelog.commands.load",
    "demo": "flakelog.commands.demo",
}


class Commands(click.Group):
    """A group of commands, each imported when it is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        home = COMMANDS.get(name)
        if home is None:
            return None
        command: click.Command = getattr(import_module(home), name)
        return command

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; report a write error, such as a full disk under `> file`, in one line.

        If the reader of a pipe has closed it (EPIPE), report nothing.
        """
        try:
            try:
                return super().main(*args, **kwargs)
            finally:
                if sys.stdout is not None:  # None if stdout was closed before the start (>&-)
                    sys.stdout.flush()
        except OSError as error:
            if error.errno not in CANNOT_WRITE or error.filename is not None:
                raise
            _discard_output()
            if error.errno != errno.EPIPE:
                click.echo(f"Error: the output could not be written: {error.strerror}", err=True)
            sys.exit(1)


def _discard_output() -> None:
    """Redirect stdout to /dev/null, so that the exit does not write the rest of its buffer again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flakelog")
def main() -> None:
    """Flakelog: a commit log with Kafka's protocol, in which every message carries a Snowflake id.

    Exit codes: 0 success, 1 failure or not found, 2 wrong usage, 3 no server at the address.
    """


if __name__ == "__main__":
    main()
