"""The batches that a mirror produces from the source's batches."""

import pytest

from broker.client.mirror.source_batch import BatchReader, outgoing
from broker.record.batch import DELETE_HORIZON_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, read_header
from broker.record.compression import Codec
from broker.record.control import Marker, encode_marker
from broker.record.records import BatchRecord, decode_records, encode_batch
from broker.wire.fetch import FetchedPartition
from tests.broker.client.mirror.batches import TIME_MS, source_batch


def decoded(batch):
    return decode_records(batch.sealed(9, 3, 40))


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_is_passed_on_whole_with_the_sequence_of_the_mirrors_producer(codec):
    source = source_batch(codec=codec, attributes=TRANSACTIONAL_BIT)
    (batch,) = outgoing(source)
    assert batch.data == source.data and batch.following == 103
    sent = batch.sealed(9, 3, 40)
    header = read_header(sent)
    assert (header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (0, 9, 3, 40)
    assert header.compression == codec and not header.is_transactional
    assert [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in decode_records(sent)] == [
        (n, TIME_MS + 10 * n, b"k%d" % n, b"v%d" % n, (("h", b"%d" % n),)) for n in range(3)
    ]


def test_a_batch_with_missing_offsets_is_written_anew_without_gaps():
    (batch,) = outgoing(source_batch(deltas=(0, 4, 9), codec=Codec.LZ4))
    assert [(record.offset, record.value) for record in decoded(batch)] == [(0, b"v0"), (1, b"v4"), (2, b"v9")]
    assert batch.header.compression == Codec.LZ4 and batch.following == 110


def test_a_copy_that_begins_in_a_batch_leaves_out_the_records_before():
    (batch,) = outgoing(source_batch(first=101))
    assert [(record.value, record.timestamp_ms) for record in decoded(batch)] == [
        (b"v1", TIME_MS + 10),
        (b"v2", TIME_MS + 20),
    ]


def test_times_that_the_log_set_become_the_times_of_the_records():
    (batch,) = outgoing(source_batch(attributes=TIMESTAMP_TYPE_BIT))
    assert not batch.header.is_log_append_time
    assert {record.timestamp_ms for record in decoded(batch)} == {TIME_MS + 20}


def test_a_delete_horizon_of_the_cleaner_is_not_sent():
    (batch,) = outgoing(source_batch(attributes=DELETE_HORIZON_BIT))
    assert batch.header.delete_horizon_ms is None and len(decoded(batch)) == 3


def test_records_may_get_headers_by_their_ids_and_may_be_left_out():
    def edit(record, id):
        return None if record.value == b"v1" else record._replace(headers=(("id", b"%d" % id),))

    (batch,) = outgoing(source_batch(first_id=5000), edit)
    assert [(record.offset, record.value, record.headers) for record in decoded(batch)] == [
        (0, b"v0", (("id", b"5000"),)),
        (1, b"v2", (("id", b"5002"),)),
    ]


def test_a_batch_of_which_nothing_is_copied_gives_none():
    assert outgoing(source_batch(), lambda record, id: None) == []


def test_a_batch_that_grows_when_it_is_written_anew_is_divided():
    batches = outgoing(source_batch(deltas=(0, 1, 2, 4), value=bytes(300_000)))
    assert [batch.record_count for batch in batches] == [1, 1, 1, 1]
    assert [batch.following for batch in batches] == [101, 102, 103, 105]


def test_markers_and_batches_of_aborted_transactions_are_not_read():
    def batch(offset, producer_id):
        return bytes(
            encode_batch(
                [BatchRecord(0, 0, None, b"v")], base_timestamp_ms=TIME_MS, base_offset=offset,
                producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True,
            )
        )  # fmt: skip

    marker = bytearray(encode_marker(1, 0, Marker(False, 0), TIME_MS))
    marker[:8] = (2).to_bytes(8, "big")
    records = batch(0, 1) + batch(1, 2) + bytes(marker)
    answer = FetchedPartition("orders", 0, 0, 3, 3, 0, aborted=[(1, 0)], records=records)
    reader = BatchReader(answer, 0)
    assert [batch.offset for batch in reader.read(1 << 20, 100)] == [1]
    assert reader.next_offset == 3 and reader.is_over
