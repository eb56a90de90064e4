"""The nine traps of storm-kafka 0.9.3's PartitionManager: a port of it falls into each, and ours into none.

Each test plays one story to the port. Ours plays the same story in test_manager.py, where the name has the same number.
"""

import pytest

from broker.client.offset_spec import Earliest
from partition_manager.config import SpoutConfig as OurConfig
from partition_manager.manager import PartitionManager as Ours
from partition_manager.opening import choose_start
from partition_manager.ports import Bounds
from partition_manager.progress import Progress
from tests.partition_manager.storm_0_9_3 import EmitState, Log, PartitionManager, SpoutConfig
from tests.partition_manager.world import record

FROM_START = {"force_from_start": True}
STORED = {"topology": {"id": "topology"}}


def storm_of(log, stored=None, **settings):
    state = {} if stored is None else {"/root/id/partition_0": {**STORED, "offset": stored}}
    return PartitionManager(log, "topology", state, SpoutConfig(**settings))


def emit(manager, calls):
    """Call next that often; return the offsets emitted, in order."""
    emitted = []
    for _ in range(calls):
        manager.next(lambda values, id: emitted.append(id.offset))
    return emitted


def ours_of(log, start=0, **settings):
    settings = {f"spout_{name}": value for name, value in {"retry_jitter": 0.0, **settings}.items()}
    return Ours("t", 0, Progress(start), OurConfig(**settings))


def emit_ours(manager, log, calls, now_ms=0):
    """Call next that often, fetching what it wants from the port's log; return {offset: ticket}."""
    emitted = {}
    for _ in range(calls):
        if (wanted := manager.wanted()) is not None:
            end = min(len(log.messages), wanted.offset + log.batch)
            if log.start <= wanted.offset <= len(log.messages):
                records = [record(at) for at in range(wanted.offset, end) if log.messages[at] is not None]
                manager.fetched(records, end, len(log.messages))
            else:
                manager.out_of_range(log.start, len(log.messages))
        if (message := manager.next(now_ms)) is not None:
            emitted[message.record.offset] = message.ticket
    return emitted


def test_t1_what_failed_far_behind_is_never_retried_and_the_commit_jumps_over_it():
    log = Log(range(1_100))
    storm = storm_of(log, **FROM_START, max_offset_behind=100)
    assert len(emit(storm, 1_000)) == 1_000
    for offset in range(1_000):
        (storm.ack if offset < 50 else storm.fail)(offset)
    assert storm.last_completed_offset() == 50, "the commit is stuck"
    retried = emit(storm, 100)
    assert min(retried) == 900, "850 messages are never emitted again"
    for offset in retried:
        storm.ack(offset)
    assert storm.last_completed_offset() > 850, "and the commit has jumped over them"

    ours = ours_of(log, max_attempts=0)
    tickets = emit_ours(ours, log, 1_000)
    for offset, ticket in tickets.items():
        ours.ack(offset, ticket) if offset < 50 else ours.fail(offset, ticket, 0)
    assert set(emit_ours(ours, log, 1_300, now_ms=100)) >= set(range(50, 1_000)) and ours.watermark == 50


def test_t2_one_poison_message_holds_up_all_others_and_costs_a_fetch_each_time():
    log = Log(range(10_000), batch=100)
    storm = storm_of(log, **FROM_START)
    emitted = []

    def process(values, id):
        emitted.append(id.offset)
        (storm.fail if id.offset == 0 else storm.ack)(id.offset)

    for _ in range(10_000):
        storm.next(process)
    assert len(set(emitted)) == 100 and log.fetches == 9_901

    log.fetches = 0
    ours, seen = ours_of(log, fetch_max_records=100), set()
    for now_ms in range(10_000):
        for offset, ticket in emit_ours(ours, log, 1, now_ms).items():
            seen.add(offset)
            ours.fail(offset, ticket, now_ms) if offset == 0 else ours.ack(offset, ticket)
    assert len(seen) >= 9_990


