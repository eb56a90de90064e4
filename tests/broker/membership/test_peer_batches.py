from broker.membership.peer_batches import PeerBatches
from broker.membership.peer_calls import PeerCalls
from broker.now import Now
from broker.waiting.pending import Pending

NOW = Now(0, 0)


def batches_of(calls, settled):
    def settle(broker_id, items, response, now):
        settled.append((broker_id, items, response))

    return PeerBatches(calls, 2, tuple, settle)


def test_items_of_one_turn_share_requests_to_their_broker():
    calls, settled = PeerCalls(Pending()), []
    batches = batches_of(calls, settled)
    for item in "abc":
        batches.add(2, item, NOW)
    batches.add(3, "d", NOW)
    taken = calls.take()
    assert [(call.broker_id, call.request) for call in taken] == [(2, ("a", "b")), (2, ("c",)), (3, ("d",))]
    batches.add(2, "e", NOW)
    calls.called(taken[1], "answer", NOW)
    assert settled == [(2, ["c"], "answer")]
    assert [call.request for call in calls.take()] == [("e",)]


def test_the_items_of_a_broker_that_dies_are_settled_without_a_response():
    calls, settled = PeerCalls(Pending()), []
    batches_of(calls, settled).add(2, "a", NOW)
    calls.take()
    calls.lost(2, NOW)
    assert settled == [(2, ["a"], None)]
