"""Tests of PartitionManager. T1 to T9 are the traps of storm-kafka 0.9.3's PartitionManager:

    T1   what failed far behind is never retried, and the commit jumps over it at last
    T2   one poison message holds up its partition: 10,000 calls of next emit 100 messages
    T3   below the log's start it goes on at the end, and skips what is still there
    T3b  a failed message that retention removed makes it emit nothing more
    T4   the first acked tuple of several commits their message
    T5   a stored offset 0 counts as none, so it starts at the end
    T6   a failed message that compaction removed makes it emit nothing for ever
    T7   more than 100,000 offsets behind, it jumps to the end (STORM-399)
    T8   many failures before the first ack raise an exception
    T9   a message that is acked after its fail is emitted again
"""

import pytest

from partition_manager.progress import Progress
from tests.partition_manager.managers import emit_all, feed, manager_of
from tests.partition_manager.world import record, records


def settle_attempts(manager, offset, attempts):
    """Fail the message at `offset` in the given number of attempts; return the last ticket."""
    now_ms = 0
    for _ in range(attempts):
        message = manager.next(now_ms)
        assert message.record.offset == offset
        manager.fail(offset, message.ticket, now_ms, "bad")
        now_ms += 60_000
    return message.ticket


# --- pending, settled and done offsets


def test_what_was_read_is_pending_until_it_is_acked():
    manager = manager_of()
    feed(manager, 0, 3)
    tickets = emit_all(manager)
    assert (manager.pending, manager.emitted, manager.watermark) == (3, 3, 0)
    assert manager.ack(1, tickets[1])
    assert (manager.pending, manager.watermark) == (2, 0)
    assert manager.ack(0, tickets[0])
    assert (manager.pending, manager.watermark) == (1, 2)
    manager.check()


def test_progress_is_the_watermark_and_what_is_settled_above_it():
    manager = manager_of()
    feed(manager, 0, 10)
    tickets = emit_all(manager)
    for offset in (0, 2, 3, 7, 9):
        manager.ack(offset, tickets[offset])
    assert manager.progress() == Progress(1, ((2, 4), (7, 8), (9, 10)))
    manager.check()


def test_progress_is_offered_only_when_it_has_changed():
    manager = manager_of()
    feed(manager, 0, 2)
    tickets = emit_all(manager)
    first = manager.commit()
    assert first == Progress(0) and manager.committed is None
    manager.stored(first)
    assert manager.commit() is None and manager.committed == 0
    manager.ack(1, tickets[1])
    assert manager.commit() == Progress(0, ((1, 2),))


def test_only_the_lowest_done_ranges_are_kept_and_the_rest_comes_again():
    """Dropping the highest ranges costs duplicates, never a loss."""
    manager = manager_of(done_ranges_max=2)
    feed(manager, 0, 10)
    tickets = emit_all(manager)
    for offset in (1, 3, 5, 7):
        manager.ack(offset, tickets[offset])
    assert manager.progress() == Progress(0, ((1, 2), (3, 4)))


def test_what_was_done_in_an_earlier_life_is_not_emitted_again():
    manager = manager_of(Progress(2, ((4, 6), (8, 9))))
    feed(manager, 2, 10)
    assert sorted(emit_all(manager)) == [2, 3, 6, 7, 9]
    assert manager.counts.already_done == 3
    manager.check()


def test_done_ranges_not_yet_reached_stay_in_the_progress():
    manager = manager_of(Progress(0, ((5, 7),)))
    feed(manager, 0, 2, high_watermark=10)
    tickets = emit_all(manager)
    manager.ack(0, tickets[0])
    assert manager.progress() == Progress(1, ((5, 7),))


def test_a_done_range_that_was_jumped_over_is_told_once():
    manager = manager_of(Progress(0, ((1, 2), (5, 6))))
    feed(manager, 0, 1, high_watermark=10)
    assert manager.progress() == Progress(0, ((1, 2), (5, 6)))
    manager.wanted()
    manager.out_of_range(5, 10)
    assert manager.progress() == Progress(0, ((1, 6),)) and manager.wanted().offset == 6
    manager.check()


