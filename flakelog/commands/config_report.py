"""The output of `flakelog server --check-config` and `--print-config`."""

from typing import TYPE_CHECKING

import click

from flakelog.commands.terminal import count_of

if TYPE_CHECKING:
    from flakelog.settings import Properties, Settings, Verdict
    from idgen.settings import InvalidSetting


def print_verdicts(properties: "Properties") -> bool:
    """Print each property with its verdict and reason; return True if a server would start with them."""
    from flakelog.settings import HONOURED, IGNORED, REFUSED, UNKNOWN

    verdicts = [_by_value(each) for each in properties.verdicts]
    together = _wrong_together(properties, verdicts)
    counts = dict.fromkeys((HONOURED, IGNORED, REFUSED, UNKNOWN), 0)
    for each in verdicts:
        if together is not None and each.target == together.name:
            each, together = each._replace(standing=REFUSED, reason=_wanted(together)), None
        counts[each.standing] += 1
        why = f"  ({each.reason})" if each.reason else ""
        click.echo(f"{each.standing:9} {each.given.name}={each.given.text}{why}")
    if together is not None:  # about a setting that is not given, but follows from others
        click.echo(f"{REFUSED:9} {together}")
    parts = ", ".join(f"{number} {standing}" for standing, number in counts.items() if number)
    click.echo(f"{count_of(len(verdicts), 'setting')}: {parts or 'all defaults'}", err=True)
    return together is None and not counts[REFUSED] and not counts[UNKNOWN]


def _by_value(verdict: "Verdict") -> "Verdict":
    """Return the verdict; an honoured setting with an invalid value is refused."""
    from flakelog.settings import HONOURED, REFUSED, wrong_with

    wrong = wrong_with(verdict.target, verdict.text) if verdict.standing == HONOURED else None
    return verdict if wrong is None else verdict._replace(standing=REFUSED, reason=wrong, target="")


def _wrong_together(properties: "Properties", verdicts: "list[Verdict]") -> "InvalidSetting | None":
    """Return the error of values that are valid one by one but not together, else None.

    The values are not checked together if one of them alone is invalid.
    """
    from flakelog.settings import HONOURED, Settings
    from idgen.settings import InvalidSetting

    honoured = {each.target for each in verdicts if each.standing == HONOURED}
    if properties.texts.keys() - honoured:
        return None
    try:
        Settings(properties.texts)
    except InvalidSetting as error:
        return error
    return None


def _wanted(error: "InvalidSetting") -> str:
    """Return the error's message without the setting and the value, which the line already shows."""
    return str(error).partition(": ")[2]


def print_values(settings: "Settings", origins: "dict[str, str]") -> None:
    """Print the value of every setting, as a properties file, with its origin."""
    from broker.settings.config_entries import is_secret
    from flakelog.settings import known, of_one_listener

    for name, setting in sorted(known().items()):
        value = settings.value_of(setting)
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        text = "(hidden)" if text and is_secret(name) else text
        click.echo(f"{name}={text}  # {origins.get(name, 'default')}")
    for name in filter(of_one_listener, sorted(settings.properties)):
        click.echo(f"{name}={settings.properties[name]}  # {origins.get(name, 'default')}")
