"""Ctrl-C while a producer enters a call of librdkafka leaves it usable, so that the caller can drop the rest."""

import sys

import pytest

from broker.client.producer_outcomes import Calls


@pytest.mark.parametrize("lines", range(5))
def test_an_interrupted_call_leaves_no_thread_inside(lines):
    calls, lines_left = Calls(), [lines]

    def trace(frame, event, argument):
        if frame.f_code is not Calls.enter.__wrapped__.__code__:
            return None
        if event == "line":
            lines_left[0] -= 1
            if lines_left[0] < 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt), calls.enter():
            pass
    finally:
        sys.settrace(None)
    calls.check()


def test_an_interrupt_that_the_call_lost_is_raised():
    calls = Calls()
    with pytest.raises(KeyboardInterrupt), calls.enter():
        raise SystemError("<method 'poll'> returned NULL without setting an exception")
    calls.check()
