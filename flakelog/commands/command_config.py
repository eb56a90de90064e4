"""The option --command-config: a file of properties of a Kafka client, for brokers that ask for TLS or a login.

It is the file that Kafka's tools take. The client of `client_of` heeds it; other clients take `given_security`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.exit_codes import WrongSettings
from flakelog.visible_text import visible

if TYPE_CHECKING:
    from broker.client.security.client_security import ClientSecurity

_KEY, _PROPERTIES = "flakelog.security", "flakelog.security.properties"
_PROVIDERS = "config.providers"  # Kafka has to name them; here they are always there
CONFIG_FILE: click.Path = click.Path(exists=True, dir_okay=False, path_type=Path)
Command = Callable[..., Any]


def security_option(command: Command) -> Command:
    """Add --command-config, which `given_security` returns."""
    option = click.option(
        "--command-config",
        type=CONFIG_FILE,
        envvar="FLAKELOG_COMMAND_CONFIG",
        show_envvar=True,
        metavar="FILE",
        callback=_keep,
        expose_value=False,
        help="Properties of a Kafka client for TLS and logins: security.protocol, ssl.*, sasl.*.",
    )
    made: Command = option(command)
    return made


def given_security(context: click.Context | None = None) -> "ClientSecurity | None":
    """Return the security of the command's clients, None for plain connections without a login."""
    context = click.get_current_context(silent=True) if context is None else context
    return None if context is None else context.meta.get(_KEY)


def given_properties() -> dict[str, str]:
    """Return the properties of the command's clients as they stand in the file, with their references; {} without one.

    For programs on other machines, which make clients of them there.
    """
    context = click.get_current_context(silent=True)
    return {} if context is None else dict(context.meta.get(_PROPERTIES, {}))


def _keep(context: click.Context, parameter: click.Parameter, file: Path | None) -> None:
    if file is not None:
        context.meta[_PROPERTIES] = properties = _read(file)
        context.meta[_KEY] = _security_of(file, properties)


def read_security(file: Path) -> "ClientSecurity | None":
    """Return the security in a file of properties. Name those on stderr that are not used. Raise WrongSettings."""
    return _security_of(file, _read(file))


def _security_of(file: Path, properties: dict[str, str]) -> "ClientSecurity | None":
    from broker.client.security.client_security import ClientSecurity
    from idgen.settings import InvalidSetting

    try:
        return ClientSecurity.of(properties)
    except InvalidSetting as error:
        raise WrongSettings(f"{file}: {error}") from None


def _read(file: Path) -> dict[str, str]:
    """Return the properties of security in a file."""
    from broker.client.security.settings import is_of_security
    from idgen.properties import parse_properties
    from idgen.settings import InvalidSetting

    try:
        properties = {name: text for name, text, _ in parse_properties(file.read_text(encoding="utf-8"), str(file))}
    except InvalidSetting as error:
        raise WrongSettings(f"{error.name}: {error.wanted}") from None  # the value may be a secret
    except (OSError, UnicodeDecodeError) as error:
        raise WrongSettings(f"{file} cannot be read: {error}") from None
    unused = [name for name in properties if not is_of_security(name) and not name.startswith(_PROVIDERS)]
    if unused:
        click.echo(visible(f"{file}: only security.*, ssl.* and sasl.* are used, not {', '.join(unused)}"), err=True)
    return {name: text for name, text in properties.items() if is_of_security(name)}