def test_done_ranges_past_the_end_of_a_truncated_log_are_forgotten():
    """Done ranges past the end are dropped, because other messages will have these offsets."""
    manager = manager_of(Progress(0, ((2, 8),)))
    feed(manager, 0, 2, high_watermark=4)
    assert manager.emitted == 4
    feed(manager, 4, 6, high_watermark=6)
    assert sorted(emit_all(manager)) == [0, 1, 4, 5]


def test_offsets_that_compaction_or_markers_left_empty_do_not_stop_the_watermark():
    """Offsets without a message do not stop the watermark, as they do in pyrallel-consumer."""
    manager = manager_of()
    manager.wanted()
    manager.fetched([record(0), record(5)], 9, 9)
    for offset, ticket in emit_all(manager).items():
        manager.ack(offset, ticket)
    assert manager.watermark == 9
    manager.check()


# --- the traps


def test_t1_what_failed_far_behind_is_retried_and_the_commit_never_jumps_over_it():
    manager = manager_of(max_attempts=0)
    feed(manager, 0, 1000)
    tickets = emit_all(manager)
    for offset in range(1000):
        if offset < 50:
            manager.ack(offset, tickets[offset])
        else:
            manager.fail(offset, tickets[offset], 0)
    assert manager.watermark == 50
    again = emit_all(manager, now_ms=100)
    assert sorted(again) == list(range(50, 1000))
    for offset, ticket in again.items():
        manager.ack(offset, ticket)
    assert manager.watermark == 1000


def test_t2_one_poison_message_holds_nobody_up_and_costs_no_fetch():
    manager = manager_of(fetch_max_records=100)
    now_ms = fetches = 0
    emitted = set()
    letters = []
    while len(emitted) < 1000:
        if (wanted := manager.wanted()) is not None:
            fetches += 1
            manager.fetched(records(wanted.offset, wanted.offset + 100), wanted.offset + 100, 10_000)
        message = manager.next(now_ms)
        offset = message.record.offset
        emitted.add(offset)
        if offset == 0:
            manager.fail(0, message.ticket, now_ms, "poison")
        else:
            manager.ack(offset, message.ticket)
        letters += manager.take_dead_letters()
        now_ms += 10
    assert fetches <= 11
    assert [(letter.record.offset, letter.attempts, letter.error) for letter in letters] == [(0, 5, "poison")]
    manager.check()


def test_t3_below_the_start_of_the_log_nothing_readable_is_skipped_and_the_loss_is_exact():
    manager = manager_of(Progress(10, ((12, 14),)))
    manager.wanted()
    manager.out_of_range(100, 200)
    assert manager.wanted().offset == 100
    assert manager.counts.lost == 100 - 10 - 2


def test_t3_going_on_at_the_end_instead_is_a_choice():
    manager = manager_of(Progress(10), out_of_range="latest")
    manager.wanted()
    manager.out_of_range(100, 200)
    assert manager.wanted().offset == 200 and manager.counts.lost == 190


def test_t3b_a_failed_message_is_retried_though_retention_has_removed_it():
    manager = manager_of()
    feed(manager, 0, 3)
    tickets = emit_all(manager)
    manager.fail(0, tickets[0], 0)
    manager.wanted()
    manager.out_of_range(100, 200)
    message = manager.next(100)
    assert (message.record.offset, message.record.value, message.attempt) == (0, b"v", 2)
    manager.check()


def test_t4_a_message_of_several_tuples_is_settled_by_its_last_ack():
    manager = manager_of()
    feed(manager, 0, 1)
    ticket = emit_all(manager)[0]
    assert manager.fan_out(0, ticket, 4)
    for _ in range(3):
        assert manager.ack(0, ticket)
        assert manager.watermark == 0
    assert manager.ack(0, ticket)
    assert manager.watermark == 1 and manager.counts.acked == 1


def test_t4_the_first_failed_sibling_retries_the_whole_message_and_the_others_are_stale():
    manager = manager_of()
    feed(manager, 0, 1)
    ticket = emit_all(manager)[0]
    manager.fan_out(0, ticket, 3)
    assert manager.ack(0, ticket)
    assert manager.fail(0, ticket, 0)
    assert not manager.ack(0, ticket) and not manager.fail(0, ticket, 0)
    assert (manager.failed, manager.counts.failed, manager.counts.stale) == ((0,), 1, 2)
    assert manager.next(100).attempt == 2


