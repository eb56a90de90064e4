"""SHELL (Twisted): the port of sinks to any broker of Kafka's protocol."""

import time
from collections.abc import Callable, Generator
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.python.failure import Failure

from broker.client.errors import BrokerError
from broker.client.security.client_security import Security
from broker.client.twisted import TwistedClient
from broker.record.records import encode_batch
from broker.wire.errors import ErrorCode
from partition_manager.ports import Failed, LetterRefused
from spout.refused_record import limit_of, why_refused
from spout.sink_ports import Counted, CountPartitions, Produce, Produced, SinkAnswer, SinkRequest, records_of

BAD_RECORD = {
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.CORRUPT_MESSAGE,
}
"""Errors that name the records as their cause, so the same batch is never taken."""

Asking = Generator["Deferred[Any]", Any, SinkAnswer]


class TwistedRecordProducer:
    """A RecordProducer. Raise ValueError if `servers` holds no address."""

    def __init__(self, servers: str, reactor: ReactorBase, *, security: Security = None) -> None:
        self._client = TwistedClient(servers, reactor, security=security)

    def ask(self, request: SinkRequest, answer: Callable[[SinkAnswer], None]) -> None:
        """Carry out a request; answer LetterRefused if the records are at fault, Failed on any other error."""
        asking: Deferred[SinkAnswer]
        asking = self._count(request) if isinstance(request, CountPartitions) else self._produce(request)
        asking.addErrback(_failed).addCallback(answer)

    def close(self) -> None:
        """Close the connections; outstanding requests are answered with Failed."""
        self._client.close()

    @inlineCallbacks
    def _count(self, request: CountPartitions) -> Asking:
        topic = yield self._client.topic(request.topic)
        return Counted(topic.partitions)

    @inlineCallbacks
    def _produce(self, request: Produce) -> Asking:
        records, now_ms = records_of(request.outputs), time.time_ns() // 1_000_000
        batch = encode_batch(records, base_timestamp_ms=now_ms, codec=request.codec)
        try:
            yield self._client.produce(request.topic, request.partition, batch)
        except BrokerError as error:
            if error.code not in BAD_RECORD:
                raise
            limit = None
            if len(records) == 1:  # the others of a batch are sent one by one, so that this one can be named
                limit = yield limit_of(self._client, request.topic)
            return LetterRefused(why_refused(f"{request.topic}-{request.partition}", error, len(batch), limit))
        return Produced()


def _failed(failure: Failure) -> SinkAnswer:
    error = failure.value
    text = error.with_remedy if isinstance(error, BrokerError) else failure.getErrorMessage()
    return Failed(text or "no reason given")
