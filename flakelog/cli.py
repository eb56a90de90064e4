"""The command line. Heavy packages are imported only when a command that needs them runs, so `--help` is quick."""

import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from flakelog import garbage
from flakelog.commands.arguments import bounded
from flakelog.commands.exit_codes import (
    EXIT_CODES,
    FAILURE,
    OF_ALL,
    SUCCESS,
    Interrupted,
    table_of,
    with_exit_codes,
)
from flakelog.visible_text import visible

TOLD_CHARACTERS = 80  # how much of a wrong argument its error message quotes
TOLD_ERROR_CHARACTERS = 300
LONG_WORD = re.compile(r"\S{200,}")
DEBUG = "flakelog_debug"
REPORT = "This is a fault of Flakelog. Please report it, with the traceback that --debug shows."
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)

COMMANDS = {
    "server": "flakelog.commands.server",
    "idgen": "flakelog.commands.server",
    "topic": "flakelog.commands.topic",
    "group": "flakelog.commands.group",
    "registry": "flakelog.commands.registry",
    "config": "flakelog.commands.config",
    "cluster": "flakelog.commands.cluster",
    "partitions": "flakelog.commands.partitions",
    "transactions": "flakelog.commands.transactions",
    "quotas": "flakelog.commands.quotas",
    "acl": "flakelog.commands.acl",
    "user": "flakelog.commands.user",
    "spout": "flakelog.commands.spout",
    "produce": "flakelog.commands.produce",
    "consume": "flakelog.commands.consume",
    "id": "flakelog.commands.id",
    "bench": "flakelog.commands.bench",
    "completion": "flakelog.commands.completion",
    "check": "flakelog.commands.check",
    "settings": "flakelog.commands.settings",
    "compat": "flakelog.commands.compat",
    "replay": "flakelog.commands.replay",
    "load": "flakelog.commands.load",
    "mirror": "flakelog.commands.mirror",
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
        garbage.resume()
        _add_exit_codes(command)
        bounded(command)
        _add_debug(command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; if Ctrl-C ends it early, exit with INTERRUPTED."""
        with _read_enough(), _quoted_briefly():
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as cause:
                raise Interrupted(cause) from None
            except UnicodeEncodeError as error:  # an argument for a server has bytes that are no UTF-8
                raise click.UsageError(f"{error.object[:TOLD_CHARACTERS]!r} is no UTF-8 text") from None
            except Exception as error:
                if isinstance(error, (click.exceptions.Exit, click.Abort)) or _is_of_output(error):
                    raise
                _show_traceback(error, ctx.meta.get(DEBUG, False))
                if isinstance(error, click.ClickException):
                    raise
                if (interrupt := _interrupt_behind(error)) is not None:
                    raise Interrupted(interrupt) from None
                raise click.ClickException(f"{_in_a_line(error)}. {REPORT}") from None

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _read_enough(), _quoted_briefly():  # --help is printed here
            return super().make_context(*args, **kwargs)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; report a write error, such as a full disk under `> file`, in one line."""
        _open_streams()
        try:
            try:
                return super().main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if not _is_of_output(error):
                raise
            _discard_output()
            if error.errno == errno.EPIPE:  # in the last flush, after the command has ended with its own exit code
                sys.exit(error.__context__.code if isinstance(error.__context__, SystemExit) else SUCCESS)
            click.echo(f"Error: the output could not be written: {error.strerror}", err=True)
            sys.exit(FAILURE)


def _is_of_output(error: Exception) -> bool:
    """Return True if the output could not be written; files that a command opens have names."""
    return isinstance(error, OSError) and error.errno in CANNOT_WRITE and error.filename is None


def _interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the Ctrl-C that an error followed: cleaning up may fail after it, as that of Spark's gateway does."""
    before = error.__context__
    while before is not None and not isinstance(before, KeyboardInterrupt):
        before = before.__context__
    return before


def _add_debug(command: click.Command) -> None:
    """Let a command and its subcommands take --debug too, which the help of `flakelog` names."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            _add_debug(subcommand)
    elif not any(param.name == DEBUG for param in command.params):
        command.params.append(_debug_option(hidden=True))


def _debug_option(hidden: bool) -> click.Option:
    def keep(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            context.meta[DEBUG] = True

    help = "Show the traceback of an error."
    return click.Option(["--debug", DEBUG], is_flag=True, is_eager=True, expose_value=False, hidden=hidden,
                        callback=keep, help=help)  # fmt: skip


def _show_traceback(error: Exception, debug: bool) -> None:
    """Print the traceback of an error, or of the cause of a failure that a command has put in one line."""
    shown = error.__cause__ if isinstance(error, click.ClickException) else error
    if debug and shown is not None:
        click.echo("".join(traceback.format_exception(shown)), err=True, nl=False)


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:TOLD_ERROR_CHARACTERS]


def _open_streams() -> None:
    """Make the three standard streams usable, whatever the caller left of them.

    A closed stream (`>&-`) becomes /dev/null. Otherwise the next file or socket would get its number, and with it the
    messages that librdkafka writes to stderr. Text that the terminal's encoding lacks is written with escapes.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _add_exit_codes(command: click.Command) -> None:
    """Put the exit codes at the end of the help of a command and of its subcommands, unless it lists its own."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            _add_exit_codes(subcommand)
    elif "Exit codes:" not in (command.help or ""):
        command.epilog = table_of(OF_ALL)


@contextmanager
def _read_enough() -> Iterator[None]:
    """End with success if the reader of a pipe has read enough and closed it, as `head` does."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EPIPE or error.filename is not None:
            raise
        _discard_output()
        raise SystemExit(SUCCESS) from None


@contextmanager
def _quoted_briefly() -> Iterator[None]:
    """Shorten what a usage error quotes: click quotes the whole of a wrong choice, file name, command or option.

    Any error may quote the names of strangers, so hidden characters, such as a terminal's escapes, are written out.
    """
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = visible(error.message)  # click declares it final
        if not isinstance(error, click.UsageError):
            raise
        whole = error.format_message()
        brief = LONG_WORD.sub(lambda word: f"{word[0][:TOLD_CHARACTERS]}...", whole)
        if brief == whole:
            raise
        raise click.UsageError(brief, error.ctx) from None


def _discard_output() -> None:
    """Redirect stdout to /dev/null, so that the exit does not write the rest of its buffer again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flakelog")
def main() -> None:
    """Flakelog: a commit log with Kafka's protocol, in which every message carries a Snowflake id."""


main.params.append(_debug_option(hidden=False))
main.help = with_exit_codes(main.help, EXIT_CODES)


if __name__ == "__main__":
    main()
