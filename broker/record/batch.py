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

`batch length` counts the bytes after it, so a batch has `length + 12` bytes. The CRC covers all bytes from the
attributes on. Base offset and leader epoch lie before them, so a broker can set both without changing the CRC.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from coordination.errors import FlakelogError

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size  # 61
BATCH_PREFIX = struct.Struct(">qii")  # the first 16 bytes: base offset, batch length, leader epoch; outside the CRC
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
    """The fields of the 61-byte header. Times are in ms since 1970; `batch_length` is in bytes after its field."""

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
        """Bytes of the whole batch, including the first twelve."""
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
        """When the cleaner may remove the batch's tombstones or its marker (KIP-534), None if not set.

        The cleaner stores it in place of the base timestamp.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)


class CorruptBatch(FlakelogError, ValueError):
    """An invalid batch: too short, of another magic, with a wrong CRC, or with contents that cannot be read."""


def read_header(data: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """Return the header at `position`. Raise CorruptBatch if fewer than 61 bytes remain."""
    if len(data) - position < HEADER_BYTES:
        raise CorruptBatch(f"a batch header has {HEADER_BYTES} bytes, {max(0, len(data) - position)} are left")
    return BatchHeader._make(HEADER.unpack_from(data, position))


def record_count_of(data: bytes | bytearray | memoryview) -> int:
    """Return the record count in the header of the first batch, not validated; 0 if the data is shorter than a header.
    """
    return int(_RECORD_COUNT.unpack_from(data, HEADER_BYTES - 4)[0]) if len(data) >= HEADER_BYTES else 0


def is_transactional(data: bytes | bytearray | memoryview) -> bool:
    """Return True if the header of the first batch, not validated, marks it as part of a transaction."""
    return len(data) >= HEADER_BYTES and bool(data[CRC_START + 1] & TRANSACTIONAL_BIT)


def verify(data: bytes | bytearray | memoryview, header: BatchHeader, position: int = 0) -> None:
    """Raise CorruptBatch unless the batch at `position` is whole, of magic 2, and has the right CRC."""
    end = position + header.batch_length + LENGTH_END
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic} at {position}; only {MAGIC} is kept")
    if header.batch_length < HEADER_BYTES - LENGTH_END or end > len(data):
        bytes_left = len(data) - position
        raise CorruptBatch(
            f"the batch at {position} says {header.batch_length + LENGTH_END} bytes, {bytes_left} are there"
        )
    view = data if data.__class__ is memoryview else memoryview(data)
    computed = crc32c(view[position + CRC_START : end])
    if computed != header.crc:
        raise CorruptBatch(f"CRC of the batch at {position} is {computed:#010x}, its header says {header.crc:#010x}")


def seal(batch: bytearray | memoryview, header: BatchHeader) -> BatchHeader:
    """Write a header into a whole batch, with the right CRC; return the header with that CRC."""
    HEADER.pack_into(batch, 0, *header)
    sealed = header._replace(crc=crc32c(memoryview(batch)[CRC_START:]))
    HEADER.pack_into(batch, 0, *sealed)
    return sealed


def walk(data: bytes | bytearray | memoryview, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Iterate over (position, header) of each whole batch. Stop before a batch that is cut off, as a fetch may do."""
    size = len(data)
    while size - position >= HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack_from(data, position))
        if header.batch_length < HEADER_BYTES - LENGTH_END:
            raise CorruptBatch(f"batch at {position} says {header.batch_length} bytes, fewer than a header")
        if position + header.batch_length + LENGTH_END > size:
            return
        yield position, header
        position += header.batch_length + LENGTH_END
