"""The XOR acker (Storm: Acking-framework-implementation)."""

import random

from hypothesis import given
from hypothesis import strategies as st

from spout.acker import Acker, Tree


def outcomes(acker):
    return [(ended.id, None if isinstance(ended, Tree) else ended.error) for ended in acker.take_ended()]


def test_a_tree_is_complete_when_its_last_tuple_is_acked():
    acker = Acker(30_000)
    acker.track(1, task=7, id="a", now_ms=100)
    acker.add(1, 0b011)
    acker.add(1, 0b101)
    acker.ack(1, 0b011)
    assert outcomes(acker) == [] and len(acker) == 1
    acker.add(1, 0b1000)
    acker.ack(1, 0b101)
    assert outcomes(acker) == []
    acker.ack(1, 0b1000)
    (tree,) = acker.take_ended()
    assert (tree.task, tree.id, tree.began_ms, len(acker)) == (7, "a", 100, 0)


def test_a_failed_tuple_fails_its_tree_once_and_later_acks_are_ignored():
    acker = Acker(30_000)
    acker.track(1, 7, "a", 0)
    acker.add(1, 5)
    acker.add(1, 6)
    acker.fail(1, "bad")
    acker.fail(1, "worse")
    acker.add(1, 9)
    acker.ack(1, 5)
    assert outcomes(acker) == [("a", "bad")]


def test_a_tree_times_out_exactly_after_its_time():
    """A tree times out exactly after the timeout; Storm's RotatingMap lets it live for up to twice as long."""
    acker = Acker(30_000)
    acker.track(1, 7, "a", 0)
    acker.track(2, 7, "b", 10)
    assert acker.next_deadline_ms() == 30_000
    acker.expire(29_999)
    assert outcomes(acker) == []
    acker.expire(30_000)
    assert outcomes(acker) == [("a", "timeout")] and acker.next_deadline_ms() == 30_010


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_no_tree_is_complete_before_all_its_tuples_are_acked_and_each_then_is(children, rng):
    """Any tree, with its tuples acked in any order, is complete at the last ack and not before."""
    bits = random.Random(rng.getrandbits(64))
    acker = Acker(30_000)
    acker.track(1, 0, "a", 0)
    todo = [bits.getrandbits(64)]
    acker.add(1, todo[0])
    shape = iter(children)
    while todo:
        assert outcomes(acker) == [], "complete too early"
        edge = todo.pop(rng.randrange(len(todo)))
        for _ in range(next(shape, 0)):
            todo.append(bits.getrandbits(64))
            acker.add(1, todo[-1])
        acker.ack(1, edge)
    assert outcomes(acker) == [("a", None)]
