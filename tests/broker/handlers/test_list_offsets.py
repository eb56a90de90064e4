"""ListOffsets through the wire (https://kafka.apache.org/protocol#The_Messages_ListOffsets)."""

import pytest
from crc32c import crc32c

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import LIST_OFFSETS, PRODUCE, WALL_MS, EngineBroker, batch_of, produce_request

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6


@pytest.fixture
def client():
    broker = EngineBroker()
    broker.create("flights")
    client = broker.connect()
    client.produce("flights", b"a", b"b")
    return client


def ask(client, version, timestamp, **more):
    partition = {"partition_index": 0, "timestamp": timestamp, **more}
    fields = {"replica_id": -1, "topics": [{"name": "flights", "partitions": [partition]}]}
    answer = client.ask(LIST_OFFSETS, version, fields).topics[0].partitions[0]
    return answer.error_code, answer.offset


@pytest.mark.parametrize("version", [1, 7, 11])
@pytest.mark.parametrize("timestamp, offset", [(LATEST, 2), (EARLIEST, 0), (WALL_MS, 0), (WALL_MS + 1, -1), (0, 0)])
def test_ends_and_times_are_known_to_all_versions(client, version, timestamp, offset):
    assert ask(client, version, timestamp) == (0, offset)


@pytest.mark.parametrize(
    "timestamp, since, offset",
    [(MAX_TIMESTAMP, 7, 0), (EARLIEST_LOCAL, 8, 0), (LATEST_TIERED, 9, -1), (EARLIEST_PENDING_UPLOAD, 11, -1)],
)
def test_other_places_are_known_since_the_version_that_brought_them(client, timestamp, since, offset):
    """KIP-734, KIP-405, KIP-1005: an older version cannot mean them."""
    assert ask(client, since - 1, timestamp) == (ErrorCode.UNSUPPORTED_VERSION, -1)
    assert ask(client, since, timestamp) == (0, offset)


@pytest.mark.parametrize("timestamp", [-7, -(2**63)])
def test_a_place_nobody_knows_is_refused(client, timestamp):
    assert ask(client, 11, timestamp) == (ErrorCode.UNSUPPORTED_VERSION, -1)


@pytest.mark.parametrize("version", [4, 11])
def test_a_client_that_names_another_leader_epoch_is_told(client, version):
    """KIP-320, as in Fetch: its metadata is older than the leader's, or newer."""
    client.broker.services.log_of("flights", 0).start_leader_epoch(3)
    assert ask(client, version, LATEST, current_leader_epoch=3) == (0, 2)
    assert ask(client, version, LATEST, current_leader_epoch=2) == (ErrorCode.FENCED_LEADER_EPOCH, -1)
    assert ask(client, version, LATEST, current_leader_epoch=4) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)


def answered(client, version, timestamp, topic="flights", partition=0, twice=1, **more):
    asked = [{"partition_index": partition, "timestamp": timestamp}] * twice
    fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": asked}]} | more
    return client.ask(LIST_OFFSETS, version, fields).topics[0].partitions


@pytest.mark.parametrize("version", [4, 11])
def test_an_answer_names_the_epoch_in_which_its_record_was_written(client, version):
    """KIP-320: a consumer that begins there can find out later whether the log was cut."""
    client.broker.services.log_of("flights", 0).start_leader_epoch(3)
    client.produce("flights", b"c")
    places = [EARLIEST, LATEST, 0, WALL_MS + 1] + [MAX_TIMESTAMP, LATEST_TIERED] * (version == 11)
    epochs = [answered(client, version, place)[0].leader_epoch for place in places]
    assert epochs == [0, 3, 0, -1] + [0, -1] * (version == 11)


@pytest.mark.parametrize("version", [1, 11])
@pytest.mark.parametrize("topic, partition", [("trains", 0), ("flights", 1)])
def test_what_is_not_there_is_unknown(client, version, topic, partition):
    (each,) = answered(client, version, LATEST, topic, partition)
    assert (each.error_code, each.offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


@pytest.mark.parametrize("version", [1, 11])
def test_a_partition_asked_for_twice_is_refused(client, version):
    assert [each.error_code for each in answered(client, version, LATEST, twice=2)] == [ErrorCode.INVALID_REQUEST] * 2


@pytest.mark.parametrize("version", [1, 11])
@pytest.mark.parametrize("place", [LATEST, EARLIEST, 0])
def test_a_partition_that_is_offline_is_a_storage_error(client, version, place):
    client.broker.services.log_of("flights", 0).offline = "its disk is gone"
    assert answered(client, version, place)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("version", [2, 11])
def test_an_empty_partition_has_ends_and_no_times(version):
    broker = EngineBroker()
    broker.create("empty")
    client = broker.connect()
    places = {0: -1, LATEST: 0, EARLIEST: 0} | ({MAX_TIMESTAMP: -1} if version == 11 else {})
    assert {place: answered(client, version, place, "empty")[0].offset for place in places} == places


@pytest.mark.parametrize("version", [1, 11])
def test_a_batch_of_what_are_no_records_is_corrupt(client, version):
    """It passed by its CRC; only a search for a time opens it."""
    batch = bytearray(batch_of(b"later", timestamp_ms=WALL_MS + 5))
    batch[61:] = b"\xff" * (len(batch) - 61)
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    assert client.ask(PRODUCE, 9, produce_request("flights", batch=batch))[0].error_code == 0
    assert answered(client, version, WALL_MS + 5)[0].error_code == ErrorCode.CORRUPT_MESSAGE
    assert answered(client, version, WALL_MS)[0].offset == 0
