"""The fetch session of a follower: what it answers, what the leader learns, and what a fetch costs."""

import sys

import pytest

from broker.log.newest_write import BYTES_MAX
from broker.log.segment import ID_INDEX, file_name
from broker.wire.errors import ErrorCode
from broker.wire.id_entries import read_entries
from tests.broker.engine_client import FETCH, PRODUCE, produce_request, values_in
from tests.broker.peers import BETWEEN
from tests.broker.replicated import FollowerInSession, ReplicatedLeader

LAG_MS = 10_000
PARTITIONS = 4


@pytest.fixture
def leader():
    leader = ReplicatedLeader(replica_lag_time_max_ms=LAG_MS)
    leader.copied("flights", PARTITIONS)
    return leader


@pytest.fixture
def follower(leader):
    follower = FollowerInSession(leader, 2, "flights", PARTITIONS)
    follower.fetch()
    return follower


def state(leader, follower_id=2, partition=0):
    return leader.partition("flights", partition).followers[follower_id]


# --- answers ----------------------------------------------------------------------------------------------------------


def test_an_append_answers_a_request_that_waits_and_names_nothing(leader, follower):
    follower.send()
    assert follower.answer() is None
    leader.client().produce("flights", b"a", partition=3)
    assert list(follower.answer()) == [3]


def test_one_answer_has_the_records_of_a_whole_turn(leader, follower):
    follower.send()
    clients = [leader.client() for _ in range(PARTITIONS)]
    with leader.broker.turn():
        for partition, client in enumerate(clients):
            client.send(PRODUCE, 9, produce_request("flights", b"a", partition=partition))
    assert list(follower.answer()) == list(range(PARTITIONS))


def test_ids_that_cannot_be_read_are_an_error_of_their_partition_alone(leader, follower):
    client = leader.client()
    for _ in range(3):
        client.produce("flights", b"a")
        client.produce("flights", b"b", partition=1)
    leader.broker.storage.failing_reads.add(f"flights-0/{file_name(0, ID_INDEX)}")
    rows = follower.fetch()
    assert (rows[0].error_code, rows[1].error_code) == (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE)
    assert values_in(rows[1])


def test_a_small_write_is_fetched_from_memory_until_all_replicas_in_sync_have_it(leader, follower):
    client = leader.client()
    written = client.produce("flights", b"a", b"b", wants_ids=True)
    leader.broker.storage.files["flights-0/00000000000000000000.log"].data[:] = b""
    row = follower.fetch()[0]
    assert values_in(row) == [b"a", b"b"]
    (entry,) = read_entries(row.ids.entries, row.ids.base_offset)
    assert (entry.offset, entry.length, entry.first_id) == (0, 2, written.runs[0][0])
    follower.fetch({0: 2})
    assert leader.log("flights").newest_write is not None
    leader.follower(3).fetch("flights", 2)
    assert leader.log("flights").newest_write is None


def test_a_follower_that_is_further_behind_gets_all_records_from_the_log(leader, follower):
    client = leader.client()
    for value in (b"a", b"b"):
        client.produce("flights", value)
    row = follower.fetch()[0]
    assert values_in(row) == [b"a", b"b"]


def test_a_follower_that_is_some_large_writes_behind_gets_whole_ones_with_exactly_their_ids(leader, follower):
    client = leader.client()
    written = [client.produce("flights", bytes(500_000), b"b", wants_ids=True) for _ in range(3)]
    rows = [follower.fetch({0: offset})[0] for offset in (0, 4)]
    assert [len(values_in(row)) for row in rows] == [4, 2]
    for row, writes in zip(rows, (written[:2], written[2:]), strict=True):
        entries = read_entries(row.ids.entries, row.ids.base_offset)
        assert [(entry.length, entry.first_id) for entry in entries] == [(2, write.runs[0][0]) for write in writes]


