"""Batches to Arrow, compared with the record decoder (broker.record.records), which is tested against other clients."""

import threading

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.record.batch import HEADER, CorruptBatch, read_header
from broker.record.compression import Codec, TooLarge
from broker.record.id_header import id_header
from broker.record.records import BatchRecord, decode_records, encode_batch
from broker.wire.id_entries import IdEntry
from spark_bridge.reading import record_starts
from spark_bridge.reading.arrow_decode import MissingId, PlacedBatch, decode
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.row import DEFAULT, STORED, arrow_schema

T0 = 1_700_000_000_000
ALL = OffsetRange("flights", 3, 0, 1 << 40)


@pytest.fixture(autouse=True, params=[1, 1_000], ids=["chains", "walk"])
def where_records_start(request, monkeypatch):
    """Let few records too be found by chains, as large groups are (test_record_starts)."""
    monkeypatch.setattr(record_starts, "_CHAINED_RECORDS_MIN", request.param)
    monkeypatch.setattr(record_starts, "_RECORD_BYTES_MAX", 100_000)


headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=2).map(tuple)
field = st.none() | st.binary(max_size=100) | st.just(bytes(300))
record = st.tuples(st.integers(1, 3), st.integers(-(10**6), 10**12), field, field, headers)
batch = st.tuples(st.lists(record, min_size=1, max_size=12), st.sampled_from(Codec), st.integers(0, 5))


def build(described):
    """Encode batches one after the other, with gaps inside and between them."""
    batches = []
    base = 0
    for rows, codec, gap in described:
        base += gap
        offset = -1
        records = []
        for step, t, key, value, headers in rows:
            offset += step
            records.append(BatchRecord(offset, t, key, value, headers))
        batches.append(encode_batch(records, base_timestamp_ms=T0, base_offset=base, codec=codec))
        base += offset + 1
    return batches


def placed(batches):
    """Place all batches in one buffer, as in a fetch."""
    data = b"".join(batches)
    at = 0
    out = []
    for batch in batches:
        out.append(PlacedBatch(data, at, read_header(data, at)))
        at += len(batch)
    return out


def table_of(batches, within, columns, ids, **limits):
    """Decode all batches and concatenate the result."""
    return pa.Table.from_batches(decode(batches, within, columns, ids, **limits), arrow_schema(columns))


def row_of(stored):
    return {
        "key": stored.key,
        "value": stored.value,
        "topic": "flights",
        "partition": 3,
        "offset": stored.offset,
        "timestamp": stored.timestamp_ms,
        "timestampType": 0,
        "headers": [{"key": name, "value": value} for name, value in stored.headers] or None,
        "id": 1000 + stored.offset,
    }


def rows_of(table):
    """Return rows as dictionaries, the timestamp in ms."""
    index = table.schema.get_field_index("timestamp")
    in_ms = table.set_column(index, "timestamp", table.column(index).cast(pa.int64()))
    rows = in_ms.to_pylist()
    for row in rows:
        row["timestamp"] //= 1000
    return rows


@settings(max_examples=60)
@given(st.lists(batch, max_size=6), st.integers(0, 40), st.integers(0, 80), st.integers(1, 2000))
def test_rows_are_those_of_the_record_by_record_decoder(described, start, length, group):
    within = OffsetRange("flights", 3, start, start + length)
    batches = build(described)
    table = table_of(placed(batches), within, STORED, [IdEntry(0, 10**6, 1000)], group_bytes=group)
    table.validate(full=True)
    assert table.schema == arrow_schema(STORED)
    assert rows_of(table) == [row_of(r) for batch in batches for r in decode_records(batch) if r.offset in within]


def test_a_batch_of_log_append_time_has_that_time_in_every_row():
    """Every row has the batch's log append time (attributes bit 3) and the connector's timestampType 1."""
    batch = encode_batch([BatchRecord(0, 1, b"a", b"1"), BatchRecord(1, 2, b"b", b"2")], base_timestamp_ms=T0)
    header = read_header(batch)
    HEADER.pack_into(batch, 0, *header._replace(attributes=header.attributes | 0x08, max_timestamp=T0 + 999))
    table = table_of(placed([batch]), ALL, ("timestamp", "timestampType"), None)
    assert [(row["timestamp"], row["timestampType"]) for row in rows_of(table)] == [(T0 + 999, 1)] * 2


def test_only_the_columns_asked_for_are_made():
    """Only the requested columns are decoded; Spark prunes none (SPARK-51713), so a read names them."""
    (batch,) = build([([(1, 0, b"k", b"v", ())], Codec.NONE, 0)])
    table = table_of(placed([batch]), ALL, ("offset", "value"), None)
    assert table.to_pydict() == {"offset": [0], "value": [b"v"]}


def test_ids_come_from_their_runs():
    """Ids are consecutive in a run, and entries may cover more records than are read."""
    (batch,) = build([([(1, 0, b"k", b"v", ())] * 6, Codec.NONE, 4)])
    ids = [IdEntry(0, 4, 100), IdEntry(4, 2, 500), IdEntry(6, 3, 900), IdEntry(9, 100, 5000)]
    table = table_of(placed([batch]), ALL, ("offset", "id"), ids)
    assert table.to_pydict() == {"offset": [4, 5, 6, 7, 8, 9], "id": [500, 501, 900, 901, 902, 5000]}


