"""SHELL (librdkafka: its threads and sockets): a Producer with the features of early Kafka's, in Python.

    with Producer("127.0.0.1:9092") as producer:
        producer.send("greetings", "hello", key="world")

It has the features of Kafka 0.7's producer (https://kafka.apache.org/07/documentation.html, "Producer"): synchronous
sends, and asynchronous ones with a bounded queue that is sent after `queue_time_ms` or `batch_size` messages; an
encoder; a partitioner; a callback. It also has transactions (KIP-98, KIP-447). librdkafka does the batching, retries,
idempotence and transactions. The Producer does not learn the Snowflake ids that the broker gives to its messages. A
consumer sees them, and `Client.produce` returns them at once. For a broker without ids, it can stamp them itself.
"""

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from os import PathLike
from types import MethodType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from confluent_kafka import KafkaException
from confluent_kafka import Producer as Librdkafka
from confluent_kafka import TopicPartition

from broker.client.errors import ClientError, MustAbort, ProduceError
from broker.client.group_protocol import Partition
from broker.client.librdkafka import Headers, group_metadata, headers_of
from broker.client.old_spellings import renamed
from broker.client.producer_arguments import (
    ALL,
    brokers_of,
    check_functions,
    check_numbers,
    check_place,
    librdkafka_settings,
    stamper,
)
from broker.client.producer_figures import ProducerFigures
from broker.client.producer_hook import EventHandler, ProducerHook, steps_of
from broker.client.producer_outcomes import Callback, Delivered, Outcomes, Report
from broker.client.producer_partitions import ANY_PARTITION, Partitioner, TopicPartitions
from broker.client.producer_queue import POLL_SECONDS, ProducerQueue
from broker.client.security.client_security import ClientSecurity, Security
from broker.client.security.librdkafka_settings import librdkafka_security

if TYPE_CHECKING:
    from broker.client.group_requests import GroupIdentity
    from idgen.snowflake import Snowflake

MAX_REQUEST_SIZE = 1 << 20  # bytes, the default of Kafka's Java producer
QUEUE_SIZE = 100_000  # messages, as librdkafka's default; Kafka 0.7's was 10,000, when a message cost more
SERVE_SECONDS = 0.001  # how often `send` calls callbacks; to do it for each message takes a fifth of its time

_MAY_BE_LOST = "messages that may be lost, because %s: %d"

_log = logging.getLogger(__name__)
_now = time.monotonic

Encoder = Callable[[Any], bytes | None]


class GroupMember(Protocol):
    """A member of a group, such as a Consumer, whose progress a transaction can commit."""

    @property
    def identity(self) -> "GroupIdentity": ...

    @property
    def uncommitted(self) -> Mapping[Partition, int]: ...


def encode(value: Any) -> bytes | None:
    """Encode text as UTF-8; return bytes and None (a tombstone, or no key) unchanged. Raise TypeError for other types.

    This is the default encoder.
    """
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    name = type(value).__name__
    raise TypeError(f"{name} is neither bytes nor text: give the Producer an encoder, or a key_encoder for keys")


