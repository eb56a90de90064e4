"""Outages: all messages fail for one reason, so the spout tries one at a time and counts no attempt."""

from partition_manager.outage import Outages
from partition_manager.parked import TopicPartitionOffset

OTHER = -1  # the ticket of a message that did not fail
POSITION = TopicPartitionOffset("flights", 0, 0)
REFUSED = "ConnectionRefusedError: [Errno 111]"


class Spout:
    """Outages with the messages 0, 1, 2, ...; each failure is of a new emission."""

    def __init__(self, after=3, probe_max_ms=60_000, **limits):
        self.notes = []
        self.outages = Outages(after, probe_max_ms, self.notes.append, **limits)
        self.tickets = iter(range(1, 10**6))

    def fail(self, message, error=REFUSED, now_ms=0, attempt=1, **kind):
        ticket = next(self.tickets)
        self.outages.emitted(message, ticket)
        return self.outages.failed(message, ticket, attempt, error, now_ms, **kind)

    def fail_row(self, error=REFUSED, now_ms=0):
        return [self.fail(message, error, now_ms) for message in range(3)]


def test_a_row_of_different_messages_that_fail_with_one_type_is_an_outage():
    spout = Spout()
    assert spout.fail_row() == [False, False, True], "from the third on, no attempt counts"
    assert spout.outages.all_wait and spout.fail(7)
    assert len(spout.notes) == 1 and "ConnectionRefusedError: [Errno 111]" in spout.notes[0]


def test_one_message_that_fails_again_and_again_is_no_outage():
    spout = Spout()
    assert not any(spout.fail("poison") for _ in range(100))
    assert not spout.outages.all_wait and spout.outages.may_emit(0)


def test_a_success_or_another_type_breaks_the_row():
    spout = Spout()
    spout.fail(0), spout.fail(1)
    spout.outages.succeeded(OTHER)
    spout.fail(2), spout.fail(3)
    assert not spout.fail(4, "KeyError: 'x'")
    assert not spout.fail(5) and not spout.outages.all_wait


def test_messages_that_failed_while_others_succeeded_are_no_outage():
    spout = Spout()
    for attempt in (1, 2, 3):
        assert not any(spout.fail(message, attempt=attempt) for message in (0, 1))
        spout.outages.succeeded(OTHER)
    assert not any(spout.fail(message, attempt=4) for message in range(10))
    assert not spout.outages.all_wait


def test_messages_that_failed_in_the_same_row_before_count_once():
    spout = Spout()
    assert not any(spout.fail(message, attempt=attempt) for attempt in (1, 2, 3) for message in (0, 1))
    assert spout.fail(2)


def test_messages_that_time_out_in_a_row_are_an_outage_too():
    assert Spout().fail_row("timeout") == [False, False, True]


def test_one_probe_at_a_time_and_each_failure_doubles_the_wait():
    spout = Spout(probe_max_ms=1_000)
    spout.fail_row()
    outages, now_ms, waits = spout.outages, 0, []
    for _ in range(6):
        at_ms = outages.next_probe_ms()
        assert not outages.may_emit(at_ms - 1) and outages.may_emit(at_ms)
        waits.append(at_ms - now_ms)
        outages.emitted(POSITION, at_ms)
        assert not outages.may_emit(at_ms) and outages.next_probe_ms() is None
        now_ms = at_ms
        assert outages.failed("probe", at_ms, 1, REFUSED, now_ms)
    assert waits == [100, 200, 400, 800, 1_000, 1_000]


def test_messages_still_in_flight_when_it_began_do_not_lengthen_the_wait():
    spout = Spout()
    spout.fail_row()
    outages = spout.outages
    assert all(outages.failed(message, -message, 1, REFUSED, 50) for message in range(10, 1_000))
    assert outages.next_probe_ms() == 100


def test_in_an_outage_a_timeout_counts_as_its_type_and_another_type_as_the_messages_own():
    spout = Spout()
    spout.fail_row()
    assert spout.fail(8, "timeout") and spout.fail(9)
    assert not spout.fail(10, "KeyError: 'x'")
    assert spout.outages.all_wait


def test_an_outage_whose_type_changes_goes_on_with_the_new_type():
    spout = Spout()
    spout.fail_row()
    assert spout.fail_row("BrokenPipeError: gone") == [False, False, True]
    assert spout.fail(9, "BrokenPipeError: gone") and len(spout.notes) == 1


