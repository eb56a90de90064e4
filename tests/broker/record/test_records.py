"""Records inside a batch, checked against other projects' builders and readers
(https://kafka.apache.org/documentation/#record)."""

from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from broker.record.batch import HEADER, TIMESTAMP_TYPE_BIT, CorruptBatch, read_header, seal, verify
from broker.record.compression import Codec, TooLarge, compress
from broker.record.records import (
    RECORDS_MAX,
    BatchRecord,
    StoredRecord,
    decode_records,
    encode_batch,
    encode_record,
)
from tests.poison import batch_of

GOLDEN = Path(__file__).parents[2] / "golden"
T0 = 1_700_000_000_000

headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=3).map(tuple)
field = st.none() | st.binary(max_size=200)
rows = st.lists(st.tuples(st.integers(-(10**6), 10**9), field, field, headers), min_size=1, max_size=30)


def records_of(rows):
    return [BatchRecord(n, t, key, value, headers) for n, (t, key, value, headers) in enumerate(rows)]


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_of_librdkafka_is_read(codec):
    """The bytes are golden (golden/librdkafka.md): snappy without xerial's framing, LZ4 frames, zstd."""
    batch = (GOLDEN / f"librdkafka-{codec.name.lower()}.batch").read_bytes()
    assert read_header(batch).compression == codec
    assert decode_records(batch) == [
        StoredRecord(
            i,
            T0 + 37 * i - (500 if i == 3 else 0),
            None if i % 5 == 0 else b"key-%d" % i,
            None if i % 7 == 0 else b"%d " % i * (1 + 2 * i),
            (("h", b"%d" % i), ("null", None)) if i % 4 == 0 else (),
        )
        for i in range(40)
    ]


@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=30)
@given(rows=rows)
def test_what_aiokafka_builds_is_read_as_it_was_meant(codec, rows):
    builder = AiokafkaBuilder(2, codec, False, -1, -1, -1, 1 << 30)
    for offset, (t, key, value, headers) in enumerate(rows):
        builder.append(offset, T0 + t, key, value, list(headers))
    want = [StoredRecord(n, T0 + t, k, v, h) for n, (t, k, v, h) in enumerate(rows)]
    assert decode_records(builder.build()) == want


@settings(max_examples=30)
@given(rows=rows)
def test_what_kafka_python_builds_is_read_as_it_was_meant(rows):
    builder = KafkaPythonBuilder(2, Codec.GZIP, False, -1, -1, -1, 1 << 30)
    for offset, (t, key, value, headers) in enumerate(rows):
        builder.append(offset, T0 + t, key, value, list(headers))
    want = [StoredRecord(n, T0 + t, k, v, h) for n, (t, k, v, h) in enumerate(rows)]
    assert decode_records(builder.build()) == want


@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=30)
@given(rows=rows)
def test_what_we_build_is_read_by_aiokafka(codec, rows):
    batch = AiokafkaRecords(bytes(encode_batch(records_of(rows), base_timestamp_ms=T0, codec=codec))).next_batch()
    assert batch.validate_crc()
    seen = [(r.offset, r.timestamp, r.key, r.value, tuple(map(tuple, r.headers))) for r in batch]
    assert seen == [(n, T0 + t, k, v, h) for n, (t, k, v, h) in enumerate(rows)]


@settings(max_examples=30)
@given(rows=rows)
def test_what_we_build_is_read_by_kafka_python(rows):
    batch = KafkaPythonRecords(bytes(encode_batch(records_of(rows), base_timestamp_ms=T0))).next_batch()
    assert batch.validate_crc()
    seen = [(r.offset, r.timestamp, r.key, r.value, tuple(map(tuple, r.headers))) for r in batch]
    assert seen == [(n, T0 + t, k, v, h) for n, (t, k, v, h) in enumerate(rows)]


def test_the_header_says_what_the_records_are():
    """Kafka's broker checks these fields of each produced batch (LogValidator)."""
    records = [BatchRecord(0, 5, b"k", b"v"), BatchRecord(1, 9, None, b"w"), BatchRecord(2, 7, None, None)]
    batch = encode_batch(
        records, base_timestamp_ms=100, base_offset=40, producer_id=7, producer_epoch=1, base_sequence=3,
        transactional=True,
    )  # fmt: skip
    header = read_header(batch)
    verify(batch, header)
    assert header.size == len(batch)
    assert header[-7:] == (2, 100, 109, 7, 1, 3, 3)
    assert (header.base_offset, header.last_offset, header.is_transactional, header.is_control) == (40, 42, True, False)


def test_offsets_left_out_by_compaction_are_kept_apart():
    """A compacted batch has fewer records than offsets; the deltas keep the gaps."""
    batch = encode_batch(
        [BatchRecord(3, 0, b"a", b"1"), BatchRecord(9, 0, b"b", b"2")], base_offset=100, base_timestamp_ms=T0
    )
    assert [r.offset for r in decode_records(batch)] == [103, 109]


