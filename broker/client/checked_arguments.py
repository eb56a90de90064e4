"""Checks of arguments that several classes of the client share. Errors name the argument and what would be right."""

INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1


def check_number(name: str, number: object, least: int = 0, most: int = INT64_MAX) -> int:
    """Return a whole number. Raise ValueError for another type, True and False too, and for one out of these limits."""
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        wanted = f"of at least {least}" if most == INT64_MAX else f"from {least} to {most}"
        raise ValueError(f"{name}={number!r}: give a whole number {wanted}")
    return number


def check_function(name: str, function: object) -> None:
    """Raise TypeError for what cannot be called."""
    if not callable(function):
        raise TypeError(f"{name}={function!r}: give a function")
