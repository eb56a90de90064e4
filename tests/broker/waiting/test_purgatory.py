"""Delayed requests (Kafka's DelayedOperationPurgatory)."""

import pytest

from broker.now import Now
from broker.waiting.purgatory import KEYS_PER_ADVANCE, Delayed, Purgatory


def at(ms):
    return Now(ms=ms, wall_ms=1_700_000_000_000 + ms)


class Room:
    """A purgatory, the conditions that its delayed requests wait for, and their answers."""

    def __init__(self, **limits):
        self.purgatory = Purgatory(**limits)
        self.ready = set()
        self.answers = []

    def delayed(self, name, *keys, deadline_ms=None, offset=0):
        return Delayed(
            keys,
            deadline_ms,
            try_complete=lambda now: f"{name} at {now.ms}" if name in self.ready else None,
            expire=lambda now: f"{name} expired at {now.ms}",
            offset=offset,
        )

    def watch(self, name, *keys, deadline_ms=None, now_ms=0, offset=0):
        delayed = self.delayed(name, *keys, deadline_ms=deadline_ms, offset=offset)
        self.purgatory.watch(delayed, self.answers.append, at(now_ms))
        return delayed


def test_a_request_that_can_be_answered_immediately_never_waits():
    room = Room()
    room.ready.add("fetch")
    room.watch("fetch", "end-of-p0", deadline_ms=500)
    assert room.answers == ["fetch at 0"]
    assert (len(room.purgatory), room.purgatory.watched_keys, room.purgatory.next_deadline_ms()) == (0, 0, None)


def test_touching_a_key_answers_what_can_be_and_leaves_the_rest():
    room = Room()
    room.watch("one", "p0")
    room.watch("two", "p0")
    room.watch("other", "p1")
    room.ready |= {"one", "other"}
    assert room.purgatory.touch("p0", at(7)) == 1
    assert room.answers == ["one at 7"]
    assert len(room.purgatory) == 2


def test_a_touch_up_to_an_offset_leaves_the_requests_alone_that_wait_for_a_later_one():
    room = Room()
    for offset in (1, 2, 3):
        room.watch(f"produce up to {offset}", "p0", offset=offset)
    room.watch("commit", "p0")
    room.ready |= {"produce up to 1", "produce up to 2", "produce up to 3", "commit"}
    assert room.purgatory.touch("p0", at(7), upto=2) == 3
    assert room.answers == ["produce up to 1 at 7", "produce up to 2 at 7", "commit at 7"]
    assert room.purgatory.touch("p0", at(8)) == 1
    assert room.answers[3:] == ["produce up to 3 at 8"]


def test_a_call_comes_at_its_time_even_if_no_more_requests_may_wait():
    room = Room(max_delayed=0)
    room.purgatory.call_at(500, lambda now: room.answers.append(now.ms))
    assert room.purgatory.next_deadline_ms() <= 500
    room.purgatory.advance(at(499))
    assert (room.answers, len(room.purgatory)) == ([], 1)
    room.purgatory.advance(at(501))
    assert (room.answers, len(room.purgatory)) == ([501], 0)


def test_a_call_that_is_cancelled_never_comes():
    room = Room()
    room.purgatory.cancel(room.purgatory.call_at(500, lambda now: room.answers.append(now.ms)))
    room.purgatory.advance(at(1_000))
    assert (room.answers, room.purgatory.next_deadline_ms()) == ([], None)


def test_a_call_may_ask_for_another():
    room = Room()

    def call(now):
        room.answers.append(now.ms)
        room.purgatory.call_at(now.ms + 10, call)

    room.purgatory.call_at(0, call)
    for now_ms in (1, 5, 11, 21):
        room.purgatory.advance(at(now_ms))
    assert room.answers == [1, 11, 21]


def test_requests_on_thousands_of_keys_leave_them_in_slices_after_their_answers():
    """60 fetches of 10,000 partitions each that ended together held the thread for 0.4 s."""
    room = Room(max_delayed=3)
    keys = range(KEYS_PER_ADVANCE)
    for name in ("one", "two", "three"):
        room.watch(name, *keys, deadline_ms=100)
    assert room.purgatory.advance(at(100)) == 3
    assert room.answers == [f"{name} expired at 100" for name in ("one", "two", "three")]
    assert (len(room.purgatory), room.purgatory.watched_keys) == (0, KEYS_PER_ADVANCE)
    assert room.purgatory.touch(0, at(101)) == 0
    advances = 1
    while room.purgatory.next_deadline_ms() is not None:
        assert room.purgatory.next_deadline_ms() == 0
        room.purgatory.advance(at(102))
        advances += 1
    assert (advances, room.purgatory.watched_keys, room.purgatory.size) == (4, 0, 0)


def test_a_request_counts_in_the_limit_until_it_has_left_its_keys():
    room = Room(max_delayed=1)
    large = room.watch("large", *range(3 * KEYS_PER_ADVANCE))
    room.purgatory.cancel(large)
    room.watch("next", "p0", deadline_ms=1_000)
    assert room.answers == ["next expired at 0"]
    for _ in range(4):
        room.purgatory.advance(at(1))
    room.watch("last", "p0", deadline_ms=1_000)
    assert room.answers == ["next expired at 0"] and len(room.purgatory) == 1


