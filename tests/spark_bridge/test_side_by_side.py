"""Several iterators in threads: each one's order, a limit on what waits, one error, and an end that leaves nothing."""

import threading

import pytest

from spark_bridge.reading.side_by_side import SideBySide
from tests.patience import SECONDS, until


def numbers(job, most):
    return lambda: iter([(job, n) for n in range(most)])


@pytest.mark.parametrize(("jobs", "threads", "in_flight"), [(0, 1, 1), (1, 4, 1), (7, 3, 2), (3, 8, 100)])
def test_all_items_come_and_those_of_one_job_in_their_order(jobs, threads, in_flight):
    with SideBySide([numbers(job, 50) for job in range(jobs)], threads, in_flight) as items:
        seen = list(items)
    for job in range(jobs):
        assert [n for owner, n in seen if owner == job] == list(range(50))
    assert len(seen) == jobs * 50


def test_no_more_items_wait_than_the_limit_allows():
    made, full = [], threading.Event()

    def endless():
        while True:
            made.append(None)
            if len(made) == 4:
                full.set()  # three wait, and the fourth is in the thread's hand
            yield len(made)

    with SideBySide([endless], 1, 3) as items:
        next(items)
        assert full.wait(SECONDS)
        assert len(made) <= 5


def test_a_thread_that_reaches_the_limit_of_bytes_waits_before_its_next_item():
    """Three items wait. The fourth is not made, since it may be as large as all that wait."""
    made = []

    def endless():
        while True:
            made.append(1)
            yield 40

    with SideBySide([endless], 1, 100, bytes_in_flight=100, size_of=lambda item: item) as items:
        for taken in range(1, 6):
            next(items)
            until(lambda taken=taken: len(made) == taken + 3, "three items that wait")
    assert len(made) == 5 + 3


def test_nothing_starts_before_the_first_item_is_asked_for():
    called = []
    SideBySide([lambda: called.append(1) or iter(())], 1, 1).close()
    assert called == []


def test_the_error_of_a_job_ends_the_others_and_reaches_the_caller():
    stopped = threading.Event()

    def waits():
        yield 1
        assert stopped.wait(SECONDS)

    def fails():
        yield 2
        raise KeyError("lost")

    items = SideBySide([waits, fails], 2, 4, on_stop=stopped.set)
    with pytest.raises(KeyError, match="lost"):
        list(items)
    assert [thread.name for thread in threading.enumerate() if thread.name == "flakelog-read"] == []


def test_closing_stops_threads_that_wait_for_room_and_closes_their_iterators():
    ended = []

    def endless():
        try:
            while True:
                yield 1
        finally:
            ended.append(True)

    stops = []
    items = SideBySide([endless] * 3, 3, 2, lambda: stops.append("stop"), lambda: stops.append("end"))
    next(items)
    items.close()
    items.close()
    assert (ended, stops) == ([True] * 3, ["stop", "end"])
    with pytest.raises(StopIteration):
        next(items)
