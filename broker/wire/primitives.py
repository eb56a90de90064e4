"""Kafka's primitive types (https://kafka.apache.org/protocol#protocol_types), read at a position and written to bytes.

A reader returns (value, next position). Reading past the end raises WireError, IndexError or struct.error. The codecs
turn the last two into WireError at their entry points (`told_where_cut`), so that the readers stay short.
"""

import struct
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar

from broker.wire.errors import OverLimit, WireError

Buffer: TypeAlias = bytes | bytearray | memoryview
Message = TypeVar("Message")
Arguments = ParamSpec("Arguments")

I16 = struct.Struct(">h")
I32 = struct.Struct(">i")
I64 = struct.Struct(">q")

_VARINT_BITS_MAX = 35
_STRING_BYTES_MAX = 0x7FFF

TAGS_MAX = 1_000  # per section: Kafka's messages have a few, and each unknown tag takes memory


def told_where_cut(name: str) -> Callable[[Callable[Arguments, Message]], Callable[Arguments, Message]]:
    """Decorate a decoder so that it raises WireError for a message that ends in the middle of a field.

    `name` is the message's name in the error, such as "Produce request". An error about a limit gets the name too.
    """

    def decorated(decode: Callable[Arguments, Message]) -> Callable[Arguments, Message]:
        @wraps(decode)
        def decode_whole(*given: Arguments.args, **named: Arguments.kwargs) -> Message:
            try:
                return decode(*given, **named)
            except (IndexError, struct.error):
                raise WireError(f"the {name} ends in the middle of a field") from None
            except OverLimit as error:
                raise OverLimit(f"the {name} has {error}") from None

        return decode_whole

    return decorated


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned varint. Raise WireError if it has more than five bytes."""
    value = data[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift >= _VARINT_BITS_MAX:
            raise WireError(f"a varint at byte {position} is longer than five bytes")


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes([value]) for value in range(0x80)]


def _text(data: Buffer, position: int, length: int) -> tuple[str, int]:
    end = position + length
    if end > len(data):
        raise WireError(f"a string of {length} bytes at byte {position} runs past the end ({len(data)})")
    try:
        return str(data[position:end], "utf-8"), end
    except UnicodeDecodeError:
        return _legible(data[position:end]), end


def _legible(data: Buffer) -> str:
    """Return the text with U+FFFD in place of invalid UTF-8, as Kafka does.

    Raise WireError if the result is too long for a string, because no answer could repeat it.
    """
    text = str(data, "utf-8", "replace")
    if len(text.encode()) > _STRING_BYTES_MAX:
        raise WireError(f"a string of {len(data)} bytes is not UTF-8, and too long with U+FFFD in place of what is not")
    return text


def read_string(data: Buffer, position: int, flexible: bool) -> tuple[str | None, int]:
    """Read a nullable string: two bytes of length, or in a flexible version a uvarint of length + 1."""
    if flexible:
        length = data[position]
        if length < 0x80:  # fast path without a call: nearly all lengths have one byte
            length, position = length - 1, position + 1
        else:
            length, position = read_uvarint(data, position)
            length -= 1
    else:
        (length,) = I16.unpack_from(data, position)
        position += 2
    if length < 0:
        return None, position
    return _text(data, position, length)


def string(value: str | None, flexible: bool) -> bytes:
    if value is None:
        return b"\0" if flexible else b"\xff\xff"
    encoded = value.encode()
    return (uvarint(len(encoded) + 1) if flexible else I16.pack(len(encoded))) + encoded


def read_length(data: Buffer, position: int, flexible: bool) -> tuple[int, int]:
    """Read the length of an array or of bytes; -1 is null."""
    if flexible:
        length = data[position]
        if length < 0x80:
            return length - 1, position + 1
        second = data[position + 1]
        if second < 0x80:  # most lengths of records have two bytes
            return length + (second << 7) - 0x81, position + 2
        length, position = read_uvarint(data, position)
        return length - 1, position
    (length,) = I32.unpack_from(data, position)
    return length, position + 4


def length(value: int, flexible: bool) -> bytes:
    if not flexible:
        return I32.pack(value)
    return _ONE_BYTE[value + 1] if value < 0x7F else uvarint(value + 1)


def read_count(data: Buffer, position: int, flexible: bool, item_bytes_min: int) -> tuple[int, int]:
    """Read the length of an array, 0 for null. Raise WireError if the remaining bytes cannot hold that many items."""
    if flexible and (count := data[position] - 1) < 0x7F:  # one byte, as nearly always: without a call
        position += 1
    else:
        count, position = read_length(data, position, flexible)
    if count * item_bytes_min > len(data) - position:
        raise WireError(f"an array at byte {position} says {count} items, more than the bytes that follow can hold")
    return max(count, 0), position


def skip_tags(data: Buffer, position: int) -> int:
    """Skip a section of tagged fields (KIP-482); return the next position."""
    count = data[position]
    if count == 0:
        return position + 1
    return read_tags(data, position)[1]


def read_tags(data: Buffer, position: int) -> tuple[dict[int, Buffer], int]:
    """Read a section of tagged fields (KIP-482) as {tag: payload}, including unknown tags."""
    count, position = read_uvarint(data, position)
    if count > TAGS_MAX:
        raise WireError(f"{count} tagged fields at byte {position}; {TAGS_MAX} at most are read past")
    tags: dict[int, Buffer] = {}
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        end = position + size
        if end > len(data):
            raise WireError(f"tagged field {tag} says {size} bytes, {len(data) - position} are left")
        tags[tag] = data[position:end]
        position = end
    return tags, position


def tags(fields: dict[int, bytes]) -> bytes:
    """Encode a section of tagged fields, with ascending tags as KIP-482 requires."""
    out = [uvarint(len(fields))]
    for tag in sorted(fields):
        out += (uvarint(tag), uvarint(len(fields[tag])), fields[tag])
    return b"".join(out)
