"""The exit codes of all commands: one table, shown by --help and docs/commands.md, and an exception for each cause.

The exceptions end a command with one line on stderr. A cause has the same code in every command.
"""

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from inspect import cleandoc
from typing import NoReturn

import click

SUCCESS, FAILURE, WRONG_USAGE, NOBODY_ANSWERS = 0, 1, 2, 3
LOST_DATA, OTHER_DATA, PROBLEMS_FOUND, DAMAGED_DATA, NO_PLACE = 4, 5, 6, 7, 8
REPLACED = 9  # as spout.work.FENCED_CODE
INTERRUPTED, TERMINATED = 130, 143  # 128 and the signal's number, as shells have it

EXIT_CODES = {
    SUCCESS: "success",
    FAILURE: "another failure, or something was not found",
    WRONG_USAGE: "wrong usage",
    NOBODY_ANSWERS: "no server at the address",
    LOST_DATA: "the log lost data of the range",
    OTHER_DATA: "the place holds something else, or the manifest is of another log",
    PROBLEMS_FOUND: "the result differs from an earlier run, or from its receipt",
    DAMAGED_DATA: "the log's data is damaged, or a plan or receipt in the place; or too many values did not decode",
    NO_PLACE: "the place cannot be used or written",
    REPLACED: "another process of the same --instance has taken over (`spout run`)",
    INTERRUPTED: "ended by Ctrl-C before its work was done",
    TERMINATED: "ended by SIGTERM (`produce`, `consume`), or at once by a second one (`spout run`)",
}
OF_ALL = (SUCCESS, FAILURE, WRONG_USAGE, NOBODY_ANSWERS, INTERRUPTED)
OF_TRANSFERS = (SUCCESS, FAILURE, WRONG_USAGE, NOBODY_ANSWERS, LOST_DATA, OTHER_DATA, PROBLEMS_FOUND, DAMAGED_DATA,
                NO_PLACE, INTERRUPTED)  # fmt: skip


class WrongSettings(click.ClickException):
    """A setting, or the file of settings, is wrong."""

    exit_code = WRONG_USAGE


class NobodyAnswers(click.ClickException):
    """No server answers at the address; the message says which command starts one."""

    exit_code = NOBODY_ANSWERS


class DataIsLost(click.ClickException):
    """The log no longer has messages that the command needs."""

    exit_code = LOST_DATA


class DataOfAnother(click.ClickException):
    """The place, the manifest or the log is of something else than the command's."""

    exit_code = OTHER_DATA


class DataIsDamaged(click.ClickException):
    """The log has data that cannot be decoded or has a wrong checksum, or a plan or receipt cannot be read.

    So do more values that do not decode than --max-rejected allows.
    """

    exit_code = DAMAGED_DATA


class PlaceUnusable(click.ClickException):
    """The place cannot be read or written: its disk is full, it does not exist, or it may not be written to."""

    exit_code = NO_PLACE


class ProblemsFound(click.ClickException):
    """A check found differences, which the command has printed."""

    exit_code = PROBLEMS_FOUND


class Interrupted(click.ClickException):
    """Ctrl-C or SIGTERM ended the command before its work was done; the message says how far it came."""

    def __init__(self, cause: KeyboardInterrupt, how_far: str = "") -> None:
        self._is_term = isinstance(cause, Terminated)
        super().__init__(f"ended by {'SIGTERM' if self._is_term else 'Ctrl-C'}{how_far and ': '}{how_far}")

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return TERMINATED if self._is_term else INTERRUPTED


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled as Ctrl-C is."""


@contextmanager
def ends_at_sigterm() -> Iterator[None]:
    """End the block at SIGTERM as at Ctrl-C, so that messages are counted or committed, and the group is left."""

    def end(*_: object) -> NoReturn:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # a thread other than the main one, as in a test
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def fail(message: str) -> NoReturn:
    """End with one line on stderr and exit code 1."""
    raise click.ClickException(message)


def table_of(codes: Iterable[int]) -> str:
    """Return the table of these exit codes, as --help shows it."""
    lines = [f"{code:>3} {EXIT_CODES[code]}" for code in codes]
    return "\b\nExit codes:\n" + "\n".join(lines)


def with_exit_codes(text: str | None, codes: Iterable[int] = OF_TRANSFERS) -> str:
    """Return the help of a command with the exit codes at its end."""
    return f"{cleandoc(text or '')}\n\n{table_of(codes)}"
