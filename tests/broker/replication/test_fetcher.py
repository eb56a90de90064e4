"""A follower's way to its leader: what it asks for, and what the answers mean for its logs (rules E5, T1, R4)."""

from uuid import UUID

import pytest

from broker.log.log_appender import append
from broker.log.recovery.recovery import open_log
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.validation.batch import validate
from broker.now import Now
from broker.record.records import BatchRecord, encode_batch
from broker.replication.fetcher import (
    CHECKS_MAX,
    SOON_MS,
    Copy,
    FetchLimits,
    ReplicaFetcher,
    Truncate,
    truncation_offset,
)
from broker.settings.config import BrokerConfig, TopicConfig
from broker.waiting.pending import Pending
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchedPartition, FetchResponse, IdRegion
from idgen.layout import Layout
from idgen.worker import IdWorker

TOPIC_ID = UUID(int=7)
BACKOFF_MS = 1_000
START_MS = 1_700_000_000_000


class Follower:
    """Broker 2, which follows partitions of a topic that broker 1 leads."""

    def __init__(self, partitions=1, limits=FetchLimits()):
        self.now_ms = 1_000
        self.pending = Pending()
        self.fetcher = ReplicaFetcher(2, limits, self.pending)
        self.logs = []
        for partition in range(partitions):
            log, _ = open_log(MemoryStorage(), "flights", partition, TopicConfig(), BrokerConfig(), None, TOPIC_ID)
            self.logs.append(log)
            self.fetcher.follow(log, TOPIC_ID, 3, self.now)

    @property
    def now(self):
        return Now(self.now_ms, START_MS + self.now_ms)

    @property
    def log(self):
        return self.logs[0]

    def append(self, *epochs):
        """Append a record in each of these epochs, as if it had been copied."""
        ids = IdWorker(Layout(), 1, start_ms=START_MS, limit_ms=START_MS + 10_000)
        for epoch in epochs:
            self.log.start_leader_epoch(epoch)
            batch = memoryview(bytearray(encode_batch([BatchRecord(0, 0, None, b"a")], base_timestamp_ms=0)))
            append(self.log, batch, validate(batch, self.log.config, BrokerConfig()), ids, self.now)

    def request(self):
        return self.fetcher.request(11, self.now)

    def asked(self):
        """Return (partition, offset, leader epoch, last epoch, log start) of what the next request names."""
        return [
            (row.partition, row.fetch_offset, row.current_leader_epoch, row.last_fetched_epoch, row.log_start_offset)
            for row in self.request().partitions
        ]

    def answer(self, *results, session_id=5):
        return self.fetcher.answered(FetchResponse(list(results), session_id=session_id), self.now)

    def later(self, ms=BACKOFF_MS):
        self.now_ms += ms


def result(error=0, *, partition=0, high_watermark=0, start=0, records=b"", ids=None, diverging=None, last_id=-1):
    offsets = high_watermark, high_watermark, start
    return FetchedPartition(TOPIC_ID, partition, error, *offsets, None, records, ids, diverging, last_id=last_id)


@pytest.fixture
def follower():
    return Follower()


def test_a_request_has_the_limits_of_the_settings():
    request = Follower(limits=FetchLimits(250, 1 << 20, 1 << 16, min_bytes=4_096)).request()
    assert (request.min_bytes, request.max_bytes) == (4_096, 1 << 20)
    assert (request.max_wait_ms <= 250, request.partitions[0].max_bytes) == (True, 1 << 16)


# --- requests --------------------------------------------------------------------------------------------------------


def test_a_request_names_the_replica_and_its_life_and_wants_ids(follower):
    request = follower.request()
    assert (request.replica_id, request.replica_epoch, request.wants_ids) == (2, 11, True)
    assert (request.max_wait_ms <= 500, request.min_bytes) == (True, 1)
    assert request.partitions[0].topic == TOPIC_ID


def test_an_answer_without_news_marks_that_the_next_request_is_due(follower):
    follower.request()
    follower.answer(result())
    follower.fetcher.go_on(follower.log, follower.now)
    follower.request()
    follower.pending.fetches = False

    follower.answer()

    assert follower.pending.fetches
    assert follower.request() is not None


