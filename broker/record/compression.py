"""The codecs of a record batch (https://kafka.apache.org/documentation/#recordbatch, attributes bits 0 to 2).

All bytes after a batch's header are compressed together, in the framing that Kafka's clients write:

    gzip    one or more gzip members
    snappy  a plain snappy block (librdkafka, franz-go), or blocks in xerial's framing (Java, aiokafka, kafka-python):
            82 "SNAPPY" 00 | version i32 | compatible version i32 | then for each block: length i32, block
    lz4     the LZ4 frame format, blocks independent of each other (KIP-57)
    zstd    one or more zstd frames (KIP-110)

The caller bounds the output, because a few bytes of a batch can unpack to gigabytes.
"""

import mmap
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Protocol

import cramjam

from broker.record.batch import CorruptBatch
from broker.wire.primitives import Buffer

DECOMPRESSED_BYTES_MAX = 128 << 20
"""Default limit for the unpacked records of a batch: 128 times Kafka's max.message.bytes, but a few of this size still
fit into the memory of any machine."""

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 << 10  # the block size of xerial's library, and so of Kafka's Java client
_BLOCK_LENGTH = struct.Struct(">i")

_LZ4_FAST = 9  # Kafka's default level, which means the fast compressor there; in the library that is level 1
_LZ4_LEVEL_MAX = 12  # the library's highest level; Kafka's is 17

_FIRST_GUESS = 8  # the compression ratio of typical JSON; a wrong guess costs another try
_FIRST_GUESS_BYTES_MIN = 64 << 10
_USUAL_BYTES_MAX = 1 << 20  # of the records in one batch, as clients limit them before they compress
_MAPPED_BYTES_MIN = 4 << 20
"""From this size on, output is mapped, because the allocator keeps freed memory of such sizes for itself.

Below, it is better kept: the first write to a new page costs more than to decompress the bytes of a page.
"""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_VERSION = 1
_LZ4_INDEPENDENT, _LZ4_BLOCK_CHECKSUM, _LZ4_SIZE, _LZ4_CHECKSUM, _LZ4_OTHERS = 0x20, 0x10, 0x08, 0x04, 0x03
_LZ4_HEADER_BYTES = 7
_LZ4_BLOCK_BYTES = 0x7FFFFFFF  # the highest bit says that the block is not compressed
_lz4_block_length = struct.Struct("<I").unpack_from

_OUTPUT_FULL = "failed to write whole buffer"  # cramjam's message (Rust's WriteZero); a test checks it


class Codec(IntEnum):
    """A compression codec, numbered as in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TooLarge(CorruptBatch):
    """A batch whose records unpack to more than the limit."""

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        super().__init__(f"{codec.name.lower()} records unpack to more than {max_bytes} bytes")


class Watch(Protocol):
    """Follows a decompression. Each method may raise to end it."""

    def next_try(self, size: int) -> None:
        """`size` bytes of output are decompressed next."""

    def filled(self, begin: Buffer) -> None:
        """The output is larger than the last try's size; `begin` has that many bytes of it."""


def codec_of(number: int) -> Codec:
    """Return the codec with this number. Raise CorruptBatch if the number is unknown."""
    try:
        return Codec(number)
    except ValueError:
        codecs = ", ".join(f"{codec} {codec.name.lower()}" for codec in Codec)
        raise CorruptBatch(f"compression {number}; known are {codecs}") from None


def compress(codec: Codec, data: Buffer, level: int | None = None) -> Buffer:
    """Compress `data` in a framing that every Kafka client reads.

    `level` is as in Kafka's settings, None for Kafka's default.
    """
    if codec is Codec.NONE:
        return data
    if codec is Codec.SNAPPY:
        return _xerial(data)
    if codec is Codec.LZ4:
        level = 1 if level in (None, _LZ4_FAST) else min(level, _LZ4_LEVEL_MAX)
        compressor = cramjam.lz4.Compressor(level, block_linked=False, content_checksum=False)
        compressor.compress(bytes(data))  # the library accepts no memoryview
        return bytes(compressor.finish())
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, None if level == -1 else level))
    return bytes(cramjam.zstd.compress(data, level))