def test_t5_a_start_at_offset_zero_is_a_start_at_offset_zero():
    assert manager_of(Progress(0)).wanted().offset == 0


def test_t6_a_failed_message_that_compaction_removed_is_still_retried():
    manager = manager_of()
    feed(manager, 0, 2)
    tickets = emit_all(manager)
    manager.fail(0, tickets[0], 0)
    message = manager.next(100)
    assert (message.record.offset, message.attempt) == (0, 2)
    assert manager.ack(0, message.ticket) and manager.ack(1, tickets[1])
    assert manager.watermark == 2


def test_t7_however_far_acks_are_behind_nothing_is_skipped():
    """max_offset_behind decides which failures are retried; it never moves the position or drops messages in flight."""
    manager = manager_of(max_offset_behind=10, fetch_max_records=1000)
    feed(manager, 0, 1000)
    tickets = emit_all(manager)
    for offset in range(1, 1000):
        manager.ack(offset, tickets[offset])
    assert manager.watermark == 0 and manager.pending == 1
    assert manager.ack(0, tickets[0])
    assert manager.watermark == 1000


def test_t8_failures_before_the_first_ack_raise_nothing():
    manager = manager_of(max_attempts=0, fetch_max_records=10_000)
    feed(manager, 0, 5000)
    for offset, ticket in emit_all(manager).items():
        assert manager.fail(offset, ticket, 0)
    assert len(manager.failed) == 5000
    manager.check()


def test_t9_an_ack_after_the_fail_is_stale_and_the_retry_counts():
    manager = manager_of()
    feed(manager, 0, 1)
    ticket = emit_all(manager)[0]
    manager.fail(0, ticket, 0)
    assert not manager.ack(0, ticket)
    retry = manager.next(100)
    assert not manager.ack(0, ticket)
    assert manager.ack(0, retry.ticket)
    assert not manager.ack(0, retry.ticket)
    assert (manager.watermark, manager.counts.acked, manager.counts.stale) == (1, 1, 3)


# --- retries


def test_a_failed_message_waits_its_delay_and_the_delay_grows():
    manager = manager_of()
    feed(manager, 0, 1)
    now_ms = 0
    waited = []
    for _ in range(4):
        message = manager.next(now_ms)
        manager.fail(0, message.ticket, now_ms)
        due_ms = manager.next_deadline_ms()
        assert manager.next(due_ms - 1) is None
        waited.append(due_ms - now_ms)
        now_ms = due_ms
    assert waited == [100, 200, 400, 800]


def test_retries_go_first_but_new_messages_get_their_share():
    manager = manager_of(retry_share=2, retry_initial_ms=0)
    feed(manager, 0, 9)
    for _ in range(6):
        message = manager.next(0)
        manager.fail(message.record.offset, message.ticket, 1)
    order = [manager.next(1).record.offset for _ in range(9)]
    assert order == [0, 1, 6, 2, 3, 7, 4, 5, 8]


def test_a_message_given_up_stays_pending_until_its_dead_letter_is_safe():
    manager = manager_of(max_attempts=3)
    feed(manager, 0, 1)
    ticket = settle_attempts(manager, 0, 3)
    (letter,) = manager.take_dead_letters()
    assert (letter.reason, letter.attempts, letter.record.value) == ("attempts", 3, b"v")
    assert manager.watermark == 0 and manager.next(10**9) is None
    assert not manager.buried(0, ticket - 1)
    assert manager.buried(0, ticket) and not manager.buried(0, ticket)
    assert manager.watermark == 1 and manager.counts.dead_lettered == 1
    manager.check()


def test_without_a_place_for_dead_letters_a_message_is_tried_for_ever():
    manager = manager_of(dead_letter_topic="", max_attempts=2)
    feed(manager, 0, 1)
    settle_attempts(manager, 0, 50)
    assert manager.take_dead_letters() == [] and manager.failed == (0,)


