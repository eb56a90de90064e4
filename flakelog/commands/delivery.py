"""The delivery of `flakelog produce`: messages on their way through librdkafka, which is never silent for long.

librdkafka retries without end, and says nothing, if a server is away or its disk is full. So this module counts the
acknowledgements. When none comes, it asks the server for the reason.
"""

import time
from contextlib import suppress
from typing import Any

import click
from confluent_kafka import KafkaError, KafkaException, Producer

from broker.client.errors import BrokerError
from broker.client.security.client_security import ClientSecurity
from broker.client.security.librdkafka_settings import librdkafka_security
from broker.security.authorization.acl import Operation
from broker.wire.errors import ErrorCode
from flakelog.commands.produce_input import MESSAGE_BYTES_MAX, Line, Target
from flakelog.commands.terminal import count_of
from flakelog.operations.cluster import why_not_acknowledged
from flakelog.operations.rights import needed_for_topics, remedy

POLL_SECONDS = 0.1
SAY_SECONDS = 4.0
LAST_SECONDS = 1.0  # after Ctrl-C, for messages that are under way
OVERHEAD_BYTES = 1 << 20  # allowed for a batch beyond the value of its largest message, such as key and headers

DENIED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,  # of an idempotent producer that may write to no topic
)


class Delivery:
    """Sends messages to `target` and counts the outcome. `timeout` seconds after its send, a message has failed."""

    def __init__(self, servers: str, target: Target, timeout: float, security: ClientSecurity | None = None) -> None:
        self.sent = self.acknowledged = self.failed = 0
        self.reason = ""
        """Why the first message failed."""
        self.timed_out = False
        self._servers = servers
        self._security = security
        self._timeout = timeout
        self._topic = target.topic
        self._more: dict[str, Any] = {} if target.partition is None else {"partition": target.partition}
        if target.headers:
            self._more["headers"] = target.headers
        self._since = time.monotonic()
        """The time of the last acknowledgement, or since which there is something to acknowledge."""
        self._reported_at = 0.0
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "compression.type": target.compression,
                "enable.idempotence": True,
                "message.max.bytes": MESSAGE_BYTES_MAX + OVERHEAD_BYTES,  # max.message.bytes of the topic decides
                "linger.ms": 5,
                "message.timeout.ms": max(int(timeout * 1000), 6),  # more than linger.ms
                "log_level": 0,  # `_delivered` receives the errors that matter
                **librdkafka_security(security),
            }
        )

    @property
    def waiting(self) -> int:
        """The number of messages whose outcome is not known."""
        return self.sent - self.acknowledged - self.failed

    def send(self, lines: list[Line]) -> None:
        """Queue messages, and serve the outcome of earlier ones. An empty list only serves."""
        for line in lines:
            if not self.waiting:
                self._since = time.monotonic()
            self._enqueue(line)
            if self.failed:
                return
        self._poll(0)

    def flush(self) -> None:
        """Wait until the outcome of each message is known."""
        while self.waiting:
            self._poll(POLL_SECONDS)

    def end_now(self) -> None:
        """Give messages under way a last moment, and drop the rest."""
        self._producer.flush(LAST_SECONDS)
        self._producer.purge()
        self._producer.flush(LAST_SECONDS)

    def counts(self) -> str:
        """Return the counts as text."""
        return f"{count_of(self.acknowledged, 'message')} acknowledged, {self.sent - self.acknowledged:,} not"

    def why(self) -> tuple[str, bool]:
        """Return why no acknowledgement comes, and whether no server answers."""
        return why_not_acknowledged(self._servers, self._security)

    def _enqueue(self, line: Line) -> None:
        """Queue one message in librdkafka; wait while its queue is full.

        It counts as sent before, because Ctrl-C may come between the two.
        """
        self.sent += 1
        while not self.failed:
            try:
                self._producer.produce(
                    self._topic, line.value, line.key, on_delivery=self._delivered, **self._more
                )
                return
            except BufferError:
                self._poll(POLL_SECONDS)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:
                    with suppress(KafkaException):
                        self._producer.flush(LAST_SECONDS)  # the outcome of an earlier message says why
                self._failed(error.args[0])
                return
        self.sent -= 1  # an earlier one failed while this one waited for its place

    def _poll(self, seconds: float) -> None:
        try:
            self._producer.poll(seconds)
        except KafkaException as error:  # a fatal one, after which librdkafka sends nothing more
            self._failed(error.args[0])
            self.failed += self.waiting
        now = time.monotonic()
        if self.waiting and now - max(self._since, self._reported_at) >= SAY_SECONDS:
            why, _ = self.why()
            self._reported_at = time.monotonic()
            click.echo(f"{self.counts()}: {why}; trying for {self._timeout:g} s, Ctrl-C ends it", err=True)

    def _delivered(self, error: Any, message: Any) -> None:
        self._since = time.monotonic()
        if error is None:
            self.acknowledged += 1
        else:
            self._failed(error)

    def _failed(self, error: KafkaError) -> None:
        self.failed += 1
        if not self.reason:
            self.timed_out = error.code() == KafkaError._MSG_TIMED_OUT
            self.reason = error.str()
            if error.code() in DENIED:
                denied = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"topic {self._topic}")
                self.reason += remedy(denied, needed_for_topics(Operation.WRITE, [self._topic]))
