"""Signed varints as used in records: zigzag, then seven bits a byte, low bits first
(https://kafka.apache.org/documentation/#recordbatch; https://protobuf.dev/programming-guides/encoding/#signed-ints).

Reading past the end raises IndexError, as in all readers of the wire format; the caller adds the name of the field.
"""

from broker.record.batch import CorruptBatch
from broker.wire.primitives import Buffer

_SHIFT_MAX = 63  # a varlong has ten bytes
_ZIGZAG_MAX = (1 << 64) - 1
_ONE_BYTE = [bytes((byte,)) for byte in range(0x80)]


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Return (value, next position). Raise CorruptBatch if the varint has more than 64 bits."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _ZIGZAG_MAX:
                raise CorruptBatch(f"a varint before byte {position} has more than 64 bits")
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > _SHIFT_MAX:
            raise CorruptBatch(f"a varint before byte {position} has more than ten bytes")


def varint(value: int) -> bytes:
    """Encode a signed 64-bit value."""
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag < 0x80:
        return _ONE_BYTE[zigzag]  # most varints in a record
    out = bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)
