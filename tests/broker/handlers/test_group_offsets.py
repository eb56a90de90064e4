"""OffsetCommit and OffsetFetch through the wire.

The sources are Kafka's protocol pages for both messages; KIP-709 (several groups in OffsetFetch), KIP-848 (v9 and v10).
"""

import pytest

from broker.group.offset_records import partition_of
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import OFFSET_COMMIT, OFFSET_FETCH
from tests.broker.handlers.consumer_group import commit, committed, make


@pytest.fixture
def broker():
    return make()


@pytest.fixture
def client(broker):
    return broker.connect()


def test_a_consumer_without_a_group_commits_and_reads_its_offsets(client):
    assert committed(client) == -1, "no error for a group nobody has used"
    assert commit(client, 7) == 0
    assert committed(client) == 7


def test_offsets_of_partitions_that_do_not_exist_are_refused(client):
    assert commit(client, 7, "nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(client, 7, partition=2) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(client, 7, partition=-1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_one_bad_partition_does_not_disturb_its_neighbours(client):
    partitions = [
        {"partition_index": index, "committed_offset": 10 + index, "committed_metadata": None} for index in (0, 9, 1)
    ]
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    answer = client.ask(OFFSET_COMMIT, 8, fields | {"topics": [{"name": "flights", "partitions": partitions}]})
    error_codes = [partition.error_code for partition in answer.topics[0].partitions]
    assert error_codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
    assert [committed(client, partition=index) for index in (0, 1)] == [10, 11]


@pytest.mark.parametrize("version, code", [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_group_that_does_not_exist_has_another_error_since_v9(client, version, code):
    """Since v9 the error is GROUP_ID_NOT_FOUND (KIP-848)."""
    assert commit(client, 7, version=version, generation=3, member="m") == code


def test_since_v10_topics_are_named_by_their_ids(broker, client):
    """KIP-848 added topic ids."""
    topic = broker.services.metadata.topic("flights")
    assert commit(client, 7, topic.id, version=10) == 0
    assert committed(client, version=10, topic=topic.id) == 7
    unknown = type(topic.id)(int=12345)
    assert commit(client, 7, unknown, version=10) == ErrorCode.UNKNOWN_TOPIC_ID
    everything = {"groups": [{"group_id": "g", "topics": None}], "require_stable": True}
    (group,) = client.ask(OFFSET_FETCH, 10, everything).groups
    offsets = [(topic_row.topic_id, topic_row.partitions[0].committed_offset) for topic_row in group.topics]
    assert offsets == [(topic.id, 7)]


@pytest.mark.parametrize("version", [2, 5, 7])
def test_null_topics_mean_all_that_were_committed(client, version):
    commit(client, 7, partition=1)
    answer = client.ask(OFFSET_FETCH, version, {"group_id": "g", "topics": None})
    (topic,) = answer.topics
    (result,) = topic.partitions
    assert (topic.name, result.partition_index, result.committed_offset, result.metadata) == ("flights", 1, 7, "note")


def test_offsets_of_several_groups_come_in_one_answer(client):
    """OffsetFetch names several groups since v8 (KIP-709)."""
    commit(client, 1, group="a")
    commit(client, 2, group="b")
    topics = [{"name": "flights", "partition_indexes": [0]}]
    groups = [{"group_id": "a", "topics": topics}, {"group_id": "b", "topics": None}, {"group_id": "c", "topics": None}]
    answer = client.ask(OFFSET_FETCH, 8, {"groups": groups, "require_stable": False})
    assert [(g.group_id, [t.partitions[0].committed_offset for t in g.topics]) for g in answer.groups] == [
        ("a", [1]), ("b", [2]), ("c", []),
    ]  # fmt: skip


def test_an_offset_with_a_retention_of_its_own_goes_when_that_is_over():
    """OffsetCommit v2 to v4 have the field; KIP-211 removed it."""
    broker = make(offsets_retention_check_interval_ms=1_000)
    client = broker.connect()
    assert commit(client, 7, version=2, retention_time=5_000) == 0
    broker.at(broker.now_ms + 4_000)
    assert committed(client) == 7
    broker.at(broker.now_ms + 3_000)
    assert committed(client) == -1


def test_more_offsets_than_fit_one_batch_are_written_in_several():
    """The broker's own records, too, keep to max.message.bytes of the offsets topic."""
    broker = make(message_max_bytes=1_000)
    client = broker.connect()
    broker.create("wide", 60)
    partitions = [{"partition_index": n, "committed_offset": n, "committed_metadata": ""} for n in range(60)]
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    answer = client.ask(OFFSET_COMMIT, 8, fields | {"topics": [{"name": "wide", "partitions": partitions}]})
    assert {partition.error_code for partition in answer.topics[0].partitions} == {0}
    again = broker.restarted()
    assert [committed(again.connect(), topic="wide", partition=n) for n in (0, 30, 59)] == [0, 30, 59]


@pytest.mark.parametrize("before", [-1, 7])
def test_a_commit_that_could_not_be_written_leaves_the_offset_of_before(broker, client, before):
    """The coordinator after this one knows only what was written."""
    if before >= 0:
        assert commit(client, before) == 0
    broker.storage.free_bytes = 0
    assert commit(client, 8) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.storage.free_bytes = None
    assert committed(client) == before


def test_a_commit_waits_for_ids_and_is_done_once():
    """A request that exceeds the run-ahead of the ids is held, not refused (rule 4 of CONTRIBUTING.md)."""
    broker = make(max_ahead_ms=0)
    client = broker.connect()
    broker.worker.next_ids(4096, broker.now.wall_ms)
    key = {"name": "flights", "partitions": [{"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}]}
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    client.send(OFFSET_COMMIT, 8, fields | {"topics": [key]})
    assert not client.replies()
    broker.at(broker.now_ms + 2)
    ((_, answer),) = client.replies()
    assert answer.topics[0].partitions[0].error_code == 0
    assert broker.services.log_of("__consumer_offsets", partition_of("g", 50)).log_end_offset == 1
