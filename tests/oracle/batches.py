"""Record batches encoded by hand (https://kafka.apache.org/documentation/#recordbatch): good ones of many sizes, and
ones with a wrong header whose CRC holds."""

import struct

import cramjam
from crc32c import crc32c

from tests.oracle.requests import uvarint

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_END, CRC_COVERS_FROM = 12, 21
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
TRANSACTIONAL, CONTROL, LOG_APPEND_TIME = 0x10, 0x20, 0x08
FIELDS = (
    "base_offset", "batch_length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta", "base_timestamp",
    "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "record_count",
)  # fmt: skip
# Batch sizes at which a length in front of the batch takes one byte more, and the sizes around 4096, a common buffer.
EDGES = (126, 127, 128, 129, 4_095, 4_096, 4_097, 16_382, 16_383, 16_384, 16_385)


def varint(number):
    return uvarint(number << 1 if number >= 0 else (-number << 1) - 1)


def record(index, value, key=None, headers=(), time_delta=0):
    body = bytearray(b"\0") + varint(time_delta) + varint(index)
    for field in (key, value):
        body += varint(-1) if field is None else varint(len(field)) + field
    body += varint(len(headers))
    for name, text in headers:
        body += varint(len(name)) + name + varint(len(text)) + text
    return varint(len(body)) + bytes(body)


def batch(records, count, time_ms, newest_ms=None, codec=0, attributes=0, producer=(-1, -1, -1)):
    """Return a batch of `count` encoded records. `producer` is its id, epoch and first sequence."""
    packed = records if not codec else _compressed(codec, records)
    newest_ms = time_ms if newest_ms is None else newest_ms
    length = HEADER_BYTES - LENGTH_END + len(packed)
    fields = (0, length, -1, 2, 0, codec | attributes, count - 1, time_ms, newest_ms, *producer, count)
    return sealed(bytearray(HEADER.pack(*fields)) + packed)


def sealed(data):
    """The batch with a CRC that holds."""
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[CRC_COVERS_FROM:]))
    return bytes(data)


def with_fields(data, **fields):
    """The batch with other values in its header and a CRC that holds, save for a `crc` that is given."""
    values = dict(zip(FIELDS, HEADER.unpack_from(data), strict=True)) | fields
    out = bytearray(data)
    HEADER.pack_into(out, 0, *values.values())
    return bytes(out) if "crc" in fields else sealed(out)


def field_of(data, name, position=0):
    return HEADER.unpack_from(data, position)[FIELDS.index(name)]


def _compressed(codec, data):
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == LZ4:
        return bytes(cramjam.lz4.compress(data))
    return bytes(cramjam.zstd.compress(data))


def values(chance, count, most):
    return [chance.randbytes(chance.randrange(most + 1)) for _ in range(count)]


def good_batch(chance, time_ms, keyed=False, size=None, **header):
    """A batch of a producer that does nothing wrong, of a size by chance or of `size` bytes."""
    if size is None:
        size = size_by_chance(chance)
    if size is not None:
        return batch_of_size(chance, size, time_ms, keyed, **header)
    count = chance.choice((1, 1, 1, 2, 3, 10, 40))
    records, newest_ms = b"", time_ms
    for index, value in enumerate(values(chance, count, chance.choice((0, 8, 60, 200)))):
        delta = chance.randrange(5) if index else 0
        newest_ms = max(newest_ms, time_ms + delta)
        key = b"k%d" % chance.randrange(20) if keyed or chance.random() < 0.2 else None
        headers = ((b"h", b"v"),) if chance.random() < 0.1 else ()
        value = None if key and chance.random() < 0.1 else value
        records += record(index, value, key, headers, delta)
    return batch(records, count, time_ms, newest_ms, **header)


def size_by_chance(chance):
    """None where records are to be made without a size to reach."""
    luck = chance.random()
    if luck < 0.6:
        return None
    if luck < 0.78:
        return chance.choice(EDGES[:4])
    if luck < 0.86:
        return chance.choice(EDGES)
    if luck < 0.985:
        return chance.randrange(HEADER_BYTES + 7, 4_000)
    return chance.randrange(4_000, 1 << 16)


def batch_of_size(chance, size, time_ms, keyed=False, **header):
    """Return a batch of `size` bytes with one record, or of a byte less if a length grows at that size."""
    key = b"key" if keyed else None
    room = size - HEADER_BYTES
    value_bytes = max(room - len(record(0, b"", key)), 0)
    while value_bytes and len(record(0, bytes(value_bytes), key)) > room:
        value_bytes -= 1
    return batch(record(0, chance.randbytes(value_bytes), key), 1, time_ms, **header)


def many_small(count, time_ms, **header):
    """A batch of empty records: it takes many ids and few bytes."""
    return batch(b"".join([record(index, b"") for index in range(count)]), count, time_ms, **header)


def odd_batch(chance, data):
    """Return the batch with a wrong header field; the CRC holds, unless the CRC is the wrong field."""
    number = field_of(data, "record_count")
    length = field_of(data, "batch_length")
    time_ms = field_of(data, "base_timestamp")
    attributes = field_of(data, "attributes")
    change = chance.choice((
        {"base_offset": chance.choice((1, -1, 1 << 40))},
        {"batch_length": length + chance.choice((-1, 1, 100, -length, -12, 1 << 30))},
        {"leader_epoch": chance.choice((0, 7))},
        {"magic": chance.choice((0, 1, 3, -1))},
        {"crc": 0},
        {"attributes": attributes | CONTROL},
        {"attributes": attributes | TRANSACTIONAL},
        {"attributes": attributes | LOG_APPEND_TIME},
        {"attributes": attributes & ~7 | chance.choice((1, 2, 3, 4, 5, 6, 7))},
        {"attributes": attributes | 1 << chance.randrange(6, 15)},
        {"last_offset_delta": number - 1 + chance.choice((-1, 1, 1 << 20))},
        {"record_count": number + chance.choice((-1, 1, -number, 1 << 20, -1 << 20))},
        {"record_count": number + 1, "last_offset_delta": number},
        {"record_count": 1 << 21, "last_offset_delta": (1 << 21) - 1},
        {"base_timestamp": -1, "max_timestamp": -1},
        {"max_timestamp": time_ms + 7_200_000},
        {"base_timestamp": time_ms - 7_200_000},
        {"max_timestamp": time_ms - 10},
        {"base_sequence": chance.choice((-1, -5))},
        {"producer_epoch": -1},
        {"producer_id": 5, "producer_epoch": 0, "base_sequence": -1},
        {"producer_id": -1, "base_sequence": 5},
    ))  # fmt: skip
    return with_fields(data, **change)
