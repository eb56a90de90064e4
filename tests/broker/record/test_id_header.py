"""The header `flakelog-id`, from which readers take an id where the broker keeps none."""

import pytest

from broker.client.records import read_records
from broker.record.id_header import id_header, id_of
from broker.record.records import BatchRecord, encode_batch
from broker.wire.fetch import FetchedPartition, IdRegion
from broker.wire.id_entries import pack_entry, seed_of

ID_MAX = (1 << 63) - 1


@pytest.mark.parametrize("id", (0, 7, ID_MAX))
def test_an_id_is_read_back(id):
    assert id_of((("own", b"1"), id_header(id))) == id


@pytest.mark.parametrize(
    "value", (None, b"", b"-1", b"x", b" 1", b"1.0", b"%d" % (ID_MAX + 1), b"9" * 5_000), ids=repr
)
def test_what_is_no_id_of_63_bits_is_none(value):
    assert id_of((("flakelog-id", value),)) is None


def test_the_last_header_of_the_name_counts():
    assert id_of((id_header(1), id_header(2))) == 2


def answer(headers, ids=None):
    batch = encode_batch([BatchRecord(0, 0, None, b"v", headers), BatchRecord(1, 0, None, b"w")], base_timestamp_ms=0)
    return FetchedPartition("orders", 0, records=bytes(batch), ids=ids)


def test_a_reader_takes_the_id_from_the_header_if_the_broker_sends_none():
    assert [record.id for record in read_records(answer((id_header(42),)), 0).records] == [42, None]


def test_the_ids_of_the_broker_count_before_a_header():
    ids = IdRegion(0, pack_entry(seed_of(0), 0, 2, 7_000))
    assert [record.id for record in read_records(answer((id_header(42),), ids), 0).records] == [7_000, 7_001]
