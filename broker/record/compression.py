"""The codecs of a record batch (https://kafka.apache.org/documentation/#recordbatch, attributes bits 0 to 2).

What a batch carries after its header is compressed as a whole, in the framing Kafka's clients write:

    gzip    one or more gzip members
    snappy  a plain snappy block (librdkafka, franz-go), or blocks in xerial's framing (Java, aiokafka, kafka-python):
            82 "SNAPPY" 00 | version i32 | compatible version i32 | then for each block: length i32, block
    lz4     the LZ4 frame format, blocks independent of each other (KIP-57)
    zstd    one or more zstd frames (KIP-110)

Output is bounded by the caller: some bytes of a batch can ask for gigabytes.
"""

import struct
from enum import IntEnum

import cramjam

from broker.record.batch import CorruptBatch
from broker.wire.primitives import Buffer

DECOMPRESSED_BYTES_MAX = 128 << 20
"""Default bound on one batch's records: 128 times Kafka's max.message.bytes, yet a few of them fit any machine."""

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 << 10  # what xerial's library and so Kafka's Java client cuts
_BLOCK_LENGTH = struct.Struct(">i")

_LZ4_FAST = 9  # Kafka's default, by which it means the fast compressor; the library's is level 1
_LZ4_LEVEL_MAX = 12  # the library's highest; Kafka's goes on to 17

_FIRST_GUESS = 8  # JSON shrinks about so much; a wrong guess costs one more try
_FIRST_GUESS_BYTES_MIN = 64 << 10
_OUTPUT_FULL = "failed to write whole buffer"  # cramjam's words (Rust's WriteZero); a test holds it to them


class Codec(IntEnum):
    """Numbers as in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TooLarge(CorruptBatch):
    """The records of a batch unpack to more than the bound."""

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        super().__init__(f"{codec.name.lower()} records unpack to more than {max_bytes} bytes")


def codec_of(number: int) -> Codec:
    """The codec of that number; CorruptBatch where there is none."""
    try:
        return Codec(number)
    except ValueError:
        known = ", ".join(f"{codec} {codec.name.lower()}" for codec in Codec)
        raise CorruptBatch(f"compression {number}; known are {known}") from None


def compress(codec: Codec, data: Buffer, level: int | None = None) -> Buffer:
    """`data` in the framing every Kafka client reads; `level` as in Kafka's settings, None for the library's own."""
    if codec is Codec.NONE:
        return data
    if codec is Codec.SNAPPY:
        return _xerial(data)
    if codec is Codec.LZ4:
        if level is not None:
            level = 1 if level == _LZ4_FAST else min(level, _LZ4_LEVEL_MAX)
        compressor = cramjam.lz4.Compressor(level, block_linked=False, content_checksum=False)
        compressor.compress(bytes(data))  # it takes no view
        return bytes(compressor.finish())
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, None if level == -1 else level))
    return bytes(cramjam.zstd.compress(data, level))


def decompress(codec: Codec, data: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """The inverse of `compress`, whichever framing a client chose. Raises CorruptBatch; TooLarge past `max_bytes`."""
    if codec is Codec.NONE:
        return data
    if codec is Codec.SNAPPY:
        return _unsnap(data, max_bytes)
    return _into(codec, data, max_bytes)


def _into(codec: Codec, data: Buffer, max_bytes: int) -> bytearray:
    """Unpack into a buffer that grows up to the bound: what frames say of their size may be missing, or a lie."""
    module = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}[codec]
    size = min(max(_FIRST_GUESS_BYTES_MIN, _FIRST_GUESS * len(data)), max_bytes)
    while True:
        out = bytearray(size)
        try:
            written = module.decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if str(error) != _OUTPUT_FULL:
                raise CorruptBatch(f"{codec.name.lower()} records do not unpack: {error}") from None
            if size == max_bytes:
                raise TooLarge(codec, max_bytes) from None
            size = min(4 * size, max_bytes)
        else:
            del out[written:]
            return out


def _xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    out = [_XERIAL_HEADER]
    for start in range(0, max(1, len(view)), _XERIAL_BLOCK_BYTES):  # aiokafka knows the framing by a first block
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        out += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(out)


def _unsnap(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    blocks = _xerial_blocks(view) if view[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [view]
    out = []
    left = max_bytes
    for block in blocks:
        try:
            left -= cramjam.snappy.decompress_raw_len(block)  # snappy says its size first, and holds itself to it
            if left < 0:
                raise TooLarge(Codec.SNAPPY, max_bytes)
            out.append(bytes(cramjam.snappy.decompress_raw(block)))
        except cramjam.DecompressionError as error:
            raise CorruptBatch(f"snappy records do not unpack: {error}") from None
    return b"".join(out)


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    if len(view) < len(_XERIAL_HEADER):
        raise CorruptBatch("snappy records end inside xerial's header")
    blocks = []
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if position + _BLOCK_LENGTH.size > len(view):
            raise CorruptBatch(f"snappy records end inside a block's length at byte {position}")
        (size,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if size < 0 or position + size > len(view):
            raise CorruptBatch(f"snappy block at byte {position} says {size} bytes, {len(view) - position} are left")
        blocks.append(view[position : position + size])
        position += size
    return blocks