def test_any_success_ends_it_and_its_length_is_noted():
    spout = Spout()
    spout.fail_row(now_ms=1_000)
    spout.outages.may_emit(1_100)
    spout.outages.emitted(POSITION, 99)
    spout.outages.failed(0, 99, 1, REFUSED, 1_100)
    spout.outages.may_emit(3_600)
    spout.outages.succeeded(OTHER)
    assert spout.outages.may_emit(3_600) and not spout.outages.all_wait
    assert spout.notes[1:] == ["the outage of ConnectionRefusedError is over after 2.6 s and 1 failed probes"]
    assert spout.fail_row() == [False, False, True], "the next one is found as the first was"


def fail_probes(spout, number, error=REFUSED, **kind):
    """Fail `number` probes, each at its time. Return the time of the last one."""
    for _ in range(number):
        now_ms = spout.outages.next_probe_ms()
        assert spout.outages.may_emit(now_ms)
        spout.fail("probe", error, now_ms, **kind)
    return now_ms


def test_each_longer_pause_is_noted_with_the_way_out_for_a_topic_of_bad_messages():
    spout = Spout(probe_max_ms=8_000)
    spout.fail_row()
    fail_probes(spout, 8)
    assert [note.rpartition("; ")[2] for note in spout.notes[1:]] == [
        f"the next probe follows in {seconds} s" for seconds in ("6.4", "8.0", "8.0")
    ]
    assert all(f"{REFUSED}; " in note and "flakelog.spout.outage.max.ms" in note for note in spout.notes[1:])


def test_the_outage_can_be_asked_for_its_length_and_its_failed_probes():
    spout = Spout()
    assert spout.outages.current(0) is None
    spout.fail_row(now_ms=1_000)
    fail_probes(spout, 2)
    outage = spout.outages.current(5_000)
    assert outage == ("ConnectionRefusedError", 4_000, 2, REFUSED, False)
    assert "an outage for 4.0 s, 2 failed probes: ConnectionRefusedError: [Errno 111]" in str(outage)
    spout.outages.succeeded(OTHER)
    assert spout.outages.current(5_000) is None


def test_failures_of_an_outage_over_its_limit_count_until_a_message_succeeds():
    spout = Spout(outage_max_ms=5_000)
    spout.fail_row()
    now_ms = fail_probes(spout, 6)
    assert now_ms == 6_300 and not spout.outages.all_wait
    assert "flakelog.spout.outage.max.ms (5000)" in spout.notes[-1]
    assert not any(spout.fail(message, attempt=attempt) for message in range(10) for attempt in (1, 2)), "all count"
    assert spout.fail_row("KeyError: 'x'") == [False, False, True], "another failure is an outage of its own"
    spout.outages.succeeded(OTHER)
    assert spout.fail_row() == [False, False, True]


def report(spout, message, now_ms=0):
    """Fail an emission of the message with Unavailable, and park it."""
    assert spout.fail(message, "Unavailable: maintenance", now_ms, unavailable=True)
    spout.outages.park(message, 0)


def try_parked(spout, now_ms):
    """Emit the parked message whose turn it is; return it with its new ticket."""
    turn = spout.outages.next_turn(now_ms)
    ticket = next(spout.tickets)
    spout.outages.emitted(turn.message, ticket)
    return turn.message, ticket


def fail_parked(spout, number):
    """Fail so many turns of parked messages, each at its time. Return the messages and the times."""
    turns = []
    for _ in range(number):
        now_ms = spout.outages.next_probe_ms()
        assert spout.outages.next_turn(now_ms - 1) is None
        message, ticket = try_parked(spout, now_ms)
        assert spout.outages.next_turn(now_ms + 10**6) is None, "one at a time"
        assert spout.outages.failed(message, ticket, 1, "Unavailable: maintenance", now_ms, unavailable=True)
        spout.outages.park(message, ticket)
        turns.append((message, now_ms))
    return turns


def test_after_unavailable_others_go_on_and_those_that_failed_are_tried_one_at_a_time():
    spout = Spout()
    report(spout, "a"), report(spout, "b")
    assert spout.outages.may_emit(0) and not spout.outages.all_wait and spout.notes == []
    spout.outages.succeeded(OTHER)
    assert fail_parked(spout, 4) == [("a", 100), ("b", 300), ("a", 700), ("b", 1_500)]
    assert spout.outages.may_emit(1_500)