def test_t1_a_follower_names_the_newest_epoch_of_its_file_though_no_record_has_it(follower):
    follower.append(1, 1)
    follower.log.start_leader_epoch(2)
    follower.fetcher.follow(follower.log, TOPIC_ID, 3, follower.now)
    assert follower.asked() == [(0, 2, 3, 2, 0)]


def test_one_request_is_under_way(follower):
    assert follower.request() is not None and follower.request() is None


def test_a_quiet_partition_is_named_once():
    follower = Follower(3)
    assert len(follower.request().partitions) == 3
    assert follower.answer() == []
    assert follower.request().partitions == []


def test_after_an_answer_a_partition_is_asked_for_once_its_owner_goes_on(follower):
    follower.request()
    (copy,) = follower.answer(result(records=b"batch", ids=IdRegion(0, b""), high_watermark=1))
    assert isinstance(copy, Copy) and bytes(copy.records) == b"batch"
    assert follower.request() is None, "its disk may not have the records yet"
    follower.append(1)
    follower.fetcher.go_on(follower.log, follower.now)
    assert follower.asked() == [(0, 1, 3, 1, 0)]


# --- answers ---------------------------------------------------------------------------------------------------------


def test_r4_another_high_watermark_alone_and_another_start_alone_are_news(follower):
    follower.request()
    (copy,) = follower.answer(result(high_watermark=4))
    assert (copy.high_watermark, bytes(copy.records)) == (4, b"")
    follower.fetcher.go_on(follower.log, follower.now)
    follower.request()
    (copy,) = follower.answer(result(high_watermark=4, start=2))
    assert copy.log_start_offset == 2


def test_e5_an_answer_counts_only_in_the_epoch_that_was_asked_in(follower):
    follower.request()
    follower.fetcher.follow(follower.log, TOPIC_ID, 4, follower.now)
    assert follower.answer(result(records=b"of epoch 3", ids=IdRegion(0, b""))) == []
    assert follower.asked() == [(0, 0, 4, 0, 0)]


def test_an_answer_of_a_partition_that_is_followed_no_more_counts_for_nothing():
    follower = Follower(2)
    follower.request()
    follower.fetcher.unfollow("flights", 0)
    assert follower.answer(result(records=b"late"), result(partition=1, high_watermark=3)) != []
    request = follower.fetcher.request(11, follower.now)
    assert request is None and len(follower.fetcher) == 1


@pytest.mark.parametrize(
    "error, pause_ms",
    [
        (ErrorCode.FENCED_LEADER_EPOCH, 1_000),
        (ErrorCode.KAFKA_STORAGE_ERROR, 1_000),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, SOON_MS),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, SOON_MS),
        (ErrorCode.UNKNOWN_TOPIC_ID, SOON_MS),
    ],
)
def test_a_partition_with_an_error_waits_alone_for_a_short_time_if_its_leader_is_about_to_lead(error, pause_ms):
    follower = Follower(2)
    follower.request()
    decisions = follower.answer(result(error), result(partition=1, records=b"batch", ids=IdRegion(0, b"")))
    assert [decision.log.partition for decision in decisions] == [1]
    follower.fetcher.go_on(follower.logs[1], follower.now)
    follower.request()
    assert follower.fetcher.next_deadline_ms() == follower.now_ms + pause_ms
    follower.later()
    follower.answer()
    assert [row[0] for row in follower.asked()] == [0]


def test_a_leader_that_is_not_reached_is_asked_again_after_a_pause_with_all_partitions():
    follower = Follower(2)
    follower.request()
    assert follower.fetcher.answered(None, follower.now) == []
    assert follower.request() is None
    follower.later()
    assert len(follower.request().partitions) == 2


# --- truncation ------------------------------------------------------------------------------------------------------


def test_a_follower_is_cut_where_its_leader_ends_the_epoch(follower):
    follower.append(1, 1, 1, 2)
    follower.request()
    (cut,) = follower.answer(result(diverging=(1, 2)))
    assert cut == Truncate(follower.log, 2)


