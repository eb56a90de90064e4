"""The outcomes of a producer's messages: what a callback raises comes after the others were called."""

import asyncio

import pytest
from confluent_kafka import KafkaError, Message

from broker.client.producer_outcomes import Delivered, Outcomes

MESSAGE = Message(topic="orders", partition=0, offset=7, value=b"value")
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


def test_a_timeout_names_a_refused_login_until_a_later_message_is_acknowledged():
    outcomes = Outcomes(0.0, "localhost:9092", 1_000)
    settle, late = outcomes.settler(None), KafkaError(KafkaError._MSG_TIMED_OUT)
    settle(None, MESSAGE)
    outcomes.callbacks["error_cb"](KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    assert outcomes.figures(1.0).acknowledged == 1
    assert str(outcomes.result(late, MESSAGE)).endswith("or no answer from localhost:9092 (wrong password)")
    settle(None, MESSAGE)
    assert str(outcomes.result(late, MESSAGE)).endswith("or no answer from localhost:9092")
    outcomes.callbacks["error_cb"](KafkaError(KafkaError._SSL, "no certificate"))
    assert str(outcomes.result(late, MESSAGE)).endswith("(no certificate)")
