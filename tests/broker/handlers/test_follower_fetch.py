"""Fetches of followers: what a leader lets a replica read, and what it learns from the offsets that it asks for."""

import pytest

from broker.record.batch import HEADER_BYTES
from broker.record.records import LONG_MAX
from broker.wire.errors import ErrorCode
from broker.wire.fetch import INITIAL_EPOCH, FetchPartition, FetchRequest
from tests.broker.engine_client import FETCH, produce_request
from tests.broker.replicated import ReplicatedLeader

PRODUCE = 0


@pytest.fixture
def leader():
    leader = ReplicatedLeader()
    leader.copied("flights")
    return leader


def test_a_follower_reads_up_to_the_end_of_the_log_and_a_consumer_up_to_the_high_watermark(leader):
    leader.client().produce("flights", b"a")
    answer = leader.follower(2).fetch("flights", 0)
    assert (answer.error_code, answer.high_watermark, answer.log_start_offset) == (0, 0, 0)
    assert len(answer.records) > HEADER_BYTES and answer.ids is not None
    assert leader.client().fetch("flights") == []


def test_an_offset_that_all_followers_have_reached_moves_the_high_watermark(leader):
    client = leader.client()
    client.produce("flights", b"a")
    leader.follower(2).fetch("flights", 1)
    assert client.fetch("flights") == []
    answer = leader.follower(3).fetch("flights", 1)
    assert (answer.high_watermark, client.fetch("flights")) == (1, [b"a"])


def test_a_consumer_that_waits_is_answered_when_the_high_watermark_moves(leader):
    consumer = leader.client()
    waiting = FetchRequest(500, 1, 1 << 20, [FetchPartition("flights", 0, 0, 1 << 20)])
    consumer.send(FETCH, 12, waiting)
    leader.client().produce("flights", b"a")
    assert consumer.replies() == []
    leader.all_fetch("flights", 1)
    ((_, answer),) = consumer.replies()
    assert answer.partitions[0].high_watermark == 1 and answer.partitions[0].size


def test_an_append_answers_a_follower_that_waits_at_the_end(leader):
    follower = leader.follower(2)
    follower.send("flights", 0)
    assert follower.client.replies() == []
    leader.client().produce("flights", b"a")
    ((_, answer),) = follower.client.replies()
    assert answer.partitions[0].size


