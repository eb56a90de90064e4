"""The values of options: whole numbers, flags, JSON. Each function names the option in its OptionError."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from spark_bridge.selection.option_table import OptionError

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
DIGITS_MAX = 19  # of LONG_MAX

_Value = TypeVar("_Value")


def number(given: Mapping[str, str], name: str, default: int, least: int = 0, most: int = LONG_MAX) -> int:
    text = given.get(name, str(default)).strip()
    if not _is_number(text) or not least <= int(text) <= most:
        raise OptionError(f"{name} is a whole number from {least} to {most}; got {text!r}")
    return int(text)


def positive(given: Mapping[str, str], name: str, most: int = LONG_MAX) -> int:
    """Return a number that is at least 1, or 0 if the option is not given."""
    return number(given, name, 1, 1, most) if name in given else 0


def flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    return word(given, name, ("true", "false"), str(default).lower()) == "true"


def word(given: Mapping[str, str], name: str, words: tuple[str, ...], default: str) -> str:
    """Return one of `words`, which are lower case; the option may have any case."""
    text = given.get(name, default).strip().lower()
    if text not in words:
        raise OptionError(f"{name} is {' or '.join(words)}; got {given[name]!r}")
    return text


def from_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name} is no JSON: {error}") from None


def by_partition(name: str, text: str, form: str) -> dict[str, dict[int, int]]:
    """Return {topic: {partition: whole number}} from JSON; `form` describes it in the error."""
    value = from_json(name, text)
    try:
        return {
            topic: {_partition(p): _whole(offset) for p, offset in offsets.items()} for topic, offsets in value.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise OptionError(f"{name} is {form}; got {text}") from None


def made(name: str, value: Any, make: Callable[[Any], _Value]) -> _Value:
    """Return `make(value)`; its ValueError becomes an OptionError that names the option."""
    try:
        return make(value)
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None


def _partition(text: str) -> int:
    if not _is_number(text) or int(text) > INT_MAX:
        raise ValueError(f"{text!r} is no partition")
    return int(text)


def _whole(value: Any) -> int:
    """Return a whole number of JSON. Raise TypeError for 1.7, true and "17", which the connector refuses too.

    Raise ValueError for a number of more than 64 bits.
    """
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    if abs(value) > LONG_MAX:
        raise ValueError("a number has more than 64 bits")
    return value


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
