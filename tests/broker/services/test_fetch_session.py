"""The cache of fetch sessions (KIP-227), with the rules of Kafka's cache."""

from itertools import count

import pytest

from broker.now import Now
from broker.services.fetch_session import WantedPartition, next_epoch, wanted
from broker.services.fetch_sessions import FetchSessions
from broker.waiting.purgatory import Purgatory
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import FetchedPartition, FetchPartition, FetchRequest

MINUTE_MS = 60_000


class Cache:
    """A cache whose sessions have the ids 1, 2, 3 ... in the order in which they are opened."""

    def __init__(self, sessions_max=2, partitions_max=1_000):
        ids = count(1)
        self.sessions = FetchSessions(sessions_max, partitions_max, lambda: next(ids), Purgatory())

    def open(self, size, at_ms, follower=None):
        named = wanted([FetchPartition("flights", index, 0, 100) for index in range(size)])
        pairs = [
            (partition, FetchedPartition(partition.requested.topic, partition.requested.partition))
            for partition in named
        ]
        return self.sessions.open(pairs, False, Now(at_ms, 0), follower and (follower, "BETWEEN"))

    def go_on(self, id, epoch, at_ms, adds=(), forgets=()):
        partitions = [FetchPartition("flights", index, 0, 100) for index in adds]
        forgotten = tuple(("flights", index) for index in forgets)
        request = FetchRequest(0, 1, 100, partitions, session_id=id, session_epoch=epoch, forgotten=forgotten)
        return self.sessions.resume(request, False, Now(at_ms, 0))

    def error(self, *args, **more):
        with pytest.raises(ApiError) as caught:
            self.go_on(*args, **more)
        return caught.value.code


def test_where_all_places_are_taken_and_in_use_a_new_client_has_no_session():
    cache = Cache()
    assert [cache.open(5, 0), cache.open(5, 0), cache.open(500, 2 * MINUTE_MS)] == [1, 2, 0]


def test_a_session_that_was_not_used_for_two_minutes_makes_room():
    cache = Cache()
    cache.open(5, 0), cache.open(5, 0)
    cache.go_on(1, 1, at_ms=MINUTE_MS)
    assert cache.open(1, 2 * MINUTE_MS + 1) == 3
    assert cache.error(2, 1, 2 * MINUTE_MS + 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.go_on(1, 2, 2 * MINUTE_MS + 1).id == 1
    assert cache.sessions.evicted == 1


def test_of_those_in_use_the_smallest_old_one_goes_for_a_larger_new_one():
    cache = Cache()
    cache.open(9, 0), cache.open(5, 0)
    for epoch, at_ms in enumerate((MINUTE_MS, 2 * MINUTE_MS), 1):
        cache.go_on(1, epoch, at_ms), cache.go_on(2, epoch, at_ms)
    assert cache.open(5, 2 * MINUTE_MS + 1) == 0, "no larger than the smallest"
    assert cache.open(6, 2 * MINUTE_MS + 1) == 3
    assert cache.error(2, 3, 2 * MINUTE_MS + 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_that_is_new_itself_is_not_put_out_by_a_larger_one():
    cache = Cache(sessions_max=1)
    cache.open(1, 0)
    assert cache.open(100, MINUTE_MS) == 0


def test_a_follower_takes_the_place_of_the_smallest_consumer_of_any_age():
    cache = Cache()
    cache.open(9, 0), cache.open(5, 0)
    assert cache.open(1, 0, follower=2) == 3
    assert cache.error(2, 1, 0) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_follower_keeps_its_place_before_larger_consumers():
    cache = Cache(sessions_max=1)
    cache.open(1, 0, follower=2)
    assert cache.open(500, 2 * MINUTE_MS) == 0
    assert cache.open(500, 2 * MINUTE_MS, follower=3) == 0, "it is not two minutes old"


def test_without_places_there_are_no_sessions():
    assert Cache(sessions_max=0).open(1, 0) == 0


def test_the_partitions_of_all_sessions_are_limited():
    """The limit is flakelog.fetch.session.partitions.max."""
    cache = Cache(sessions_max=10, partitions_max=10)
    assert [cache.open(6, 0), cache.open(5, 0), cache.open(4, 0)] == [1, 0, 2]
    assert cache.error(2, 1, 0, adds=[4]) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "it begins again, with room for all"
    assert (len(cache.sessions), cache.sessions.partitions) == (1, 6)


def test_a_session_without_partitions_is_over():
    cache = Cache()
    cache.open(2, 0)
    assert len(cache.go_on(1, 1, 0, forgets=[0])) == 1
    assert cache.go_on(1, 2, 0, forgets=[1]) is None
    assert (len(cache.sessions), cache.sessions.partitions) == (0, 0)


def test_epochs_begin_again_after_the_largest():
    assert [next_epoch(epoch) for epoch in (0, 1, 2**31 - 1)] == [1, 2, 1]


def test_an_id_that_is_taken_is_not_given_again():
    ids = iter([7, 7, 0, 8])
    sessions = FetchSessions(10, 10, lambda: next(ids), Purgatory())
    assert [sessions.open([], False, Now(0, 0)) for _ in range(2)] == [7, 8]


def test_r4_the_high_watermark_of_an_answer_that_cuts_the_log_is_news_again():
    """The client truncates its log, and takes no high watermark from such an answer."""
    partition = WantedPartition(FetchPartition("flights", 0, 2, 100))
    assert partition.is_news(FetchedPartition("flights", 0, high_watermark=1, diverging=(0, 1)))
    partition.renew(FetchPartition("flights", 0, 1, 100))
    assert partition.is_news(FetchedPartition("flights", 0, high_watermark=1))
    assert not partition.is_news(FetchedPartition("flights", 0, high_watermark=1))
