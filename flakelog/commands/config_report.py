"""What `flakelog server --check-config` and `--print-config` print."""

from typing import TYPE_CHECKING

import click

from flakelog.commands.terminal import count_of

if TYPE_CHECKING:
    from flakelog.settings import Properties, Settings, Verdict


def print_verdicts(properties: "Properties") -> bool:
    """Each property with what becomes of it and why; whether a server would start with them."""
    from flakelog.settings import HONOURED, IGNORED, REFUSED, UNKNOWN, Settings
    from idgen.config import InvalidSetting

    counts = dict.fromkeys((HONOURED, IGNORED, REFUSED, UNKNOWN), 0)
    for each in properties.verdicts:
        standing, reason = _standing(each)
        counts[standing] += 1
        why = f"  ({reason})" if reason else ""
        click.echo(f"{standing:9} {each.given.name}={each.given.text}{why}")
    good = not counts[REFUSED] and not counts[UNKNOWN]
    if good:
        try:
            Settings(properties.texts)
        except InvalidSetting as error:
            click.echo(f"{REFUSED:9} {error}")
            good = False
    parts = ", ".join(f"{number} {standing}" for standing, number in counts.items() if number)
    click.echo(f"{count_of(len(properties.verdicts), 'setting')}: {parts or 'all defaults'}", err=True)
    return good


def _standing(verdict: "Verdict") -> tuple[str, str]:
    """An honoured setting with a value that cannot be is refused."""
    from flakelog.settings import HONOURED, REFUSED, wrong_with

    if verdict.standing == HONOURED:
        wrong = wrong_with(verdict.target, verdict.text)
        if wrong is not None:
            return REFUSED, wrong
    return verdict.standing, verdict.reason


def print_values(settings: "Settings", origins: "dict[str, str]") -> None:
    """Every setting's value, as a properties file, with where it comes from."""
    from flakelog.settings import known

    for name, setting in sorted(known().items()):
        value = settings.value_of(setting)
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        click.echo(f"{name}={text}  # {origins.get(name, 'default')}")
