"""Settings of one listener: `listener.name.NAME.x` sets x for the listener NAME, and `x` sets it for all others."""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager

from idgen.settings import InvalidSetting

LISTENER_PREFIX = "listener.name."


def split_name(name: str) -> tuple[str, str] | None:
    """Return ("INSIDE", "x.y") for "listener.name.inside.x.y", None for a name of no listener."""
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
