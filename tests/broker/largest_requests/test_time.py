"""At its full size no request keeps the reactor thread busy for more than 100 ms in one go."""

import gc
from time import thread_time_ns

import pytest

from tests.broker.any_api import Closed
from tests.broker.largest_requests.measured import Execution
from tests.broker.largest_requests.requests import CASES

MOST_MS = 100
ONE_COMMIT_MS = 200
"""A Produce to 10,000 partitions is written in one commit."""
PRODUCES = {"produce to partitions v12"}
TRIES = 3
"""Measured again if another process has disturbed it."""


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_no_turn_for_a_request_of_full_size_takes_longer_than_the_bound(name):
    bound_ms = ONE_COMMIT_MS if name in PRODUCES else MOST_MS
    assert min(longest_turn_ms(CASES[name]) for _ in range(TRIES)) <= bound_ms


def longest_turn_ms(case):
    """Execute the request with as many items as the limits allow: a topic with a partition is two items."""
    for number in (case.most, case.most // 2, case.most // 3):
        execution = Execution(case, number, auto_create_topics_max=50)
        gc.collect()
        gc.freeze()
        try:
            execution.run(taken_ms)
        except Closed as error:
            assert "flakelog.max.request" in str(error)
        else:
            return max(execution.turns)
        finally:
            gc.unfreeze()
    raise AssertionError("each request was refused")


def taken_ms(call):
    began_ns = thread_time_ns()
    call()
    return (thread_time_ns() - began_ns) / 1e6
