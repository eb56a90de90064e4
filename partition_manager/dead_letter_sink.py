"""SHELL (Twisted): writes dead letters to a topic of any broker of Kafka's protocol.

partition_manager.dead_letter says in which forms a letter is tried, and which errors are final.
"""

from collections.abc import Callable, Generator
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.client.errors import BrokerError
from broker.client.security.client_security import Security
from broker.client.twisted import TwistedClient
from broker.wire.errors import ErrorCode
from partition_manager.dead_letter import RECORD_FAULTS, LetterForm, dead_letter_batch, first_form, next_form
from partition_manager.ports import Answer, Buried, Bury, DeadLetter, Failed, LetterRefused

LETTER_BYTES_MAX = 2 << 20
"""max.message.bytes of a dead-letter topic that is created: twice Kafka's default, because a letter adds headers to a
whole message, or to a whole poison batch."""

TO_MEND = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant Write to it, and Create if it does not exist",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "grant Create on it or on the cluster",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "set flakelog.spout.dead.letter.topic to a valid name and start again",
    ErrorCode.POLICY_VIOLATION: "create it as the broker's policy demands",
    ErrorCode.INVALID_CONFIG: "create it by hand",
    ErrorCode.INVALID_REPLICATION_FACTOR: "create it by hand",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "its messages need headers, so its format must be the current one",
}
"""Errors that stay until an operator acts, each with the act."""

Asking = Generator["Deferred[Any]", Any, Answer]


class TwistedDeadLetters:
    """A DeadLetterSink that writes to a topic; Buried means acknowledged with acks=all.

    A missing topic is created with one partition, and max.message.bytes of LETTER_BYTES_MAX.
    """

    log = Logger()

    def __init__(self, servers: str, topic: str, reactor: ReactorBase, *, security: Security = None) -> None:
        self._topic = topic
        self._reactor = reactor
        self._client = TwistedClient(servers, reactor, security=security)
        self._partitions = 0  # of the topic, 0 if they have to be looked up
        self._complaints: set[int] = set()  # errors to mend that the log has, until a letter is written
        self.without_value = 0
        """Letters written without the value of their message."""

    def ask(self, request: Bury, answer: Callable[[Answer], None]) -> None:
        """Produce the letter; answer LetterRefused if the topic will never take it, Failed on any other error."""
        self._bury(request.letter).addErrback(self._failed).addCallback(answer)

    def close(self) -> None:
        """Close the connection; unconfirmed letters are answered with Failed."""
        self._client.close()

    @inlineCallbacks
    def _bury(self, letter: DeadLetter) -> Asking:
        if not self._partitions:
            self._partitions = yield self._look_up()
        form: LetterForm | None = first_form(letter)
        reason = ""
        while form is not None:
            batch = dead_letter_batch(letter, form, int(self._reactor.seconds() * 1_000))
            try:
                yield self._client.produce(self._topic, letter.partition % self._partitions, batch)
            except BrokerError as error:
                if error.code not in RECORD_FAULTS:
                    raise
                reason = str(error)
                form = next_form(form, error.code)
            else:
                self._complaints.clear()
                if not form.has_value:
                    self._written_without_value(letter, reason)
                return Buried()
        return LetterRefused(f"{self._topic} takes it in no form: {reason}")

    def _written_without_value(self, letter: DeadLetter, reason: str) -> None:
        self.without_value += 1
        text = "the dead letter of {letter} is in {topic} without its value: {reason}"
        self.log.warn(text, letter=_described(letter), topic=self._topic, reason=reason)

    def _failed(self, failure: Failure) -> Failed:
        self._partitions = 0
        error = failure.value
        text = failure.getErrorMessage() or "no reason given"
        if not isinstance(error, BrokerError) or error.code not in TO_MEND:
            return Failed(text)
        text = f"{text}; dead letters wait, and no message is lost, until you mend this: {TO_MEND[error.code]}"
        if error.code not in self._complaints:
            self._complaints.add(error.code)
            self.log.error("{text}", text=text)
        return Failed(text)

    @inlineCallbacks
    def _look_up(self) -> Generator["Deferred[Any]", Any, int]:
        """Return the number of the topic's partitions; create the topic if it does not exist."""
        try:
            topic = yield self._client.topic(self._topic)
        except BrokerError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            try:
                yield self._client.create_topic(self._topic, 1, {"max.message.bytes": str(LETTER_BYTES_MAX)})
            except BrokerError as raced:
                if raced.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            topic = yield self._client.topic(self._topic)
        partitions: int = topic.partitions
        return partitions


def _described(letter: DeadLetter) -> str:
    return f"{letter.topic}-{letter.partition} at offset {letter.record.offset}, id {letter.record.id}"
