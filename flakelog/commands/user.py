"""`flakelog user`: list users that log in by SCRAM, set their passwords and delete them (KIP-554).

No argument has a password, because a list of processes shows arguments.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broker.security.sasl.scram import DIGESTS
from broker.security.sasl.scram_keys import ITERATIONS_MAX, ITERATIONS_MIN, PASSWORD_BYTES_MAX
from flakelog.commands.arguments import Name, Whole
from flakelog.commands.terminal import (
    client_of,
    confirm,
    json_option,
    new_password,
    print_json,
    print_line,
    print_table,
    servers_option,
)

if TYPE_CHECKING:
    from flakelog.operations.users import ScramCredentials

_OPTION = "--password-file"
_STDIN = "-"


@click.group()
def user() -> None:
    """List users that log in by SCRAM, set their passwords and delete them.

    The brokers keep these users. Those of PLAIN are in a listener's settings, those of OAUTHBEARER at the identity
    provider, and those of certificates nowhere.
    """


@user.command("list")
@click.argument("names", nargs=-1, type=Name(), metavar="[NAME...]")
@servers_option
@json_option
def list_users(names: tuple[str, ...], servers: str, as_json: bool) -> None:
    """List all users that have passwords, or these. No broker tells passwords."""
    from flakelog.operations import users

    with client_of(servers) as client:
        described = users.list_users(client, tuple(dict.fromkeys(names)))
    _show(described, as_json)
    if not as_json and not described:
        click.echo("no user has a password for SCRAM", err=True)
    for credentials in described:
        if not credentials.iterations:  # a name that was given
            print_line(f"{credentials.user} has no password for SCRAM", err=True)


@user.command("set")
@click.argument("name", type=Name())
@click.option("--mechanism", type=click.Choice(tuple(DIGESTS)), default=tuple(DIGESTS)[-1], show_default=True,
              help="What it logs in by.")  # fmt: skip
@click.option("--iterations", type=Whole(ITERATIONS_MIN, ITERATIONS_MAX), default=ITERATIONS_MIN, show_default=True,
              help="More make each guess and each login slower.")  # fmt: skip
@click.option(_OPTION, "file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), metavar="FILE",
              help="A file that has the password, or - for standard input; asked for without.")  # fmt: skip
@servers_option
@json_option
def set_password(
    name: str, mechanism: str, iterations: int, file: Path | None, servers: str, as_json: bool
) -> None:
    """Set the password of user NAME, who need not exist. A password that it has for the mechanism is replaced.

    The password itself is sent nowhere.
    """
    from flakelog.operations import users

    if file is None or (str(file) == _STDIN and sys.stdin.isatty()):
        password = _prompted(name)
    else:
        password = _read(file)
    upsertion = users.ScramUpsertion(name, mechanism, password, iterations)
    with client_of(servers) as client:
        users.alter_users(client, [upsertion])
    if as_json:
        _show([users.ScramCredentials(name, {mechanism: iterations})], as_json)
    else:
        print_line(f"{name} has a new password for {mechanism}")


@user.command()
@click.argument("name", type=Name())
@click.option("--mechanism", "mechanisms", type=click.Choice(tuple(DIGESTS)), multiple=True,
              help="Only its password for this one; repeatable.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask.")
@servers_option
@json_option
def delete(name: str, mechanisms: tuple[str, ...], yes: bool, servers: str, as_json: bool) -> None:
    """Delete the passwords of user NAME. Connections that it has stay until their sessions end."""
    from flakelog.operations import users

    with client_of(servers) as client:
        present = users.credentials_to_delete(client, name, mechanisms)
        if not yes:
            confirm(f"delete the password of {name} for {' and '.join(present.iterations)}?")
        warnings = users.delete_user(client, present)
    for warning in warnings:
        print_line(f"warning: {warning}", err=True)
    if as_json:
        _show([present], as_json)
    else:
        print_line(f"{name} has no password for {' and '.join(present.iterations)} any more")


def _prompted(name: str) -> str:
    """Ask for a password twice, at a terminal that does not show it."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"no terminal can be asked for the password; give {_OPTION} FILE, or - for stdin")
    return new_password(f"password of {name}")


def _read(file: Path) -> str:
    """Return the password in a file, without the line breaks at its end. Errors do not quote it."""
    from broker.net.tls import is_exposed

    try:
        with click.open_file(str(file), "rb") as source:
            data = source.read(PASSWORD_BYTES_MAX + 1)
        password: str = data.decode().rstrip("\r\n")
    except OSError as error:
        raise click.BadParameter(f"{file} cannot be read: {error.strerror}", param_hint=_OPTION) from None
    except UnicodeDecodeError:
        raise click.BadParameter(f"{file} is no UTF-8 text", param_hint=_OPTION) from None
    if not password or len(data) > PASSWORD_BYTES_MAX:
        wrong = "is empty" if not password else f"is longer than {PASSWORD_BYTES_MAX:,} bytes"
        raise click.BadParameter(f"the password in {file} {wrong}", param_hint=_OPTION)
    if str(file) != _STDIN and is_exposed(str(file)):
        print_line(f"other users of this machine can read {file}, which has a password: chmod 600 it", err=True)
    return password


def _show(described: "list[ScramCredentials]", as_json: bool) -> None:
    rows = [(user, *credential) for user, iterations in described for credential in iterations.items()]
    names = "user", "mechanism", "iterations"
    if as_json:
        for row in rows:
            print_json(dict(zip(names, row, strict=True)))
    elif rows:
        print_table([name.upper() for name in names], rows)
