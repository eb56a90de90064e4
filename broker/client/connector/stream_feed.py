"""SHELL (threads, asyncio): the queue of one stream. The connector's loop fills it, and a program's thread empties it.

All methods hold the connector's lock. So a record is handed out while its partition is owned for certain, and a
partition that goes to another consumer is dropped before its offset is committed for the last time.

A stream hands out many records between two actions of the consumer's core. So it asks the core once for each run of
records of a partition whether it may, and until when, and notes which record is processed. The engine calls `sync`
before each action of the core: the core learns what is processed, and the stream asks again.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from threading import Condition, RLock, get_ident
from typing import Any
from uuid import UUID

from broker.client.async_fetches import AsyncFetches
from broker.client.asyncio import AsyncClient
from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.events import Claimed
from broker.client.connector.rebalance import RegistryConsumer
from broker.client.consumer_core import ConsumerCore
from broker.client.errors import BrokerError, ClientError, TopicRecreated
from broker.client.fetch_session import PartitionAsk
from broker.client.log_record import Record
from broker.cluster.documents import TopicPartition, decode_uuid
from broker.record.compression import DECOMPRESSED_BYTES_MAX
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchedPartition
from idgen.clock import steady_ms

PREPARED_MAX = 500  # records that are unpacked at a time, as with a Consumer
ASKED_TWICE = "this stream is asked for a record already: give each thread or task a stream of its own"

Decoder = Callable[[bytes], Any]

_log = logging.getLogger("broker.client.connector")


class StreamFeed:
    """The partitions and the records of one stream."""

    def __init__(
        self,
        changed: Condition,
        lock: RLock,
        consumer: RegistryConsumer,
        config: ConnectorConfig,
        call: Callable[..., object],
        retry: Callable[[], object],
    ) -> None:
        """`changed` has the connector's `lock`. `call` calls a function on the loop.

        `retry` is called on the loop when a partition has failed, so that `want` is called again once it is due.
        """
        self._changed = changed
        self._lock = lock  # for each record, because a Condition enters it by a call of Python's
        self._consumer = consumer
        self._config = config
        self._call = call
        self._retry = retry
        self._core = ConsumerCore(self._config, DECOMPRESSED_BYTES_MAX)
        self._topic_ids: dict[TopicPartition, UUID | None] = {}
        self._held: Record | None = None
        """A record that is handed out once its partition is owned for certain again."""
        self._in_hand: Record | None = None
        """The record that the program works on."""
        self._processed: Record | None = None
        """The record before it, until the core has learnt that it is processed."""
        self._key: tuple[str, int] | None = None
        """The partition whose records may be handed out before `_until_ms`, without asking the core."""
        self._until_ms = 0
        self._lost: TopicPartition | None = None
        """The partition of that record, if it has gone to another consumer since."""
        self._taker: object = None
        """The thread or task that has taken the last record."""
        self._is_taking = False
        self._wake: Callable[[], object] | None = None
        self._error: Exception | None = None
        self._end: Exception | None = None
        self.is_over = False
        """True once the stream hands out no more records."""
        self._want_call: asyncio.Handle | None = None

    # --- the program's side

    def take(self, timeout_ms: int | None) -> Record | None:
        """Return the next record; None after the timeout, and once the connector is closed.

        The record that was returned before counts as processed. Raise the error of a fetch that no retry can mend.
        """
        with self._lock:
            if self._is_taking:
                raise ClientError(ASKED_TWICE)
            self._taker = get_ident()
            record = self._next()
            return self._await(timeout_ms) if record is None else record

    def _await(self, timeout_ms: int | None) -> Record | None:
        until_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1_000
        self._is_taking = True
        try:
            while (record := self._next()) is None and not self.is_over:
                left_s = None if until_s is None else until_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                self._changed.wait(left_s)
            return record
        finally:
            self._is_taking = False

    def poll(self, taker: object, wake: Callable[[], object]) -> Record | None:
        """Return the next record if there is one now, without blocking; as `take` otherwise.

        Without one, and unless the stream is over, `wake` is called once, in any thread, when it is time to ask again.
        It must not block.
        """
        with self._lock:
            self._taker = taker
            record = self._next()
            self._wake = wake if record is None else None
            return record

    def _finish(self) -> None:
        if self._in_hand is not None:
            self._processed, self._in_hand = self._in_hand, None

    def _next(self) -> Record | None:
        """Return the next record, or None if the queue is empty. Raise the error of a fetch, or of the end.

        The record that was taken before counts as processed.
        """
        self._lost = None
        self._finish()
        record = None if self.is_over else self._held or self._core.hand() or self._prepared()
        if record is None or not self._may_hand(record):
            self._held = record
            self._check()
            return None
        self._held, self._in_hand = None, record
        return record

    def _check(self) -> None:
        error, self._error = self._error or self._end, None
        if error is not None:
            raise error

    def _prepared(self) -> Record | None:
        """Unpack more records, and return the first of them; None if none was fetched."""
        is_prepared = self._core.prepare(PREPARED_MAX)
        self._pass_positions()
        if not is_prepared:
            return None
        self._call(self._want_soon)  # there is room in the queue again
        return self._core.hand()

    def _may_hand(self, record: Record) -> bool:
        """Ask the core about the partition of a record, if it is another or the time is over."""
        if (record.topic, record.partition) == self._key and steady_ms() < self._until_ms:
            return True
        self.sync()
        partition = TopicPartition(record.topic, record.partition)
        until_ms = self._consumer.deliver_until_ms(partition)
        if steady_ms() >= until_ms:
            return False
        self._key, self._until_ms = (record.topic, record.partition), until_ms
        return True

    def sync(self) -> None:
        """Tell the core the processed offsets before it acts. Ask it again about the next record."""
        with self._lock:
            self._key, record, self._processed = None, self._processed, None
            if record is not None:
                self._consumer.processed(TopicPartition(record.topic, record.partition), record.offset + 1)

    def finish_record(self) -> TopicPartition | None:
        """Count the record that the program works on as processed.

        Return its partition if that has gone to another consumer, so that the record comes again.
        """
        with self._changed:
            self._finish()
            lost, self._lost = self._lost, None
            return lost

    def _pass_positions(self) -> None:
        """Move the positions past batches that no caller gets, such as the markers of transactions."""
        self.sync()
        for topic, partition in self._core.owned:
            position = self._core.position((topic, partition))
            if position is not None:
                self._consumer.processed(TopicPartition(topic, partition), position)

    def is_taken_by(self, taker: object) -> bool:
        """Return True if this thread or task has taken the last record."""
        return self._taker == taker

    # --- the loop's side

    def open(self, client: AsyncClient) -> None:
        self._fetches = AsyncFetches(client, self._config, self._core.figures, self._answered)

    async def close(self) -> None:
        if self._want_call is not None:
            self._want_call.cancel()
        await self._fetches.close()

    def end(self, error: Exception | None = None) -> None:
        """Hand out no more records. `error` is raised by all calls of `take` from now on."""
        with self._changed:
            self.is_over, self._end = True, error
            self.wake()

    def fail(self, error: Exception) -> None:
        """Raise an error in the program's thread, once."""
        with self._changed:
            self._error = error
            self.wake()

    def claim(self, claimed: Claimed) -> None:
        """Read a partition that the consumer owns now, of the topic that it was claimed of."""
        with self._changed:
            key, topic_id = claimed.partition, claimed.topic.topic_id
            self._topic_ids[key] = None if topic_id is None else decode_uuid(topic_id)
            self._fetches.expect(key, self._topic_ids[key])
            self._core.assigned([key])
            if claimed.offset is not None:
                self._core.set_position(key, claimed.offset, is_committed=True)

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition that goes to another consumer, and its records."""
        with self._changed:
            self._core.drop([partition])
            self._topic_ids.pop(partition, None)
            if self._held is not None and (self._held.topic, self._held.partition) == partition:
                self._held = None
            if self._in_hand is not None and (self._in_hand.topic, self._in_hand.partition) == partition:
                self._in_hand, self._lost = None, partition

    def unplaced(self) -> list[TopicPartition]:
        """Return the partitions whose beginning must be looked up."""
        with self._changed:
            fresh, reset = self._core.unplaced()
            return [TopicPartition(*key) for key in (*fresh, *reset)]

    def place(self, partition: TopicPartition, offset: int, topic_id: UUID | None) -> bool:
        """Set where a partition begins. Return False if it has begun, or if the offset is that of another topic."""
        with self._changed:
            expected = self._topic_ids.get(partition)
            if partition not in self.unplaced() or (None not in (expected, topic_id) and expected != topic_id):
                return False
            self._core.set_position(partition, offset)
            return True

    def want(self) -> int | None:
        """Fetch what there is room for. Return when a partition that failed is due again, None if none failed."""
        with self._changed:
            self._want_call = None
            asks = self._core.asks(steady_ms())
            retry_ms = self._core.next_ask_ms()
            notes, poison = self._core.take_notes(), self._core.take_poison()
        self._fetches.want(asks)
        _report([*notes, *(f"skipped a batch whose records cannot be decoded: {batch}" for batch in poison)])
        return retry_ms

    def wake(self) -> None:
        """Let the program look again whether a record may be handed out."""
        with self._changed:
            self._changed.notify_all()
            wake, self._wake = self._wake, None
            if wake is not None:
                wake()

    def _want_soon(self) -> None:
        if self._want_call is None and not self.is_over:  # one look at the partitions for all answers of a response
            self._want_call = asyncio.get_running_loop().call_soon(self._want_now)

    def _want_now(self) -> None:
        if self.want() is not None:
            self._retry()

    def _answered(self, ask: PartitionAsk, answer: FetchedPartition | Exception) -> None:
        with self._changed:
            expected = self._topic_ids.get(TopicPartition(*ask.key))
            is_another = None not in (expected, ask.topic_id) and ask.topic_id != expected
            if is_another or isinstance(answer, TopicRecreated):
                answer = self.refuse_topic(ask.key)
            self._core.answered(ask, answer, steady_ms())
            self.wake()
        self._want_soon()

    def refuse_topic(self, key: tuple[str, int]) -> BrokerError:
        """Return the error of a request that met another topic than the partition was claimed of.

        Either the broker's Metadata is old, or a rebalance is about to claim the new topic. So it is looked up again.
        """
        try:
            self._fetches.client.core.check(*key, ErrorCode.UNKNOWN_TOPIC_ID)
        except BrokerError as error:
            return error
        raise AssertionError("the code is an error")


def decoded(record: Record, decoder: Decoder | None) -> Record:
    """Return the record with its value decoded. Raise what the decoder raises."""
    return record if decoder is None or record.value is None else record._replace(value=decoder(record.value))


def _report(notes: Iterable[str]) -> None:
    for note in notes:
        _log.warning("%s", note)
