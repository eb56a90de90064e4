"""Values of tuples as Storm carries them, so that each comes back equal and with its type.

Storm's workers exchange JSON's text, integers, true, false and null as they are. They do not exchange arrays, objects
or long fractions unless classes are registered (`topology.kryo.register`), and JSON has no bytes. So every other value
travels as text that begins with `~` and a letter:

    ~~...   text that itself begins with ~
    ~b...   bytes that are UTF-8, as text          ~x...   other bytes, in base64
    ~f...   a float, as Python writes it           ~u...   text with unpaired surrogates, in base64
    ~j...   JSON: lists, dicts, and {"~": [kind, content]} for tuples, sets, dates, times, Decimals and UUIDs

A value of a class derived from one of these is refused, because it would come back without its class.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from json.encoder import encode_basestring
from reprlib import repr as short
from typing import Any
from uuid import UUID

MARK = "~"
ALLOWED = (
    "Storm carries None, bool, int, float, str, bytes, date, time, datetime, timedelta, Decimal, UUID, and lists, "
    "tuples, sets and dicts of them, but no classes derived from these"
)

_inner_dumps = json.JSONEncoder(separators=(",", ":")).encode


class NoStormValue(TypeError):
    """A value that Storm cannot carry."""


def json_of(value: Any) -> str:
    """Return a value as JSON for Storm. Raise NoStormValue, or ValueError for a value that is too large or too deep."""
    encode = _ENCODERS.get(value.__class__)
    return encode(value) if encode is not None else _no_value(value)


def grouping_json_of(value: Any) -> str:
    """Return a value as JSON that is the same for equal values, so that Storm groups them together.

    1, 1.0 and True are equal. The result may have lost the type of the value. Raise NoStormValue if it is no value to
    group by, as in the embedded engine.
    """
    return json_of(_canonical(value))


def value_of(wire: Any) -> Any:
    """Return the value of what `json_of` made, as read from JSON. Raise ValueError if it is not such."""
    if wire.__class__ is not str or wire[:1] != MARK:
        return wire
    decode = _DECODERS.get(wire[1:2])
    if decode is None:
        raise ValueError(f"{short(wire)} is no value that Flakelog wrote")
    return decode(wire[2:])


def values_of(wires: Sequence[Any]) -> list[Any]:
    """Return the values of a tuple; see `value_of`."""
    return [value_of(wire) if wire.__class__ is str and wire[:1] == MARK else wire for wire in wires]


# --- text for Storm


def _no_value(value: Any) -> str:
    raise NoStormValue(f"{short(value)} of type {type(value).__name__}: {ALLOWED}")


def _text(value: str) -> str:
    if value.isascii() and value[:1] != MARK:
        return encode_basestring(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        return f'"{MARK}u{b64encode(value.encode(errors="surrogatepass")).decode()}"'
    return encode_basestring(value) if value[:1] != MARK else f'"{MARK}' + encode_basestring(value)[1:]


def _bytes(value: bytes) -> str:
    try:
        return f'"{MARK}b' + encode_basestring(value.decode())[1:]
    except UnicodeDecodeError:
        return f'"{MARK}x{b64encode(value).decode()}"'


def _structure(value: Any) -> str:
    try:
        return encode_basestring(f"{MARK}j{_inner_dumps(_inner(value))}")
    except RecursionError:
        raise ValueError(f"{short(value)} is nested too deep for JSON") from None


_ENCODERS: dict[type, Callable[[Any], str]] = {
    str: _text,
    int: int.__repr__,
    type(None): lambda value: "null",
    bool: lambda value: "true" if value else "false",
    bytes: _bytes,
    float: lambda value: f'"{MARK}f{value!r}"',
    list: _structure,
    dict: _structure,
}


def _inner(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    kind = value.__class__
    if kind in (str, int, float, bool, type(None)):
        return value
    if kind is list:
        return [_inner(element) for element in value]
    if kind is dict:
        if MARK not in value and all(key.__class__ is str for key in value):
            return {key: _inner(content) for key, content in value.items()}
        return {MARK: ["dict", [[_inner(key), _inner(content)] for key, content in value.items()]]}
    to_inner = _TO_INNER.get(kind)
    if to_inner is None:
        _no_value(value)
    return {MARK: [kind.__name__, to_inner(value)]}  # type: ignore[misc]


_TO_INNER: Mapping[type, Callable[[Any], Any]] = {
    tuple: lambda value: [_inner(element) for element in value],
    set: lambda value: [_inner(element) for element in value],
    frozenset: lambda value: [_inner(element) for element in value],
    bytes: lambda value: b64encode(value).decode(),
    date: date.isoformat,
    time: time.isoformat,
    datetime: datetime.isoformat,
    timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    Decimal: str,
    UUID: str,
}
_ENCODERS |= {kind: _structure for kind in _TO_INNER if kind not in _ENCODERS}


def _canonical(value: Any) -> Any:
    """Return the value that stands for all that are equal to it."""
    kind = value.__class__
    if kind is bool or (kind is float and value.is_integer()):
        return int(value)
    if kind is tuple:
        return tuple([_canonical(element) for element in value])
    if kind in (str, bytes, int, float, type(None)):
        return value
    wanted = "a field to group by is text, bytes, a number, None or a tuple of them"
    raise NoStormValue(f"cannot group by {short(value)}: {wanted}")


# --- text from Storm


def _of_inner(members: dict[str, Any]) -> Any:
    """Return the value of a JSON object; objects and arrays in it are values already."""
    if MARK not in members:
        return members
    kind, content = members[MARK]
    return _FROM_INNER[kind](content)


_FROM_INNER: Mapping[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "bytes": b64decode,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "datetime": datetime.fromisoformat,
    "timedelta": lambda content: timedelta(*content),
    "Decimal": Decimal,
    "UUID": UUID,
}

_inner_loads = json.JSONDecoder(object_hook=_of_inner).decode

_DECODERS: Mapping[str, Callable[[str], Any]] = {
    MARK: lambda text: MARK + text,
    "b": str.encode,
    "x": b64decode,
    "u": lambda text: b64decode(text).decode(errors="surrogatepass"),
    "f": float,
    "j": _inner_loads,
}
