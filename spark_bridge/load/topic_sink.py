"""SHELL (librdkafka): a topic as a destination, of the same cluster or another, in Flakelog or Apache Kafka.

A message goes to the partition of the same number, with its key, value, headers and timestamp. A run first writes the
messages as staged files into a directory of the user's, which also keeps plans, decisions and receipts
(load.file_ledger). After the decision it sends them in the order of their offsets, in transactions. Each transaction
also commits the position in the source, as the offset of the group `flakelog-load-SOURCE` for the target's partition
(KIP-98). If a run is killed, the next one reads the position and sends the messages after it. So readers with
read_committed get each message once.

Two runs at once share one transactional id, so the later fences the earlier.

Brokers forget offsets of a group without members after `offsets.retention.minutes` (a week). So before it sends the
first message of a load, a run commits a position for each partition, and notes that in the record of loads. If a run
was killed while it sent messages, and a position is gone, the next run fails, because it could send messages twice.

A forgotten position does not tell a topic that was made again. Its id does, and where a cluster gives none, its log:
the receipt has the end of each partition after the load, and a log that is shorter later is another one, or was cut.
That old messages were deleted does not change its end.
"""

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from broker.client.security.client_security import ClientSecurity
from broker.client.security.librdkafka_settings import librdkafka_security
from idgen.settings import InvalidSetting
from spark_bridge.arrow_reader import range_batches
from spark_bridge.load.load import Load, LoadError, describe
from spark_bridge.load.parquet_sink import ParquetSink
from spark_bridge.load.receipt import Receipt, WrittenPart, receipt_of
from spark_bridge.load.sink import Contents, StoredLoad
from spark_bridge.load.table_history import in_words
from spark_bridge.load.target import Commit, Target
from spark_bridge.load.target_check import OtherTarget, check_same, gone, undone
from spark_bridge.output.storage import Storage
from spark_bridge.reading.cluster import Cluster, NoSuchTopic
from spark_bridge.reading.network import ClusterError, addresses
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.settings import ReadSettings

COLUMNS = ("key", "value", "partition", "offset", "timestamp", "headers")
"""The columns that a load into a topic reads."""
ROWS_PER_TRANSACTION = 10_000
"""Messages of one transaction: about a second's work, and what a killed run sends again at most."""
TIMEOUT_SECONDS = 60.0
RETRY_SECONDS = 0.2
_PASSING = (
    KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)  # fmt: skip
_TRANSACTION_MS = 300_000
_MESSAGE_BYTES_MAX = 1_000_000_000  # librdkafka's highest, so that the target's max.message.bytes is the limit
_Answer = TypeVar("_Answer")
KIND = "topic"


