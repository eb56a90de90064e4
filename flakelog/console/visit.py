"""A request as the console's pages see it: fields of the query or of the form, and the headers that decide."""

from collections.abc import Mapping, Sequence

from broker.client.errors import ClientError
from coordination.errors import quoted

FIELD_CHARACTERS_MAX = 32_768


class BadField(ValueError):
    """A field of a form or a query that cannot be used; the message says what would be right."""


class PageTimeout(ClientError):
    """The time of a page was over before everything was read."""


class Fields:
    """The fields of a query or a form, as text."""

    def __init__(self, args: Mapping[bytes, Sequence[bytes]]) -> None:
        self._args = {
            name.decode(errors="replace"): [value.decode(errors="replace") for value in values]
            for name, values in args.items()
        }
        self._odd = {name.decode(errors="replace") for name, values in args.items() if not _is_utf8(values[0])}

    def text(self, name: str, default: str = "") -> str:
        """Return a field's first value."""
        value = self._args.get(name, [default])[0]
        if len(value) > FIELD_CHARACTERS_MAX:
            raise BadField(f"{name} is longer than {FIELD_CHARACTERS_MAX:,} characters")
        return value

    def exact(self, name: str, instead: str = "") -> str:
        """Return a field's first value, every byte of it. Raise BadField if it is no UTF-8, or has a NUL.

        The pages of HTML, which bring a field back, cannot have a NUL. `instead` tells, in the error, what takes both.
        """
        value = self.text(name)
        if name in self._odd or "\0" in value:
            raise BadField(f"{name} is no UTF-8 text without NULs{instead}")
        return value

    def number(self, name: str, default: int = 0) -> int:
        """Return a field as a number from 0 to 2**63 - 1. Raise BadField."""
        value = self.text(name).strip().replace(",", "")
        if not value:
            return default
        if not (value.isascii() and value.isdigit() and len(value) <= 19 and int(value) < 1 << 63):
            raise BadField(f"{name} is {quoted(value)}; give a number from 0 to 2**63 - 1")
        return int(value)

    def every(self, name: str) -> list[str]:
        """Return all values of a field."""
        self.text(name)
        return list(self._args.get(name, ()))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
