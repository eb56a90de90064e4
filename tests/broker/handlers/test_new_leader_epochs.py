"""A new leader epoch after a crash: readers find a log's lost end after it has grown again (KIP-101, KIP-320)."""

import json

import pytest

from broker.log import leader_epochs
from broker.record.batch import walk
from broker.wire import fetch
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    DESCRIBE_TOPIC_PARTITIONS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    EngineBroker,
)

LATEST = -1
EPOCHS_FILE = "flights-0/leader-epoch-checkpoint"


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights", 2)
    return broker


def checkpoint(broker):
    """Sync everything, and write the checkpoint."""
    broker.services.logs.syncs.start_round()
    broker.pump()


def after_power_cut(broker):
    """Return a broker on what the disk has, without anything that was not synced."""
    return EngineBroker(broker.storage.power_cut(lambda n: 0), broker.now_ms + 10_000, **broker._settings)


def produce(broker, *values):
    """Produce each value in its own batch."""
    client = broker.connect()
    for value in values:
        assert client.produce("flights", value).error_code == 0


def current_epochs(broker):
    """Return the current epoch of partition 0 as each API that names it says."""
    client = broker.connect()
    (topic,) = client.ask(METADATA, 12, {"topics": [{"name": "flights"}]}).topics
    (described,) = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [{"name": "flights"}]}).topics
    requested = [{"partition_index": 0, "timestamp": LATEST, "current_leader_epoch": -1}]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "flights", "partitions": requested}]}
    (listed,) = client.ask(LIST_OFFSETS, 7, fields).topics
    partitions = topic.partitions[0], described.partitions[0], listed.partitions[0]
    return [partition.leader_epoch for partition in partitions]


def epoch_end(broker, epoch):
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
    fields = {"replica_id": -1, "topics": [{"topic": "flights", "partitions": [partition]}]}
    answer = broker.connect().ask(OFFSET_FOR_LEADER_EPOCH, 4, fields).topics[0].partitions[0]
    assert answer.error_code == 0
    return answer.leader_epoch, answer.end_offset


def fetch_of(broker, offset, current_epoch=-1, last_epoch=-1):
    wanted = [fetch.FetchPartition("flights", 0, offset, 1 << 20, current_epoch, last_epoch)]
    (partition,) = broker.connect().ask(FETCH, 12, fetch.FetchRequest(0, 1, 1 << 20, wanted)).partitions
    return partition


def epochs_of_batches(broker):
    return [header.leader_epoch for _, header in walk(bytes(fetch_of(broker, 0).records))]


def stored_epochs(broker):
    return leader_epochs.decode(bytes(broker.storage.files[EPOCHS_FILE].data))


def test_a_crash_begins_a_new_epoch_and_a_clean_stop_does_not(broker):
    assert current_epochs(broker) == [0, 0, 0]
    produce(broker, b"a")
    crashed = broker.restarted(clean=False)
    assert current_epochs(crashed) == [1, 1, 1]
    assert current_epochs(crashed.restarted(clean=True)) == [1, 1, 1]
    assert current_epochs(crashed.restarted(clean=True).restarted(clean=False)) == [2, 2, 2]


def test_batches_carry_the_epoch_in_which_they_are_appended(broker):
    produce(broker, b"a", b"b")
    broker = broker.restarted(clean=False)
    produce(broker, b"c")
    broker = broker.restarted(clean=True)
    produce(broker, b"d")
    assert epochs_of_batches(broker) == [0, 0, 1, 1]
    assert [epoch_end(broker, epoch) for epoch in (0, 1)] == [(0, 2), (1, 4)]