def test_t3_out_of_range_skips_all_that_can_be_read():
    log = Log(range(2_000))
    log.start = 500
    storm = storm_of(log, stored=100)
    emit(storm, 1)
    assert storm.emitted_to_offset == 2_000, "1,500 messages are skipped"

    ours = ours_of(log, start=100)
    assert min(emit_ours(ours, log, 2)) == 500 and ours.counts.lost == 400


def test_t3b_a_failed_message_that_retention_removed_stops_the_partition():
    log = Log(range(2_000))
    storm = storm_of(log, **FROM_START)
    emit(storm, 1_000)
    storm.fail(0)
    log.start = 1_000
    assert emit(storm, 1_000) == [], "and there are 1,000 messages to read"

    log.start = 0
    ours = ours_of(log)
    ours.fail(0, emit_ours(ours, log, 1_000)[0], 0)
    log.start = 1_000
    assert sorted(emit_ours(ours, log, 1_001, now_ms=100)) == [0, *range(1_000, 2_000)]


def test_t4_the_first_of_several_acks_commits_the_message():
    log = Log(["three words here"])
    storm = PartitionManager(log, "id", {}, SpoutConfig(**FROM_START), generate_tuples=lambda text: [text.split()] * 3)
    assert emit(storm, 1) == [0, 0, 0]
    storm.ack(0)
    assert storm.last_completed_offset() == 1, "two tuples are still in flight"

    ours = ours_of(log)
    ticket = emit_ours(ours, log, 1)[0]
    ours.fan_out(0, ticket, 3)
    ours.ack(0, ticket)
    assert ours.watermark == 0


def test_t5_a_stored_offset_of_zero_begins_at_the_end():
    assert storm_of(Log(range(500)), stored=0).emitted_to_offset == 500

    assert choose_start(Progress(0), Earliest(), Bounds(0, 500), None, OurConfig()).progress == Progress(0)


def test_t6_a_failed_message_that_compaction_removed_stops_the_partition():
    log = Log(range(3_000), batch=1)
    storm = storm_of(log, **FROM_START)
    emit(storm, 1_000)
    storm.fail(0)
    log.messages[0] = None
    assert emit(storm, 1_000) == []

    log = Log(range(3_000))
    ours = ours_of(log)
    ours.fail(0, emit_ours(ours, log, 1_000)[0], 0)
    log.messages[0] = None
    assert len(emit_ours(ours, log, 1_000, now_ms=100)) == 1_000 and ours.pending >= 1_000


def test_t7_one_message_too_far_behind_jumps_to_the_end():
    log = Log(range(100_002))
    settings = dict(max_offset_behind=100_000)
    assert storm_of(log, stored=2, **settings).emitted_to_offset == 2
    assert storm_of(log, stored=1, **settings).emitted_to_offset == 100_002

    for stored in (Progress(1), Progress(2)):
        assert choose_start(stored, Earliest(), Bounds(0, 100_002), None, OurConfig()).progress == stored


def test_t8_the_101st_failure_before_any_ack_raises():
    log = Log(range(1_000))
    storm = storm_of(log, **FROM_START, max_offset_behind=100)
    emit(storm, 101)
    for offset in range(1_000 - 100, 1_000):
        storm.fail(offset)
    with pytest.raises(RuntimeError, match="Too many tuple failures"):
        storm.fail(999)

    ours = ours_of(log)
    for offset, ticket in emit_ours(ours, log, 1_000).items():
        assert ours.fail(offset, ticket, 0)


def test_t9_a_message_acked_after_it_failed_is_emitted_again_and_its_late_ack_counts():
    log = Log(range(2))
    storm = storm_of(log, **FROM_START)
    assert emit(storm, 2) == [0, 1]
    storm.fail(0)
    storm.ack(0)
    assert storm.last_completed_offset() == 1, "settled, by an ack of the failed attempt"
    assert emit(storm, 1) == [0], "and emitted again"
    assert storm.next(lambda *emitted: None) is EmitState.NO_EMITTED

    ours = ours_of(log)
    tickets = emit_ours(ours, log, 2)
    ours.fail(0, tickets[0], 0)
    assert not ours.ack(0, tickets[0]) and ours.watermark == 0
