"""InitProducerId, v0 to v5.

Behaviour: a producer id nobody had, epoch 0 (KIP-98). A producer that lost its place asks again and gets a new id.
A transactional id is refused: transactions are not served. A disk that takes no new block of ids is an answer too, and
clients ask again.
Version notes: v3 names the id and epoch a producer had (KIP-360), which matters to transactions only.
"""

from typing import Any

from broker.handlers.call import Call
from broker.log.storage import StorageError
from broker.now import Now
from broker.wire.errors import ErrorCode


def handle(call: Call, now: Now) -> dict[str, Any]:
    if call.request.transactional_id is not None:
        return _answer(ErrorCode.UNSUPPORTED_VERSION, -1, -1)
    try:
        return _answer(ErrorCode.NONE, call.services.metadata.next_producer_id(), 0)
    except StorageError as failure:
        call.services.report(f"no producer id for {call.peer}: {failure}")
        return _answer(ErrorCode.KAFKA_STORAGE_ERROR, -1, -1)


def _answer(error: ErrorCode, producer_id: int, epoch: int) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": error, "producer_id": producer_id, "producer_epoch": epoch}
