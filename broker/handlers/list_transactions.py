"""ListTransactions, v0 to v1.

Behaviour: the transactional ids coordinated here that pass all filters which are given (KIP-664); a state that does not
exist is named in the answer.
Version notes: v1 asks for those that are on for longer than a duration (KIP-994). v2 takes a pattern in the syntax of
RE2, which matches in linear time; Python's own does not, and one pattern could stop the broker.
"""

from typing import Any

from broker.handlers.call import Call
from broker.now import Now
from broker.txn.states import TransactionState

TITLES = {state.title for state in TransactionState}
NO_DURATION = -1


def handle(call: Call, now: Now) -> dict[str, Any]:
    request = call.request
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    longer_than_ms = getattr(request, "duration_filter", NO_DURATION)
    found = [
        {
            "transactional_id": each.transactional_id,
            "producer_id": each.producer_id,
            "transaction_state": each.state.title,
        }
        for each in call.services.transactions.core
        if (not states or each.state.title in states)
        and (not producer_ids or each.producer_id in producer_ids)
        and (longer_than_ms < 0 or now.wall_ms - each.started_ms > longer_than_ms)
    ]
    unknown = [each for each in request.state_filters if each not in TITLES]
    return {"throttle_time": 0, "error_code": 0, "unknown_state_filters": unknown, "transaction_states": found}
