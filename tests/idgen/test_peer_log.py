"""A broken peer has one line in the log for each minute, with a count of those left out."""

from twisted.internet.task import Clock

from idgen.peer_log import ADDRESSES_MAX, OTHERS, PERIOD_MS, PeerLines, PeerLog

A, B = "10.0.0.1", "10.0.0.2"


def test_the_first_line_of_an_address_is_written_at_once():
    lines = PeerLines()
    assert lines.note(A, "a is broken", 0) == ["a is broken"]
    assert lines.note(B, "b is broken", 1) == ["b is broken"]


def test_the_lines_that_follow_within_a_minute_are_one_line_with_their_number_at_its_end():
    lines = PeerLines()
    lines.note(A, "first", 0)
    assert [lines.note(A, f"line {n}", 10) for n in range(5_800)] == [[]] * 5_800
    assert lines.ended(PERIOD_MS - 1) == []
    assert lines.ended(PERIOD_MS) == [f"{A}: 5800 more such lines in the last minute; the last: line 5799"]
    assert lines.note(A, "again", PERIOD_MS + 1) == []


def test_an_address_that_was_quiet_for_a_minute_is_forgotten():
    lines = PeerLines()
    lines.note(A, "first", 0)
    assert lines.ended(PERIOD_MS) == [] and len(lines) == 0
    assert lines.note(A, "again", PERIOD_MS + 1) == ["again"]


def test_a_peer_that_goes_on_for_an_hour_has_one_line_a_minute():
    lines = PeerLines()
    written = [line for now_ms in range(0, 60 * PERIOD_MS, 1_000) for line in lines.note(A, "broken", now_ms)]
    assert len(written) == 60


def test_past_the_limit_all_further_addresses_share_one_entry():
    lines = PeerLines()
    for number in range(ADDRESSES_MAX):
        assert lines.note(f"peer {number}", "broken", 0)
    assert lines.note("one more", "is broken", 1) == ["is broken"]
    assert lines.note("another", "is broken too", 2) == []
    assert len(lines) == ADDRESSES_MAX + 1
    assert lines.note(A, "later", 1 + PERIOD_MS) == [
        f"{OTHERS}: 1 more such lines in the last minute; the last: is broken too",
        "later",
    ]


def test_a_deadline_exists_only_while_lines_are_left_out():
    lines = PeerLines()
    lines.note(A, "first", 0)
    assert lines.next_deadline_ms() is None
    lines.note(A, "second", 5)
    assert lines.next_deadline_ms() == PERIOD_MS


def test_the_count_is_written_even_if_nobody_comes_after():
    reactor, written = Clock(), []
    log = PeerLog(reactor, lambda: int(reactor.seconds() * 1000), written.append)
    log.note(A, "first")
    log.note(A, "second")
    assert written == ["first"]
    reactor.advance(61)
    assert written == ["first", f"{A}: 1 more such lines in the last minute; the last: second"]
    reactor.advance(61)
    assert not reactor.getDelayedCalls()


def test_a_stopped_log_leaves_no_timer():
    reactor = Clock()
    log = PeerLog(reactor, lambda: int(reactor.seconds() * 1000), print)
    log.note(A, "first")
    log.note(A, "second")
    log.stop()
    assert not reactor.getDelayedCalls()
