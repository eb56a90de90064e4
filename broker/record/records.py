"""The records in a batch of magic 2 (https://kafka.apache.org/documentation/#record).

    length varint | attributes i8 | timestamp delta varlong | offset delta varint
    | key length varint | key | value length varint | value | headers varint
    | for each header: name length varint | name | value length varint | value

A length of -1 is null; a header's name is never null. The broker decodes batches only for topics that need it, and
checks the records of others as bytes (broker.log.validation.record_check). Flakelog's consumers, group offsets and dead
letters use this module.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from broker.record.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    CorruptBatch,
    read_header,
    seal,
    verify,
)
from broker.record.compression import DECOMPRESSED_BYTES_MAX, Codec, codec_of, compress, decompress
from broker.record.varint import read_varint, varint
from broker.wire.primitives import Buffer

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

LONG_MAX = (1 << 63) - 1
RECORDS_MAX = 2_000_000
"""Records in a batch that is decoded. It bounds a reader's memory, because a small batch may unpack to many millions of
empty records. flakelog.max.batch.records allows no more."""
RECORD_BYTES_MIN = 7  # at least one byte each: length, attributes, two deltas, key, value, headers


class BatchRecord(NamedTuple):
    """A record in its batch, relative to the batch's base offset and base timestamp (ms)."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class StoredRecord(NamedTuple):
    """A record with its absolute offset in the partition and its time in ms since 1970."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def decode_records(
    batch: Buffer, position: int = 0, max_bytes: int = DECOMPRESSED_BYTES_MAX, *, check: bool = True
) -> list[StoredRecord]:
    """Return the records of the batch at `position`, including control records (see `BatchHeader.is_control`).

    Pass `check=False` if the CRC was verified. Raise CorruptBatch if the batch is cut off or inconsistent, TooLarge if
    its records unpack to more than `max_bytes`.
    """
    header = read_header(batch, position)
    if check:
        verify(batch, header, position)
    data = records_data(batch, header, position, max_bytes)
    records = read_records(data, header.record_count)
    check_deltas([record.offset_delta for record in records], header.last_offset_delta)
    check_times(header, [record.timestamp_delta for record in records])
    if header.is_log_append_time:
        return [StoredRecord(header.base_offset + r.offset_delta, header.max_timestamp, *r[2:]) for r in records]
    return [
        StoredRecord(header.base_offset + r.offset_delta, header.base_timestamp + r.timestamp_delta, *r[2:])
        for r in records
    ]


def times_of(batch: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[tuple[int, int]]:
    """Iterate over (offset, time in ms) of a batch's records, without decoding the rest of each record.

    The CRC was verified. Raise the errors of `decode_records`, but only on reaching the faulty record.
    """
    header = read_header(batch)
    data = bytes(records_data(batch, header, 0, max_bytes))
    position = 0
    for number in range(header.record_count):
        try:
            size, begin = read_varint(data, position)
            timestamp_delta, at = read_varint(data, begin + 1)  # after the attributes
            offset_delta, _ = read_varint(data, at)
        except IndexError:
            raise CorruptBatch(f"record {number} of {header.record_count} at byte {position} is cut off") from None
        position = begin + size
        if size < 0 or position > len(data) or not 0 <= offset_delta <= header.last_offset_delta:
            raise CorruptBatch(f"record {number} of {header.record_count} ends at byte {position} of {len(data)}")
        check_times(header, [timestamp_delta])
        time_ms = header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
        yield header.base_offset + offset_delta, time_ms


def check_deltas(deltas: list[int], last: int) -> None:
    """Raise CorruptBatch unless the deltas rise within 0 to `last`; compaction may have removed any of them."""
    if not deltas:
        return
    if deltas[0] < 0 or deltas[-1] > last or any(b <= a for a, b in pairwise(deltas)):
        raise CorruptBatch(f"offset deltas of the records do not rise from 0 to at most {last}")


def check_times(header: BatchHeader, deltas: list[int]) -> None:
    """Raise CorruptBatch unless the time of every record has at most 64 bits, because no answer could carry it.

    With LogAppendTime the deltas do not count: all records have the time of the header.
    """
    base = header.base_timestamp
    if not deltas or header.is_log_append_time:
        return
    if base + min(deltas) < -LONG_MAX - 1 or base + max(deltas) > LONG_MAX:
        raise CorruptBatch(f"timestamps of the records, from {base} on, have more than 64 bits")


def records_data(batch: Buffer, header: BatchHeader, position: int, max_bytes: int) -> Buffer:
    """Return the decompressed bytes of a batch's records. Raise CorruptBatch if it claims more than RECORDS_MAX."""
    end = position + header.size
    check_count(header)
    if header.size < HEADER_BYTES or end > len(batch):
        raise CorruptBatch(f"batch at {position} says {header.size} bytes, {len(batch) - position} are left")
    return decompress(codec_of(header.compression), memoryview(batch)[position + HEADER_BYTES : end], max_bytes)


