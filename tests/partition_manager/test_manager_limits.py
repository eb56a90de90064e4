"""Limits of a PartitionManager: fetches, unsettled messages, ranges of settled ones, bytes."""

from partition_manager.ports import FetchWanted
from partition_manager.progress import Progress
from tests.partition_manager.managers import calls_of, emit_all, feed, manager_of
from tests.partition_manager.world import record, records


def test_one_fetch_is_outstanding_at_a_time():
    manager = manager_of(fetch_max_records=10, fetch_max_bytes=99)
    assert manager.wanted() == FetchWanted(0, 10, 99)
    assert manager.wanted() is None
    manager.fetched([], 0, 0)
    assert manager.wanted() == FetchWanted(0, 10, 99)


def test_the_next_fetch_begins_while_the_last_one_is_worked_off():
    manager = manager_of(fetch_max_records=10)
    feed(manager, 0, 10)
    for _ in range(4):
        manager.next(0)
    assert manager.wanted() is None
    manager.next(0)
    assert manager.wanted() == FetchWanted(10, 10, 1 << 20)


def test_no_more_is_read_than_may_be_unsettled_and_the_rest_is_read_again():
    manager = manager_of(max_uncommitted=5)
    assert manager.wanted().max_records == 5
    manager.fetched(records(0, 8), 8, 8)
    tickets = emit_all(manager)
    assert sorted(tickets) == [0, 1, 2, 3, 4] and manager.wanted() is None
    manager.ack(4, tickets[4])
    assert manager.wanted() == FetchWanted(5, 1, 1 << 20), "what is settled does not count"
    manager.check()


def test_one_message_held_back_stops_no_others():
    manager = manager_of(max_uncommitted=10, fetch_max_records=10)
    feed(manager, 0, 10)
    tickets = emit_all(manager)
    held = tickets.pop(0)
    for start in range(10, 1_000, 9):
        for offset, ticket in tickets.items():
            manager.ack(offset, ticket)
        assert manager.progress() == Progress(0, ((1, start),)), "one range, however many messages it has"
        feed(manager, start, start + 9)
        tickets = emit_all(manager)
        assert len(tickets) == 9
    assert manager.ack(0, held)
    manager.check()


def test_progress_costs_as_much_with_many_messages_pending_as_with_few():
    calls = []
    for pending in (100, 20_000):
        manager = manager_of(fetch_max_records=pending)
        feed(manager, 0, pending)
        tickets = emit_all(manager)
        manager.ack_many([(offset, tickets[offset]) for offset in range(10, 20)])
        manager.progress()
        manager.ack(30, tickets[30])
        calls.append(calls_of(manager.progress))
        assert manager.progress() == Progress(0, ((10, 20), (30, 31)))
    assert calls[0] == calls[1]


def test_at_the_limit_of_ranges_only_a_message_that_extends_one_is_emitted():
    manager = manager_of(max_settled_ranges=2)
    feed(manager, 0, 10)
    tickets = emit_all(manager)
    assert sorted(tickets) == [0, 1, 2, 3], "two of them could each open a range"
    manager.ack(1, tickets[1])
    manager.ack(3, tickets[3])
    assert manager.next(0).record.offset == 4, "it extends the range of 3"
    assert manager.next(0) is None
    manager.check()


def test_ranges_never_exceed_their_limit_and_all_messages_are_emitted_in_the_end():
    manager = manager_of(Progress(0, ((20, 21), (40, 41))), max_settled_ranges=4)
    feed(manager, 0, 100)
    emitted = 0
    while tickets := emit_all(manager):
        emitted += len(tickets)
        for offset in sorted(tickets, key=lambda offset: (offset % 2 == 0, offset)):
            manager.ack(offset, tickets[offset])
            assert len(manager.progress().done) <= 4
            manager.check()
    assert emitted == 98 and manager.watermark == 100


def test_retries_go_on_at_the_limit_of_ranges():
    manager = manager_of(max_settled_ranges=1, retry_initial_ms=0, max_attempts=0)
    feed(manager, 0, 10)
    for offset, ticket in emit_all(manager).items():
        manager.fail(offset, ticket, 0)
    again = emit_all(manager, 1)
    assert sorted(again) == [0, 1]
    for offset, ticket in again.items():
        manager.ack(offset, ticket)
    assert sorted(emit_all(manager, 1)) == [2, 3]


def test_bytes_pending_stop_reading_and_one_message_at_least_is_taken():
    manager = manager_of(max_pending_bytes=600)
    manager.wanted()
    manager.fetched([record(0, value=bytes(10_000)), record(1)], 2, 2)
    tickets = emit_all(manager)
    assert sorted(tickets) == [0] and manager.wanted() is None
    manager.ack(0, tickets[0])
    assert manager.wanted().offset == 1
