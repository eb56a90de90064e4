"""A start never takes old data for an empty directory, and a topic never takes records of another one."""

import json

import pytest

from broker.metadata.document import MetadataDamaged
from broker.wire.errors import ApiError
from tests.broker.engine_client import EngineBroker

METADATA = "metadata.json"
LOG = f"flights-0/{0:020d}.log"


def data_of(storage, path):
    return bytes(storage.files[path].data)


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights")
    broker.connect().produce("flights", b"a")
    return broker


def document_of(broker):
    return json.loads(data_of(broker.storage, METADATA))


def stored(broker, document):
    """Write a document as the versions without a CRC did."""
    del document["crc32c"]
    broker.storage.replace(METADATA, json.dumps(document | {"version": 1}).encode())


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_without_metadata_beside_data_is_refused_and_names_the_way_out(broker, clean):
    broker.storage.remove(METADATA)
    with pytest.raises(MetadataDamaged, match="flights-0.*Put the file back.*new cluster"):
        broker.restarted(clean=clean)


def test_a_start_in_a_directory_without_data_begins_a_cluster():
    broker = EngineBroker()
    broker.storage.make_directory("ids", "notes-2024")
    broker.storage.remove(METADATA)
    assert broker.restarted().services.metadata.cluster_id


def test_any_flipped_bit_of_the_metadata_is_refused_by_name(broker):
    whole = data_of(broker.storage, METADATA)
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        broker.storage.replace(METADATA, bytes(flipped))
        with pytest.raises(MetadataDamaged, match=METADATA):
            EngineBroker(broker.storage)


def test_metadata_of_the_version_without_a_crc_is_read_and_gets_one(broker):
    before = document_of(broker)
    stored(broker, document_of(broker))
    again = broker.restarted()
    assert again.services.metadata.topic("flights") is not None
    after = document_of(again)
    assert after["version"] == 2 and after["topics"] == before["topics"]


@pytest.mark.parametrize("rolled", [False, True])
def test_metadata_of_another_cluster_takes_the_partition_offline_by_name(rolled):
    broker = EngineBroker()
    broker.create("flights", **{"segment.bytes": "1024"} if rolled else {})
    for _ in range(3):
        broker.connect().produce("flights", b"a" * 500)
    document = document_of(broker.restarted())
    document["topics"]["flights"]["id"] = "00000000-0000-0000-0000-000000000077"
    stored(broker, document)
    again = broker.restarted()
    assert "Put back the metadata" in again.services.logs.offline["flights-0"]
    assert any("flights-0 is offline" in line for line in again.reported)


def test_records_of_no_topic_are_reported_and_a_new_topic_of_that_name_does_not_take_them(broker):
    old = document_of(broker)
    old["topics"] = {}
    stored(broker, old)
    again = broker.restarted(clean=False)
    assert any("flights-0: records of no topic" in line for line in again.reported)
    with pytest.raises(ApiError, match="flights-0 has records of another topic"):
        again.create("flights")
    assert again.services.metadata.topic("flights") is None
    assert again.storage.exists(LOG), "the refusal deletes nothing"
    again.storage.rename("flights-0", "moved")
    again.create("flights")
    again.connect().produce("flights", b"b")
    assert again.connect().fetch("flights") == [b"b"]


def test_a_topic_that_was_deleted_and_created_again_has_its_own_records_after_a_crash(broker):
    broker = broker.restarted()
    broker.hold_syncs()  # the checkpoint keeps the entry of the deleted topic
    broker.delete("flights")
    broker.create("flights")
    broker.connect().produce("flights", b"b")
    again = broker.restarted(clean=False)
    assert again.connect().fetch("flights") == [b"b"]
