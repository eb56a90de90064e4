r"""How `flakelog consume` prints records: as lines, as JSON, or by a format with kcat's tokens.

    %s  value            %S  its length, -1 for null     %R  the same, as 4 bytes, big endian
    %k  key              %K  its length, -1 for null     %h  headers, as name=value,name=value
    %t  topic            %p  partition                   %o  offset
    %T  timestamp in ms  %i  Snowflake id, - for none    %%  a percent sign

The tokens are those of kcat's -f (https://github.com/edenhill/kcat), and %i.
"""

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.produce_input import unescape
from flakelog.commands.terminal import describe_id, iso

if TYPE_CHECKING:
    from broker.client.log_record import Record
    from idgen.layout import Layout

Formatter = Callable[["Record"], bytes]
TOKENS = "%s %S %R %k %K %h %t %p %o %T %i %%"


def _text_of(data: bytes | None, null: bytes) -> bytes:
    return null if data is None else data


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: "Record") -> bytes:
    return b",".join(name.encode() + b"=" + _text_of(value, b"NULL") for name, value in record.headers)


def _tokens(null: bytes) -> dict[str, Formatter]:
    """Return the function of each token; `null` is printed for null keys and values."""
    return {
        "s": lambda record: _text_of(record.value, null),
        "S": lambda record: b"%d" % _length(record.value),
        "R": lambda record: _length(record.value).to_bytes(4, "big", signed=True),
        "k": lambda record: _text_of(record.key, null),
        "K": lambda record: b"%d" % _length(record.key),
        "h": _headers,
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp_ms,
        "i": lambda record: b"-" if record.id is None else b"%d" % record.id,
        "%": lambda record: b"%",
    }


def by_format(text: str, null: bytes = b"") -> Formatter:
    r"""Return the function that prints a record by a format; raise ValueError for an unknown token or escape.

    The format has the escapes of `unescape`. Nothing is added behind it: a line ends with \n.
    """
    tokens = _tokens(null)
    head, *rest = text.replace("%%", "%\0").split("%")
    parts: list[Formatter] = [_constant(head)]
    for tail in rest:
        name = "%" if tail[:1] == "\0" else tail[:1]
        if not name or name not in tokens:
            raise ValueError(f"%{tail[:1]} is no token of a format; there are {TOKENS}")
        parts += (tokens[name], _constant(tail[1:]))
    return lambda record: b"".join(part(record) for part in parts)


def _constant(text: str) -> Formatter:
    data = unescape(text)
    return lambda record: data


def by_lines(
    delimiter: bytes, key_separator: bytes | None, null: bytes, layout: "Layout | None", with_topic: bool
) -> Formatter:
    """Return the function that prints a record's value; with a `layout` its place and id go before it."""

    def line(record: "Record") -> bytes:
        where = b""
        if layout is not None:
            when = None if record.id is None else iso(layout.unpack(record.id).time_ms)
            topic = f"{record.topic}  " if with_topic else ""
            where = f"{topic}{record.partition}  {record.offset}  {record.id or '-'}  {when or '-'}  ".encode()
        key = b"" if key_separator is None else _text_of(record.key, null) + key_separator
        return where + key + _text_of(record.value, null) + delimiter

    return line


def by_json(layout: "Layout") -> Formatter:
    """Return the function that prints a record as a line of JSON."""
    return lambda record: json.dumps(described(record, layout), ensure_ascii=False).encode() + b"\n"


def described(record: "Record", layout: "Layout") -> dict[str, Any]:
    """Return a record as data for JSON.

    `id_time` is the time in the id; `timestamp` is the producer's or, with LogAppendTime, the log's.
    """
    fields: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    if record.id is not None:
        parts = describe_id(record.id, layout)
        fields |= {"id": parts["id"], "id_str": parts["id_str"], "id_time": parts["time"]}
    return fields | message_of(record)


def message_of(record: "Record") -> dict[str, Any]:
    """Return a record's timestamp, key, value and headers as data for JSON."""
    headers = [{"name": name, **as_text("value", value)} for name, value in record.headers]
    return {
        "timestamp": iso(record.timestamp_ms),
        **as_text("key", record.key),
        **as_text("value", record.value),
        "headers": headers,
    }


def as_text(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as text under `name`, or as base64 under `<name>_base64` if they are not UTF-8."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


class FormatType(click.ParamType[str]):
    """A format on the command line."""

    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            by_format(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)
