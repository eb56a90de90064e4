"""Records from the answer of a Fetch, and the batches among them whose records cannot be decoded."""

import pytest

from broker.client.errors import MissingId
from broker.client.records import LISTED_BYTES, AnswerReader, read_answers, read_records, verify_batches
from broker.record.batch import HEADER_BYTES, TRANSACTIONAL_BIT, CorruptBatch, read_header
from broker.record.compression import Codec
from broker.record.control import Marker, encode_marker
from broker.record.records import BatchRecord, encode_batch
from broker.wire.fetch import FetchedPartition, IdRegion
from broker.wire.id_entries import pack_entry, seed_of
from tests.poison import PASSES_LENGTHS, POISON, RECORDS, UNPACKED_BYTES_MAX, at_offset, resealed

GOOD = 5


def good(base_offset):
    records = [BatchRecord(n, 0, None, b"%d" % (base_offset + n)) for n in range(GOOD)]
    return bytes(encode_batch(records, base_timestamp_ms=0, base_offset=base_offset))


def answer_of(*batches, ids=None, aborted=None):
    return FetchedPartition("orders", 3, records=b"".join(batches), ids=ids, aborted=aborted)


@pytest.mark.parametrize("name", POISON)
def test_reading_goes_on_after_a_batch_that_cannot_be_decoded(name):
    batch = at_offset(POISON[name], GOOD)
    after = GOOD + read_header(batch).record_count
    records, following, (poison,), _ = read_records(answer_of(good(0), batch, good(after)), 0, UNPACKED_BYTES_MAX)
    assert [record.offset for record in records] == [*range(GOOD), *range(after, after + GOOD)]
    assert following == after + GOOD
    assert (poison.topic, poison.partition, poison.base_offset, poison.last_offset) == ("orders", 3, GOOD, after - 1)
    assert poison.data == batch and poison.reason


@pytest.mark.parametrize("read", [read_records, verify_batches])
def test_a_damaged_batch_is_named_with_its_partition_and_offset(read):
    damaged = bytearray(good(GOOD))
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatch, match=f"orders-3 at offset {GOOD}: CRC of the batch"):
        read(answer_of(good(0), damaged), 0)


def test_a_list_of_records_ends_with_the_batch_that_has_enough_bytes():
    size = len(good(0)) - HEADER_BYTES
    answer = answer_of(good(0), good(5), good(10))
    assert read_records(answer, 0, enough_bytes=1).next_offset == 5
    assert read_records(answer, 0, enough_bytes=size + 1).next_offset == 10
    assert read_records(answer, 0, enough_bytes=10 * size).next_offset == 15


def test_a_reader_goes_on_where_it_ended_and_meets_a_poison_batch_when_it_gets_there():
    reader = AnswerReader(answer_of(good(0), at_offset(PASSES_LENGTHS, 5), good(25)), 0)
    assert [record.offset for record in reader.read(1, 100)] == [0, 1, 2, 3, 4]
    assert (reader.next_offset, reader.poison, reader.is_over) == (5, [], False)
    assert [record.offset for record in reader.read(100, 1)] == [25, 26, 27, 28, 29]
    assert (reader.next_offset, len(reader.poison)) == (30, 1)
    assert (reader.read(1, 1), reader.is_over) == ([], True)


def test_a_reader_that_misses_an_id_tells_where_the_reads_before_it_ended():
    reader = AnswerReader(answer_of(good(0), good(5), good(10), ids=IdRegion(0, pack_entry(seed_of(0), 0, 10, 7))), 0)
    assert len(reader.read(1, 100)) == GOOD
    with pytest.raises(MissingId):
        reader.read(1 << 20, 100)
    assert reader.next_offset == 5, "the second batch was lost with the third"


def test_the_lists_of_several_partitions_share_their_limit():
    half = b"x" * (LISTED_BYTES // 2 + 1)
    large = bytes(encode_batch([BatchRecord(0, 0, None, half)], base_timestamp_ms=0, codec=Codec.ZSTD))
    keys = [("orders", partition) for partition in range(3)]
    reads = read_answers({key: answer_of(large) for key in keys}, dict.fromkeys(keys, 0), LISTED_BYTES)
    assert [(len(read.records), read.next_offset) for read in reads.values()] == [(1, 1), (1, 1), (0, 0)]


def test_a_poison_batch_that_is_alone_moves_the_offset_past_it():
    assert read_records(answer_of(at_offset(PASSES_LENGTHS, 40)), 40)[:2] == ([], 40 + RECORDS)


def test_a_poison_batch_is_named_with_its_topic_its_partition_and_its_offsets():
    (poison,) = read_records(answer_of(at_offset(PASSES_LENGTHS, 40)), 40).poison
    assert str(poison).startswith("orders-3, batch of offsets 40 to 59: ") and poison.reason in str(poison)


def test_a_poison_batch_has_its_first_id_if_the_broker_gave_one():
    ids = IdRegion(0, pack_entry(seed_of(0), 40, RECORDS, 7_000))
    batch = at_offset(PASSES_LENGTHS, 40)
    assert read_records(answer_of(batch, ids=ids), 40).poison[0].first_id == 7_000
    assert read_records(answer_of(batch), 40).poison[0].first_id is None


def test_a_poison_batch_before_the_wanted_offset_is_not_reported_again():
    read = read_records(answer_of(PASSES_LENGTHS, good(RECORDS)), RECORDS)
    assert not read.poison and read.next_offset == RECORDS + GOOD


def test_a_poison_batch_of_an_aborted_transaction_is_skipped_like_any_other():
    """Aborted records are never delivered at READ_COMMITTED (KIP-98), so nothing is lost with the batch."""
    poison = resealed(PASSES_LENGTHS, producer_id=9, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT)
    marker = at_offset(encode_marker(9, 0, Marker(False, 0), 0), RECORDS)
    assert len(read_records(answer_of(poison, marker), 0).poison) == 1
    assert read_records(answer_of(poison, marker, aborted=((9, 0),)), 0)[:3] == ([], RECORDS + 1, ())


def test_a_batch_with_a_wrong_crc_is_damage_and_not_poison():
    damaged = bytearray(good(0))
    damaged[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        read_records(answer_of(bytes(damaged)), 0)


def test_a_batch_that_says_it_ends_before_it_begins_still_moves_the_offset():
    batch = at_offset(resealed(PASSES_LENGTHS, last_offset_delta=-1), 40)
    assert read_records(answer_of(batch), 40).next_offset == 41