@pytest.mark.parametrize(
    "own, leader_says, offset",
    [
        ((1, 1, 1), (1, 2), 2),  # the leader's epoch 1 is shorter
        ((1, 2, 2), (1, 3), 1),  # the leader has more of epoch 1: the own epoch 2 goes
        ((1, 3, 3), (2, 2), 1),  # the leader has an epoch that the follower lacks: the newest before it ends at 1
        ((5, 5), (2, 1), 0),  # all epochs of the follower are later
    ],
)
def test_the_cut_is_the_least_end_that_both_know(follower, own, leader_says, offset):
    follower.append(*own)
    assert truncation_offset(follower.log, *leader_says) == offset


def test_a_cut_tells_what_it_drops_and_how_much_of_that_is_known_to_be_committed(follower):
    follower.append(1, 1, 1)
    follower.log.move_replicated_to(2)
    cuts = [Truncate(follower.log, offset) for offset in range(4)]
    assert [cut.dropped for cut in cuts] == [range(0, 3), range(1, 3), range(2, 3), range(3, 3)]
    assert [cut.committed for cut in cuts] == [2, 1, 0, 0]
    beyond = Truncate(follower.log, 9, is_anew=True)
    assert not beyond.dropped and not beyond.committed, "the leader has deleted what this log has"


def test_a_follower_that_ends_below_its_leaders_start_begins_anew_there(follower):
    follower.append(1)
    follower.request()
    cut = Truncate(follower.log, 9, is_anew=True, last_id=7)
    assert follower.answer(result(ErrorCode.OFFSET_OUT_OF_RANGE, start=9, last_id=7)) == [cut]


def test_r4_the_high_watermark_of_an_answer_that_cut_the_log_is_news_again(follower):
    """The follower may have all records then. It would never hear how many of them are committed."""
    follower.append(1, 1, 1, 2)
    follower.request()
    (cut,) = follower.answer(result(diverging=(1, 4), high_watermark=3))
    follower.fetcher.follow(cut.log, TOPIC_ID, 3, follower.now)
    follower.request()
    (copy,) = follower.answer(result(high_watermark=3))
    assert copy.high_watermark == 3


@pytest.mark.parametrize("start", [2, 3])
def test_a_follower_that_keeps_nothing_past_its_leaders_start_begins_anew_there(follower, start):
    """The leader cannot compare records that it has deleted. Its ids are refused if the follower's are higher."""
    follower.append(1, 1, 1, 2)
    follower.request()
    cut = Truncate(follower.log, start, is_anew=True)
    assert follower.answer(result(diverging=(1, 2), start=start)) == [cut]


def test_an_empty_log_that_begins_past_its_leaders_end_begins_anew(follower):
    """A power cut of all may have taken the leader's records; an empty log has no epoch that could diverge."""
    follower.log.epochs = []
    follower.request()
    cut = Truncate(follower.log, 0, is_anew=True)
    assert follower.answer(result(ErrorCode.OFFSET_OUT_OF_RANGE, start=0)) == [cut]


# --- records that fail a check ---------------------------------------------------------------------------------------


def test_records_that_fail_a_check_are_asked_for_over_a_new_connection_and_the_third_time_the_partition_stops():
    follower = Follower(2)
    for number in range(1, CHECKS_MAX + 1):
        follower.request()
        follower.answer(result(records=b"damaged", ids=IdRegion(0, b"")))
        goes_on = follower.fetcher.failed_check(follower.log, "its CRC does not hold", follower.now)
        assert goes_on is (number < CHECKS_MAX) and follower.fetcher.take_distrust() is goes_on
    assert follower.fetcher.failed == {"flights-0": "its CRC does not hold"}
    follower.request()
    (copy,) = follower.answer(result(partition=1, high_watermark=3))
    assert copy.log.partition == 1, "others go on"
    follower.fetcher.follow(follower.log, TOPIC_ID, 4, follower.now)
    assert follower.fetcher.failed == {} and (0, 0, 4, 0, 0) in follower.asked()


def test_good_records_forgive_the_bad_ones_before(follower):
    for _ in range(CHECKS_MAX):
        follower.request()
        follower.answer(result(records=b"damaged", ids=IdRegion(0, b"")))
        assert follower.fetcher.failed_check(follower.log, "its CRC does not hold", follower.now)
        follower.request()
        follower.answer(result(records=b"good", ids=IdRegion(0, b"")))
        follower.fetcher.go_on(follower.log, follower.now)