def test_a_client_with_the_epoch_from_before_the_crash_is_told_to_look_again(broker):
    produce(broker, b"a")
    broker = broker.restarted(clean=False)
    assert fetch_of(broker, 0, current_epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert fetch_of(broker, 0, current_epoch=1).error_code == ErrorCode.NONE


def test_a_lost_end_is_found_after_the_log_has_grown_past_it(broker):
    produce(broker, b"a", b"b")
    checkpoint(broker)
    produce(broker, b"lost", b"lost")
    again = after_power_cut(broker)
    produce(again, b"c", b"d", b"e", b"f")
    assert epoch_end(again, 0) == (0, 2)
    assert fetch_of(again, 4, last_epoch=0).diverging == (0, 2)
    assert fetch_of(again, 2, last_epoch=0).diverging is None, "this reader saw nothing of what is gone"
    assert fetch_of(again, 4, last_epoch=1).diverging is None


def test_the_lost_end_of_an_epoch_that_left_no_record_is_found_too(broker):
    """The number of the lost epoch is not assigned again."""
    produce(broker, b"a")
    checkpoint(broker)
    second = after_power_cut(broker)
    produce(second, b"lost")
    third = after_power_cut(second)
    produce(third, b"b", b"c")
    assert epochs_of_batches(third) == [0, 2, 2]
    assert fetch_of(third, 2, last_epoch=1).diverging == (0, 1)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_epochs_are_found_after_a_crash_in_their_file_or_in_the_batches_past_the_checkpoint(broker, checkpoints):
    produce(broker, b"a", b"b")
    broker = broker.restarted(clean=False)
    produce(broker, b"c")
    assert EPOCHS_FILE not in broker.storage.files, "no start waits for the disk for each log"
    if checkpoints:
        checkpoint(broker)
        assert stored_epochs(broker) == [(0, 0), (1, 2)]
    broker = broker.restarted(clean=False)
    produce(broker, b"d")
    assert [epoch_end(broker, epoch) for epoch in (0, 1, 2)] == [(0, 2), (1, 3), (2, 4)]
    checkpoint(broker)
    assert stored_epochs(broker) == [(0, 0), (1, 2), (2, 3)]


def test_epochs_come_from_the_batches_in_the_journal_too():
    broker = EngineBroker(durable_acks=True)
    broker.create("flights")
    produce(broker, b"a")
    broker = after_power_cut(broker)
    produce(broker, b"b")
    broker = after_power_cut(broker)
    produce(broker, b"c")
    assert epochs_of_batches(broker) == [0, 1, 2]
    assert [epoch_end(broker, epoch) for epoch in (0, 1, 2)] == [(0, 1), (1, 2), (2, 3)]


def test_many_crashes_without_records_leave_one_entry(broker):
    produce(broker, b"a")
    for _ in range(5):
        broker = broker.restarted(clean=False)
    produce(broker, b"b")
    checkpoint(broker)
    assert stored_epochs(broker) == [(0, 0), (5, 1)]


def test_a_data_directory_from_before_this_feature_is_in_epoch_0(broker):
    """Its metadata says 0, its batches say 0, and there is no file of epochs."""
    produce(broker, b"a")
    broker.services.logs.close()
    document = json.loads(bytes(broker.storage.files["metadata.json"].data))
    assert document["topics"]["flights"]["partitions"] == [[1, 0, [1]], [1, 0, [1]]]
    assert "doubtful_producer_ids_end" not in document and EPOCHS_FILE not in broker.storage.files
    del document["crc32c"]
    broker.storage.replace("metadata.json", json.dumps(document | {"version": 1}).encode())
    again = broker.restarted(clean=False)
    assert epochs_of_batches(again) == [0] and current_epochs(again) == [0, 0, 0], "it was closed cleanly above"
    assert current_epochs(again.restarted(clean=False)) == [1, 1, 1]


def test_partitions_that_are_created_after_a_crash_begin_in_epoch_0(broker):
    broker = broker.restarted(clean=False)
    broker.create("trains")
    assert broker.services.log_of("trains", 0).leader_epoch == 0
    assert broker.services.metadata.topic("trains").partitions[0].leader_epoch == 0


def test_with_an_older_metadata_file_the_log_decides(broker):
    """An operator may have put the file back from a copy."""
    copy = bytes(broker.storage.files["metadata.json"].data)
    for _ in range(3):
        broker = broker.restarted(clean=False)
        produce(broker, b"a")
    broker.services.logs.close()
    broker.storage.replace("metadata.json", copy)
    again = broker.restarted(clean=False)
    assert current_epochs(again) == [3, 3, 3], "it was closed cleanly above"
    broker.storage.replace("metadata.json", copy)
    assert current_epochs(broker.restarted(clean=False)) == [4, 4, 4]


def test_on_a_full_disk_the_new_epoch_is_stored_when_there_is_space(broker):
    produce(broker, b"a")
    broker.storage.free_bytes = 0
    broker = broker.restarted(clean=False)
    broker.at(broker.now_ms + 5_000)
    assert current_epochs(broker) == [1, 1, 1]
    assert epochs_in_metadata(broker) == [0, 0]
    broker.storage.free_bytes = None
    broker.at(broker.now_ms + 5_000)
    broker.pump()
    assert epochs_in_metadata(broker) == [1, 1]


def epochs_in_metadata(broker):
    document = json.loads(bytes(broker.storage.files["metadata.json"].data))
    return [epoch for _, epoch, _ in document["topics"]["flights"]["partitions"]]


def test_a_log_that_is_opened_when_there_is_space_is_in_the_new_epoch():
    broker = EngineBroker(durable_acks=True)
    broker.create("flights")
    produce(broker, b"a", b"b")
    log = broker.storage.files["flights-0/00000000000000000000.log"]
    log.truncate(len(log.data) // 2)  # as a power cut leaves it; the journal has the rest
    broker.storage.free_bytes = 0
    broker = broker.restarted(clean=False)
    broker.at(broker.now_ms + 1)
    assert "flights-0" in broker.services.logs.offline
    broker.storage.free_bytes = None
    broker.at(broker.now_ms + 5_000)
    produce(broker, b"c")
    assert epochs_of_batches(broker) == [0, 0, 1]


def test_a_full_disk_keeps_the_checkpoint_where_the_epochs_are_known(broker):
    """Below the checkpoint, epochs come from their file only."""
    produce(broker, b"a")
    broker = broker.restarted(clean=False)
    produce(broker, b"b")
    held = broker.hold_syncs()
    broker.services.logs.syncs.start_round()
    broker.pump()
    broker.storage.free_bytes = 0
    for sync in held:
        broker.run(sync)
    broker.storage.free_bytes = None
    held.clear()
    broker.release()
    assert broker.services.logs.offline == {} and EPOCHS_FILE not in broker.storage.files
    again = after_power_cut(broker)
    produce(again, b"c")
    assert epochs_of_batches(again) == [0, 1, 2]
    assert epoch_end(again, 0) == (0, 1)
