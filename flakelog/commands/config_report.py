"""The output of `flakelog server --check-config` and `--print-config`."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.terminal import count_of, print_json
from flakelog.settings import (
    CONFIGS,
    HONOURED,
    IGNORED,
    REFUSED,
    UNKNOWN,
    Verdict,
    check_inter_broker,
    listener_limits,
    listener_sasl,
    masked,
    of_one_listener,
    port_tls,
    server_settings,
    wrong_with,
)
from idgen.settings import InvalidSetting, from_properties

if TYPE_CHECKING:
    from flakelog.settings import Properties, Settings

# Settings whose meaning follows from `listeners`. They are not checked while `listeners` itself is refused.
OF_LISTENERS = (
    "advertised.listeners",
    "controller.listener.names",
    "inter.broker.listener.name",
    "security.inter.broker.protocol",
    "listener.security.protocol.map",
)


def print_verdicts(properties: "Properties", as_json: bool) -> bool:
    """Print each property with its verdict and reason; return True if a server would start with them."""
    verdicts, others = verdicts_of(properties)
    counts = dict.fromkeys((HONOURED, IGNORED, REFUSED, UNKNOWN), 0)
    for verdict in verdicts:
        counts[verdict.standing] += 1
        _print_verdict(verdict, as_json)
    for error in others:
        counts[REFUSED] += 1
        if as_json:
            print_json(_described(error.name, None, REFUSED, error.wanted, error.name, None))
        else:
            click.echo(f"{REFUSED:9} {error}")
    if not as_json:
        parts = ", ".join(f"{number} {standing}" for standing, number in counts.items() if number)
        click.echo(f"{count_of(len(verdicts), 'setting')}: {parts or 'all defaults'}", err=True)
    return not counts[REFUSED] and not counts[UNKNOWN]


def verdicts_of(properties: "Properties") -> tuple[list[Verdict], list[InvalidSetting]]:
    """Return the verdict on each property, with every error that the values have alone or together.

    The second list has the errors of settings that are not given, but follow from others.
    """
    verdicts = [_by_value(verdict) for verdict in properties.verdicts]
    texts = {verdict.target: verdict.text for verdict in verdicts if verdict.standing == HONOURED}
    listeners_refused = any(verdict.given.name == "listeners" and verdict.standing != HONOURED for verdict in verdicts)
    wrong: dict[str, InvalidSetting] = {}
    for error in _errors(texts, listeners_refused):
        wrong.setdefault(error.name, error)
    checked = []
    for verdict in verdicts:
        error_of_it = wrong.pop(verdict.target, None) if verdict.target else None
        if error_of_it is not None:
            verdict = verdict._replace(standing=REFUSED, reason=error_of_it.wanted)
        checked.append(verdict)
    return checked, list(wrong.values())


def _by_value(verdict: Verdict) -> Verdict:
    """Return the verdict; an honoured setting with an invalid value is refused."""
    wrong = wrong_with(verdict.target, verdict.text) if verdict.standing == HONOURED else None
    return verdict if wrong is None else verdict._replace(standing=REFUSED, reason=wrong, target="")


def _errors(texts: Mapping[str, str], listeners_refused: bool) -> Iterator[InvalidSetting]:
    """Yield the errors of values that are valid one by one but not together."""
    if listeners_refused:
        texts = _without_listeners(texts)
    for config in CONFIGS:
        for error in _errors_of(partial(from_properties, config), texts):
            yield error
            listeners_refused = listeners_refused or error.name == "listeners"
    if not listeners_refused:
        yield from _errors_of(lambda given: listener_limits(given, given.get("listeners")), texts)
        yield from _errors_of(port_tls, texts)
        yield from _errors_of(listener_sasl, texts)
        yield from _errors_of(check_inter_broker, texts)


def _errors_of(make: Callable[[Mapping[str, str]], object], texts: Mapping[str, str]) -> Iterator[InvalidSetting]:
    """Yield all errors of `make`, which raises the first: each setting with an error is left out for the next try."""
    remaining = dict(texts)
    while True:
        try:
            make(remaining)
            return
        except InvalidSetting as error:
            yield error
            if remaining.pop(error.name, None) is None:
                return
            if error.name == "listeners":
                remaining = _without_listeners(remaining)


def _without_listeners(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if name not in OF_LISTENERS and name != "listeners"}


def _print_verdict(verdict: Verdict, as_json: bool) -> None:
    given = verdict.given
    value = masked(given.name, given.text)
    if as_json:
        target = verdict.target or None
        print_json(_described(given.name, value, verdict.standing, verdict.reason, target, given.origin))
        return
    why = f"  ({verdict.reason})" if verdict.reason else ""
    why += f"  ({given.origin})" if verdict.standing in (REFUSED, UNKNOWN) else ""
    click.echo(f"{verdict.standing:9} {given.name}={value}{why}")


def _described(
    name: str, value: str | None, standing: str, reason: str, setting: str | None, origin: str | None
) -> dict[str, Any]:
    """Return a verdict as JSON has it; `setting` is the name of the setting that the property sets."""
    row = {"name": name, "value": value, "standing": standing, "reason": reason or None}
    return row | {"setting": setting, "from": origin}


def print_values(settings: "Settings", origins: "dict[str, str]", as_json: bool) -> None:
    """Print the value of every setting, as a properties file, with its origin."""
    for name, setting in sorted(server_settings().items()):
        value = settings.value_of(setting)
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        _print_value(name, masked(name, text) if text else text, origins, as_json)
    for name in filter(of_one_listener, sorted(settings.properties)):
        _print_value(name, masked(name, settings.properties[name]), origins, as_json)


def _print_value(name: str, text: str, origins: "dict[str, str]", as_json: bool) -> None:
    origin = origins.get(name, "default")
    if as_json:
        print_json({"name": name, "value": text, "from": origin})
    else:
        click.echo(f"{name}={text}  # {origin}")