class Producer:
    """A producer that sends messages to any Kafka-protocol broker. Thread-safe.

    **Messages.** `send` queues a message; while the queue has `queue_size` messages, it waits for up to
    `enqueue_timeout_ms`. `send_and_wait` waits for the acknowledgement too. `flush` waits for all messages, and raises
    if messages of `send` without a callback failed. A message has at most `max_request_size` bytes, 1 MiB by default;
    the topic's max.message.bytes holds too. `compression` is none, gzip, snappy, lz4 or zstd. A message is
    retried for up to `timeout_ms`; retries make no duplicates (KIP-98). With `acks` "1" or "0" instead of "all" they
    may, and messages may be lost: only the leader acknowledges them, or no broker.

    **Brokers.** Give either `servers`, or a `registry`: the ZooKeeper of the brokers, "zk1:2181,zk2:2181/chroot". With
    a registry the producer follows brokers that come, go and move, even if all of them move at once, and messages wait
    for them. The constructor waits for ZooKeeper. Later, while ZooKeeper is away, the brokers known last are used.

    **Partitions.** `partitioner(key, partitions)` gets the encoded key and chooses a partition. By default, equal keys
    go to the same partition (by CRC-32, as in librdkafka), and messages without a key are spread.

    **Ids.** With `ids="header"` each message gets a Snowflake id as its header `flakelog-id`, for a broker that keeps
    none, such as Apache Kafka. The producer claims a worker number in ZooKeeper (`zookeeper="host:port"`) or in a
    `directory` of this machine, or uses a `snowflake` that the caller closes. The ids of all producers with the same
    ZooKeeper or directory are unique, and each producer's ids rise in the order in which its messages are queued.

    **Steps.** A `hook` sees each message before and after it enters the queue, when it leaves it, and when it is
    dropped, and may send last messages at the close. An `event_handler(batch)` sees the outcomes that come together.
    `ProducerHook` says which step of early Kafka's each one is. Without them a message costs no more.

    **Transactions.** With a `transactional_id`, messages are sent in transactions: `begin`, then `commit` or `abort`,
    or a `with` block of `transaction`. Their calls raise TryAgain (repeat the call), MustAbort (call `abort`) or
    ProducerFenced (another producer uses the transactional id).

    **Security.** `security` has properties of Kafka's clients, such as `security.protocol` and `sasl.jaas.config`.

    **The end.** Close a producer, best by `with`. If a program ends without that, a warning counts the messages that
    may be lost. A producer belongs to the process that made it; make one after a fork.

    **Errors.** The constructor raises ValueError for an address or a setting that cannot work; it does not wait for a
    broker. An exception of a callback is raised by the call in which the callback ran, after all else that the call
    does. A callback may `send`, for example a failed message again; every other call in it raises ClientError.
    A first send with a partitioner looks up the topic's partitions, so call `partitions_of` before.
    """

    @renamed(sync="queue_time_ms=0, and call send_and_wait(...)")
    def __init__(
        self,
        servers: str | None = None,
        *,
        registry: str | None = None,
        encoder: Encoder = encode,
        key_encoder: Encoder = encode,
        partitioner: Partitioner | None = None,
        queue_time_ms: int = 5,
        batch_size: int = 10_000,
        queue_size: int = QUEUE_SIZE,
        enqueue_timeout_ms: int = 30_000,
        timeout_ms: int = 30_000,
        max_request_size: int = MAX_REQUEST_SIZE,
        acks: str = ALL,
        compression: str = "none",
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        ids: str | None = None,
        zookeeper: str | None = None,
        directory: "str | PathLike[str] | None" = None,
        snowflake: "Snowflake | None" = None,
        hook: ProducerHook | None = None,
        event_handler: EventHandler | None = None,
        security: Security = None,
    ) -> None:
        numbers = check_numbers(
            queue_time_ms=queue_time_ms, batch_size=batch_size, queue_size=queue_size, timeout_ms=timeout_ms,
            enqueue_timeout_ms=enqueue_timeout_ms, transaction_timeout_ms=transaction_timeout_ms,
            max_request_size=max_request_size,
        )  # fmt: skip
        check_functions(encoder=encoder, key_encoder=key_encoder, partitioner=partitioner or encoder)
        self._encoder = encoder
        self._key_encoder = key_encoder
        self._partitioner = partitioner
        self._timeout_ms = timeout_ms
        self._transactional_id = transactional_id
        self._has_begun = False
        self._due = 0.0  # when `send` checks for a close and a fork again, and calls callbacks
        self._process = os.getpid()
        self._is_closed = self._is_interrupted = False
        with ExitStack() as owned:
            brokers = brokers_of(servers, registry, owned, protection := ClientSecurity.of(security))
            self._outcomes = outcomes = Outcomes(_now(), brokers.name, timeout_ms)
            self._number = outcomes.number
            self._settle: Report = outcomes.settler(self)
            self._reporting: tuple[Callback | None, Report] = None, self._settle
            settings = librdkafka_settings(brokers.bootstrap, acks, compression, transactional_id, numbers)
            settings |= librdkafka_security(protection) | outcomes.callbacks
            if brokers.certificate_pem:
                settings["ssl.ca.pem"] += brokers.certificate_pem
            self._producer = _librdkafka(settings)
            stamping = stamper(ids, snowflake, {"zookeeper": zookeeper, "directory": directory}, owned)
            steps = steps_of(hook, event_handler, outcomes, batch_size)
            self._owned = owned.pop_all()
        self._is_stamping = stamping is not None
        self._queue = queue = ProducerQueue(
            self._producer, outcomes, transactional_id=transactional_id, enqueue_timeout_ms=enqueue_timeout_ms,
            max_request_size=max_request_size, snowflake=stamping, steps=steps,
        )  # fmt: skip
        self._calls = queue.calls
        self._is_plain = queue.is_plain
        self._produce: Callable[..., None] = self._producer.produce
        self._partitions = TopicPartitions(self._producer, queue.calls, partitioner, brokers.name, timeout_ms)
        if brokers.registry is not None:
            weakref.finalize(self, brokers.registry.release)
        self._at_end = weakref.finalize(self, _warn_of_lost, self._outcomes, self._process)
        _open.add(self)

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        callback: Callback | None = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Queue a message.

        `headers` are (name, value) pairs or a mapping; text is encoded as UTF-8. A `partition` counts before the
        partitioner. `timestamp_ms` is Unix ms, by default the time of the call. Raise QueueFull, or
        IdError if no id can be made; TypeError or ValueError for an argument that cannot be sent.
        `callback(error, delivered)` is called once, with one of the two None, within a later `send`, `send_and_wait`,
        `flush`, `poll`, `commit` or `close`.
        """
        now = _now()
        is_due = now >= self._due
        if is_due:
            self._begin_turn(now)
        if partition is not None or timestamp_ms is not None or topic.__class__ is not str or not topic:
            check_place(topic, partition, timestamp_ms)
        data = value if value.__class__ is bytes and self._encoder is encode else self._encoder(value)
        key_data = None if key is None and self._key_encoder is encode else self._key_encoder(key)
        if partition is None:
            partition = ANY_PARTITION if self._partitioner is None else self._partitions.choose(topic, key_data)
        pairs = None if headers is None else headers_of(headers, self._is_stamping)
        if callback is None:
            report = self._settle
        else:
            last_callback, report = self._reporting
            if last_callback is not callback and not _is_same_method(last_callback, callback):
                check_functions(callback=callback)
                report = self._outcomes.teller(self, callback)
                # Kept, because the garbage collector visits each that waits in a queue.
                self._reporting = callback, report
        if pairs is None and timestamp_ms is None and self._is_plain:  # as `enqueue`, without another call
            self._number()
            try:
                self._produce(topic, data, key_data, partition, report)
            except BaseException as error:
                self._outcomes.withdraw()
                check_place(topic, None, None)  # an error of librdkafka does not name the topic's fault
                if not isinstance(error, (BufferError, KafkaException)):
                    raise
                self._queue.enqueue(report, topic, data, key_data, partition, pairs, timestamp_ms)
        else:
            self._queue.enqueue(report, topic, data, key_data, partition, pairs, timestamp_ms)
        if is_due and not self._calls.in_callback:
            self._queue.serve(0)
        if self._outcomes.raised and not self._calls.in_callback:
            self._outcomes.raise_of_callbacks()

    def _begin_turn(self, now_s: float) -> None:
        """Check for a close and a fork, and let `send` do it again after SERVE_SECONDS, or at once if it fails."""
        self._due = now_s + SERVE_SECONDS
        try:
            self._check_open()
        except ClientError:
            self._due = 0.0
            raise

    def send_and_wait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivered:
        """Send a message, and return its place when it is acknowledged. Raise ProduceError, or as `send` does.

        It waits for `queue_time_ms`, as all messages do, so give 0 to a producer that waits for each of them.
        """
        self._check_open()
        self._calls.check()
        check_place(topic, partition, timestamp_ms)
        data, key_data = self._encoder(value), self._key_encoder(key)
        if partition is None:
            partition = self._partitions.choose(topic, key_data)
        pairs = None if headers is None else headers_of(headers, self._is_stamping)
        outcome: list[ProduceError | Delivered] = []
        message = topic, data, key_data, partition, pairs, timestamp_ms
        self._queue.enqueue(lambda error, sent: outcome.append(self._outcomes.result(error, sent)), *message)
        while not outcome:
            self._queue.serve(POLL_SECONDS)
        self._outcomes.raise_of_callbacks()
        if isinstance(outcome[0], ProduceError):
            raise outcome[0]
        return outcome[0]

    def flush(self) -> None:
        """Wait until each message is acknowledged or failed. Raise ProduceError if one without a callback failed.

        Raise ProducerFenced if another producer has taken the transactional id.
        """
        self._check_open()
        self._queue.wait_until_empty(is_interrupted=self._is_interrupted)
        self._outcomes.raise_of_callbacks()
        self._outcomes.raise_failures()

    @renamed(by_position=True, seconds="timeout_ms=, in milliseconds")
    def poll(self, *, timeout_ms: int = 0) -> int:
        """Call the callbacks that are due, waiting up to `timeout_ms` for a first one. Return how many were called."""
        self._check_process()
        called = self._queue.serve(timeout_ms / 1000)
        self._outcomes.raise_of_callbacks()
        return called

    def purge(self) -> None:
        """Drop the messages without an acknowledgement: each fails with ProduceError. Some may be in the log."""
        self._check_open()
        self._calls.check()
        self._outcomes.dropped = "dropped by purge()"
        self._producer.purge()
        self._queue.wait_until_empty()
        self._outcomes.raise_of_callbacks()

    def drop(self) -> None:
        """Drop the messages as `purge` does, without a wait: for a program that does not wait for `close`."""
        self._at_end.detach()
        if queued := self._outcomes.queued:
            _log.warning(_MAY_BE_LOST, "the close of their producer was interrupted", queued)
        self._outcomes.dropped = "dropped, because the close of the producer was interrupted"
        self._producer.purge()

    def close(self) -> None:
        """Flush, and give back the worker number. A transaction that is open is aborted by the broker later.

        Harmless if repeated. Raise as `flush` does.
        """
        if self._is_closed or os.getpid() != self._process:
            return
        self._calls.check()
        try:
            try:
                self._queue.enqueue_last(self._settle)
            finally:
                self.flush()
        except Exception:
            self._at_end.detach()  # the error tells of the lost messages, so no warning has to follow
            raise
        except BaseException:  # Ctrl-C
            self.drop()
            self._queue.wait_until_empty()
            raise
        finally:
            self._is_closed = True
            self._due = 0.0
            self._settle = self._outcomes.settler(None)  # no reference to this producer
            self._reporting = None, self._settle
            self._owned.close()

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # librdkafka's threads are in the parent only
            raise ClientError("the producer belongs to the process that made it: make one after a fork")

    def _check_open(self) -> None:
        self._check_process()
        if self._is_closed:
            raise ClientError("the producer was closed")

    def figures(self) -> ProducerFigures:
        """Return messages and bytes sent, failed and queued, and the times of requests and acknowledgements."""
        return self._outcomes.figures(_now())

    # --- transactions

    def begin(self) -> None:
        """Begin a transaction. The first one fences earlier producers of the transactional id. Raise TryAgain."""
        if not self._has_begun:
            self._transact(self._producer.init_transactions)
            self._has_begun = True
        self._transact(self._producer.begin_transaction, with_timeout=False)

    def commit(self) -> None:
        """Flush, and commit the transaction: readers of committed records see all of it or nothing.

        Raise TryAgain, MustAbort or ProducerFenced.
        """
        self._transact(self._producer.commit_transaction)
        self._outcomes.raise_of_callbacks()

    def abort(self) -> None:
        """Abort the transaction, and drop its messages that are queued. Raise TryAgain or ProducerFenced."""
        self._transact(self._producer.abort_transaction)
        self._queue.serve(0)
        self._outcomes.forget_failures()
        self._outcomes.raise_of_callbacks()

    def send_offsets(self, consumer: GroupMember, offsets: Mapping[Partition, int] | None = None) -> None:
        """Commit a consumer's progress with the transaction, `uncommitted` or these: {(topic, partition): next offset}.

        Give the consumer `ConsumerConfig(auto_commit_interval_ms=None)`, so that only transactions commit. After an
        abort, `consumer.seek_to_committed()` reads the records of the transaction again. Raise TryAgain, MustAbort if
        the consumer no longer owns the partitions, or ProducerFenced.
        """
        wanted = consumer.uncommitted if offsets is None else offsets
        committed = [TopicPartition(topic, partition, offset) for (topic, partition), offset in wanted.items()]
        if committed:
            metadata = group_metadata(consumer.identity)
            self._transact(lambda seconds: self._producer.send_offsets_to_transaction(committed, metadata, seconds))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Begin a transaction; commit it at the end of the block, or abort it if the block raises."""
        self.begin()
        try:
            yield self
        except Exception:
            self.abort()
            raise
        except BaseException:  # such as Ctrl-C, which ends the program also if no broker answers
            with suppress(ClientError):
                self.abort()
            raise
        try:
            self.commit()
        except MustAbort:
            self.abort()
            raise

    def _transact(self, call: Callable[..., object], with_timeout: bool = True) -> None:
        if self._transactional_id is None:
            raise ClientError('this producer has no transactions: give it transactional_id="..."')
        self._check_open()
        try:
            with self._calls.enter():
                call(self._timeout_ms / 1000) if with_timeout else call()
                self._queue.handle_batches()
        except KafkaException as error:
            raise self._queue.error(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close. If the block raised an exception, suppress the ClientError of the flush."""
        self._is_interrupted = error is not None and not isinstance(error, Exception)
        try:
            self.close()
        except ClientError:
            if error is None:
                raise

    def partitions_of(self, topic: str) -> int:
        """Return a topic's number of partitions, looked up once: a partitioner would move keys if it changed."""
        return self._partitions.number_of(topic)


def _librdkafka(settings: dict[str, Any]) -> Librdkafka:
    try:
        return Librdkafka(settings)
    except KafkaException as error:
        raise ValueError(error.args[0].str()) from None


def _is_same_method(one: object, other: object) -> bool:
    """Return True for two references to one method of one object, such as `self.done` at each call."""
    return isinstance(one, MethodType) and isinstance(other, MethodType) and one == other


_open: "weakref.WeakSet[Producer]" = weakref.WeakSet()


def _check_in_child() -> None:
    """Let the next `send` of each producer see that this is another process."""
    for producer in list(_open):
        producer._due = 0.0


os.register_at_fork(after_in_child=_check_in_child)


def _warn_of_lost(outcomes: Outcomes, process: int) -> None:
    """Log how many messages an unclosed producer had not sent, when it is collected or the program ends."""
    if os.getpid() == process and (queued := outcomes.queued):
        _log.warning(_MAY_BE_LOST, "the program did not close their producer", queued)