def check_count(header: BatchHeader) -> None:
    """Raise CorruptBatch if a batch claims more than RECORDS_MAX."""
    if header.record_count > RECORDS_MAX:
        raise CorruptBatch(f"the header counts {header.record_count} records, and readers take {RECORDS_MAX}")


def read_records(data: Buffer, count: int) -> list[BatchRecord]:
    """Return the `count` records in `data`. Raise CorruptBatch unless they fill it exactly."""
    if not 0 <= count <= len(data) // RECORD_BYTES_MIN:
        raise CorruptBatch(f"the header counts {count} records, {len(data)} bytes cannot hold them")
    data = bytes(data)  # a single copy, so that each key and value is a plain slice
    records = []
    position = 0
    for number in range(count):
        try:
            record, position = _read_record(data, position)
        except IndexError as error:
            raise CorruptBatch(f"record {number} of {count} at byte {position} of {len(data)}: {error}") from None
        records.append(record)
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes follow the last of {count} records")
    return records


def _read_record(data: bytes, position: int) -> tuple[BatchRecord, int]:
    size, position = read_varint(data, position)
    end = position + size
    if size < 0 or end > len(data):
        raise CorruptBatch(f"a record at byte {position} says {size} bytes, {len(data) - position} are left")
    position += 1  # the attributes, unused by the protocol
    timestamp_delta, position = read_varint(data, position)
    offset_delta, position = read_varint(data, position)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    headers, position = read_headers(data, position, end)
    if position != end:
        raise CorruptBatch(f"a record ends at byte {position}, its length says {end}")
    return BatchRecord(offset_delta, timestamp_delta, key, value, headers), end


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    if size < 0:
        return None, position
    if position + size > end:
        raise CorruptBatch(f"a field at byte {position} says {size} bytes, the record has {end - position} left")
    return data[position : position + size], position + size


def read_headers(data: bytes, position: int, end: int) -> tuple[Headers, int]:
    """Return the headers of a record that ends at `end`; their count is at `position`."""
    count, position = read_varint(data, position)
    if not 0 <= count <= end - position:
        raise CorruptBatch(f"a record says {count} headers, {end - position} bytes are left for them")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise CorruptBatch(f"a header before byte {position} has no name")
        value, position = _read_bytes(data, position, end)
        headers.append((name.decode(errors="replace"), value))  # invalid UTF-8 becomes U+FFFD, as in Kafka
    return tuple(headers), position


def encode_batch(
    records: Iterable[BatchRecord],
    *,
    base_timestamp_ms: int,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """Return a whole batch with a valid CRC and leader epoch -1 (the broker sets it).

    Raise ValueError without a record, CorruptBatch if the offset deltas do not rise.
    """
    records = list(records)
    if not records:
        raise ValueError("a batch needs at least one record")
    check_deltas([record.offset_delta for record in records], records[-1].offset_delta)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=(TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0),
        last_offset_delta=records[-1].offset_delta,
        base_timestamp=base_timestamp_ms,
        max_timestamp=base_timestamp_ms + max(record.timestamp_delta for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return build_batch(header, b"".join(map(encode_record, records)), codec)[0]


def build_batch(
    header: BatchHeader, data: Buffer, codec: Codec, level: int | None = None
) -> tuple[bytearray, BatchHeader]:
    """Return a batch with these records' bytes, compressed, and its header.

    The header is `header` with length, codec and CRC set.
    """
    batch = bytearray(HEADER_BYTES) + compress(codec, data, level)
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    return batch, seal(batch, header._replace(batch_length=len(batch) - LENGTH_END, attributes=attributes))


def encode_record(record: BatchRecord) -> bytes:
    body = b"".join(
        (
            b"\0",
            varint(record.timestamp_delta),
            varint(record.offset_delta),
            _bytes(record.key),
            _bytes(record.value),
            varint(len(record.headers)),
            *(_bytes(name.encode()) + _bytes(value) for name, value in record.headers),
        )
    )
    return varint(len(body)) + body


def _bytes(value: bytes | None) -> bytes:
    return b"\x01" if value is None else varint(len(value)) + value  # 0x01 is -1 in zigzag
