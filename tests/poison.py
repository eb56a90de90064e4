"""Poison batches: each has a valid CRC and a valid header, and records that cannot be decoded.

A broker that checks only headers accepts all of them. PASSES_LENGTHS also passes a check of the records' lengths.
"""

from broker.record.batch import HEADER_BYTES, LENGTH_END, read_header, seal
from broker.record.compression import Codec, compress
from broker.record.records import BatchRecord, encode_batch, encode_record

RECORDS = 20
UNPACKED_BYTES_MAX = 1 << 20
"""BOMB unpacks to more than this."""


def resealed(batch, **fields):
    """Return the batch with these fields of its header changed, and a valid CRC."""
    changed = bytearray(batch)
    seal(changed, read_header(changed)._replace(**fields))
    return bytes(changed)


def at_offset(batch, base_offset):
    """Return the batch at another base offset, which its CRC does not cover."""
    return base_offset.to_bytes(8, "big") + bytes(batch[8:])


def batch_of(data, codec=Codec.NONE, claims=RECORDS):
    """Return a batch whose header claims this number of records; `data` is in their place."""
    batch = bytes(encode_batch([BatchRecord(0, 0, None, b"v")], base_timestamp_ms=0))[:HEADER_BYTES] + data
    length = len(batch) - LENGTH_END
    return resealed(
        batch, batch_length=length, attributes=codec, record_count=claims, last_offset_delta=claims - 1
    )


def _records(deltas, headers=()):
    return b"".join(encode_record(BatchRecord(delta, 0, b"k", b"v", headers)) for delta in deltas)


def _with_wrong_key_length(padding=0):
    records = [
        bytearray(encode_record(BatchRecord(n, 0, b"k", b"v" + bytes(padding * (not n))))) for n in range(RECORDS)
    ]
    records[3][4] = 2 * 63  # the key's length, zigzag: more bytes than its record has
    return b"".join(records)


def _plain(timestamp_delta=0):
    records = [BatchRecord(n, timestamp_delta, b"k", b"v") for n in range(RECORDS)]
    return encode_batch(records, base_timestamp_ms=0)


PASSES_LENGTHS = batch_of(_with_wrong_key_length())
LARGE = batch_of(_with_wrong_key_length(padding=1_048_000))
"""Like PASSES_LENGTHS, and almost as large as the default of max.message.bytes allows."""
BOMB = batch_of(
    bytes(compress(Codec.ZSTD, encode_record(BatchRecord(0, 0, None, bytes(2 * UNPACKED_BYTES_MAX))))),
    Codec.ZSTD,
    claims=1,
)
POISON = {
    "rubbish": batch_of(b"\xa7" * 150),
    "fewer records than the header claims": batch_of(_records(range(5))),
    "more records than the header claims": batch_of(_records(range(30))),
    "a delta beyond the last": batch_of(_records([*range(RECORDS - 1), RECORDS])),
    "deltas that do not rise": batch_of(_records(reversed(range(RECORDS)))),
    "a field past its record": PASSES_LENGTHS,
    "a header without a name": batch_of(_records(range(RECORDS), (("", b""),)).replace(b"\x02\0\0", b"\x02\1\0")),
    "a time of more than 64 bits": resealed(_plain(timestamp_delta=1), base_timestamp=(1 << 63) - 1),
    "rubbish instead of zstd": batch_of(b"\xa7" * 150, Codec.ZSTD),
    "an unknown codec": batch_of(_records(range(RECORDS)), 7),
    "a decompression bomb": BOMB,
}
