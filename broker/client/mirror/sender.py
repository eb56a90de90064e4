"""The idempotent producer of a mirror, without sockets (KIP-98): whole batches, in the order of each partition.

    add --> take --> answered

A partition has up to IN_FLIGHT_MAX batches in flight, as a broker remembers the sequence numbers of the last five. If
one fails, no more are sent before all of them are answered. Then those that failed go again, in their order and with
their sequence numbers. The error of a batch that no retry can mend stops its partition (`Stopped`).

If the broker no longer knows the sequence of a partition, the sender needs a new producer id (`needs_id`), and all
sequences begin anew once no batch is in flight. This may copy batches twice; without a loss of the target's data it
does not happen.

Times are in ms on the caller's clock.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.client.errors import RETRIABLE, BrokerError, ClientError
from broker.client.leaders import Partition
from broker.client.mirror.source_batch import OutgoingBatch
from broker.client.transaction import SEQUENCES
from broker.wire.errors import ErrorCode

IN_FLIGHT_MAX = 5  # max.in.flight.requests.per.connection of an idempotent producer
RETRY_MS, RETRY_MS_MAX = 100, 1_000  # the pause after a failure, doubled at each failure in a row
NO_ID = -1

SEQUENCE_LOST = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)

OnAcknowledged = Callable[[int | None], None]


class SentBatch:
    """A batch of a partition. `acknowledge` is called with its offset at the target, None if it is not known."""

    __slots__ = ("batch", "acknowledge", "sequence", "is_dropped")

    def __init__(self, batch: OutgoingBatch, acknowledge: OnAcknowledged) -> None:
        self.batch = batch
        self.acknowledge = acknowledge
        self.sequence: int | None = None
        self.is_dropped = False


class Request(NamedTuple):
    """A batch to send now."""

    key: Partition
    sent: SentBatch
    data: bytearray


class Stopped(NamedTuple):
    """A partition of the target that takes no more batches, and why."""

    key: Partition
    error: ClientError


@dataclass(slots=True)
class _Queue:
    waiting: deque[SentBatch] = field(default_factory=deque)
    in_flight: deque[SentBatch] = field(default_factory=deque)
    failed: list[SentBatch] = field(default_factory=list)
    next_sequence: int = 0
    failures: int = 0
    retry_ms: int = 0
    is_stopped: bool = False

    @property
    def takes_more(self) -> bool:
        return bool(self.waiting) and not self.failed and not self.is_stopped and len(self.in_flight) < IN_FLIGHT_MAX


class Sender:
    """The batches that wait for the target, and those in flight, by partition of the target."""

    def __init__(self) -> None:
        self.producer_id, self.epoch = NO_ID, NO_ID
        self.queued_bytes = 0
        """Bytes of the batches that the target has not acknowledged."""
        self.errors: dict[Partition, int] = {}
        """Answers that were failures, and answers that did not come, by partition of the target."""
        self._queues: dict[Partition, _Queue] = {}
        self._notes: list[str] = []
        self._stopped: list[Stopped] = []
        self._is_lost = True  # the next batch needs a new producer id

    @property
    def needs_id(self) -> bool:
        """True if `identify` has to be called: a producer id is missing, and no batch is in flight."""
        return self._is_lost and not any(queue.in_flight for queue in self._queues.values())

    def identify(self, producer_id: int, epoch: int) -> None:
        """Take a producer id. All sequences begin anew."""
        self.producer_id, self.epoch, self._is_lost = producer_id, epoch, False
        for queue in self._queues.values():
            queue.next_sequence = 0
            for sent in queue.waiting:
                sent.sequence = None

    def add(self, key: Partition, batch: OutgoingBatch, acknowledge: OnAcknowledged) -> None:
        """Queue a batch for a partition of the target; drop it if the partition was stopped."""
        queue = self._queues.setdefault(key, _Queue())
        if queue.is_stopped:
            return
        queue.waiting.append(SentBatch(batch, acknowledge))
        self.queued_bytes += len(batch.data)

    def drop(self, keys: Iterable[Partition]) -> None:
        """Forget the batches of partitions that another mirror copies now. Those in flight may be in the log."""
        for key in keys:
            queue = self._queues.get(key)
            if queue is None:
                continue
            for sent in [*queue.waiting, *queue.failed]:
                self._drop(sent)
            queue.waiting.clear()
            queue.failed.clear()
            self._is_lost = self._is_lost or queue.is_stopped  # the broker misses the numbers of what it refused
            queue.is_stopped = False
            for sent in queue.in_flight:
                sent.is_dropped = True

    def _drop(self, sent: SentBatch) -> None:
        """Forget a batch. If it had a sequence number, the broker misses it, so a new producer id is needed."""
        self.queued_bytes -= len(sent.batch.data)
        self._is_lost = self._is_lost or sent.sequence is not None

    def ready(self, now_ms: int) -> list[Partition]:
        """Return the partitions with a batch to send now."""
        if self._is_lost:
            return []
        return [key for key, queue in self._queues.items() if queue.takes_more and queue.retry_ms <= now_ms]

    def next_retry_ms(self) -> int | None:
        """Return when the first partition that failed may be sent to again, None if none waits so."""
        times = [queue.retry_ms for queue in self._queues.values() if queue.retry_ms and queue.takes_more]
        return min(times, default=None)

    def take(self, keys: Iterable[Partition], bytes_max: int) -> list[Request]:
        """Return the next batch of each of these partitions, for one request to their leader."""
        requests: list[Request] = []
        size = 0
        for key in keys:
            queue = self._queues[key]
            if not queue.takes_more:
                continue
            size += len(queue.waiting[0].batch.data)
            if requests and size > bytes_max:
                break
            sent = queue.waiting.popleft()
            if sent.sequence is None:
                sent.sequence = queue.next_sequence
                queue.next_sequence = (queue.next_sequence + sent.batch.record_count) % SEQUENCES
            queue.in_flight.append(sent)
            queue.retry_ms = 0
            requests.append(Request(key, sent, sent.batch.sealed(self.producer_id, self.epoch, sent.sequence)))
        return requests

    def answered(self, request: Request, code: int, target: int, message: str | None, now_ms: int) -> None:
        """Take the answer of the target about a batch: an error code, or its offset."""
        key, sent = request.key, request.sent
        queue = self._queues[key]
        is_first = bool(queue.in_flight) and queue.in_flight[0] is sent and not queue.failed
        queue.in_flight.remove(sent)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            queue.failures = 0
            self.queued_bytes -= len(sent.batch.data)
            if not sent.is_dropped:
                sent.acknowledge(target if code == ErrorCode.NONE and target >= 0 else None)
        else:
            self._failed(queue, request, BrokerError(code, f"{key[0]}-{key[1]}", message), is_first)
        self._settle(queue, now_ms)

    def unanswered(self, request: Request, error: ClientError, now_ms: int) -> None:
        """A batch was sent, or not, and no answer came: it is sent again."""
        queue = self._queues[request.key]
        queue.in_flight.remove(request.sent)
        self._failed(queue, request, error, False)
        self._settle(queue, now_ms)

    def _failed(self, queue: _Queue, request: Request, error: ClientError, is_first: bool) -> None:
        if request.sent.is_dropped:
            self._drop(request.sent)
            return
        queue.failed.append(request.sent)
        self.errors[request.key] = self.errors.get(request.key, 0) + 1
        code = error.code if isinstance(error, BrokerError) else None
        if code in SEQUENCE_LOST:
            if is_first and not self._is_lost:
                self._is_lost = True
                self._notes.append(f"{error}; the mirror goes on with a new producer id, and may copy batches twice")
        elif code is not None and code not in RETRIABLE:
            queue.is_stopped = True
            self._stopped.append(Stopped(request.key, error))
        elif not queue.failures:
            self._notes.append(f"{error}; it is sent again")

    def _settle(self, queue: _Queue, now_ms: int) -> None:
        """After the last answer, put the batches that failed back into the queue, or drop those of a stopped one."""
        if queue.in_flight or not queue.failed:
            return
        if queue.is_stopped:
            self.queued_bytes -= sum(len(sent.batch.data) for sent in [*queue.waiting, *queue.failed])
            queue.waiting.clear()
            queue.failed.clear()
            return
        queue.failed.sort(key=lambda sent: sent.sequence or 0)
        _unwrap(queue.failed)
        queue.waiting.extendleft(reversed(queue.failed))
        queue.failed.clear()
        queue.retry_ms = now_ms + min(RETRY_MS << min(queue.failures, 10), RETRY_MS_MAX)
        queue.failures += 1

    def take_notes(self) -> list[str]:
        """Return and clear what the shell logs."""
        notes, self._notes = self._notes, []
        return notes

    def take_stopped(self) -> list[Stopped]:
        """Return and clear the partitions that were stopped."""
        stopped, self._stopped = self._stopped, []
        return stopped


def _unwrap(batches: list[SentBatch]) -> None:
    """Order batches by sequence where it wraps around to 0 among them: the high numbers come first."""
    split = next((index for index, sent in enumerate(batches) if (sent.sequence or 0) > SEQUENCES // 2), len(batches))
    if 0 < split < len(batches) and (batches[0].sequence or 0) < SEQUENCES // 2:
        batches[:] = batches[split:] + batches[:split]
