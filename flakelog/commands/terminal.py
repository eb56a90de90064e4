"""Helpers that the commands share: find a broker, print times and tables, and fail.

Results go to stdout; errors and progress go to stderr. Exit codes are in exit_codes.py.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.client.times import EPOCH, parse_time
from flakelog.commands.arguments import Addresses, quoted
from flakelog.commands.command_config import security_option
from flakelog.commands.exit_codes import Interrupted, NobodyAnswers, fail
from flakelog.commands.waiting import timeout_option
from flakelog.visible_text import count_of as count_of  # noqa: F401  (for its users)
from flakelog.visible_text import visible_line

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from flakelog.operations.rights import Right
    from idgen.config import IdgenConfig
    from idgen.layout import Layout

SERVERS = "127.0.0.1:9092"

Command = Callable[..., Any]

json_option = click.option("--json", "as_json", is_flag=True, help="JSON for programs, one object a line.")


def servers_option(command: Command) -> Command:
    """Add --servers, and --command-config and --timeout, which the client of `client_of` heeds."""
    option = click.option(
        "--servers",
        type=Addresses(),
        default=SERVERS,
        envvar="FLAKELOG_SERVERS",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT,...",
        help="Brokers to ask first.",
    )
    made: Command = option(security_option(timeout_option(command)))
    return made


@contextmanager
def client_of(servers: str, needed: "Sequence[Right]" = ()) -> Iterator["Client"]:
    """Yield a client of the brokers at `servers`; turn its errors into one line and an exit code.

    `needed` are the rights that the command needs: the line about a missing one names the command that grants it.
    """
    from broker.client.errors import BrokerError, ClientError, Unreachable
    from broker.record.batch import CorruptBatch
    from broker.wire.errors import ErrorCode
    from flakelog.commands.command_client import CommandClient

    try:
        made = CommandClient(servers)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--servers") from None
    logging.getLogger("broker.client").addHandler(logging.NullHandler())  # the command names skipped batches itself
    with made as client:
        try:
            yield client
        except Unreachable as error:
            raise NobodyAnswers(str(error)) from None
        except BrokerError as error:
            from flakelog.operations.rights import remedy

            there_is = error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            hint = remedy(error, needed) if there_is else "; `flakelog topic list` shows those that there are"
            fail(f"{error}{hint}")
        except (ClientError, CorruptBatch) as error:
            if isinstance(error.__cause__, Unreachable):  # such as a commit that no broker takes
                raise NobodyAnswers(str(error)) from None
            fail(str(error))


def print_none(client: "Client", things: str, advice: str = "") -> None:
    """Print to stderr that a list is empty, or that it is for this user where brokers may hide things from it."""
    from flakelog.operations.rights import may_hide

    click.echo(f"there are no {things}" + (" that you may see" if may_hide(client) else advice), err=True)


def layout_options(command: Command) -> Command:
    """Add --config and --set, for servers whose id layout is not the default; the command gets a `layout`."""
    what_for = "where its id layout (flakelog.ids.epoch.ms, ...) is not the default"
    return _settings_options(command, "layout", what_for, lambda config: config.layout)


def idgen_options(command: Command) -> Command:
    """Add --config and --set, for flakelog.ids.* (flakelog.ids.zookeeper.* included); the command gets an `idgen`."""
    what_for = "where its ids or its ZooKeeper (flakelog.ids.*, flakelog.ids.zookeeper.*) are not as by default"
    return _settings_options(command, "idgen", what_for, lambda config: config)


def _settings_options(command: Command, name: str, what_for: str, of: "Callable[[IdgenConfig], Any]") -> Command:
    def convert(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        from flakelog.settings import collect, errors_with_origin
        from idgen.config import IdgenConfig
        from idgen.settings import InvalidSetting, from_properties

        try:
            properties = collect(context.params.pop("settings_file", None), value, os.environ)
            with errors_with_origin(properties.given):
                return of(from_properties(IdgenConfig, properties.texts))
        except (InvalidSetting, OSError) as error:
            raise click.BadParameter(str(error)) from None

    command = click.option(
        "--set",
        name,
        multiple=True,
        callback=convert,
        metavar="NAME=VALUE",
        help="The same, one by one, over --config.",
    )(command)
    return click.option(
        "--config",
        "settings_file",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        is_eager=True,
        help=f"The server's properties file, {what_for}.",
    )(command)


def confirm(question: str) -> None:
    """Ask on stderr, and end with code 1 unless the answer is yes. Ctrl-C ends with 130, as everywhere."""
    with _ctrl_c_ends():
        click.confirm(visible_line(question), abort=True, err=True)


def new_password(question: str) -> str:
    """Ask twice on stderr, at a terminal that does not show the answer. Ctrl-C ends with 130."""
    with _ctrl_c_ends():
        password: str = click.prompt(visible_line(question), hide_input=True, confirmation_prompt="again", err=True)
    return password


@contextmanager
def _ctrl_c_ends() -> Iterator[None]:
    try:
        yield
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            click.echo(err=True)  # the terminal's line ends in ^C
            raise Interrupted(error.__context__) from None
        raise


def assignment(text: str, where: str) -> tuple[str, str]:
    """Split NAME=VALUE into a pair; `where` names its option or argument in errors."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise click.BadParameter(f"{quoted(text)} is no setting; give NAME=VALUE", param_hint=where)
    return name.strip(), value.strip()


def iso(time_ms: int | None) -> str | None:
    """Return Unix ms as ISO 8601 in UTC, to the millisecond; None for no time, or for one outside the calendar."""
    if time_ms is None or time_ms < 0:
        return None
    try:
        text = (EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return None
    return text.replace("+00:00", "Z")


def typed_time(text: str) -> int:
    """Return Unix ms as `parse_time` does, and for "now" the time of this machine's clock."""
    return parse_time(text, int(datetime.now(UTC).timestamp() * 1000))


class TimeType(click.ParamType[int]):
    """A time on the command line, as Unix ms."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return typed_time(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def describe_id(id: int, layout: "Layout") -> dict[str, Any]:
    """Return an id and its parts, under the names that the HTTP service uses.

    `id_str` is the id as a string, for readers whose numbers have 53 bits.
    """
    parts = layout.unpack(id)
    return {"id": id, "id_str": str(id), "time": iso(parts.time_ms), **parts._asdict()}


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def print_line(text: str, *, err: bool = False) -> None:
    """Print a line that has names or texts of others, so that none of them steers the terminal."""
    click.echo(visible_line(text), err=err)


def print_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print columns under their names: numbers right-aligned, two spaces between, easy for shell tools to parse."""
    texts = [["-" if value is None else visible_line(str(value)) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in texts)]) for i, name in enumerate(names)]
    right = [bool(rows) and all(isinstance(row[i], int | None) for row in rows) for i in range(len(names))]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    click.echo("\n".join(line(cells_of_row) for cells_of_row in [list(names), *texts]))