def test_a_large_write_is_not_kept_in_memory(leader, follower):
    leader.client().produce("flights", bytes(BYTES_MAX))
    assert leader.log("flights").newest_write is None
    assert follower.fetch()[0].size > BYTES_MAX


def test_records_come_again_until_the_follower_asks_past_them(leader, follower):
    leader.client().produce("flights", b"a", partition=3)
    assert [list(follower.fetch()) for _ in range(2)] == [[3], [3]]
    assert [list(follower.fetch({3: 1})), list(follower.fetch())] == [[], []]


def test_a_high_watermark_alone_is_told_half_a_second_later_while_other_partitions_have_records(leader, follower):
    client = leader.client()
    client.produce("flights", b"a", partition=3)
    follower.fetch()
    follower.send({3: 1})
    leader.follower(3).fetch("flights", 1, partition=3)
    assert follower.answer() is None, "a high watermark alone ends no wait"
    client.produce("flights", b"b", partition=1)
    assert list(follower.answer()) == [1]
    leader.later(499)
    client.produce("flights", b"c", partition=1)
    follower.send({1: 1})
    assert list(follower.answer()) == [1]
    leader.later(1)
    follower.send()
    answer = follower.answer()
    assert (answer[3].high_watermark, answer[1].size > 0) == (1, True)
    assert follower.fetch({1: 2}) == {}


def test_a_high_watermark_goes_along_with_the_next_records_of_its_partition(leader, follower):
    client = leader.client()
    client.produce("flights", b"a", partition=3)
    follower.fetch()
    follower.send({3: 1})
    leader.follower(3).fetch("flights", 1, partition=3)
    client.produce("flights", b"b", partition=3)
    assert follower.answer()[3].high_watermark == 1
    leader.later(500)
    assert follower.fetch({3: 2}) == {}


def test_a_high_watermark_is_told_again_in_another_epoch(leader, follower):
    """The follower took no answer to a request of the epoch before (rule E5), and that one may have had it."""
    leader.client().produce("flights", b"a")
    follower.fetch()
    leader.follower(3).fetch("flights", 1)
    assert follower.fetch({0: 1}, epoch=0)[0].high_watermark == 1
    assert follower.fetch() == {}
    leader.next_epoch("flights")
    assert follower.fetch({0: 1}, epoch=1)[0].high_watermark == 1
    assert follower.fetch() == {}


def test_a_request_whose_wait_is_over_has_the_high_watermark(leader, follower):
    leader.client().produce("flights", b"a", partition=3)
    follower.fetch()
    follower.send({3: 1})
    leader.follower(3).fetch("flights", 1, partition=3)
    leader.later(500)
    assert [row.high_watermark for row in follower.answer().values()] == [1]


def test_deleted_records_are_told(leader, follower):
    leader.client().produce("flights", b"a")
    follower.fetch()
    follower.fetch({0: 1})
    leader.follower(3).fetch("flights", 1)
    leader.services.logs.delete_records(leader.log("flights"), 1, leader.broker.now)
    leader.services.touch(leader.log("flights"), leader.broker.now)
    assert follower.fetch()[0].log_start_offset == 1


def test_a_request_that_waits_is_told_that_the_partition_has_another_leader(leader, follower):
    follower.send({1: 0}, epoch=0)
    leader.next_epoch("flights", 1, leader=2)
    assert follower.answer()[1].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_log_that_is_offline_says_nothing_of_its_epochs(leader, follower):
    leader.next_epoch("flights")
    leader.client().produce("flights", b"a")
    follower.fetch()
    leader.log("flights").take_offline("the disk failed")
    row = follower.fetch({0: 1}, last_epoch=0)[0]
    assert (row.error_code, row.diverging) == (ErrorCode.KAFKA_STORAGE_ERROR, None)


