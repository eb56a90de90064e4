"""Settings: the tools that make frozen configuration classes, for all packages.

Every `*Config` class is a frozen dataclass whose fields are made by `setting`. A field's name is its property's name in
snake_case (`log.segment.bytes` is `log_segment_bytes`), without a leading `flakelog.`. Properties arrive as text, are
parsed by the field's type, and are validated once, when the object is made.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from typing import Any, NamedTuple, Self, TypeVar, get_type_hints

from coordination.errors import FlakelogError

T = TypeVar("T")
Check = Callable[[Any], str | None]  # returns what would be valid, or None if the value is


class InvalidSetting(FlakelogError, ValueError):
    """A setting with a value that cannot work; the message has the setting, the value, and what would be valid."""

    value: object = None
    wanted = ""

    def __init__(self, name: str, value: object, wanted: str) -> None:
        super().__init__(f"{name}={value}: {wanted}")
        self.name = name
        self.value = value
        self.wanted = wanted

    def at(self, origin: str) -> Self:
        """Return this error with the place where the setting was given in its message, as "server.properties:12"."""
        self.args = (f"{self} ({origin})",)
        return self


class Setting(NamedTuple):
    """A setting as shown by the documentation and the command line."""

    name: str
    field: str
    type: Any
    default: Any
    doc: str
    unit: str | None
    check: Check | None

    @property
    def kind(self) -> Any:
        """Return the type without None, which some settings allow too."""
        members = getattr(self.type, "__args__", ())
        return next(kind for kind in members if kind is not type(None)) if type(None) in members else self.type


def setting(name: str, default: T, doc: str, *, check: Check | None = None, unit: str | None = None) -> T:
    """Make a field of a frozen configuration dataclass, from its property name, default, description and check."""
    made: T = field(default=default, metadata={"name": name, "doc": doc, "check": check, "unit": unit})
    return made


def at_least(least: float) -> Check:
    return lambda value: None if value >= least else f"must be at least {least}"


def between(least: float, most: float) -> Check:
    return lambda value: None if least <= value <= most else f"must be between {least} and {most}"


def one_of(*allowed: str) -> Check:
    return lambda value: None if value in allowed else f"must be one of {', '.join(filter(None, allowed))}"


def an_address(value: str) -> str | None:
    """Validate host:port or an empty string; return what would be valid, or None."""
    host, colon, port = value.rpartition(":")
    good = bool(colon and host) and port.isascii() and port.isdigit() and int(port) < 65536
    return None if not value or good else "must be host:port (port 0 takes a free one), or empty"


def split_address(value: str) -> tuple[str, int] | None:
    """Split "host:port" into a pair; return None for an empty string."""
    if not value:
        return None
    host, _, port = value.rpartition(":")
    return host.strip("[]"), int(port)


_settings_by_class: dict[type, tuple[Setting, ...]] = {}


def settings_of(config: type) -> tuple[Setting, ...]:
    """Return all settings of a configuration class, in the order of its fields."""
    if config not in _settings_by_class:  # cached, because each topic of a request needs them
        _settings_by_class[config] = tuple(_read_settings(config))
    return _settings_by_class[config]


def _read_settings(config: type) -> Iterator[Setting]:
    types = get_type_hints(config)
    return (
        Setting(
            f.metadata["name"],
            f.name,
            types[f.name],
            f.default,
            f.metadata["doc"],
            f.metadata["unit"],
            f.metadata["check"],
        )
        for f in fields(config)
        if "name" in f.metadata
    )


def check_settings(config: object) -> None:
    """Run each field's check; a configuration calls this from __post_init__. InvalidSetting for the first bad value."""
    for f in fields(config):  # type: ignore[arg-type]
        check: Check | None = f.metadata.get("check")
        value = getattr(config, f.name)
        try:
            wanted = check(value) if check and value is not None else None
        except TypeError:
            kind = next(s.kind for s in settings_of(type(config)) if s.field == f.name)
            wanted = f"must be {_in_words(kind)}, not {type(value).__name__}"
        if wanted:
            raise InvalidSetting(f.metadata["name"], value, wanted)


def from_properties(config: type[T], properties: Mapping[str, str]) -> T:
    """Make a configuration from properties as text, and ignore those of other classes. InvalidSetting."""
    given = {s.field: parse_setting(s, properties[s.name]) for s in settings_of(config) if s.name in properties}
    return config(**given)


def parse_setting(setting: Setting, text: str) -> Any:
    """Parse one property's text by its field's type: int, float, bool, str, or one of them or None. InvalidSetting."""
    text = text.strip()
    kind = setting.kind
    if kind is not setting.type and text in ("", "none"):
        return None
    if kind is bool:
        return parse_bool(setting.name, text)
    try:
        return kind(text)
    except ValueError:
        raise InvalidSetting(setting.name, text, f"must be {_in_words(kind)}") from None


def _in_words(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "text"}.get(kind, f"a {kind.__name__}")


def parse_bool(name: str, text: str) -> bool:
    """Parse the text of the property `name`. InvalidSetting."""
    if text.lower() not in ("true", "false"):
        raise InvalidSetting(name, text, "must be true or false")
    return text.lower() == "true"
