"""ListOffsets through the wire (https://kafka.apache.org/protocol#The_Messages_ListOffsets)."""

import pytest
from crc32c import crc32c

from broker.log import log_reader
from broker.log.search import OPENED_NON_BLOCKING, UNPACKED_NON_BLOCKING
from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch
from broker.wire import tags
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
def test_all_versions_find_ends_and_times(client, version, timestamp, offset):
    assert ask(client, version, timestamp) == (0, offset)


@pytest.mark.parametrize(
    "timestamp, since, offset",
    [(MAX_TIMESTAMP, 7, 0), (EARLIEST_LOCAL, 8, 0), (LATEST_TIERED, 9, -1), (EARLIEST_PENDING_UPLOAD, 11, -1)],
)
def test_other_special_timestamps_are_found_since_the_version_that_added_them(client, timestamp, since, offset):
    """An older version has no such place (KIP-734, KIP-405, KIP-1005)."""
    assert ask(client, since - 1, timestamp) == (ErrorCode.UNSUPPORTED_VERSION, -1)
    assert ask(client, since, timestamp) == (0, offset)


@pytest.mark.parametrize("timestamp", [-7, -(2**63)])
def test_an_unknown_special_timestamp_is_refused(client, timestamp):
    assert ask(client, 11, timestamp) == (ErrorCode.UNSUPPORTED_VERSION, -1)


@pytest.mark.parametrize("version", [4, 11])
def test_a_client_that_names_another_leader_epoch_is_told(client, version):
    """The client's metadata is older or newer than the leader's, as in Fetch (KIP-320)."""
    client.broker.services.log_of("flights", 0).start_leader_epoch(3)
    assert ask(client, version, LATEST, current_leader_epoch=3) == (0, 2)
    assert ask(client, version, LATEST, current_leader_epoch=2) == (ErrorCode.FENCED_LEADER_EPOCH, -1)
    assert ask(client, version, LATEST, current_leader_epoch=4) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)


def answered(client, version, timestamp, topic="flights", partition=0, twice=1, **more):
    partitions = [{"partition_index": partition, "timestamp": timestamp}] * twice
    fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": partitions}]} | more
    return client.ask(LIST_OFFSETS, version, fields).topics[0].partitions


@pytest.mark.parametrize("version", [4, 11])
def test_an_answer_names_the_epoch_in_which_its_record_was_written(client, version):
    """A consumer that starts there can find out later whether the log was cut (KIP-320)."""
    client.broker.services.log_of("flights", 0).start_leader_epoch(3)
    client.produce("flights", b"c")
    timestamps = [EARLIEST, LATEST, 0, WALL_MS + 1] + [MAX_TIMESTAMP, LATEST_TIERED] * (version == 11)
    epochs = [answered(client, version, timestamp)[0].leader_epoch for timestamp in timestamps]
    assert epochs == [0, 3, 0, -1] + [0, -1] * (version == 11)


@pytest.mark.parametrize("version", [1, 11])
@pytest.mark.parametrize("topic, partition", [("trains", 0), ("flights", 1)])
def test_what_is_not_there_is_unknown(client, version, topic, partition):
    (result,) = answered(client, version, LATEST, topic, partition)
    assert (result.error_code, result.offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


@pytest.mark.parametrize("version", [1, 11])
def test_a_partition_asked_for_twice_is_refused(client, version):
    results = answered(client, version, LATEST, twice=2)
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST] * 2


@pytest.mark.parametrize("version", [1, 11])
@pytest.mark.parametrize("timestamp", [LATEST, EARLIEST, 0])
def test_a_partition_that_is_offline_is_a_storage_error(client, version, timestamp):
    client.broker.services.log_of("flights", 0).offline = "its disk is gone"
    assert answered(client, version, timestamp)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("version", [2, 11])