def decompress(
    codec: Codec, data: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX, watch: Watch | None = None
) -> Buffer:
    """Decompress `data` in any framing that clients write.

    Raise CorruptBatch if it is invalid, TooLarge if the output is larger than `max_bytes`, and the errors of `watch`.
    """
    if codec is Codec.NONE:
        return data
    if codec is Codec.SNAPPY:
        return _unsnap(data, max_bytes, watch)
    return _into(codec, data, max_bytes, watch)


def _into(codec: Codec, data: Buffer, max_bytes: int, watch: Watch | None) -> Buffer:
    """Decompress into a buffer that grows up to `max_bytes`, because a frame's content size may be missing or false."""
    module = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}[codec]
    guess = min(_FIRST_GUESS * len(data), max(_USUAL_BYTES_MAX, 2 * len(data)))
    size = min(max(_FIRST_GUESS_BYTES_MIN, guess), max_bytes)
    while True:
        if watch is not None:
            watch.next_try(size)
        out: bytearray | mmap.mmap = bytearray(size) if size < _MAPPED_BYTES_MIN else mmap.mmap(-1, size)
        try:
            written = module.decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if str(error) != _OUTPUT_FULL:
                raise CorruptBatch(f"{codec.name.lower()} records do not unpack: {error}") from None
            if watch is not None:
                watch.filled(memoryview(out))
            if size == max_bytes:
                raise TooLarge(codec, max_bytes) from None
            size = min(4 * size, max_bytes)
        else:
            return memoryview(out)[:written]


def check_lz4_frame(data: Buffer) -> None:
    """Raise CorruptBatch unless `data` is one LZ4 frame of independent blocks.

    The LZ4 library reads more than that: linked blocks, and several frames. Kafka and its Java clients do not (KIP-57).
    """
    if len(data) < _LZ4_HEADER_BYTES or data[: len(_LZ4_MAGIC)] != _LZ4_MAGIC:
        raise CorruptBatch("lz4 records do not begin with an LZ4 frame")
    flags = data[len(_LZ4_MAGIC)]
    if flags >> 6 != _LZ4_VERSION or not flags & _LZ4_INDEPENDENT or flags & _LZ4_OTHERS:
        raise CorruptBatch(f"lz4 flags {flags:#04x}; Kafka reads only independent blocks without a dictionary")
    position = _LZ4_HEADER_BYTES + (8 if flags & _LZ4_SIZE else 0)
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    try:
        while length := _lz4_block_length(data, position)[0] & _LZ4_BLOCK_BYTES:
            position += 4 + length + checksum_bytes
    except struct.error:
        raise CorruptBatch(f"lz4 records end inside a block, at byte {position}") from None
    position += 4 + (4 if flags & _LZ4_CHECKSUM else 0)
    if position != len(data):
        raise CorruptBatch(f"lz4 records have {len(data)} bytes, and their one frame ends at byte {position}")


def _xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    out = [_XERIAL_HEADER]
    for start in range(0, max(1, len(view)), _XERIAL_BLOCK_BYTES):  # aiokafka detects the framing by a first block
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        out += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(out)


def _unsnap(data: Buffer, max_bytes: int, watch: Watch | None) -> bytes:
    view = memoryview(data)
    blocks = _xerial_blocks(view) if view[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else iter([view])
    out = []
    bytes_left = max_bytes
    for block in blocks:
        try:
            size = cramjam.snappy.decompress_raw_len(block)  # snappy stores its output size first and never exceeds it
            bytes_left -= size
            if bytes_left < 0:
                raise TooLarge(Codec.SNAPPY, max_bytes)
            if watch is not None:
                watch.next_try(size)
            out.append(bytes(cramjam.snappy.decompress_raw(block)))
        except cramjam.DecompressionError as error:
            raise CorruptBatch(f"snappy records do not unpack: {error}") from None
    return b"".join(out)


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    if len(view) < len(_XERIAL_HEADER):
        raise CorruptBatch("snappy records end inside xerial's header")
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if position + _BLOCK_LENGTH.size > len(view):
            raise CorruptBatch(f"snappy records end inside a block's length at byte {position}")
        (size,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if size < 0 or position + size > len(view):
            raise CorruptBatch(f"snappy block at byte {position} says {size} bytes, {len(view) - position} are left")
        yield view[position : position + size]
        position += size
