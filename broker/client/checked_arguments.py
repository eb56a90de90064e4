"""Checks of arguments that several classes of the client share. Errors name the argument and what would be right."""

from collections.abc import Iterable, Mapping
from operator import index

INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1


def check_number(name: str, number: object, least: int = 0, most: int = INT64_MAX) -> int:
    """Return a whole number, which may be numpy's. Raise ValueError for another type, a bool, or another size."""
    if hasattr(number, "__index__") and not isinstance(number, bool) and least <= index(number) <= most:
        return index(number)
    wanted = f"of at least {least}" if most == INT64_MAX else f"from {least} to {most}"
    raise ValueError(f"{name}={number!r}: give a whole number {wanted}")


def check_function(name: str, function: object) -> None:
    """Raise TypeError for what cannot be called."""
    if not callable(function):
        raise TypeError(f"{name}={function!r}: give a function")


def check_names(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return several names. Raise TypeError for one text, whose characters would be the names."""
    if isinstance(names, str):
        raise TypeError(f"{name}={names!r}: give several names, such as [{names!r}]")
    return tuple(names)


def check_settings(values: Mapping[str, object]) -> None:
    """Raise TypeError for settings that are no text; None as a value stands for a default."""
    for name, value in values.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise TypeError(f"{name}={value!r}: give the name and the value as text, such as {str(value)!r}")