def test_an_empty_partition_has_ends_and_no_times(version):
    broker = EngineBroker()
    broker.create("empty")
    client = broker.connect()
    offsets = {0: -1, LATEST: 0, EARLIEST: 0} | ({MAX_TIMESTAMP: -1} if version == 11 else {})
    assert {timestamp: answered(client, version, timestamp, "empty")[0].offset for timestamp in offsets} == offsets


@pytest.mark.parametrize("version", [1, 11])
def test_a_search_passes_over_a_batch_whose_records_cannot_be_decoded(version):
    """Readers skip such a batch too. An error would end each search that begins before it."""
    client = unchecked()
    assert client.ask(PRODUCE, 9, produce_request("flights", batch=rubbish(b"later")))[0].error_code == 0
    assert answered(client, version, WALL_MS + 5)[0].offset == -1
    client.ask(PRODUCE, 9, produce_request("flights", batch=batch_of(b"last", timestamp_ms=WALL_MS + 7)))
    assert [ask(client, version, WALL_MS + ahead) for ahead in (0, 5, 7, 8)] == [(0, 0), (0, 3), (0, 3), (0, -1)]


@pytest.mark.parametrize("version", [1, 11])
def test_a_batch_that_is_damaged_on_the_disk_is_corrupt(client, version):
    damage_last_batch(client)
    assert ask(client, version, WALL_MS) == (ErrorCode.CORRUPT_MESSAGE, -1)


def rubbish(*values):
    """Return a batch with a valid CRC and rubbish in place of its records."""
    batch = bytearray(batch_of(*values, timestamp_ms=WALL_MS + 5))
    batch[61:] = b"\xff" * (len(batch) - 61)
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    return batch


def damage_last_batch(client):
    client.broker.storage.files[f"flights-0/{0:020d}.log"].data[-1] ^= 1


def unchecked():
    """Return a client of a topic whose producers are believed."""
    broker = EngineBroker()
    broker.create("flights", flakelog_validate_records="header")
    client = broker.connect()
    client.produce("flights", b"a", b"b")
    return client


# --- slow searches ---------------------------------------------------------------------------------------------------


@pytest.fixture
def old():
    """Return a broker with a partition of four segments, all on the disk and none in memory."""
    broker = EngineBroker()
    broker.create("flights")
    client = broker.connect()
    for number in range(4):
        batch = batch_of(b"a", b"b", timestamp_ms=WALL_MS + number)
        client.ask(PRODUCE, 9, produce_request("flights", batch=batch))
        broker.services.log_of("flights", 0).roll()
    broker = broker.restarted()
    broker.storage.not_in_memory.update(broker.storage.files)
    return broker


def send(client, timestamp, by_id=False):
    fields = {"replica_id": -1, "topics": [{"name": "flights", "partitions": [{"partition_index": 0}]}]}
    fields["topics"][0]["partitions"][0]["timestamp"] = timestamp
    return client.send(LIST_OFFSETS, 8, fields, {tags.IDS: tags.REQUEST} if by_id else None)


def offset_of(replies):
    ((_, answer),) = replies
    (result,) = answer.topics[0].partitions
    return result.error_code, result.offset


def id_of(broker, offset):
    return log_reader.ids_of(broker.services.log_of("flights", 0), offset, offset + 1)[0][0]


@pytest.mark.parametrize(
    "sought, offset", [(WALL_MS, 0), (WALL_MS + 2, 4), (WALL_MS + 9, -1), (MAX_TIMESTAMP, 6), ("id", 5)]
)
def test_what_is_not_in_memory_is_looked_for_by_a_thread_and_nobody_else_waits(old, sought, offset):
    by_id = sought == "id"
    wanted = id_of(old, 5) if by_id else sought
    old.storage.not_in_memory.update(old.storage.files)
    if sought == MAX_TIMESTAMP:
        old.services.log_of("flights", 0).advance_start(1)
    held = old.hold_syncs()
    reader, other = old.connect(), old.connect()
    send(reader, wanted, by_id)
    assert ask(other, 8, LATEST) == (0, 8)
    if sought != WALL_MS + 9:  # a time after all records needs no look at the disk
        assert reader.replies() == [] and [type(job).__name__ for job in held] == ["ReadJob"]
        old.run(held.pop())
        old.storage.not_in_memory.update(old.storage.files)  # memory that is too short does not keep the answer
    old.pump()
    assert offset_of(reader.replies()) == (0, offset)


