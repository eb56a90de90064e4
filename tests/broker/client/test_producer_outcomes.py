"""The outcomes of a producer's messages: what a callback raises comes after the others were called."""

import asyncio

import pytest

from broker.client.producer_outcomes import Delivered, Outcomes

DELIVERED = Delivered("orders", 0, 7)


@pytest.mark.parametrize("error", [ValueError("wrong"), SystemExit(3), asyncio.CancelledError()], ids=repr)
def test_what_a_callback_raises_is_kept_until_the_others_were_called(error):
    outcomes, called = Outcomes(0.0, "localhost:9092", 1_000), []

    def fail(failure, delivered):
        raise error

    outcomes.tell(DELIVERED, fail)
    outcomes.tell(DELIVERED, lambda failure, delivered: called.append(delivered))
    assert called == [DELIVERED]
    with pytest.raises(type(error)):
        outcomes.raise_of_callbacks()


def test_ctrl_c_in_a_callback_goes_through_at_once():
    outcomes = Outcomes(0.0, "localhost:9092", 1_000)

    def interrupt(failure, delivered):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outcomes.tell(DELIVERED, interrupt)
