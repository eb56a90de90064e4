"""References to secrets that lie elsewhere, in the values of settings, as Kafka's config providers have them.

    ${file:/etc/flakelog/secrets.properties:password}    a property of a file (KIP-297)
    ${dir:/run/secrets:password}                         a whole file of a directory (KIP-421)
    ${env:ADA_PASSWORD}                                  a variable of the environment (KIP-887)

Kafka wants the providers named in `config.providers`; here these three are always there, by these names. Text with the
name of another provider stays as it is.
"""

import re
from collections.abc import Callable, Mapping

from idgen.properties import parse_properties
from idgen.settings import InvalidSetting

ReadText = Callable[[str], str]
"""Returns the text of a file. Raises OSError."""

_REFERENCE = re.compile(r"\$\{(file|dir|env):(?:([^}]*):)?([^}:]*)\}")
_HIDDEN = "(hidden)"


def has_reference(text: str) -> bool:
    """Return True if a value has a reference, so that it is no secret itself."""
    return _REFERENCE.search(text) is not None


def resolve(name: str, text: str, read: ReadText, environment: Mapping[str, str]) -> str:
    """Return the value of the setting `name` with what its references stand for. Raise InvalidSetting."""

    def value_of(match: re.Match[str]) -> str:
        provider, path, key = match.groups()
        try:
            return _value(provider, path, key, read, environment)
        except OSError as error:
            raise InvalidSetting(name, match[0], f"the file cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise InvalidSetting(name, match[0], "the file is no UTF-8 text") from None
        except KeyError:
            raise InvalidSetting(name, match[0], _missing(provider, path, key)) from None

    return _REFERENCE.sub(value_of, text)


def _value(provider: str, path: str | None, key: str, read: ReadText, environment: Mapping[str, str]) -> str:
    """Return a value. Raise KeyError if there is none, and OSError."""
    if provider == "env":
        return environment[key]
    if path is None:
        raise KeyError(key)
    if provider == "dir":
        if not key or key in (".", "..") or "/" in key:
            raise KeyError(key)
        return read(f"{path}/{key}").rstrip("\r\n")
    try:
        properties = parse_properties(read(path), path)
    except InvalidSetting as error:  # the value shows a line of the file
        raise InvalidSetting(error.name, _HIDDEN, error.wanted) from None
    return {property.name: property.text for property in properties}[key]


def _missing(provider: str, path: str | None, key: str) -> str:
    if provider == "env":
        return f"the environment has no {key}"
    if path is None:
        return "give ${file:FILE:KEY}, a property of a file, or ${dir:DIRECTORY:FILE}, the whole text of a file"
    return f"{path} has no property {key}" if provider == "file" else f"{key!r} is no name of a file in {path}"