def test_what_cannot_be_decoded_is_given_up_at_the_first_attempt():
    manager = manager_of()
    feed(manager, 0, 1)
    ticket = emit_all(manager)[0]
    assert manager.reject(0, ticket, 0, "no JSON")
    (letter,) = manager.take_dead_letters()
    assert (letter.reason, letter.error, letter.attempts) == ("undecodable", "no JSON", 1)
    manager.buried(0, ticket)
    assert manager.counts.undecodable == 1


def test_what_fails_too_far_behind_expires_into_the_dead_letters():
    manager = manager_of(max_offset_behind=10)
    feed(manager, 0, 100)
    tickets = emit_all(manager)
    manager.fail(89, tickets[89], 0)
    manager.fail(90, tickets[90], 0)
    (letter,) = manager.take_dead_letters()
    assert (letter.record.offset, letter.reason) == (89, "expired")
    assert manager.failed == (90,)


def test_a_message_of_no_tuples_is_settled_immediately():
    manager = manager_of()
    feed(manager, 0, 1)
    assert manager.fan_out(0, emit_all(manager)[0], 0)
    assert (manager.watermark, manager.counts.filtered) == (1, 1)


def test_a_batch_that_begins_below_the_offset_wanted_is_cut():
    """Records below the wanted offset are skipped, because a compressed batch arrives whole (KafkaUtils 0.9.3)."""
    manager = manager_of(Progress(5))
    manager.wanted()
    manager.fetched(records(0, 8), 8, 8)
    assert sorted(emit_all(manager)) == [5, 6, 7]


# --- truncation


def test_past_the_end_of_the_log_what_was_read_is_forgotten_and_its_acks_are_stale():
    manager = manager_of()
    feed(manager, 0, 10)
    tickets = emit_all(manager)
    manager.stored(Progress(0))
    manager.fail(7, tickets[7], 0)
    manager.wanted()
    manager.out_of_range(0, 6)
    manager.check()
    assert (manager.emitted, manager.pending, manager.counts.truncated) == (6, 6, 4)
    assert manager.next(10**6) is None, "the retry of 7 is forgotten"
    feed(manager, 6, 10)
    again = emit_all(manager)
    assert sorted(again) == [6, 7, 8, 9]
    assert not manager.ack(8, tickets[8]), "the old message at 8, not the new one"
    assert manager.ack(8, again[8])
    manager.check()


def test_done_ranges_above_the_truncation_are_forgotten_however_fast_the_log_grows_again():
    manager = manager_of(Progress(10, ((12, 14),)))
    manager.wanted()
    manager.out_of_range(0, 6)
    feed(manager, 6, 20)
    assert sorted(emit_all(manager)) == list(range(6, 20))


@pytest.mark.parametrize("acked, progress", [(range(10), Progress(6)), ((0, 1, 4, 5, 6, 8), Progress(2, ((4, 6),)))])
def test_progress_above_the_truncation_is_not_stored(acked, progress):
    """A spout that starts from it would skip the messages that get these offsets."""
    manager = manager_of()
    feed(manager, 0, 10)
    tickets = emit_all(manager)
    for offset in acked:
        manager.ack(offset, tickets[offset])
    manager.wanted()
    manager.out_of_range(0, 6)
    assert manager.progress() == progress
    feed(manager, 6, 10)
    assert sorted(emit_all(manager)) == [6, 7, 8, 9] and manager.progress() == progress
    manager.check()


def test_a_dead_letter_of_a_truncated_message_settles_nothing():
    manager = manager_of(max_attempts=1)
    feed(manager, 0, 2)
    tickets = emit_all(manager)
    manager.fail(1, tickets[1], 0)
    (letter,) = manager.take_dead_letters()
    manager.wanted()
    manager.out_of_range(0, 1)
    feed(manager, 1, 2)
    assert not manager.buried(1, letter.ticket)
    assert manager.pending == 2


def test_a_start_that_is_no_progress_is_refused_by_name():
    with pytest.raises(ValueError, match=r"done range lies above the offset 5.*\[3, 4\)"):
        manager_of(Progress(5, ((3, 4),)))
