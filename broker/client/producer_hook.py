"""SHELL (librdkafka's threads): what a program sees of each step of a producer's queue, as early Kafka's showed it.

Early Kafka's asynchronous producer had a `callback.handler` and an `event.handler`
(https://kafka.apache.org/07/documentation.html, "Producer"). Its queue and its thread were its own. Here both are
librdkafka's, which shows when a message enters the queue, and when its outcome is known. So some steps have a stand-in:

| Kafka 0.7 | here |
|---|---|
| `CallbackHandler.beforeEnqueue` | `ProducerHook.before_enqueue`, which may return another message |
| `afterEnqueue(data, added)` | `ProducerHook.after_enqueue(message, is_queued)` |
| `afterDequeuingExistingData` | `ProducerHook.after_dequeue`, when the outcome is known; `send` adds messages |
| `beforeSendingData` | none, librdkafka gives no sign: `before_enqueue` is the last step that can change a message |
| `lastBatchBeforeClose` | `ProducerHook.last_batch` |
| the figure of dropped events | `ProducerHook.dropped` sees each one, and why |
| `init`, `close` | none: the program makes the hook, and closes it after the producer |
| `EventHandler.handle` | `event_handler(batch)`: the messages whose outcomes one call of librdkafka brought |
"""

from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import NamedTuple

from broker.client.errors import ClientError, ProduceError
from broker.client.librdkafka import Header
from broker.client.producer_arguments import check_place
from broker.client.producer_outcomes import Delivered, Outcomes, Report


class QueuedMessage(NamedTuple):
    """A message as it enters the queue: encoded, and without the id that the producer may stamp.

    `partition` is None if librdkafka chooses it, `timestamp_ms` is None for the time of the call.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: Sequence[Header] = ()
    timestamp_ms: int | None = None


class MessageOutcome(NamedTuple):
    """A message that has left the queue: its place in the log, or the error with which it was dropped."""

    message: QueuedMessage
    result: Delivered | ProduceError


EventHandler = Callable[[Sequence[MessageOutcome]], object]


class ProducerHook:
    """The steps of a producer's queue. Override those that the program wants to see.

    `before_enqueue` and `after_enqueue` run in the thread that sends, and their exceptions are raised by `send`. The
    others run where a callback would, under the same rules: they may `send`, and their exceptions are raised later.
    """

    def before_enqueue(self, message: QueuedMessage) -> QueuedMessage:
        """Return the message to queue, which may be another one."""
        return message

    def after_enqueue(self, message: QueuedMessage, is_queued: bool) -> None:
        """See a message that was queued, or that the queue did not take. Its outcome may be known already."""

    def after_dequeue(self, message: QueuedMessage) -> None:
        """See a message that has left the queue, because it is acknowledged or dropped."""

    def dropped(self, message: QueuedMessage, error: ClientError) -> None:
        """See a message that is not in the log, as far as the producer knows: QueueFull, or the ProduceError."""

    def last_batch(self) -> Iterable[QueuedMessage]:
        """Return messages to send at the end, when the producer is closed."""
        return ()


class QueueSteps:
    """The steps of one producer's queue, passed to its hook and its event handler."""

    def __init__(
        self, hook: ProducerHook, event_handler: EventHandler | None, outcomes: Outcomes, batch_size: int
    ) -> None:
        self._hook = hook
        self._handler = event_handler
        self._outcomes = outcomes
        self._batch_size = batch_size
        self._lock = Lock()
        self._batch: list[MessageOutcome] = []
        """The outcomes that the handler has not seen; no more than the queue has messages."""

    def before_enqueue(self, message: QueuedMessage) -> QueuedMessage:
        """Return the message that the hook wants to queue. Raise TypeError or ValueError if it cannot be sent."""
        chosen = self._hook.before_enqueue(message)
        if not isinstance(chosen, QueuedMessage):
            raise TypeError(f"before_enqueue returned {chosen!r}: return the message, or another QueuedMessage")
        if chosen is not message:
            check_place(chosen.topic, chosen.partition, chosen.timestamp_ms)
        return chosen

    def refused(self, message: QueuedMessage, error: BaseException) -> None:
        """Tell the hook that the queue did not take a message."""
        self._hook.after_enqueue(message, False)
        if isinstance(error, ClientError):
            self._hook.dropped(message, error)

    def queued(self, message: QueuedMessage) -> None:
        """Tell the hook that a message is in the queue."""
        self._hook.after_enqueue(message, True)

    def reporting(self, message: QueuedMessage, report: Report) -> Report:
        """Return the report of a message, which tells the hook before the program's callback."""

        def seen(error: object, sent: object) -> None:
            result = self._outcomes.described(error, sent)
            self._outcomes.keep_error(self._left, MessageOutcome(message, result))
            report(error, sent)

        return seen

    def _left(self, outcome: MessageOutcome) -> None:
        if self._handler is not None:
            with self._lock:
                self._batch.append(outcome)
        self._hook.after_dequeue(outcome.message)
        if isinstance(outcome.result, ProduceError):
            self._hook.dropped(outcome.message, outcome.result)

    def handle_batches(self) -> None:
        """Pass the outcomes until now to the event handler, `batch_size` of them at most in one call."""
        if self._handler is None:
            return
        with self._lock:
            outcomes, self._batch = self._batch, []
        for begin in range(0, len(outcomes), self._batch_size):
            self._outcomes.keep_error(self._handler, outcomes[begin : begin + self._batch_size])

    def last_batch(self) -> list[QueuedMessage]:
        """Return the messages that the hook sends last."""
        return list(self._hook.last_batch())


def steps_of(
    hook: ProducerHook | None, event_handler: EventHandler | None, outcomes: Outcomes, batch_size: int
) -> QueueSteps | None:
    """Return the steps that the program sees; None if it wants to see none. Raise TypeError for other objects."""
    if hook is None and event_handler is None:
        return None
    if hook is not None and not isinstance(hook, ProducerHook):
        raise TypeError(f"hook={hook!r}: give an object of a class derived from ProducerHook")
    if event_handler is not None and not callable(event_handler):
        raise TypeError(f"event_handler={event_handler!r}: give a function of a list of outcomes")
    return QueueSteps(ProducerHook() if hook is None else hook, event_handler, outcomes, batch_size)