@pytest.mark.parametrize(
    "ids", [[], [IdEntry(5, 9, 100)], [IdEntry(0, 5, 100)], [IdEntry(0, 5, 100), IdEntry(6, 9, 200)]]
)
def test_a_record_without_an_id_is_an_error_not_a_null(ids):
    """A record without an id raises MissingId, because a read must fail rather than return less."""
    (batch,) = build([([(1, 0, b"k", b"v", ())] * 6, Codec.NONE, 4)])
    with pytest.raises(MissingId, match="no id for offset [45] of flights-3"):
        table_of(placed([batch]), ALL, DEFAULT, ids)


def test_ids_are_null_where_the_broker_keeps_none():
    (batch,) = build([([(1, 0, b"k", b"v", ())] * 2, Codec.NONE, 0)])
    assert table_of(placed([batch]), ALL, ("id",), None).to_pydict() == {"id": [None, None]}


def test_ids_come_from_headers_where_the_broker_keeps_none():
    headers = [(("own", b"1"), id_header(42)), (), (("flakelog-id", b"no number"),), (id_header(43),)]
    records = [BatchRecord(n, 0, None, b"v", record_headers) for n, record_headers in enumerate(headers)]
    batch = encode_batch(records, base_timestamp_ms=0)
    table = table_of(placed([bytes(batch)]), ALL, ("id",), None)
    assert table["id"].to_pylist() == [42, None, None, 43]


def test_nothing_to_decode_is_an_empty_table_of_the_same_schema():
    table = table_of([], ALL, STORED, [])
    assert (table.num_rows, table.schema) == (0, arrow_schema(STORED))


def test_an_arrow_batch_holds_no_more_than_a_group_of_record_batches():
    """A task's memory is bounded, however well a fetch was compressed (rule 4 of CONTRIBUTING.md)."""
    batches = placed(build([([(1, 0, None, bytes(1000), ())], Codec.ZSTD, 0)] * 10))
    sizes = [arrow_batch.num_rows for arrow_batch in decode(batches, ALL, ("value",), None, group_bytes=3500)]
    assert sizes == [3, 3, 3, 1]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_larger_than_a_group_is_unpacked_within_the_turn(codec):
    """Threads that share a turn have memory for one large batch. Small batches need no turn."""
    small, large = [(1, 0, None, bytes(1000), ())], [(1, 0, None, bytes(1000), ())] * 4
    batches = placed(build([(small, codec, 0), (small, codec, 0), (large, codec, 0), (small, codec, 0)]))
    turn = threading.Lock()
    seen = [
        (batch.num_rows, turn.locked())
        for batch in decode(batches, ALL, ("value",), None, group_bytes=3500, large_turn=turn)
    ]
    assert seen == [(2, False), (4, True), (1, False)]
    assert not turn.locked()


@settings(max_examples=150)
@given(described=batch, position=st.integers(0, 10**6), byte=st.integers(1, 255))
def test_damage_that_a_crc_did_not_catch_is_an_error_or_rows(described, position, byte):
    """Damaged records under a valid CRC raise CorruptBatch or give rows, and no row is invented."""
    (encoded,) = build([described])
    encoded[position % len(encoded)] ^= byte
    try:
        seen = table_of([PlacedBatch(encoded, 0, read_header(encoded))], ALL, STORED, None)
    except CorruptBatch:
        return
    seen.validate(full=True)
    assert seen.num_rows == len([r for r in decode_records(encoded, check=False) if r.offset in ALL])


@pytest.mark.parametrize("count", [-1, 1, 3, 1 << 30])
def test_a_count_that_does_not_fit_the_records_is_an_error(count):
    (batch,) = build([([(1, 0, b"k", b"v", ())] * 2, Codec.NONE, 0)])
    HEADER.pack_into(batch, 0, *read_header(batch)._replace(record_count=count))
    with pytest.raises(CorruptBatch):
        table_of(placed([batch]), ALL, DEFAULT, None)


def test_records_that_unpack_past_the_bound_are_refused():
    batch = encode_batch([BatchRecord(0, 0, None, bytes(1 << 20))], base_timestamp_ms=T0, codec=Codec.ZSTD)
    with pytest.raises(TooLarge):
        table_of(placed([batch]), ALL, DEFAULT, None, max_bytes=65536)


def test_a_last_record_that_runs_past_the_end_is_an_error():
    batch = bytearray(encode_batch([BatchRecord(n, 0, b"k" * 100, b"v") for n in range(2)], base_timestamp_ms=0))
    last = len(batch) - 110
    batch[last + 1], batch[last + 6] = 0x7F, 0x70  # it says 8,171 bytes, 7,204 of them for its key
    with pytest.raises(CorruptBatch):
        table_of([PlacedBatch(bytes(batch), 0, read_header(batch))], ALL, STORED, None)


def test_a_timestamp_that_no_column_can_hold_is_an_error():
    batch = encode_batch([BatchRecord(0, 0, None, b"v")], base_timestamp_ms=1 << 62)
    with pytest.raises(CorruptBatch, match="timestamp"):
        table_of(placed([batch]), ALL, DEFAULT, None)