def test_a_question_asked_again_goes_to_a_thread_as_well(old):
    reader = old.connect()
    assert ask(reader, 8, LATEST) == (0, 8)
    held = old.hold_syncs()
    send(reader, WALL_MS)
    assert reader.replies() == [] and len(held) == 1
    old.release()
    assert offset_of(reader.replies()) == (0, 0)


def test_all_partitions_of_a_request_are_looked_up_together():
    broker = EngineBroker()
    broker.create("flights", 3)
    for partition in range(3):
        broker.connect().produce("flights", b"a", partition=partition)
    broker = broker.restarted()
    broker.storage.not_in_memory.update(broker.storage.files)
    held = broker.hold_syncs()
    client = broker.connect()
    partitions = [{"partition_index": index, "timestamp": 0} for index in range(3)]
    client.send(LIST_OFFSETS, 8, {"replica_id": -1, "topics": [{"name": "flights", "partitions": partitions}]})
    assert len(held) == 3
    broker.run(held.pop())
    assert client.replies() == [], "an answer now would say that there is nothing"
    broker.release()
    ((_, answer),) = client.replies()
    assert [partition.offset for partition in answer.topics[0].partitions] == [0, 0, 0]


def test_what_is_deleted_meanwhile_is_not_told(old):
    old.hold_syncs()
    client = old.connect()
    send(client, WALL_MS)
    old.services.log_of("flights", 0).advance_start(3)
    old.release()
    assert offset_of(client.replies()) == (0, 3)


def test_a_topic_that_is_deleted_meanwhile_is_unknown(old):
    old.hold_syncs()
    client = old.connect()
    send(client, WALL_MS)
    old.delete("flights")
    old.release()
    assert offset_of(client.replies()) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_a_time_within_a_batch_of_very_many_records_is_looked_for_by_a_thread(client):
    """Decoding such a batch takes as long as hundreds of requests."""
    batch = batch_of(*[b""] * (OPENED_NON_BLOCKING + 1), timestamp_ms=WALL_MS + 5)
    client.ask(PRODUCE, 9, produce_request("flights", batch=batch))
    held = client.broker.hold_syncs()
    send(client, WALL_MS + 5)
    assert client.replies() == [] and len(held) == 1
    client.broker.release()
    assert offset_of(client.replies()) == (0, 2)


def test_a_time_within_a_batch_that_unpacks_to_many_bytes_is_looked_for_by_a_thread(client):
    """A few kilobytes may unpack to gigabytes."""
    record = BatchRecord(0, 0, None, bytes(UNPACKED_NON_BLOCKING))
    batch = encode_batch([record], base_timestamp_ms=WALL_MS + 5, codec=Codec.ZSTD)
    client.ask(PRODUCE, 9, produce_request("flights", batch=batch))
    held = client.broker.hold_syncs()
    send(client, WALL_MS + 5)
    assert client.replies() == [] and len(held) == 1
    client.broker.release()
    assert offset_of(client.replies()) == (0, 2)


def test_what_a_thread_looks_for_may_be_rubbish_or_damaged():
    client = unchecked()
    client.ask(PRODUCE, 9, produce_request("flights", batch=rubbish(*[b""] * (OPENED_NON_BLOCKING + 1))))
    send(client, WALL_MS + 5)
    assert offset_of(client.replies()) == (0, -1)
    damage_last_batch(client)
    send(client, WALL_MS + 5)
    assert offset_of(client.replies()) == (ErrorCode.CORRUPT_MESSAGE, -1)
