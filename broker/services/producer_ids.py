"""Requests that need a producer id when the reserved block is used up: they are handled again after the next block."""

from collections.abc import Callable, Hashable, Iterable

from broker.metadata.producer_ids import NoProducerIds
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.stamping.id_stamper import Backpressure
from broker.txn.transaction import NO_EPOCH, NO_ID
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode


def producer_answer(error: ErrorCode, producer_id: int = NO_ID, epoch: int = NO_EPOCH) -> Answer:
    """Return an answer with a producer's id and epoch: both InitProducerId and EndTxn have these fields."""
    return {"throttle_time": 0, "error_code": error, "producer_id": producer_id, "producer_epoch": epoch}


def once_reserved(
    call: RequestContext,
    handle: Callable[[RequestContext, Now], Answer | Delayed[Answer]],
    now: Now,
    timeout_ms: int | None = None,
    also: Iterable[Hashable] = (),
) -> Answer | Delayed[Answer]:
    """Handle a request once a block of producer ids is reserved, and return its answer.

    `timeout_ms` and `also` are those of `MetadataChanges.submit`.
    """

    def again(at: Now) -> Answer | Delayed[Answer]:
        try:
            return handle(call, at)
        except NoProducerIds as failure:
            alone = call.services.is_alone  # else no controller has answered, and clients try again at this code
            code = ErrorCode.KAFKA_STORAGE_ERROR if alone else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return failed(ApiError(code, str(failure)))
        except Backpressure:  # the ids of messages have run out too; the client retries
            return producer_answer(ErrorCode.CONCURRENT_TRANSACTIONS)

    def failed(error: ApiError) -> Answer:
        call.services.report(f"no producer id for {call.peer}: {error}")
        return producer_answer(error.code)

    return call.services.changes.with_producer_ids(again, failed, now, timeout_ms, also)
