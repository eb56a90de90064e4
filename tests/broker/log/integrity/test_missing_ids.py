"""A client of Flakelog never shows a record without its id."""

import pytest

from broker.client.errors import MissingId
from broker.client.records import read_records
from broker.wire.fetch import FetchedPartition, IdRegion
from broker.wire.id_entries import ENTRY_BYTES, pack_entry, seed_of
from tests.broker.log.conftest import batch_of

IDS = pack_entry(seed_of(0), 0, 1, 700) + pack_entry(seed_of(0), 1, 1, 701)


def fetched(ids):
    region = None if ids is None else IdRegion(0, ids)
    return FetchedPartition("flights", 3, records=bytes(batch_of(b"a", b"b")), ids=region)


def test_each_record_has_the_id_of_its_offset():
    assert [record.id for record in read_records(fetched(IDS), 0)[0]] == [700, 701]


def test_a_broker_without_ids_sends_records_without_ids():
    assert [record.id for record in read_records(fetched(None), 0)[0]] == [None, None]


@pytest.mark.parametrize("damage", [IDS[:ENTRY_BYTES], b"", IDS[:-1] + b"\0"])
def test_an_id_that_an_answer_with_ids_lacks_is_an_error_that_names_the_offset(damage):
    with pytest.raises(MissingId, match="flights-3 has no id for offset"):
        read_records(fetched(damage), 0)