def test_a_topic_that_was_deleted_is_an_error_at_the_next_fetch(leader, follower):
    leader.delete("flights")
    errors = {row.error_code for row in follower.fetch().values()}
    assert errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_partition_that_gave_records_is_read_after_the_others(leader, follower):
    client = leader.client()
    for partition in range(PARTITIONS):
        client.produce("flights", bytes(1_000), partition=partition)
    order = []
    while len(order) < PARTITIONS:
        (answer,) = (row for row in follower.fetch(max_bytes=1).values() if row.size)
        order.append(answer.partition)
    assert sorted(order) == list(range(PARTITIONS))


def test_a_session_of_many_partitions_is_read_in_slices_while_all_of_them_have_changed(leader):
    leader.copied("trains", 700)
    follower = FollowerInSession(leader, 2, "trains", 700)
    follower.send()
    leader.client().produce("trains", b"a", partition=555)
    assert list(follower.answer()) == [555]
    follower.send({555: 1})
    leader.client().produce("trains", b"a", partition=556)
    assert list(follower.answer()) == [556]
    assert leader.partition("trains", 699).followers[2].rests_in is not None


# --- what the leader learns -------------------------------------------------------------------------------------------


def test_a_partition_that_is_not_named_counts_as_fetched_again(leader, follower):
    """Rule R3."""
    leader.later(5 * LAG_MS)
    follower.fetch()
    leader.later(LAG_MS - 1_000)
    leader.client().produce("flights", b"a")
    assert state(leader).caught_up_ms == leader.broker.now_ms - (LAG_MS - 1_000)
    leader.partition("flights").check_lag(LAG_MS, leader.broker.now)
    assert 2 in leader.partition("flights").take_proposal(1, leader.broker.now).isr, "unlike broker 3, which is late"


def test_a_follower_that_stays_behind_becomes_late_although_its_session_goes_on(leader, follower):
    """Rule R3: it fetches, and never gets to the end."""
    leader.client().produce("flights", b"a")
    behind_ms = leader.broker.now_ms
    while leader.broker.now_ms <= behind_ms + LAG_MS:
        follower.fetch()
        leader.follower(3).fetch("flights", 1)
        leader.later(1_000)
    partition = leader.partition("flights")
    assert state(leader).caught_up_ms <= behind_ms
    partition.check_lag(LAG_MS, leader.broker.now)
    assert partition.take_proposal(1, leader.broker.now).isr.keys() == {1, 3}


def test_a_follower_whose_session_has_ended_becomes_late_at_the_next_append(leader, follower):
    stopped_ms = leader.broker.now_ms
    leader.later(LAG_MS + 1)
    leader.client().produce("flights", b"a")
    assert state(leader).caught_up_ms == stopped_ms
    partition = leader.partition("flights")
    partition.check_lag(LAG_MS, leader.broker.now)
    assert 2 not in partition.take_proposal(1, leader.broker.now).isr


def test_a_high_watermark_that_rises_leaves_a_follower_at_rest(leader, follower):
    leader.client().produce("flights", b"a")
    follower.fetch()
    follower.fetch({0: 1})
    leader.follower(3).fetch("flights", 1)
    leader.later(1_000)
    assert follower.fetch()[0].high_watermark == 1
    assert (state(leader).caught_up_ms, state(leader).noted_ms) == (leader.broker.now_ms, leader.broker.now_ms - 1_000)


def test_a_follower_whose_last_epoch_was_deleted_is_not_caught_up(leader, follower):
    """Its records are not known to be the leader's."""
    leader.client().produce("flights", b"a")
    follower.fetch()
    leader.follower(3).fetch("flights", 1)
    leader.next_epoch("flights")
    follower.fetch({0: 1}, last_epoch=0)
    leader.follower(3).fetch("flights", 1)
    leader.services.logs.delete_records(leader.log("flights"), 1, leader.broker.now)
    leader.services.touch(leader.log("flights"), leader.broker.now)
    leader.later(1_000)
    assert follower.fetch()[0].diverging is not None
    assert state(leader).caught_up_ms == leader.broker.now_ms - 1_000