@dataclass(frozen=True, slots=True)
class _TopicNow:
    """The target, and the first and next offset of each of its partitions."""

    target: Target
    starts: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Offsets of the target between which a load sent `rows` messages to a partition, and other producers any."""

    load: int
    partition: int
    begin: int
    end: int
    rows: int


class TopicSink(ParquetSink):
    """A Sink. `storage` keeps the record of loads, and `servers` and `target` name the topic.

    `security` has the properties of a Kafka client for its cluster. Raise LoadError if they cannot be used, if there is
    no such topic, or if it has too few partitions when a load is saved.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        new_attempt: Callable[[], str],
        servers: str,
        target: str,
        security: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(storage, topic, new_attempt)
        self._servers = servers
        self._target = target
        self._settings = ReadSettings(security=security)
        try:
            login = librdkafka_security(ClientSecurity.of(dict(security)))
        except InvalidSetting as error:
            raise LoadError(f"{self.location}: {error}") from None
        self._client = {"bootstrap.servers": servers} | login

    @property
    def location(self) -> str:
        return f"topic {self._target!r} at {self._servers}"

    def newest(self) -> StoredLoad | None:
        stored = super().newest()
        if stored is None:
            self._target_now()  # it says why a broker is not reached, or refuses the login; librdkafka only waits
        if stored is None and self._positions():
            stored = super().newest()  # another driver may have begun after the first look
            if stored is None:
                raise OtherTarget(
                    f"{self.location} has messages of {self._topic!r}, and {self._storage} has no record of these "
                    "loads: they would come twice. Name the directory of the earlier loads, or another topic"
                )
        return stored

    def check(self, newest: StoredLoad | None) -> Target | None:
        before = None if newest is None else self.commit_before(newest)
        now = self._target_now()
        if newest is not None:
            if before is not None and before.at is None:  # an older version wrote it: the rows took at least an offset
                receipt = self._ledger.receipt(before.number)
                before = None if receipt is None else Commit(before.number, _rows_of(receipt))
            self._check(now, newest.load.target, before)
        return None if now is None else replace(now.target, commit=before)

    def held(self, receipts: Sequence[Receipt]) -> set[int]:
        """Return all loads if the target has any message: which load brought it is not known."""
        now, newest = self._target_now(), super().newest()
        if now is None or newest is None or all(now.starts[p] == end for p, end in now.ends.items()):
            return set()
        if newest.load.target is not None:
            try:
                check_same(newest.load.target, now.target)
            except OtherTarget:
                return set()  # its messages are those of others
        return {receipt.number for receipt in receipts if receipt.files}

    def _check(self, now: "_TopicNow | None", was: Target | None, commit: Commit | None) -> None:
        """Raise OtherTarget unless the topic is the target, and is as long as the commit of a load left it."""
        if was is not None:
            check_same(was, None if now is None else now.target)
        if commit is None or commit.at is None:
            return
        if now is None:
            raise gone(KIND, self.location)
        for partition, end in commit.at.items():
            log_end = now.ends.get(int(partition), 0)
            if log_end < end:
                how = f"partition {partition} ends at offset {log_end}, and was at {end} then: it was made again or cut"
                raise undone(KIND, now.target.location, commit, how)

    def prepared(self, load: Load) -> Load:
        """Return the load. Raise LoadError if the target is the topic that the load reads."""
        target, source_id = load.target, load.manifest.topic_ids[load.topic]
        by_name = _location_of(load.topic, load.manifest.cluster_id)
        if target is not None and (target.location == by_name if source_id is None else target.id == source_id):
            raise LoadError(
                f"{self.location} is the topic that is loaded: each load would bring the messages of the one before it"
            )
        return super().prepared(load)

    def save(self, load: Load) -> None:
        number = len(self._metadata())
        if load.ends and max(load.ends) >= number:
            raise LoadError(
                f"{self.location} has {number} partitions, and {self._topic!r} has {max(load.ends) + 1}: add partitions"
            )
        super().save(load)

    def publish(self, load: Load, parts: Sequence[WrittenPart]) -> Receipt:
        self.check_chain(load)
        if load.target is not None:
            self._check(self._target_now(), load.target, load.target.commit)
        receipt = self._ledger.decide(receipt_of(load, parts))
        unsent = self._unsent(receipt, self._positions())
        if unsent:
            self._send(load, receipt)
        now = self._target_now() if receipt.files else None
        if now is not None:
            ends = {str(partition): end for partition, end in now.ends.items()}
            receipt = replace(receipt, commit=Commit(load.number, ends))
        self._ledger.put_receipt(receipt)
        self._ledger.clear_staging(load)
        return receipt

    def contents(self, receipts: Sequence[Receipt]) -> Contents:
        """Read the target, and count the committed messages between the offsets where each load began and ended."""
        now = self._target_now()
        if now is None:
            return Contents(None)
        problems, notes = [], []
        positions = self._positions()  # brokers forget positions that no load has moved for long
        for receipt in receipts:
            unsent = [stretch for stretch in self._unsent(receipt, positions) if stretch.range.partition in positions]
            if unsent:
                problems.append(f"{self.location} lacks messages of {describe(part.range for part in unsent)}")
        stretches = _stretches(receipts)
        counted, rows, compacted = self._count(now, stretches)
        short = [stretch for stretch in stretches if counted[stretch] < stretch.rows]
        deleted = {stretch.load for stretch in short if stretch.begin < now.starts.get(stretch.partition, 0)}
        if short and compacted:
            loads = in_words({stretch.load for stretch in short})
            notes.append(f"{self.location} is compacted, and no longer has all messages of {loads}")
        elif deleted:
            notes.append(f"{self.location} has deleted old messages, also of {in_words(deleted)}")
        for stretch in () if compacted else short:
            if stretch.load not in deleted:
                problems.append(
                    f"{self.location} has {counted[stretch]:,} of {stretch.rows:,} messages of load {stretch.load}, "
                    f"between the offsets {stretch.begin} and {stretch.end} of partition {stretch.partition}"
                )
        return Contents(rows, tuple(problems), tuple(notes))

    def _count(self, now: "_TopicNow", stretches: Sequence["_Stretch"]) -> tuple[Counter["_Stretch"], int, bool]:
        """Return the committed messages of each stretch, those of the topic, and whether the topic is compacted."""
        counted: Counter[_Stretch] = Counter()
        rows = 0
        servers = addresses(self._servers)
        try:
            with Cluster.connect(servers, self._settings) as cluster:
                compacted = cluster.compacted([self._target])
                ends = cluster.latest(self._target, committed=True)
            settings = replace(
                self._settings, read_committed=True, compacted_topics=compacted, fail_on_data_loss=False
            )
            for partition, end in sorted(ends.items()):
                own = [stretch for stretch in stretches if stretch.partition == partition]  # they follow each other
                within = OffsetRange(self._target, partition, min(now.starts[partition], end), end)
                for batch in range_batches(within, ("offset",), servers, settings):
                    offsets = batch.column("offset").to_pylist()
                    rows += len(offsets)
                    for stretch in own[bisect_right(own, offsets[0], key=_end_of):]:
                        if stretch.begin > offsets[-1]:
                            break
                        counted[stretch] += bisect_left(offsets, stretch.end) - bisect_left(offsets, stretch.begin)
        except ClusterError as error:
            raise LoadError(f"{self.location}: {error}") from None
        return counted, rows, bool(compacted)

    def rows(self) -> int | None:
        return None

    def strays(self, named: Container[str]) -> Iterator[str]:
        return iter(())

    @staticmethod
    def _unsent(receipt: Receipt, positions: Mapping[int, int]) -> list[WrittenPart]:
        """Return the parts with messages that the target does not have, in the order of their offsets."""
        parts = sorted(receipt.parts, key=lambda part: part.range)
        return [part for part in parts if part.files and positions.get(part.range.partition, 0) < part.range.end]

    # --- the target -------------------------------------------------------------------------------------------------

    @property
    def _group(self) -> str:
        """Return the group whose offsets are positions in the source. Each chain of loads has its own."""
        group = f"flakelog-load-{self._topic}"
        return f"{group}/{self._ledger.chain}" if self._ledger.chain else group

    def _target_now(self) -> "_TopicNow | None":
        """Return the target's identity and offsets, None if there is no such topic."""
        try:
            with Cluster.connect(addresses(self._servers), self._settings) as cluster:
                described = cluster.describe([self._target])
                starts, ends = cluster.earliest(self._target), cluster.latest(self._target)
        except NoSuchTopic:
            return None
        except (ClusterError, ValueError) as error:
            raise LoadError(f"{self.location}: {error}") from None
        location = _location_of(self._target, described.cluster_id)
        return _TopicNow(Target(KIND, location, described.topic_ids[self._target]), starts, ends)

    def _metadata(self) -> Mapping[int, Any]:
        """Return the target's partitions. Raise LoadError if there is no such topic."""
        with self._asking() as consumer:
            topic = consumer.list_topics(self._target, timeout=TIMEOUT_SECONDS).topics[self._target]
        if topic.error is not None or not topic.partitions:
            raise LoadError(f"there is no {self.location}; create it with: flakelog topic create {self._target}")
        partitions: Mapping[int, Any] = topic.partitions
        return partitions

    def _positions(self) -> dict[int, int]:
        """Return the position in each source partition up to which the target has its messages."""
        partitions = [TopicPartition(self._target, partition) for partition in self._metadata()]
        with self._asking() as consumer:
            offsets = _patiently(lambda: consumer.committed(partitions, timeout=TIMEOUT_SECONDS))
        return {committed.partition: committed.offset for committed in offsets if committed.offset >= 0}

    @contextmanager
    def _asking(self) -> Iterator[Consumer]:
        """Yield a consumer of the target's cluster. Raise LoadError for its errors."""
        with _kafka_errors(self.location):
            consumer = self._consumer()
            try:
                yield consumer
            finally:
                consumer.close()

    def _consumer(self) -> Consumer:
        return Consumer(self._client | {"group.id": self._group, "enable.auto.commit": False})

    def _send(self, load: Load, receipt: Receipt) -> None:
        consumer = self._consumer()
        producer = Producer(
            self._client
            | {
                "transactional.id": f"{self._group}-{self._target}",
                "transaction.timeout.ms": _TRANSACTION_MS,
                "compression.type": "zstd",
                "message.max.bytes": _MESSAGE_BYTES_MAX,
            }
        )
        try:
            with _kafka_errors(self.location):
                producer.init_transactions(TIMEOUT_SECONDS)
                positions = self._positions()  # another run may have sent more until this one fenced it
                positions |= self._begun(load, receipt, positions, producer, consumer)
                for part in self._unsent(receipt, positions):
                    for file in map(self._staged(load, part.attempt), part.files):
                        self._send_file(file, part.range, positions[part.range.partition], producer, consumer)
        finally:
            consumer.close()

    def _begun(
        self,
        load: Load,
        receipt: Receipt,
        positions: Mapping[int, int],
        producer: Producer,
        consumer: Consumer,
    ) -> dict[int, int]:
        """Commit positions that the target does not have yet, and return them. Raise LoadError if it forgot them."""
        needed = {part.range.partition for part in receipt.parts if part.files}
        missing = {partition: load.starts[partition] for partition in sorted(needed - positions.keys())}
        if missing and self._ledger.is_sending(load):
            raise LoadError(
                f"{self.location} has messages of load {load.number}, and its brokers have forgotten how many in the "
                f"partitions {sorted(missing)} (offsets.retention.minutes), so the load cannot be finished without "
                "sending messages twice. Name another topic, and another directory by --record"
            )
        if missing:
            producer.begin_transaction()
            offsets = [TopicPartition(self._target, partition, start) for partition, start in missing.items()]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_SECONDS)
            producer.commit_transaction(TIMEOUT_SECONDS)
        self._ledger.note_sending(load)
        return missing

    def _send_file(
        self, name: str, part: OffsetRange, position: int, producer: Producer, consumer: Consumer
    ) -> None:
        """Send the messages of a staged file from `position` on, in transactions."""
        sent = 0
        with self._storage.open(name) as source:
            file = pq.ParquetFile(source)
            for batch in file.iter_batches(ROWS_PER_TRANSACTION):
                sent += batch.num_rows
                rows = batch.filter(pc.field("offset") >= position)
                end = part.end if sent == file.metadata.num_rows else batch.column("offset")[-1].as_py() + 1
                self._send_rows(rows, TopicPartition(self._target, part.partition, end), producer, consumer)

    def _send_rows(
        self, rows: pa.RecordBatch, position: TopicPartition, producer: Producer, consumer: Consumer
    ) -> None:
        """Send rows and the position after them in one transaction."""
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        producer.begin_transaction()
        times = rows.column("timestamp").cast(pa.int64()).to_pylist()
        for row, time_us in zip(rows.to_pylist(), times, strict=True):
            headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
            while True:
                try:
                    producer.produce(
                        position.topic,
                        value=row["value"],
                        key=row["key"],
                        partition=position.partition,
                        on_delivery=delivered,
                        timestamp=time_us // 1000,
                        headers=headers,
                    )
                    break
                except BufferError:  # librdkafka's queue is full
                    producer.poll(1)
            producer.poll(0)
        producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), TIMEOUT_SECONDS)
        try:
            producer.commit_transaction(TIMEOUT_SECONDS)
        except KafkaException:
            if failures:  # it says what is wrong with a message; the commit's error only that there was one
                raise KafkaException(failures[0]) from None
            raise


