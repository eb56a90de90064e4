"""Fields of JSON documents that others wrote: a value of another type than expected counts as missing."""

from collections.abc import Mapping
from typing import Any

TEXT_CHARACTERS_MAX = 500


def text_of(value: Any) -> str:
    """Return a text or a number as text of at most TEXT_CHARACTERS_MAX, fit for UTF-8; "" for another value."""
    if not isinstance(value, (str, int, float)):
        return ""
    return str(value)[:TEXT_CHARACTERS_MAX].encode(errors="replace").decode()


def number_of(value: Any) -> float | None:
    """Return a number, None for any other value."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 63
    return value if is_number else None


def whole_of(value: Any) -> int | None:
    """Return a whole number, None for any other value."""
    return value if isinstance(value, int) and number_of(value) is not None else None


def list_of(value: Any) -> list[Any]:
    """Return a list, an empty one for any other value."""
    return value if isinstance(value, list) else []


def mapping_of(value: Any) -> Mapping[str, Any]:
    """Return a mapping, an empty one for any other value."""
    return value if isinstance(value, Mapping) else {}


def mappings_of(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings in a list."""
    return [item for item in list_of(value) if isinstance(item, Mapping)]
