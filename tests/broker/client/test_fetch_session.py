"""The fetches of one broker: what each request names, how long it waits, and which asks an answer ends (KIP-227)."""

from uuid import UUID

import pytest

from broker.client.core import Address, ClientCore, advance
from broker.client.fetch_session import LOST, WAIT_MS_MIN, FetchSession, PartitionAsk, fetch_next
from broker.wire import cold, fetch
from broker.wire.errors import ErrorCode
from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchedPartition, FetchPartition, FetchResponse

WAIT_MS = 200
LIMIT = 1 << 20
FLIGHTS, TAXIS = UUID(int=7), UUID(int=8)


def session(isolation_level=READ_UNCOMMITTED):
    return FetchSession(WAIT_MS, 4 * LIMIT, isolation_level)


def ask(partition, offset=0, topic="flights", id=None):
    return PartitionAsk(topic, partition, offset, LIMIT, id)


def with_asks(*asks, now_ms=0):
    made = session()
    for wanted in asks:
        made.want(wanted, now_ms)
    return made


def answer(*results, id=77, error=0):
    return FetchResponse(list(results), error, id)


def records(partition, end=10, topic="flights"):
    return FetchedPartition(topic, partition, 0, end, end, 0, records=b"batches")


def nothing(partition, end=0, topic="flights"):
    return FetchedPartition(topic, partition, 0, end, end, 0)


def named(request):
    """Return {(topic, partition): offset} of a request, what it forgets, and its session."""
    partitions = {(partition.topic, partition.partition): partition.fetch_offset for partition in request.partitions}
    return partitions, request.forgotten, (request.session_id, request.session_epoch)


def test_the_first_request_names_every_wanted_partition_and_asks_for_a_session():
    request = with_asks(ask(0), ask(1, 5)).request(False, 0)
    assert named(request) == ({("flights", 0): 0, ("flights", 1): 5}, (), (0, 0))
    assert (request.min_bytes, request.max_bytes, request.wants_ids) == (1, 4 * LIMIT, True)
    assert request.partitions[1] == FetchPartition("flights", 1, 5, LIMIT)


def test_only_partitions_with_something_new_are_answered_and_named_again():
    fetches = with_asks(ask(0), ask(1), ask(2))
    fetches.request(False, 0)
    fetches.accept(answer(nothing(0), nothing(1), nothing(2)), 0)
    for partition in range(3):
        fetches.want(ask(partition), 0)
    assert named(fetches.request(False, 0)) == ({}, (), (77, 1)), "all are wanted as the session knows them"
    ((answered, result),) = fetches.accept(answer(records(1)), 0)
    assert answered == ask(1) and result.records == b"batches" and len(fetches) == 2
    fetches.want(ask(1, 10), 0)
    assert named(fetches.request(False, 0)) == ({("flights", 1): 10}, (), (77, 2))


def test_a_partition_whose_leader_has_a_new_epoch_is_named_again():
    """KIP-320: the broker refuses the epoch that the session knows."""
    fetches = session()
    fetches.want(ask(0), 0, leader_epoch=5)
    assert fetches.request(False, 0).partitions == [FetchPartition("flights", 0, 0, LIMIT, 5)]
    ((refused, result),) = fetches.accept(
        answer(FetchedPartition("flights", 0, ErrorCode.FENCED_LEADER_EPOCH)), 0
    )
    assert (refused, result.error_code) == (ask(0), ErrorCode.FENCED_LEADER_EPOCH)
    fetches.want(ask(0), 0, leader_epoch=6)
    assert fetches.request(False, 0).partitions == [FetchPartition("flights", 0, 0, LIMIT, 6)]


def test_a_partition_that_is_not_wanted_now_is_forgotten_until_it_is_wanted_again():
    fetches = with_asks(ask(0), ask(1))
    fetches.request(False, 0)
    fetches.accept(answer(records(0)), 0)
    assert named(fetches.request(False, 0)) == ({}, (("flights", 0),), (77, 1))
    fetches.want(ask(0, 10), 0)
    fetches.accept(answer(), 0)
    assert named(fetches.request(False, 0)) == ({("flights", 0): 10}, (), (77, 2))


def test_an_ask_stays_while_there_is_nothing_new_and_each_is_answered_once():
    fetches = with_asks(ask(0))
    fetches.request(False, 0)
    assert len(fetches.accept(answer(nothing(0)), 0)) == 1, "the log's end is news at first"
    fetches.want(ask(0), 0)
    for _ in range(3):
        fetches.request(False, 0)
        assert fetches.accept(answer(nothing(0)), 0) == []
    fetches.request(False, 0)
    assert len(fetches.accept(answer(records(0)), 0)) == 1
    assert fetches.accept(answer(records(0)), 0) == [] and len(fetches) == 0