def test_a_request_on_many_keys_is_answered_once_and_leaves_no_list_behind():
    """Kafka's watch lists keep completed operations until a purge; ours do not."""
    room = Room()
    room.watch("fetch", "p0", "p1", "p1", "p2", deadline_ms=100)
    room.ready.add("fetch")
    assert [room.purgatory.touch(key, at(1)) for key in ("p1", "p0", "p2")] == [1, 0, 0]
    assert room.purgatory.advance(at(1_000)) == 0
    assert room.answers == ["fetch at 1"]
    assert (len(room.purgatory), room.purgatory.watched_keys) == (0, 0)


def test_a_deadline_gives_the_answer_of_expiry():
    room = Room()
    room.watch("fetch", "p0", deadline_ms=500)
    assert room.purgatory.next_deadline_ms() <= 500
    assert room.purgatory.advance(at(499)) == 0
    assert room.purgatory.advance(at(500)) == 1
    assert room.answers == ["fetch expired at 500"]
    assert room.purgatory.watched_keys == 0


def test_a_deadline_that_has_come_does_not_wait():
    """A fetch with max.wait 0 is answered immediately with the available records."""
    room = Room()
    room.watch("fetch", "p0", deadline_ms=30, now_ms=30)
    assert room.answers == ["fetch expired at 30"]


def test_a_request_without_a_deadline_waits_for_its_key_alone():
    """The time limit of a join is its group's rebalance timeout, which the group keeps."""
    room = Room()
    room.watch("join", ("member", "g", "m1"))
    assert room.purgatory.next_deadline_ms() is None
    room.purgatory.advance(at(10**9))
    assert room.answers == [] and len(room.purgatory) == 1


def test_a_closed_connection_takes_its_requests_with_it():
    room = Room()
    delayed = room.watch("fetch", "p0", "p1", deadline_ms=50)
    room.purgatory.cancel(delayed)
    room.purgatory.cancel(delayed)
    room.ready.add("fetch")
    room.purgatory.touch("p0", at(1))
    room.purgatory.advance(at(100))
    assert room.answers == []
    assert (len(room.purgatory), room.purgatory.watched_keys, room.purgatory.next_deadline_ms()) == (0, 0, None)


def test_an_answer_may_touch_the_same_key_again():
    """An answer lets its connection read the next request, which may produce to a partition that others wait for."""
    room = Room()
    for name in ("one", "two"):
        delayed = room.delayed(name, "p0", deadline_ms=100)

        def answered(response):
            room.answers.append(response)
            room.purgatory.touch("p0", at(5))

        room.purgatory.watch(delayed, answered, at(0))
    room.ready |= {"one", "two"}
    room.purgatory.touch("p0", at(5))
    assert room.answers == ["one at 5", "two at 5"]


def test_an_answer_may_cancel_another_that_is_due_at_the_same_time():
    room = Room()
    second = room.delayed("second", "p1", deadline_ms=10)
    room.purgatory.watch(
        room.delayed("first", "p0", deadline_ms=9), lambda _: room.purgatory.cancel(second), at(0)
    )
    room.purgatory.watch(second, room.answers.append, at(0))
    assert room.purgatory.advance(at(10)) == 1
    assert room.answers == []


def test_past_the_limit_a_request_gets_its_deadlines_answer_immediately():
    """Queues are always bounded (rule 4 of CONTRIBUTING.md)."""
    room = Room(max_delayed=1)
    room.watch("one", "p0", deadline_ms=500)
    room.watch("two", "p0", deadline_ms=500, now_ms=3)
    assert room.answers == ["two expired at 3"]
    assert (len(room.purgatory), room.purgatory.overflowed) == (1, 1)


def test_a_request_is_watched_once():
    room = Room()
    delayed = room.watch("one", "p0")
    with pytest.raises(ValueError, match="answered once"):
        room.purgatory.watch(delayed, room.answers.append, at(0))


def test_a_key_that_is_touched_at_the_end_of_a_turn_is_touched_once():
    room, listening = Room(), Listening()
    room.purgatory.listen("end-of-p0", listening)
    for _ in range(2):
        room.purgatory.touch_at_end("end-of-p0")
    assert (listening.touches, room.purgatory.next_deadline_ms()) == ([], 0)
    room.purgatory.end_turn(at(1))
    room.purgatory.end_turn(at(2))
    assert (listening.touches, room.purgatory.next_deadline_ms()) == ([("end-of-p0", 1)], None)


class Listening:
    """A listener that remembers what it was told."""

    def __init__(self):
        self.touches = []

    def touched(self, key, now):
        self.touches.append((key, now.ms))


def test_a_listener_is_told_each_touch_of_its_keys_and_stays():
    room, listening = Room(), Listening()
    room.watch("fetch", "end-of-p0")
    for key in ("end-of-p0", "end-of-p1"):
        room.purgatory.listen(key, listening)
    room.ready.add("fetch")
    assert [room.purgatory.touch("end-of-p0", at(now_ms)) for now_ms in (1, 2)] == [1, 0]
    room.purgatory.unlisten("end-of-p0", listening)
    room.purgatory.touch("end-of-p0", at(3))
    room.purgatory.touch("end-of-p1", at(4))
    assert listening.touches == [("end-of-p0", 1), ("end-of-p0", 2), ("end-of-p1", 4)]


def test_a_listener_is_no_request_that_waits():
    room, listening = Room(), Listening()
    room.purgatory.listen("end-of-p0", listening)
    assert (len(room.purgatory), room.purgatory.size, room.purgatory.next_deadline_ms()) == (0, 0, None)
    assert room.purgatory.watched_keys == 1
    room.purgatory.unlisten("end-of-p0", listening)
    assert room.purgatory.watched_keys == 0
