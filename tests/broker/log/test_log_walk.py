"""Periodic work on thousands of logs takes a few at a time, so that clients do not wait for all of them."""

import pytest

from broker.log.log_walk import SLICE, SLICE_EVERY_MS, LogWalk
from broker.now import Now
from broker.settings.config import BrokerConfig
from tests.broker.log.conftest import NOW, START_MS
from tests.broker.log.manager_world import Broker

LOGS = 2 * SLICE + 1
HOUR_MS = 3_600_000


@pytest.fixture
def broker():
    broker = Broker(config=BrokerConfig(log_cleaner_backoff_ms=0), segment_bytes=1024, retention_ms=HOUR_MS)
    for partition in range(LOGS):
        broker.append(broker.open(partition))
    return broker


def test_a_walk_takes_some_logs_each_time_and_all_in_the_end(broker):
    walk, logs = LogWalk(), broker.manager.all()
    walk.begin(logs, 100)
    walk.begin(logs, 100)
    slices, now_ms = [], 100
    while walk.is_on:
        assert walk.next_deadline_ms() == now_ms and walk.due(now_ms - 1) == []
        slices.append(walk.due(now_ms))
        now_ms += SLICE_EVERY_MS
    assert [len(slice_logs) for slice_logs in slices] == [SLICE, SLICE, 1] and sum(slices, []) == logs
    assert walk.next_deadline_ms() is None and walk.due(now_ms) == []


def test_a_log_that_went_offline_meanwhile_is_left_out(broker):
    walk, logs = LogWalk(), broker.manager.all()
    walk.begin(logs, 0)
    logs[3].take_offline("its disk is gone")
    assert len(walk.due(0)) == SLICE - 1


def test_old_records_of_many_logs_go_a_few_logs_at_a_time(broker):
    at = Now(NOW.ms + 2 * HOUR_MS, START_MS + 2 * HOUR_MS)
    shortened = []
    while len(shortened) < LOGS:
        shorter = broker.manager.tick(at)
        assert 0 < len(shorter) <= SLICE
        shortened += shorter
        at = at._replace(ms=at.ms + SLICE_EVERY_MS)
        assert len(shortened) == LOGS or broker.manager.next_deadline_ms(at.ms) <= at.ms
    assert [log.log_start_offset for log in shortened] == [1] * LOGS
