"""ListTransactions, v0 to v2.

Behaviour: returns the transactional ids coordinated here that pass all given filters (KIP-664). The answer names filter
states that do not exist. While a partition of the coordinator's topic is loading, the answer is an error.
Version notes: v1 asks for transactions that are open for longer than a duration (KIP-994); v2 for ids that match a
regular expression (KIP-1152, broker.txn.id_pattern): an invalid expression, or one that takes too long, is
INVALID_REGULAR_EXPRESSION.
"""

from typing import Any

from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.txn.id_pattern import BadPattern, IdPattern, TooMuchWork
from broker.txn.states import TransactionState
from broker.txn.transaction import Transaction
from broker.wire.errors import ErrorCode

# The states that Kafka names. No transaction here is ever in PrepareEpochFence.
TITLES = {state.title for state in TransactionState} | {"PrepareEpochFence"}


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    unknown = [state for state in call.request.state_filters if state not in TITLES]
    answer = {"throttle_time": 0, "error_code": ErrorCode.NONE, "unknown_state_filters": unknown}
    if call.services.coordinators.transactions.partitions.is_loading:
        return answer | {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "transaction_states": ()}
    try:
        matching = _matching(call, now)
    except (BadPattern, TooMuchWork) as error:
        call.services.report(f"{call.peer} asked for transactional ids by a pattern that is refused: {error}")
        return answer | {"error_code": ErrorCode.INVALID_REGULAR_EXPRESSION, "transaction_states": ()}
    return answer | {"transaction_states": LazyArray(matching, _answer)}


def _answer(transaction: Transaction) -> dict[str, Any]:
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "transaction_state": transaction.state.title,
    }


def _matching(call: RequestContext, now: Now) -> list[Transaction]:
    """Return the transactions to list. The pattern is tried last, on what the client may see."""
    request, coordination = call.request, call.services.coordinators.transactions
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    longer_than_ms = request.duration_filter
    pattern = None
    if request.transactional_id_pattern:
        pattern = IdPattern(request.transactional_id_pattern, coordination.config.transactional_id_pattern_steps_max)
    matching = [
        transaction
        for transaction in coordination
        if (not states or transaction.state.title in states)
        and (not producer_ids or transaction.producer_id in producer_ids)
        and (longer_than_ms < 0 or now.wall_ms - transaction.started_ms > longer_than_ms)
    ]
    if call.rights is not None:
        ids = (transaction.transactional_id for transaction in matching)
        visible = call.rights.visible(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, ids)
        matching = [transaction for transaction in matching if transaction.transactional_id in visible]
    if pattern is None:
        return matching
    return [transaction for transaction in matching if pattern.matches(transaction.transactional_id)]
