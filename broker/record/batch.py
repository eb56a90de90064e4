"""The header of a record batch, magic 2 (https://kafka.apache.org/documentation/#recordbatch).

    offset  0        8       12       16   17       21      23        27
            +--------+--------+--------+----+--------+-------+---------+
            | base   | batch  | leader |mag-| crc-32c| attri-| last    |
            | offset | length | epoch  |ic  |        | butes | offset  |
            | i64    | i32    | i32    | i8 | u32    | i16   | delta   |
            +--------+--------+--------+----+--------+-------+---------+
           27        35       43         51        53        57      61
            +--------+--------+----------+---------+---------+-------+
            | base   | max    | producer | producer| base    | count |
            | time   | time   | id       | epoch   | sequence|       |
            | i64    | i64    | i64      | i16     | i32     | i32   |
            +--------+--------+----------+---------+---------+-------+

`batch length` counts what follows it, so a batch has `length + 12` bytes. The CRC covers everything from the
attributes on; base offset and leader epoch lie before it, so a broker can set both and leave the CRC alone.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size  # 61
PLACE = struct.Struct(">qii")  # the first 16: base offset, batch length, leader epoch; the CRC does not cover them
LENGTH_END = 12  # base offset and batch length
CRC_START = 21  # the CRC covers a batch from here to its end
MAGIC = 2

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

_RECORD_COUNT = struct.Struct(">i")


class BatchHeader(NamedTuple):
    """The 61 bytes, field by field. Times in ms since 1970, `batch_length` in bytes after the length field."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def size(self) -> int:
        """Bytes of the whole batch, its first twelve included."""
        return self.batch_length + LENGTH_END

    @property
    def compression(self) -> int:
        """The codec's number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When its tombstones or its marker may go (KIP-534): set by the cleaner, in place of the base timestamp."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)


class CorruptBatch(ValueError):
    """A batch that is not one: too short, of another magic, with a CRC that does not hold."""


def read_header(data: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`; CorruptBatch when fewer than 61 bytes are left."""
    if len(data) - position < HEADER_BYTES:
        raise CorruptBatch(f"a batch header has {HEADER_BYTES} bytes, {max(0, len(data) - position)} are left")
    return BatchHeader._make(HEADER.unpack_from(data, position))


def record_count_of(data: bytes | bytearray | memoryview) -> int:
    """How many records the first batch says it has; 0 where there is no header. Nothing is checked."""
    return int(_RECORD_COUNT.unpack_from(data, HEADER_BYTES - 4)[0]) if len(data) >= HEADER_BYTES else 0


def is_transactional(data: bytes | bytearray | memoryview) -> bool:
    """Whether the first batch says that it is part of a transaction. Nothing is checked."""
    return len(data) >= HEADER_BYTES and bool(data[CRC_START + 1] & TRANSACTIONAL_BIT)


def verify(data: bytes | bytearray | memoryview, header: BatchHeader, position: int = 0) -> None:
    """Raise CorruptBatch unless the batch at `position` is whole, of magic 2, and its CRC holds."""
    end = position + header.batch_length + LENGTH_END
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic} at {position}; only {MAGIC} is kept")
    if header.batch_length < HEADER_BYTES - LENGTH_END or end > len(data):
        left = len(data) - position
        raise CorruptBatch(f"the batch at {position} says {header.batch_length + LENGTH_END} bytes, {left} are there")
    view = data if data.__class__ is memoryview else memoryview(data)
    computed = crc32c(view[position + CRC_START : end])
    if computed != header.crc:
        raise CorruptBatch(f"CRC of the batch at {position} is {computed:#010x}, its header says {header.crc:#010x}")


def seal(batch: bytearray | memoryview, header: BatchHeader) -> BatchHeader:
    """Write a header and the CRC it makes necessary into a whole batch; the header as it then is."""
    HEADER.pack_into(batch, 0, *header)
    sealed = header._replace(crc=crc32c(memoryview(batch)[CRC_START:]))
    HEADER.pack_into(batch, 0, *sealed)
    return sealed


def walk(data: bytes | bytearray | memoryview, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch; stops before one whose end is past the data, as a fetch may cut it."""
    size = len(data)
    while size - position >= HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack_from(data, position))
        if header.batch_length < HEADER_BYTES - LENGTH_END:
            raise CorruptBatch(f"batch at {position} says {header.batch_length} bytes, fewer than a header")
        if position + header.batch_length + LENGTH_END > size:
            return
        yield position, header
        position += header.batch_length + LENGTH_END