def test_only_the_success_of_a_message_that_failed_in_it_ends_what_unavailable_reported():
    spout = Spout(after=4)
    report(spout, "a"), report(spout, "b"), report(spout, "c")
    spout.outages.succeeded(OTHER)
    fail_parked(spout, 1)
    assert spout.outages.succeeded(OTHER) == [] and spout.outages.current(1_000) is not None
    message, ticket = try_parked(spout, 300)
    assert [turn.message for turn in spout.outages.succeeded(ticket)] == ["c", "a"]
    assert spout.outages.current(1_000) is None and not spout.outages.is_troubled
    assert spout.notes == [
        "an outage: messages fail with Unavailable: maintenance; one at a time is tried until one succeeds, "
        "and no attempt is counted; other messages go on",
        "the outage of Unavailable is over after 0.1 s and 1 failed probes",
    ]


def test_a_bolt_that_says_unavailable_is_believed_without_a_limit():
    spout = Spout(outage_max_ms=1_000)
    report(spout, 0)
    fail_parked(spout, 10)
    assert spout.outages.current(0) is not None and "other messages go on" in str(spout.outages.current(0))


def test_timeouts_of_parked_messages_count_for_longer_than_the_longest_outage_only():
    spout = Spout(outage_max_ms=1_000)
    report(spout, 0)
    message, ticket = try_parked(spout, 100)
    assert spout.outages.failed(message, ticket, 1, "timeout", 200)
    spout.outages.park(message, ticket)
    message, ticket = try_parked(spout, 900)
    assert not spout.outages.failed(message, ticket, 1, "timeout", 1_000)


def test_a_row_makes_all_wait_and_a_success_of_another_message_lets_the_others_go_on():
    spout = Spout()
    for message in range(3):
        assert not spout.outages.all_wait
        report(spout, message)
    assert spout.outages.all_wait and not spout.outages.may_emit(99) and len(spout.notes) == 1
    assert spout.outages.succeeded(OTHER) == []
    assert spout.outages.may_emit(99) and spout.outages.current(99) is not None and len(spout.notes) == 1
    assert [message for message, _ in fail_parked(spout, 2)] == [0, 1]


def test_while_all_wait_a_parked_message_that_succeeds_ends_both():
    spout = Spout()
    for message in range(3):
        report(spout, message)
    _, ticket = try_parked(spout, 100)
    assert not spout.outages.may_emit(100)
    assert len(spout.outages.succeeded(ticket)) == 2
    assert spout.outages.may_emit(100) and not spout.outages.is_troubled and "is over" in spout.notes[-1]


def test_an_outage_ends_when_no_message_is_left_that_failed_in_it():
    spout = Spout()
    report(spout, "a"), report(spout, "b")
    fail_parked(spout, 2)
    message, ticket = try_parked(spout, 700)
    assert not spout.outages.failed(message, ticket, 1, "KeyError: 'x'", 700), "its own failure"
    assert spout.outages.current(700) is not None
    message, ticket = try_parked(spout, spout.outages.next_probe_ms())
    spout.outages.ended(ticket)
    assert spout.outages.current(1_500) is None and "is over" in spout.notes[-1]


def test_a_turn_that_is_not_taken_passes_to_the_next_after_a_pause():
    spout = Spout()
    report(spout, "a"), report(spout, "b")
    assert spout.outages.next_turn(100).message == "a" and spout.outages.next_turn(100) is None
    assert spout.outages.next_turn(spout.outages.next_probe_ms()).message == "b"
    spout.outages.forget("a"), spout.outages.forget("b")
    assert not spout.outages.parks


def test_without_parking_all_wait_from_the_first_unavailable_on():
    """At most once: a message that fails is dropped."""
    spout = Spout(parks=False)
    assert spout.fail(0, "Unavailable: maintenance", 0, unavailable=True)
    assert not spout.outages.may_emit(99) and spout.notes == []
    assert spout.fail(1, "Unavailable: maintenance", 100, unavailable=True)
    assert len(spout.notes) == 1
    spout.outages.succeeded(OTHER)
    assert spout.outages.may_emit(100) and "is over" in spout.notes[-1]


def test_a_short_unavailability_among_successes_leaves_no_notes():
    spout = Spout()
    for _ in range(100):
        spout.fail(0, "Unavailable: rate limit", unavailable=True)
        spout.outages.succeeded(OTHER)
    assert spout.notes == []


def test_a_probe_that_ends_without_a_bolt_is_followed_by_another_at_once():
    spout = Spout()
    spout.fail_row()
    spout.outages.emitted(POSITION, 50)
    spout.outages.ended(50)
    assert spout.outages.may_emit(100)


def test_rows_may_be_ignored():
    spout = Spout(after=0)
    assert not any(spout.fail(message) for message in range(100))
    assert spout.fail(0, unavailable=True)