def test_a_broker_that_is_no_replica_is_refused_as_by_kafka(leader):
    leader.copied("trains", replicas=(1, 2), isr=(1, 2))
    stranger = leader.follower(3)
    assert stranger.fetch("trains", 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert stranger.fetch("trains", 0, epoch=0).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_topic_of_one_copy_has_no_followers(leader):
    leader.create("alone", (1,))
    assert leader.follower(2).fetch("alone", 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_client_cannot_pass_itself_off_as_a_follower(leader):
    """Replicas fetch over the listener of brokers only: what a client says there would move the high watermark."""
    leader.client().produce("flights", b"a")
    for broker_id in (2, 3):
        answer = leader.follower(broker_id, listener="").fetch("flights", 1)
        assert (answer.error_code, answer.size) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert leader.log("flights").high_watermark == 0


@pytest.mark.parametrize(("epoch", "error"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_a_fetch_in_another_leader_epoch_is_refused_and_tells_nothing(leader, epoch, error):
    """Rule E5."""
    leader.next_epoch("flights")
    leader.client().produce("flights", b"a")
    for broker_id in (2, 3):
        assert leader.follower(broker_id).fetch("flights", 1, epoch=epoch).error_code == error
    assert leader.log("flights").high_watermark == 0


def test_a_fetch_of_an_earlier_life_of_the_follower_is_refused(leader):
    """Rule E3: what a broker says before its restart tells nothing of what it has after it."""
    leader.client().produce("flights", b"a")
    earlier, later = leader.follower(2), leader.follower(2)
    later.life += 1
    later.fetch("flights", 0)
    assert earlier.fetch("flights", 1).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert leader.partition("flights").followers[2].end_offset == 0


def test_an_offset_out_of_range_tells_nothing_but_where_the_log_begins(leader):
    client = leader.client()
    client.produce("flights", b"a", b"b")
    leader.all_fetch("flights", 2)
    leader.services.logs.delete_records(leader.log("flights"), 1, leader.broker.now)
    answer = leader.follower(2).fetch("flights", 0)
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 1)
    assert leader.follower(2).fetch("flights", 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert leader.partition("flights").followers[2].end_offset == 2


def test_a_follower_whose_log_diverges_is_told_where_and_has_nothing_yet(leader):
    """KIP-595: its end is that of records which the leader does not have."""
    client = leader.client()
    client.produce("flights", b"a")
    leader.next_epoch("flights")
    client.produce("flights", b"b")
    answer = leader.follower(2).fetch("flights", 2, epoch=1, last_epoch=0)
    assert (answer.diverging, answer.size) == ((0, 1), 0)
    assert leader.partition("flights").followers[2].end_offset == -1


def test_a_follower_of_an_empty_log_is_told_its_last_id(leader):
    """Rule I7: the ids of a follower that leads later must rise above those of records that are deleted."""
    client = leader.client()
    assert leader.follower(2).fetch("flights", 0).last_id == -1
    client.produce("flights", b"a")
    leader.all_fetch("flights", 1)
    leader.services.logs.delete_records(leader.log("flights"), 1, leader.broker.now)
    answer = leader.follower(2).fetch("flights", 1)
    assert (answer.last_id, answer.ids) == (leader.log("flights").last_id, None)


@pytest.mark.parametrize("committed", [2, 3])
def test_a_follower_that_begins_anew_is_told_the_last_committed_id_of_the_deleted_records(leader, committed):
    """Rule I7: its first fetch from there may let it join, and it may lead before that fetch is answered."""
    client, ids = leader.client(), []
    for value in (b"a", b"b", b"c"):
        client.produce("flights", value)
        ids.append(leader.log("flights").last_id)
    leader.all_fetch("flights", committed)
    leader.services.logs.delete_records(leader.log("flights"), committed, leader.broker.now)
    answer = leader.follower(2).fetch("flights", 0)
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, committed)
    assert ids[committed - 1] <= answer.last_id < [*ids, LONG_MAX][committed]


def test_a_follower_that_has_to_copy_records_before_it_joins_has_their_ids(leader):
    client = leader.client()
    client.produce("flights", b"a")
    client.produce("flights", b"b")
    leader.all_fetch("flights", 2)
    leader.services.logs.delete_records(leader.log("flights"), 1, leader.broker.now)
    assert leader.follower(2).fetch("flights", 0).last_id == -1


def test_the_limits_of_clients_do_not_hold_for_followers():
    leader = ReplicatedLeader(fetch_max_bytes=1_024)
    leader.copied("flights", partitions=2)
    for partition in (0, 1):
        leader.client().ask(PRODUCE, 9, produce_request("flights", bytes(2_000), partition=partition))
    follower = leader.follower(2)
    request = follower.request("flights", 0)
    request.partitions.append(request.partitions[0]._replace(partition=1))
    answer = follower.client.ask(FETCH, 17, request)
    assert all(partition.size > 2_000 for partition in answer.partitions)


def test_an_idle_session_of_a_follower_answers_nothing_and_keeps_it_in_sync(leader):
    follower = leader.follower(2)
    opened = follower.client.ask(FETCH, 17, follower.request("flights", 0, session_epoch=INITIAL_EPOCH))
    again = follower.request("flights", 0, session_id=opened.session_id, session_epoch=1)._replace(partitions=[])
    leader.later(5_000)
    assert follower.client.ask(FETCH, 17, again).partitions == []
    assert leader.partition("flights").followers[2].caught_up_ms == leader.broker.now_ms


def test_a_session_answers_records_that_came_to_one_of_many_partitions(leader):
    leader.copied("trains", partitions=700)
    follower = leader.follower(2)
    first = follower.request("trains", 0, session_epoch=INITIAL_EPOCH)
    first.partitions.extend(first.partitions[0]._replace(partition=partition) for partition in range(1, 700))
    opened = follower.client.ask(FETCH, 17, first)
    leader.client().produce("trains", b"a", partition=555)
    again = follower.request("trains", 0, session_id=opened.session_id, session_epoch=1)._replace(partitions=[])
    assert [row.partition for row in follower.client.ask(FETCH, 17, again).partitions] == [555]
    assert leader.partition("trains", 699).followers[2].end_offset == 0
