"""The codec of the cold APIs: all but Produce, Fetch and the broker's side of ListOffsets.

It works from the schema that `kio` generates from Kafka's definitions (`schema.py`). A handler sees each message in its
newest version only. `decode` lifts an older message to the newest class and fills the missing fields with the schema's
defaults. `encode` takes fields by name and writes those that the version has. If Kafka moved a field (FindCoordinator's
key became a list), the handler reads `original`, the message as sent.

kio's readers decode only messages without arrays. For an array they allocate memory for the claimed number of items
before they check that the items exist, and abort the process if the memory does not suffice. `Reader` decodes all
other messages, with kio's readers for single fields. It also skips unknown tagged fields, as KIP-482 requires, while
kio's readers fail on them. It keeps unknown top-level tags, because `tags.IDS` is one of them. `writer` encodes plain
fields without intermediate objects; kio's writers take several times as long. A test holds both to the same bytes.

`encode` takes times (`*_timedelta` and datetimes in kio) as integers in milliseconds.

A large message is decoded and encoded in slices (`broker.steps`), with the same result. Small messages, nearly all, are
not, because slices cost a little time.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.serial import entity_reader
from kio.serial.errors import DecodeError, InvalidUnicode

from broker.steps import Pace, Steps
from broker.wire.cold_reader import Reader, lift, lift_in_steps
from broker.wire.cold_writer import MILLISECOND, ShortMessage, write_in_steps, writer
from broker.wire.errors import OverLimit, WireError
from broker.wire.primitives import Buffer
from broker.wire.primitives import tags as tag_section
from broker.wire.request_limits import RequestLimits
from broker.wire.schema import Fields, Kind, SchemaClass, is_flat, names_of, schema

_DECODE_ERRORS = DecodeError, WireError, ValueError, OverflowError, IndexError, TypeError, struct.error


@dataclass(frozen=True, slots=True)
class Message:
    """A decoded message: lifted to the newest version, as sent, and its unknown top-level tags."""

    newest: Any
    original: Any
    tags: Mapping[int, Buffer]


def decode(
    api_key: int,
    version: int,
    kind: Kind,
    data: Buffer,
    position: int,
    newest: int,
    limits: RequestLimits | None = None,
) -> Message:
    """Decode a message from its body. Raise WireError if it is invalid or exceeds `limits`."""
    cls = schema(api_key, version, kind)
    data = memoryview(data).toreadonly()  # kio's readers accept no other type
    tags: Mapping[int, Buffer] = {}
    try:
        original = _read_flat(cls, data, position) if is_flat(cls) else None
        if original is None:
            original, tags = Reader(cls, limits).read(data, position)
    except _DECODE_ERRORS as error:
        raise _wire_error(cls, version, error) from None
    lifted = original if version == newest else lift(original, schema(api_key, newest, kind))
    return Message(lifted, original, tags)


def decode_in_steps(
    api_key: int, version: int, kind: Kind, data: Buffer, position: int, newest: int, limits: RequestLimits
) -> Steps[Message]:
    """Decode as `decode` does, in slices. `data` must stay valid until the last slice."""
    cls = schema(api_key, version, kind)
    try:
        original, tags = yield from Reader(cls, limits).read_in_steps(memoryview(data).toreadonly(), position)
    except _DECODE_ERRORS as error:
        raise _wire_error(cls, version, error) from None
    if version == newest:
        return Message(original, original, tags)
    lifted = yield from lift_in_steps(original, schema(api_key, newest, kind))
    return Message(lifted, original, tags)


def encode(api_key: int, version: int, kind: Kind, values: Fields, tags: dict[int, bytes] | None = None) -> bytes:
    """Encode a body from fields by name. Skip fields the version lacks; missing fields take the schema's default.

    Raise TypeError for a name that no version of the message has, or for None in a field that is not nullable. `tags`
    are added at the top level; this needs a flexible version of a message whose schema has no top-level tags.
    """
    cls = schema(api_key, version, kind)
    body = _write(cls, api_key, kind, values, bytearray())
    if not tags:
        return body
    assert cls.__flexible__ and body[-1] == 0, f"{cls.__name__} v{version} has no room for a tag"
    return body[:-1] + tag_section(tags)


def encode_short(api_key: int, version: int, kind: Kind, values: Fields) -> bytes:
    """Encode as `encode` does, without tags. Raise LargeMessage, soon, if that would take long."""
    return _write(schema(api_key, version, kind), api_key, kind, values, ShortMessage())


def _write(cls: SchemaClass, api_key: int, kind: Kind, values: Fields, out: bytearray) -> bytes:
    writer(cls, names_of(api_key, kind))(out, values)
    return bytes(out)


def encode_in_steps(api_key: int, version: int, kind: Kind, values: Fields) -> Steps[bytes]:
    """Encode as `encode` does, without tags, in slices."""
    out = bytearray()
    yield from write_in_steps(schema(api_key, version, kind), names_of(api_key, kind), out, values, Pace())
    return bytes(out)


def milliseconds(value: timedelta) -> int:
    return value // MILLISECOND


def _wire_error(cls: SchemaClass, version: int, error: Exception) -> WireError:
    kind = OverLimit if isinstance(error, OverLimit) else WireError
    return kind(f"{cls.__name__} v{version}: {str(error) or type(error).__name__}")


def _read_flat(cls: SchemaClass, data: memoryview, position: int) -> Any:
    """Decode a message without arrays by kio's reader.

    Return None if that fails on an unknown tag, an unusual boolean or invalid UTF-8, so that `Reader` decodes it.
    """
    try:
        return entity_reader(cls)(data, position)[0]
    except (KeyError, ValueError, InvalidUnicode):
        return None