def test_under_log_append_time_each_record_has_the_batch_time():
    """With attributes bit 3 the broker's time is stored once, as max timestamp."""
    batch = encode_batch([BatchRecord(0, 1, b"a", b"1"), BatchRecord(1, 2, b"b", b"2")], base_timestamp_ms=T0)
    header = read_header(batch)
    HEADER.pack_into(batch, 0, *header._replace(attributes=header.attributes | 0x08, max_timestamp=T0 + 999))
    assert [r.timestamp_ms for r in decode_records(batch, check=False)] == [T0 + 999, T0 + 999]


def test_a_batch_in_the_middle_of_others_is_read_where_it_is():
    first = encode_batch([BatchRecord(0, 0, None, b"one")], base_timestamp_ms=T0)
    second = encode_batch([BatchRecord(0, 0, None, b"two")], base_timestamp_ms=T0, base_offset=1)
    (record,) = decode_records(memoryview(first + second + first), position=len(first))
    assert (record.offset, record.value) == (1, b"two")


def test_a_wrong_crc_is_an_error():
    batch = encode_batch([BatchRecord(0, 0, None, b"value")], base_timestamp_ms=T0)
    batch[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        decode_records(batch)


@given(rows=rows, cut=st.integers(1, 61))
def test_a_batch_cut_short_is_an_error(rows, cut):
    batch = encode_batch(records_of(rows), base_timestamp_ms=T0)
    with pytest.raises(CorruptBatch):
        decode_records(batch[:-cut])


@given(rows=rows, position=st.integers(0, 10**6), byte=st.integers(1, 255))
def test_damage_that_a_crc_did_not_catch_is_an_error_or_a_list_of_records(rows, position, byte):
    """Any bytes raise CorruptBatch at worst, because a producer may have sent them."""
    batch = encode_batch(records_of(rows), base_timestamp_ms=T0)
    batch[position % len(batch)] ^= byte
    try:
        records = decode_records(batch, check=False)
    except CorruptBatch:
        return
    header = read_header(batch)
    assert len(records) == header.record_count
    assert all(header.base_offset <= r.offset <= header.last_offset for r in records)


@pytest.mark.parametrize(
    ("count", "says"), [(-1, "counts -1"), (1, "bytes follow"), (3, "record"), (1 << 20, "cannot hold")]
)
def test_a_count_that_does_not_fit_the_records_is_an_error(count, says):
    batch = encode_batch([BatchRecord(n, 0, b"k", b"v") for n in range(2)], base_timestamp_ms=T0)
    HEADER.pack_into(batch, 0, *read_header(batch)._replace(record_count=count))
    with pytest.raises(CorruptBatch, match=says):
        decode_records(batch, check=False)


def test_records_that_unpack_past_the_bound_are_refused():
    """Rule 4 of CONTRIBUTING.md limits everything; a few hundred bytes may unpack to a megabyte."""
    batch = encode_batch([BatchRecord(0, 0, None, bytes(1 << 20))], base_timestamp_ms=T0, codec=Codec.ZSTD)
    assert len(batch) < 1000
    with pytest.raises(TooLarge, match="more than 65536 bytes"):
        decode_records(batch, max_bytes=65536)


@pytest.mark.parametrize("deltas", [[], [1, 0], [0, 0], [-1]])
def test_a_batch_of_ours_has_records_and_rising_offsets(deltas):
    with pytest.raises(ValueError):
        encode_batch([BatchRecord(delta, 0, None, b"v") for delta in deltas], base_timestamp_ms=T0)


def test_a_few_bytes_that_unpack_to_millions_of_records_are_not_decoded():
    """Each takes a hundred times its seven bytes in memory."""
    count = RECORDS_MAX + 1
    batch = batch_of(
        bytes(compress(Codec.ZSTD, encode_record(BatchRecord(0, 0, None, None)) * count)), Codec.ZSTD, count
    )
    assert len(batch) < 5_000
    with pytest.raises(CorruptBatch, match=f"counts {count} records, and readers take {RECORDS_MAX}"):
        decode_records(batch)


def test_with_log_append_time_the_producers_times_do_not_count():
    """Kafka gives all records of such a batch the time of its header."""
    crafted = encode_batch([BatchRecord(0, 5, b"k", b"v")], base_timestamp_ms=(1 << 63) - 10)
    header = read_header(crafted)._replace(base_timestamp=(1 << 63) - 1)
    with pytest.raises(CorruptBatch, match="more than 64 bits"):
        _sealed_and_decoded(crafted, header)
    log_append = header._replace(attributes=TIMESTAMP_TYPE_BIT, max_timestamp=1_700_000_000_000)
    assert _sealed_and_decoded(crafted, log_append)[0].timestamp_ms == 1_700_000_000_000


def _sealed_and_decoded(batch, header):
    seal(batch, header)
    return decode_records(batch)
