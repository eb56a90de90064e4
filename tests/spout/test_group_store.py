"""Loads and commits in a consumer group: each is answered, whatever went wrong."""

from twisted.internet.defer import fail, succeed

from broker.client.errors import BrokerError, ClientError
from broker.wire.errors import ErrorCode
from spout.group_store import never_failing

P0, P1 = ("t", 0), ("t", 1)


def outcome(deferred):
    results = []
    never_failing(deferred, [P0, P1]).addCallback(results.append)
    return results[0]


def test_results_pass_through():
    assert outcome(succeed({P0: ErrorCode.NONE})) == {P0: ErrorCode.NONE}


def test_an_error_of_a_broker_or_of_the_client_is_the_answer_to_each():
    moved = BrokerError(ErrorCode.NOT_COORDINATOR, "group g")
    assert outcome(fail(moved)) == dict.fromkeys([P0, P1], ErrorCode.NOT_COORDINATOR)
    assert outcome(fail(ClientError("no broker answers"))) == dict.fromkeys([P0, P1], "no broker answers")


def test_an_error_of_another_type_is_the_answer_to_each_too():
    """It answered nobody, so a partition was never opened, or its progress never stored again."""
    answers = outcome(fail(RuntimeError("the reactor was stopped")))
    assert answers == dict.fromkeys([P0, P1], "RuntimeError('the reactor was stopped')")
