"""Segments that retention deletes: by age, by size, below the start
(https://kafka.apache.org/documentation/#topicconfigs)."""

import pytest

from broker.log.recovery.recovery import open_log
from broker.log.retention import expired
from broker.settings.config import TopicConfig

from .conftest import BROKER, START_MS, append

HOUR_MS = 3_600_000


@pytest.fixture
def log(storage, worker):
    """Return a log of three segments with a batch each, at offsets 0, 2 and 4, an hour apart; the last one is
    active."""
    config = TopicConfig(segment_bytes=1 << 20)
    log, _ = open_log(storage, "flights", 0, config, BROKER, None)
    for hour in range(3):
        if hour:
            log.roll()
        append(log, b"a", b"b", worker=worker, timestamp_ms=START_MS + hour * HOUR_MS)
    return log


def expired_count(log, wall_ms=START_MS, **config):
    segments, config = log.segments, TopicConfig(**config)
    return expired(segments.all, segments.size, config, log.log_start_offset, log.high_watermark, wall_ms)


def test_a_segment_goes_when_its_newest_record_is_older_than_the_retention(log):
    assert expired_count(log, START_MS + HOUR_MS, retention_ms=HOUR_MS) == 0
    assert expired_count(log, START_MS + HOUR_MS + 1, retention_ms=HOUR_MS) == 1
    assert expired_count(log, START_MS + 2 * HOUR_MS + 1, retention_ms=HOUR_MS) == 2


def test_the_newest_segment_goes_too_when_nobody_has_written_for_so_long(log):
    assert expired_count(log, START_MS + 9 * HOUR_MS, retention_ms=HOUR_MS) == 3


def test_without_a_policy_everything_stays_but_what_is_below_the_start(log):
    assert expired_count(log, START_MS + 9 * HOUR_MS, retention_ms=HOUR_MS, retention_bytes=0, cleanup_policy="") == 0
    log.advance_start(2)
    assert expired_count(log, START_MS + 9 * HOUR_MS, retention_ms=HOUR_MS, cleanup_policy="") == 1


def test_an_empty_segment_at_the_end_stays(log):
    log.roll()
    assert expired_count(log, START_MS + 9 * HOUR_MS, retention_ms=HOUR_MS) == 3
    assert expired_count(log, retention_bytes=0) == 3


def test_a_young_segment_keeps_the_older_ones_after_it(storage, worker, log):
    """Segments go oldest first, so that records with an old time from their producer leave no hole."""
    log.roll()
    append(log, b"late", worker=worker, timestamp_ms=START_MS)
    assert expired_count(log, START_MS + HOUR_MS + 1, retention_ms=HOUR_MS) == 1


def test_records_without_a_time_age_from_when_they_were_written(storage, worker):
    storage.wall_ms = START_MS
    log, _ = open_log(storage, "flights", 0, TopicConfig(), BROKER, None)
    append(log, b"a", worker=worker, timestamp_ms=-1)
    assert expired_count(log, START_MS + HOUR_MS, retention_ms=HOUR_MS) == 0
    assert expired_count(log, START_MS + HOUR_MS + 1, retention_ms=HOUR_MS) == 1


def test_minus_one_keeps_all(log):
    assert expired_count(log, START_MS + 10_000 * HOUR_MS, retention_ms=-1, retention_bytes=-1) == 0


def test_a_size_is_kept_from_below(log):
    size = log.segments.all[0].size
    assert expired_count(log, retention_bytes=3 * size) == 0
    assert expired_count(log, retention_bytes=2 * size + 1) == 0, "with one segment less there would be too little"
    assert expired_count(log, retention_bytes=2 * size) == 1
    assert expired_count(log, retention_bytes=size) == 2
    assert expired_count(log, retention_bytes=0) == 3


def test_segments_below_the_start_go_whatever_the_policy(log):
    log.advance_start(3)
    for policy in ("delete", "compact"):
        assert expired_count(log, cleanup_policy=policy, retention_ms=-1) == 1
    log.advance_start(4)
    assert expired_count(log, cleanup_policy="compact") == 2


def test_a_compacted_topic_keeps_its_old_records(log):
    assert expired_count(log, START_MS + 9 * HOUR_MS, cleanup_policy="compact", retention_ms=1, retention_bytes=0) == 0
    assert expired_count(log, START_MS + 9 * HOUR_MS, cleanup_policy="compact,delete", retention_ms=1) == 3


def test_nothing_goes_that_reaches_past_the_high_watermark(log):
    assert expired(log.segments.all, log.segments.size, TopicConfig(retention_bytes=0), 0, 3, START_MS) == 1
