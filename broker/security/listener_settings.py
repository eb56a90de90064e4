"""Settings of one listener: `listener.name.NAME.x` sets x for the listener NAME, and `x` sets it for all others.

The HTTP port and the id service are no listeners of Kafka's. Their TLS is set in the same way under their own prefixes:
`flakelog.http.ssl.x` and `flakelog.ids.ssl.x` go before `ssl.x`. Here they are the listeners `http` and `ids`, which no
listener of Kafka's is, because the names of those are in upper case.
"""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager

from idgen.settings import InvalidSetting

LISTENER_PREFIX = "listener.name."
HTTP, IDS = "http", "ids"
PORTS = (HTTP, IDS)
_OF_TLS = "ssl."


def port_setting(port: str, name: str) -> str:
    """Return the name that sets `ssl.x` for one port: flakelog.http.ssl.x."""
    return f"flakelog.{port}.{name}"


def split_name(name: str) -> tuple[str, str] | None:
    """Return ("INSIDE", "x.y") for "listener.name.inside.x.y", None for a name of no listener.

    "flakelog.http.ssl.x" is ("http", "ssl.x"), and "flakelog.ids.ssl.x" is ("ids", "ssl.x").
    """
    for port in PORTS:
        if name.startswith(port_setting(port, _OF_TLS)):
            return port, name.removeprefix(port_setting(port, ""))
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener, _, own = name.removeprefix(LISTENER_PREFIX).partition(".")
    return listener.upper(), own


def names_of_listener(listener: str, properties: Mapping[str, str], settings: Container[str]) -> dict[str, str]:
    """Return the given names of a listener's own settings, listener.name.x.ssl.y, by the names without it, ssl.y."""
    names = {}
    for name in properties:
        parts = split_name(name)
        if parts is not None and parts[0] == listener and parts[1] in settings:
            names[parts[1]] = name
    return names


def properties_of_listener(
    listener: str, properties: Mapping[str, str], settings: Container[str]
) -> dict[str, str]:
    """Return the properties with the listener's own in place of those of all."""
    own = names_of_listener(listener, properties, settings)
    return {**properties, **{name: properties[given] for name, given in own.items()}}


@contextmanager
def errors_as_given(listener: str, properties: Mapping[str, str], settings: Container[str]) -> Iterator[None]:
    """Let an InvalidSetting name the setting as it was given: under the listener's own name, or that for all."""
    try:
        yield
    except InvalidSetting as error:
        own = names_of_listener(listener, properties, settings)
        raise InvalidSetting(own.get(error.name, error.name), error.value, error.wanted) from None