def test_at_read_committed_the_last_stable_offset_is_the_end_of_the_log():
    fetches = session(READ_COMMITTED)
    fetches.want(ask(0), 0)
    assert fetches.request(False, 0).isolation_level == READ_COMMITTED
    fetches.accept(answer(FetchedPartition("flights", 0, 0, 10, 4, 0)), 0)
    fetches.want(ask(0), 0)
    fetches.request(False, 0)
    assert fetches.accept(answer(FetchedPartition("flights", 0, 0, 12, 4, 0)), 0) == []
    assert len(fetches.accept(answer(FetchedPartition("flights", 0, 0, 12, 12, 0)), 0)) == 1


def test_a_broker_without_room_for_a_session_gets_all_partitions_each_time_the_longest_wanted_first():
    fetches = with_asks(ask(0), ask(1), ask(2))
    fetches.request(False, 0)
    fetches.accept(answer(records(0), id=0), 0)
    fetches.want(ask(0, 10), 0)
    partitions, forgotten, its_session = named(fetches.request(False, 0))
    assert list(partitions.items()) == [(("flights", 1), 0), (("flights", 2), 0), (("flights", 0), 10)]
    assert (forgotten, its_session) == ((), (0, 0))


@pytest.mark.parametrize("code", sorted(LOST))
def test_after_a_lost_session_the_next_request_begins_a_new_one_and_no_ask_fails(code):
    fetches = with_asks(ask(0), ask(1))
    fetches.request(False, 0)
    fetches.accept(answer(nothing(0), nothing(1)), 0)
    fetches.want(ask(0), 0)
    fetches.request(False, 0)
    assert fetches.accept(answer(error=code, id=0), 0) == []
    assert named(fetches.request(False, 0)) == ({("flights", 0): 0}, (), (77, 0))


@pytest.mark.parametrize("code", (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.UNKNOWN_SERVER_ERROR))
def test_an_error_that_a_new_session_does_not_mend_answers_every_ask(code):
    fetches = with_asks(ask(0), ask(1))
    fetches.request(False, 0)
    answered = fetches.accept(answer(error=code), 0)
    assert [(answered_ask, result.error_code) for answered_ask, result in answered] == [(ask(0), code), (ask(1), code)]


