"""The option --command-config: a file of properties of a Kafka client, for brokers that ask for TLS or a login.

It is the file that Kafka's tools take. The client of `client_of` heeds it; other clients take `given_security`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from flakelog.commands.exit_codes import WrongSettings
from flakelog.visible_text import visible

if TYPE_CHECKING:
    from broker.client.security.client_security import ClientSecurity
    from flakelog.id_clients.tls import IdTls
    from idgen.settings import InvalidSetting

_KEY, _FILE = "flakelog.security", "flakelog.security.file"
_PROVIDERS = "config.providers"  # Kafka has to name them; here they are always there
CONFIG_FILE: click.Path = click.Path(exists=True, dir_okay=False, path_type=Path)
Command = Callable[..., Any]


class ClientFile(NamedTuple):
    """The properties of security in a file of a Kafka client, with their references, and the line of each."""

    path: Path
    texts: dict[str, str]
    lines: dict[str, int]

    def wrong(self, error: "InvalidSetting") -> WrongSettings:
        """Return the error as the command shows it: with the line of its setting, or the file if no line has it."""
        line = self.lines.get(error.name)
        return WrongSettings(f"{self.path}: {error}" if line is None else str(error.at(f"{self.path}:{line}")))


def security_option(command: Command) -> Command:
    """Add --command-config, which `given_security` returns."""
    named = "Properties of a Kafka client for TLS and logins: security.protocol, ssl.*, sasl.*."
    return _option("FLAKELOG_COMMAND_CONFIG", named)(command)


def id_security_option(command: Command) -> Command:
    """Add --command-config for an id service, with its own environment variable. `given_id_tls` returns the TLS."""
    named = "Properties of a Kafka client for an id service with TLS: security.protocol=SSL, ssl.*."
    return _option("FLAKELOG_IDS_COMMAND_CONFIG", named)(command)


def _option(variable: str, text: str) -> Callable[[Command], Command]:
    return click.option(
        "--command-config",
        type=CONFIG_FILE,
        envvar=variable,
        show_envvar=True,
        metavar="FILE",
        callback=_keep,
        expose_value=False,
        help=text,
    )


def given_id_tls() -> "IdTls | None":
    """Return the TLS of the command's clients of an id service, None for plain ones. Raise WrongSettings."""
    from flakelog.id_clients.tls import IdTls
    from idgen.settings import InvalidSetting

    try:
        return IdTls.of(given_security())
    except InvalidSetting as error:
        raise click.get_current_context().meta[_FILE].wrong(error) from None


def given_security(context: click.Context | None = None) -> "ClientSecurity | None":
    """Return the security of the command's clients, None for plain connections without a login."""
    context = click.get_current_context(silent=True) if context is None else context
    return None if context is None else context.meta.get(_KEY)


def given_properties() -> dict[str, str]:
    """Return the properties of the command's clients as they stand in the file, with their references; {} without one.

    For programs on other machines, which make clients of them there.
    """
    context = click.get_current_context(silent=True)
    file = None if context is None else context.meta.get(_FILE)
    return {} if file is None else dict(file.texts)


def given_readable() -> dict[str, str]:
    """Return the properties of the command's clients without secrets, for processes of this machine; {} without a file.

    A reference to the file is in place of each. Raise WrongSettings.
    """
    from broker.client.security.readable_properties import made_readable
    from idgen.settings import InvalidSetting

    file: ClientFile | None = click.get_current_context().meta.get(_FILE)
    if file is None:
        return {}
    try:
        return made_readable(file.texts, str(file.path.resolve()))
    except InvalidSetting as error:
        raise file.wrong(error) from None


def read_properties(file: Path) -> dict[str, str]:
    """Return the properties of security in a file, with their references, as `read_security` checks them."""
    given = _read(file)
    _security_of(given)
    return given.texts


def read_readable(file: Path) -> dict[str, str]:
    """Return the properties in a file for programs on other machines, with their references.

    Raise WrongSettings for properties that cannot work, and for a secret that is no reference.
    """
    from broker.client.security.readable_properties import check_readable
    from broker.client.security.settings import check_properties
    from idgen.settings import InvalidSetting

    given = _read(file)
    try:
        check_properties(given.texts)
        check_readable(given.texts)
    except InvalidSetting as error:
        raise given.wrong(error) from None
    return given.texts


def _keep(context: click.Context, parameter: click.Parameter, file: Path | None) -> None:
    if file is not None:
        context.meta[_FILE] = given = _read(file)
        context.meta[_KEY] = _security_of(given)


def read_security(file: Path) -> "ClientSecurity | None":
    """Return the security in a file of properties. Name those on stderr that are not used. Raise WrongSettings."""
    return _security_of(_read(file))


def _security_of(given: ClientFile) -> "ClientSecurity | None":
    from broker.client.security.client_security import ClientSecurity
    from idgen.settings import InvalidSetting

    try:
        return ClientSecurity.of(given.texts)
    except InvalidSetting as error:
        raise given.wrong(error) from None


def _read(file: Path) -> ClientFile:
    """Return the properties of security in a file."""
    from broker.client.security.settings import is_of_security
    from idgen.properties import parse_properties
    from idgen.settings import InvalidSetting

    try:
        properties = parse_properties(file.read_text(encoding="utf-8"), str(file))
    except InvalidSetting as error:
        raise WrongSettings(f"{error.name}: {error.wanted}") from None  # the value may be a secret
    except (OSError, UnicodeDecodeError) as error:
        raise WrongSettings(f"{file} cannot be read: {error}") from None
    used = [of_one for of_one in properties if is_of_security(of_one.name)]
    unused = [name for name, *_ in properties if not is_of_security(name) and not name.startswith(_PROVIDERS)]
    if unused:
        click.echo(visible(f"{file}: only security.*, ssl.* and sasl.* are used, not {', '.join(unused)}"), err=True)
    texts, lines = {name: text for name, text, _ in used}, {name: line for name, _, line in used}
    return ClientFile(file, texts, lines)
