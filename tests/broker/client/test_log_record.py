"""The fast decoder of usual batches reads what the general decoder reads, and leaves all else to it."""

import random

import pytest

from broker.client.log_record import NO_IDS
from broker.client.log_record import Record as ReadRecord
from broker.client.log_record import RecordIds, usual_records
from broker.client.records import read_records
from broker.record.batch import HEADER_BYTES, TIMESTAMP_TYPE_BIT, CorruptBatch, read_header
from broker.record.compression import Codec
from broker.record.records import LONG_MAX, BatchRecord, decode_records, encode_batch
from broker.wire.fetch import FetchedPartition, IdRegion
from broker.wire.id_entries import pack_entry, seed_of
from tests.poison import resealed

BASE = 5_000
SEED = 16
RECORDS = [
    BatchRecord(0, 0, None, b"v"),
    BatchRecord(1, -70, b"k" * 63, b"v" * 64),
    BatchRecord(2, 9_000, b"", b""),
    BatchRecord(90, 10**11, b"k" * 9_000, None, (("h", b"1"), ("null", None))),
    BatchRecord(9_000, 3, None, None),
]


def batch_of(records, **more):
    return bytes(encode_batch(records, base_timestamp_ms=1_700_000_000_000, base_offset=BASE, **more))


def fast(batch, runs=NO_IDS):
    return usual_records(bytes(batch[HEADER_BYTES:]), read_header(batch), runs)


def general(batch):
    return [ReadRecord(record.offset, None, *record[1:]) for record in decode_records(batch, check=False)]


def test_it_reads_nulls_empty_values_headers_gaps_and_long_numbers_as_the_general_decoder_does():
    assert fast(batch_of(RECORDS)) == general(batch_of(RECORDS))


def test_the_ids_rise_with_the_offsets():
    records = fast(batch_of(RECORDS), [RecordIds(9_001, 70_000)])
    assert [record.id for record in records] == [70_000, 70_001, 70_002, 70_090, 79_000]


def test_ids_may_rise_in_several_runs():
    records = fast(
        batch_of(RECORDS), [RecordIds(2, 70_000), RecordIds(50, 80_000), RecordIds(60, 1), RecordIds(9_001, 90_000)]
    )
    assert [record.id for record in records] == [70_000, 70_001, 80_002, 90_090, 99_000]


def test_a_batch_with_a_record_without_an_id_is_left_to_the_general_decoder():
    assert fast(batch_of(RECORDS), [RecordIds(9_000, 70_000)]) is None
    assert fast(batch_of(RECORDS), []) is None


def test_with_log_append_time_each_record_has_the_time_of_the_header():
    batch = resealed(batch_of(RECORDS), attributes=TIMESTAMP_TYPE_BIT, max_timestamp=77)
    assert [record.timestamp_ms for record in fast(batch)] == [77] * len(RECORDS)
    assert fast(batch) == general(batch)


@pytest.mark.parametrize("base", (LONG_MAX, -LONG_MAX))
def test_times_that_may_have_more_than_64_bits_are_left_to_the_general_decoder(base):
    assert fast(resealed(batch_of(RECORDS[:1]), base_timestamp=base)) is None
    assert (
        fast(batch_of([BatchRecord(0, base // 2 - 1, None, b"v"), BatchRecord(1, base // 2 + 2, None, b"v")])) is None
    )


def test_a_damaged_batch_is_never_read_otherwise_than_by_the_general_decoder():
    """Each byte of the records takes random values: both decoders agree, or the fast one leaves the batch alone."""
    numbers, read = random.Random(SEED), 0
    plain = batch_of(
        [*RECORDS[:3], BatchRecord(4, 1, b"key", b"value", (("h", b"1"),)), BatchRecord(5, 2, None, b"last")]
    )
    for position in range(HEADER_BYTES, len(plain)):
        for _ in range(20):
            damaged = bytearray(plain)
            damaged[position] = numbers.randrange(256)
            records = fast(damaged)
            if records is None:
                continue
            read += 1
            assert records == general(damaged), f"byte {position} is {damaged[position]}"
    assert read > 1_000


@pytest.mark.parametrize("number", (0, 4, 6, -1, 2**31 - 1))
def test_a_wrong_number_of_records_is_left_to_the_general_decoder(number):
    batch = resealed(batch_of(RECORDS), record_count=number)
    assert fast(batch) is None
    if number:
        with pytest.raises(CorruptBatch):
            general(batch)


# --- in an answer


def answer_of(*batches, ids=None):
    return FetchedPartition("orders", 3, records=b"".join(batches), ids=ids)


@pytest.mark.parametrize("codec", Codec)
def test_each_record_knows_how_its_batch_was_compressed(codec):
    read = read_records(answer_of(batch_of(RECORDS, codec=codec)), BASE)
    wanted = [record._replace(codec=codec, topic="orders", partition=3) for record in general(batch_of(RECORDS))]
    assert read.records == wanted


def test_ids_that_rise_in_two_runs_within_a_batch_are_found_too():
    entries = pack_entry(seed_of(BASE), 0, 2, 70_000) + pack_entry(seed_of(BASE), 2, 8_999, 80_000)
    read = read_records(answer_of(batch_of(RECORDS), ids=IdRegion(BASE, entries)), BASE)
    assert [record.id for record in read.records] == [70_000, 70_001, 80_000, 80_088, 88_998]


def test_a_fetch_from_the_middle_of_a_batch_begins_there():
    assert [record.offset for record in read_records(answer_of(batch_of(RECORDS)), BASE + 2).records] == [
        BASE + 2, BASE + 90, BASE + 9_000,
    ]  # fmt: skip


def test_the_leader_epoch_of_the_last_batch_is_known():
    first, second = bytearray(batch_of(RECORDS[:1])), bytearray(batch_of(RECORDS[1:]))
    first[12:16], second[12:16] = (4).to_bytes(4, "big"), (7).to_bytes(4, "big")
    assert read_records(answer_of(bytes(first), bytes(second)), BASE).leader_epoch == 7
    assert read_records(answer_of(), BASE).leader_epoch == -1
