"""A start on a full disk: the broker serves reads, and takes messages when the disk has space."""

import pytest

from broker.wire.errors import ErrorCode
from idgen.layout import Layout
from idgen.worker import IdWorker
from tests.broker.engine_client import (
    FIND_COORDINATOR,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    EngineBroker,
    produce_request,
)

VALUES = [b"message %d" % number for number in range(200)]


def filled(**properties):
    """Return a broker with messages past the checkpoint in segments with short index intervals."""
    broker = EngineBroker(log_index_interval_bytes=64)
    broker.create("flights", **properties)
    client = broker.connect()
    for value in VALUES:
        client.produce("flights", value)
    return broker


def started_full(broker):
    broker.storage.free_bytes = 0
    after = broker.restarted(clean=False)
    after.at(after.now_ms + 1)
    return after


def free(broker):
    broker.storage.free_bytes = 1 << 30
    broker.at(broker.now_ms + 2_000)


@pytest.mark.parametrize("clean", [True, False])
def test_messages_are_served_and_new_ones_are_refused_until_there_is_space(clean):
    before = filled()
    if clean:
        before.services.logs.close()
    broker = started_full(before)
    client = broker.connect()
    assert client.fetch("flights") == VALUES
    assert client.fetch("flights", offset=150) == VALUES[150:]
    refused = client.produce("flights", b"x")
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR and "the disk of /memory is full" in refused.message
    free(broker)
    assert client.produce("flights", b"x").base_offset == len(VALUES)
    assert broker.restarted().connect().fetch("flights") == [*VALUES, b"x"]


def test_it_is_full_from_the_start_on_and_has_space_later():
    broker = started_full(filled())
    assert broker.services.logs.disk.is_full
    free(broker)
    assert not broker.services.logs.disk.is_full
    begins, ends = (line for line in broker.reported if "the disk of" in line)
    assert "is full: 0 bytes are usable" in begins and "has space again" in ends


def test_messages_that_only_the_journal_has_come_when_there_is_space():
    """They were answered, so the partition is not served without them."""
    before = filled(flakelog_durable_acks=True)
    log = before.storage.files["flights-0/00000000000000000000.log"]
    log.truncate(len(log.data) // 2)  # as a power cut leaves it
    broker = started_full(before)
    client = broker.connect()
    fields = {"topics": [{"name": "flights"}], "allow_auto_topic_creation": False}
    answer = client.ask(METADATA, 9, fields)
    assert answer.topics[0].name == "flights" and answer.topics[0].partitions[0].leader_id == -1
    refused = client.produce("flights", b"x")
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    logs = broker.services.logs
    assert "opened when the disk has space" in logs.offline["flights-0"] and logs.waits_for_space("flights", 0)
    free(broker)
    assert logs.offline == {} and not logs.waits_for_space("flights", 0)
    assert client.ask(METADATA, 9, fields).topics[0].partitions[0].leader_id == 1
    assert broker.connect().fetch("flights") == VALUES
    assert client.produce("flights", b"x").base_offset == len(VALUES)
    assert broker.restarted().connect().fetch("flights") == [*VALUES, b"x"]


def test_a_topic_that_is_deleted_before_its_log_is_opened_stays_deleted():
    before = filled(flakelog_durable_acks=True)
    log = before.storage.files["flights-0/00000000000000000000.log"]
    log.truncate(len(log.data) // 2)
    broker = started_full(before)
    broker.storage.free_bytes = 1 << 20
    broker.delete("flights")
    broker.at(broker.now_ms + 5_000)
    assert broker.services.logs.offline == {} and broker.services.logs.all() == []


def test_settings_that_are_altered_before_a_log_is_opened_hold_for_it():
    before = filled(flakelog_durable_acks=True)
    log = before.storage.files["flights-0/00000000000000000000.log"]
    log.truncate(len(log.data) // 2)
    broker = started_full(before)
    broker.storage.free_bytes = 1 << 20
    broker.alter("flights", {"segment.bytes": "5000"})
    broker.at(broker.now_ms + 5_000)
    (opened,) = broker.services.logs.all()
    assert opened.config.segment_bytes == 5_000 and not opened.config.durable_acks


def test_groups_of_a_partition_that_is_opened_late_have_their_offsets():
    before = EngineBroker(durable_acks=True, offsets_topic_num_partitions=2)
    before.create("flights")
    client = before.connect()
    groups = [f"group {number}" for number in range(6)]
    for group in groups:
        client.ask(FIND_COORDINATOR, 1, {"key": group, "key_type": 0})
        commit(client, group, 7)
    for name, content in before.storage.files.items():
        if name.startswith("__consumer_offsets") and name.endswith(".log"):
            content.truncate(0)  # as a power cut leaves it; the journal has the records
    broker = started_full(before)
    client = broker.connect()
    assert {committed(client, group) for group in groups} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    free(broker)
    assert [committed(client, group) for group in groups] == [7] * 6
    assert commit(client, groups[0], 9) == 0 and committed(client, groups[0]) == 9


def commit(client, group, offset):
    partitions = [{"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1,
                   "committed_metadata": ""}]  # fmt: skip
    fields = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
              "topics": [{"name": "flights", "partitions": partitions}]}  # fmt: skip
    return client.ask(OFFSET_COMMIT, 8, fields).topics[0].partitions[0].error_code


def committed(client, group):
    """Return the committed offset of a group, or the error."""
    topics = [{"name": "flights", "partition_indexes": [0]}]
    fields = {"groups": [{"group_id": group, "topics": topics}], "require_stable": False}
    (answer,) = client.ask(OFFSET_FETCH, 8, fields).groups
    return answer.error_code or answer.topics[0].partitions[0].committed_offset


def test_without_a_lead_on_a_full_disk_a_produce_is_refused_for_the_disk():
    """The directory of worker numbers is on the same disk, so the high-water mark cannot be raised."""
    broker = started_full(filled())
    broker.worker = IdWorker(Layout(), 2, start_ms=broker.now.wall_ms - 10, limit_ms=broker.now.wall_ms)
    client = broker.connect()
    client.send(PRODUCE, 9, produce_request("flights", b"x"))
    ((_, (result,)),) = client.replies()
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR and "is full" in result.message
