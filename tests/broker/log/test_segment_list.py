"""The list of a log's segments: the values that it precomputes, after each of its changes."""

import gc
import weakref

from broker.log import log_appender
from broker.log.closed_segment import OpenSegments
from broker.log.segment_list import SegmentList
from broker.log.storage.memory_storage import MemoryStorage
from broker.record.control import Marker
from broker.settings.config import TopicConfig
from tests.broker.log.conftest import NOW, START_MS, append, new_worker, reopen

SMALL = TopicConfig(segment_bytes=1024)


def assert_precomputed(log):
    """Compare the list with one that is made of the same segments at once."""
    segments = log.segments
    anew = SegmentList(MemoryStorage(), log.name, segments.all, OpenSegments(100))
    assert segments.active is segments.all[-1]
    assert (segments.bases, segments.newest, segments.aborting) == (anew.bases, anew.newest, anew.aborting)
    assert segments.size == anew.size == sum(segment.size for segment in segments.all)


def test_the_precomputed_values_are_those_of_the_segments_after_each_change(storage, worker):
    log, _ = reopen(storage, config=SMALL)
    for number in range(12):
        transaction = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        append(log, b"x" * 400, worker=worker, timestamp_ms=START_MS + number * (-1) ** number, **transaction)
        log_appender.append_marker(log, number, 0, Marker(number % 3 == 0, 0), worker, NOW)
        assert_precomputed(log)
    assert len(log.segments.all) > 5 and 0 < len(log.segments.aborting) < len(log.segments.all)
    log.synced(log.position())
    assert_precomputed(log)
    log.drop_segments(2)
    assert_precomputed(log)
    log.drop_segments(len(log.segments.all))
    assert_precomputed(log)
    log.deleted()
    assert_precomputed(log)


def test_segments_that_a_roll_closes_while_all_are_dropped_are_counted_once(storage, worker):
    """The count limits the open files of all logs (flakelog.max.open.segments)."""
    among = OpenSegments(3)
    log, _ = reopen(storage, config=SMALL, open_segments=among)
    for _ in range(8):
        append(log, b"x" * 400, worker=worker)
    assert (len(log.segments.all), among.unsynced) == (4, 3)
    log.drop_segments(4)
    assert (len(log.segments.all), among.unsynced) == (1, 0)


def test_a_log_is_freed_with_its_last_reference():
    """The server freezes the objects of its start, so the garbage collector would never free a cycle of them."""
    log, _ = reopen(MemoryStorage(), config=SMALL)
    append(log, b"a", worker=new_worker())
    log.deleted()
    freed = weakref.ref(log)
    gc.disable()
    try:
        del log
        assert freed() is None
    finally:
        gc.enable()
