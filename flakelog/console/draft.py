"""A message as a form describes it: partition, key, value and headers, as UTF-8 text."""

from collections.abc import Sequence
from typing import NamedTuple

from broker.record.records import Headers
from flakelog.console import text
from flakelog.console.messages import HEADERS_SHOWN
from flakelog.console.visit import BadField, Fields
from flakelog.produce import parse_header

# In UTF-8, with two bytes for a line break. A form has three bytes for each, and the HTTP port takes 64 KiB of it.
KEY_BYTES_MAX = 1 << 10
VALUE_BYTES_MAX = 16 << 10
HEADERS_BYTES_MAX = 4 << 10


class Draft(NamedTuple):
    """A message to send. Without `partition`, the key selects it."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers

    def rows(self) -> Sequence[list[str]]:
        """Return rows of a plan: the name of a part, and what it has."""
        value = "null: a tombstone" if self.value is None else _summary(self.value)
        rows = [["Key", _summary(self.key)], ["Value", value]]
        rows += [[f"Header {name[:200]}", _summary(header)] for name, header in self.headers[:HEADERS_SHOWN]]
        more = len(self.headers) - HEADERS_SHOWN
        return [*rows, [f"and {more:,} more headers", ""]] if more > 0 else rows


def draft_of(topic: str, fields: Fields) -> Draft:
    """Return the message that a form describes. Raise BadField, whose text tells nothing of value and headers.

    A form ends each line with CR LF, and a message gets LF. An empty key is none; only `tombstone` makes a value null.
    """
    partition = fields.number("partition") if fields.text("partition").strip() else None
    key = _part(fields, "key", KEY_BYTES_MAX)
    value = _part(fields, "value", VALUE_BYTES_MAX)
    headers = _headers(_part(fields, "headers", HEADERS_BYTES_MAX))
    is_tombstone = bool(fields.text("tombstone"))
    if is_tombstone and value:
        raise BadField("a tombstone has no value; delete the value, or do not choose the tombstone")
    return Draft(topic, partition, key.encode() or None, None if is_tombstone else value.encode(), headers)


def _part(fields: Fields, name: str, bytes_max: int) -> str:
    text = fields.exact(name, "; `flakelog produce` sends any bytes")
    size = len(text.encode())
    if size > bytes_max:
        wanted = f"{bytes_max:,} bytes, a line break as two; `flakelog produce` sends longer ones"
        raise BadField(f"{name} has {size:,} bytes; a form sends at most {wanted}")
    return text.replace("\r\n", "\n")


def _headers(lines: str) -> Headers:
    headers = []
    for number, line in enumerate(lines.split("\n"), 1):
        if not line:
            continue
        try:
            headers.append(parse_header(line))
        except ValueError:
            raise BadField(f"line {number} of the headers has no name; give NAME=VALUE, one a line") from None
    return tuple(headers)


def _summary(data: bytes | None) -> str:
    shown = text.shown(data)
    return f"{shown.summary} ({text.size(shown.size)})" if data else shown.summary