def test_a_new_epoch_learns_the_end_of_a_partition_that_no_request_names(leader, follower):
    """Rule E4: until then the high watermark stands."""
    leader.client().produce("flights", b"a")
    follower.fetch()
    follower.fetch({0: 1})
    leader.next_epoch("flights")
    assert state(leader).end_offset == -1
    follower.fetch()
    assert state(leader).end_offset == 1


def test_a_follower_that_was_left_out_of_the_isr_joins_by_a_fetch_that_names_nothing(leader, follower):
    leader.granted("flights", (1, 3))
    leader.holds = lambda call: True
    follower.fetch()
    ((_, call),) = leader.held
    (proposed,) = call.request.topics[0].partitions
    assert [member.broker_id for member in proposed.new_isr_with_epochs] == [1, 2, 3]


def test_a_fetch_tells_nothing_of_a_partition_that_is_offline(leader, follower):
    leader.client().produce("flights", b"a")
    follower.fetch()
    leader.log("flights").take_offline("the disk failed")
    assert follower.fetch({0: 1})[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert state(leader).end_offset == 0


def test_an_earlier_session_of_the_follower_ends_with_its_next(leader, follower):
    """A follower that was killed leaves a session. It would listen to each append."""
    again = FollowerInSession(leader, 2, "flights", PARTITIONS)
    assert len(leader.services.fetch_sessions) == 1
    assert again.id != follower.id
    error = follower.follower.client.ask(FETCH, 17, follower.request()).error_code
    assert error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_fetch_without_a_session_takes_the_partition_from_the_session(leader, follower):
    """Rule E3: the later life has the word, and the earlier one is refused."""
    later = leader.follower(2)
    later.life += 1
    later.fetch("flights", 0)
    leader.later(1_000)
    assert follower.fetch() == {} and state(leader).caught_up_ms == leader.broker.now_ms - 1_000
    leader.client().produce("flights", b"a")
    assert follower.fetch()[0].error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(("broker_id", "listener"), [(2, ""), (3, BETWEEN)])
def test_a_session_is_continued_by_its_follower_over_the_listener_of_brokers_only(
    leader, follower, broker_id, listener
):
    """Each request of a session counts for partitions that it does not name, so a stranger's must not."""
    stranger = leader.follower(broker_id, listener)
    request = follower.request()._replace(replica_id=stranger.id)
    caught_up_ms = state(leader).caught_up_ms
    leader.later(1_000)
    assert stranger.client.ask(FETCH, 17, request).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert state(leader).caught_up_ms == caught_up_ms
    assert follower.fetch() == {}


# --- the cost ---------------------------------------------------------------------------------------------------------


def lines_executed(act):
    """Return how many lines of Python `act` executes."""
    lines = 0

    def count(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(before)
    return lines


def lines_of_fetches(partitions):
    """Return the lines executed by an idle fetch that waits, by the append that answers it, and by the next fetch."""
    leader = ReplicatedLeader()
    leader.copied("flights", partitions)
    followers = [FollowerInSession(leader, number, "flights", partitions) for number in (2, 3)]
    client = leader.client()
    counted = []
    for number in range(3):
        for follower in followers:
            follower.fetch()
        follower = followers[0]
        counted = [
            lines_executed(follower.send),
            lines_executed(lambda: client.produce("flights", b"a", partition=7)),
            lines_executed(follower.answer),
        ]
        for follower in followers:
            counted.append(lines_executed(lambda: follower.fetch({7: number + 1})))
    return counted


def test_a_fetch_costs_what_changed_and_not_what_the_session_has():
    assert lines_of_fetches(1_000) == lines_of_fetches(50)


def test_a_request_waits_under_one_key(leader, follower):
    before = leader.services.purgatory.watched_keys
    follower.send()
    assert leader.services.purgatory.watched_keys == before + 1