def test_an_error_of_a_partition_answers_its_ask_only():
    fetches = with_asks(ask(0), ask(1))
    fetches.request(False, 0)
    moved = FetchedPartition("flights", 1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    ((answered, result),) = fetches.accept(answer(moved), 0)
    assert (answered, result.error_code) == (ask(1), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert named(fetches.request(False, 0))[1] == (("flights", 1),)


def test_after_a_broker_that_did_not_answer_a_new_session_closes_the_old_one():
    fetches = with_asks(ask(0), ask(1))
    fetches.request(False, 0)
    fetches.accept(answer(records(0)), 0)
    assert fetches.fail() == [ask(1)] and len(fetches) == 0
    fetches.want(ask(0, 10), 0)
    assert named(fetches.request(False, 0)) == ({("flights", 0): 10}, (), (77, 0))


def test_an_answer_to_an_ask_that_was_replaced_meanwhile_is_not_an_answer_to_the_new_one():
    fetches = with_asks(ask(0, 5))
    fetches.request(False, 0)
    assert fetches.want(ask(0, 90), 0) == ask(0, 5)
    assert fetches.accept(answer(records(0)), 0) == []
    assert named(fetches.request(False, 0)) == ({("flights", 0): 90}, (), (77, 1))


def test_what_a_session_still_knows_of_a_partition_is_no_answer_to_nobody():
    fetches = with_asks(ask(0), ask(1))
    fetches.request(False, 0)
    fetches.accept(answer(records(0)), 0)
    fetches.request(False, 0)
    assert fetches.accept(answer(records(0), records(9)), 0) == []


def test_a_partition_whose_log_lost_what_was_read_last_is_news():
    fetches = with_asks(ask(0, 10)._replace(last_epoch=4))
    assert fetches.request(False, 0).partitions[0].last_fetched_epoch == 4
    fetches.accept(answer(nothing(0, 10)), 0)
    fetches.want(ask(0, 10)._replace(last_epoch=4), 0)
    assert named(fetches.request(False, 0))[0] == {}
    lost = nothing(0, 10)
    lost.diverging = 4, 7
    assert len(fetches.accept(answer(lost), 0)) == 1


# --- topic ids (KIP-516)


def test_topics_are_named_by_their_ids_and_answers_have_their_names():
    fetches = with_asks(ask(0, id=FLIGHTS), ask(0, topic="taxis", id=TAXIS))
    assert fetches.has_topic_ids
    assert named(fetches.request(True, 0))[0] == {(FLIGHTS, 0): 0, (TAXIS, 0): 0}
    ((answered, result),) = fetches.accept(answer(records(0, topic=TAXIS)), 0)
    assert answered.topic == result.topic == "taxis"


def test_one_topic_without_an_id_makes_all_requests_use_names_in_a_new_session():
    fetches = with_asks(ask(0, id=FLIGHTS))
    fetches.request(True, 0)
    fetches.accept(answer(nothing(0, topic=FLIGHTS)), 0)
    fetches.want(ask(0, id=FLIGHTS), 0)
    fetches.want(ask(0, topic="old"), 0)
    assert not fetches.has_topic_ids
    assert named(fetches.request(False, 0)) == ({("flights", 0): 0, ("old", 0): 0}, (), (77, 0))
    fetches.accept(answer(records(0, topic="old")), 0)
    assert fetches.has_topic_ids


def test_a_topic_with_another_id_takes_the_place_of_the_old_one():
    fetches = with_asks(ask(0, 9, id=FLIGHTS))
    fetches.request(True, 0)
    fetches.accept(answer(FetchedPartition(FLIGHTS, 0, ErrorCode.UNKNOWN_TOPIC_ID)), 0)
    fetches.want(ask(0, 0, id=TAXIS), 0)
    assert named(fetches.request(True, 0)) == ({(TAXIS, 0): 0}, ((FLIGHTS, 0),), (77, 1))


# --- how long a fetch waits


def settled(now_ms):
    """Return fetches of two partitions that nothing has happened to for a long time."""
    fetches = with_asks(ask(0), ask(1))
    fetches.request(False, 0)
    fetches.accept(answer(nothing(0), nothing(1)), 0)
    fetches.want(ask(0), 0)
    fetches.want(ask(1), 0)
    assert fetches.request(False, now_ms).max_wait_ms == WAIT_MS
    return fetches


def test_while_all_partitions_are_wanted_a_fetch_takes_the_longest_wait():
    fetches = settled(1_000)
    fetches.accept(answer(records(0)), 1_050)
    fetches.want(ask(0, 10), 1_050)
    assert fetches.request(False, 1_050).max_wait_ms == WAIT_MS


def test_while_one_is_away_a_fetch_waits_as_long_as_that_was_away_by_now():
    fetches = settled(1_000)
    fetches.accept(answer(records(0)), 1_050)
    waits = []
    for now_ms in (1_050, 1_055, 1_060, 1_070, 1_090, 1_130, 1_210, 1_370):
        waits.append(fetches.request(False, now_ms).max_wait_ms)
        fetches.accept(answer(), now_ms)
    assert waits == [WAIT_MS_MIN, 5, 10, 20, 40, 80, 160, WAIT_MS]


def test_a_new_partition_makes_the_fetches_short_because_others_may_follow():
    fetches = settled(1_000)
    fetches.accept(answer(), 1_200)
    fetches.want(ask(2), 1_300)
    assert fetches.request(False, 1_310).max_wait_ms == 10
    fetches.accept(answer(), 1_320)
    assert fetches.request(False, 1_600).max_wait_ms == WAIT_MS


# --- versions


def first_fetch(newest, *asks):
    """Return the first Fetch at a broker that has Fetch up to v`newest`: (version, request)."""
    core, fetches = ClientCore([]), with_asks(*asks)
    steps = fetch_next(core, Address("b", 9092), fetches, 0)
    advance(steps, None)
    keys = [{"api_key": fetch.API_KEY, "min_version": 4, "max_version": newest}]
    versions = cold.encode(18, 3, "response", {"error_code": 0, "api_keys": keys, "throttle_time": 0})
    exchange = advance(steps, memoryview(versions))
    request = fetch.decode_request(exchange.version, memoryview(exchange.body), 0)
    return exchange.version, request.partitions[0].topic, request.wants_ids


@pytest.mark.parametrize("newest, version, topic", [(18, 16, FLIGHTS), (13, 13, FLIGHTS), (12, 12, "flights")])
def test_the_version_is_the_newest_that_both_have(newest, version, topic):
    assert first_fetch(newest, ask(0, id=FLIGHTS)) == (version, topic, True)


def test_without_topic_ids_it_is_the_newest_that_names_topics():
    assert first_fetch(18, ask(0)) == (12, "flights", True)


def test_brokers_before_sessions_are_asked_for_all_partitions():
    assert first_fetch(6, ask(0)) == (6, "flights", False)