def _location_of(topic: str, cluster_id: str | None) -> str:
    return f"{topic!r} of cluster {cluster_id}"


def _stretches(receipts: Sequence[Receipt]) -> list[_Stretch]:
    """Return the stretches of loads, in the order of loads. Receipts of older versions have none."""
    stretches, begins = [], dict[int, int]()
    for receipt in receipts:
        if receipt.commit is None or receipt.commit.at is None:
            continue
        rows = _rows_of(receipt)
        for name, end in receipt.commit.at.items():
            if rows.get(name):
                stretches.append(_Stretch(receipt.number, int(name), begins.get(int(name), 0), end, rows[name]))
            begins[int(name)] = end
    return stretches


def _end_of(stretch: _Stretch) -> int:
    return stretch.end


def _rows_of(receipt: Receipt) -> dict[str, int]:
    """Return the messages of a load in each partition: at least so long is the target's log."""
    rows: dict[str, int] = {}
    for part in receipt.parts:
        name = str(part.range.partition)
        rows[name] = rows.get(name, 0) + part.rows
    return rows


def _patiently(ask: Callable[[], _Answer]) -> _Answer:
    """Ask again for up to TIMEOUT_SECONDS while the group's coordinator is about to move or to start."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _PASSING or time.monotonic() >= end:
                raise
        time.sleep(RETRY_SECONDS)


@contextmanager
def _kafka_errors(location: str) -> Iterator[None]:
    """Turn errors of librdkafka into LoadError."""
    try:
        yield
    except KafkaException as error:
        failure = error.args[0]
        if failure.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED):
            raise LoadError(f"another run loads into {location} now, and has taken over") from None
        raise LoadError(f"{location}: {failure.str()}") from None
