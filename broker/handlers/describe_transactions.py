"""DescribeTransactions, v0 to v0.

Behaviour: returns the state of each transactional id, once, and the partitions of its transaction while one is open
(KIP-664). While a transaction is being ended it returns only the partitions that still lack its marker.
"""

from typing import Any

from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, may, sees
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    # Answer each id once, because an id of a few bytes has an answer with thousands of partitions.
    transactional_ids = dict.fromkeys(call.request.transactional_ids)
    return {
        "throttle_time": 0,
        "transaction_states": LazyArray(transactional_ids, lambda transactional_id: _describe(call, transactional_id)),
    }


def _describe(call: RequestContext, transactional_id: str) -> dict[str, Any]:
    if not may(call.rights, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return _failed(transactional_id, AUTHORIZATION_FAILED[ResourceType.TRANSACTIONAL_ID].code)
    led = call.services.coordinators.transactions.find(transactional_id)
    if isinstance(led, ErrorCode):
        return _failed(transactional_id, led)
    transaction = led.core.get(transactional_id)
    if transaction is None:
        return _failed(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(led.unmarked(transaction)):
        if sees(call.rights, Operation.DESCRIBE, ResourceType.TOPIC, topic):
            topics.setdefault(topic, []).append(partition)
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": transactional_id,
        "transaction_state": transaction.state.title,
        "transaction_timeout": transaction.timeout_ms,
        "transaction_start_time": transaction.started_ms,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }


def _failed(transactional_id: str, error: ErrorCode) -> dict[str, Any]:
    """Return an answer with the error, and zeros for the rest, as Kafka does."""
    return {
        "error_code": error,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }
