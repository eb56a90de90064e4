"""Shared parts of the transaction handlers: the coordinator, the topic with its records, and the ends of transactions.

A handler asks `check` whether this node coordinates the transactional id, lets `core` decide about its verb, and lets
`run` log and apply the decision. When an end is decided, the coordinator writes a marker into each partition of the
transaction, and then a record that says so; many partitions get their markers in slices. If a partition cannot take its
marker the end stays open and is retried. Meanwhile its transactional id answers CONCURRENT_TRANSACTIONS, and other
transactions are not delayed.

On one node markers are written directly. The coordinator's epoch is always 0, because no other node could coordinate.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from broker.log import log_appender, log_reader
from broker.log.keyed_records import Replayed, read_back
from broker.log.partition_log import PartitionLog
from broker.metadata.topic import GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from broker.now import Now
from broker.record.batch import NO_PRODUCER_ID, BatchHeader, CorruptBatch
from broker.record.control import Marker
from broker.record.records import LONG_MAX
from broker.services.coordinator_topic import Answer, CoordinatorPorts, CoordinatorTopic
from broker.settings.transaction_config import TransactionConfig
from broker.stamping.id_stamper import Backpressure
from broker.txn.coordinator import Decision, Partition, Past, TransactionCoordinator
from broker.txn.records import BadTransactionRecord, transaction_key, transaction_value
from broker.txn.transaction import Transaction
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode
from idgen.errors import IdError, SequenceExhausted

COORDINATOR_EPOCH = 0
# An end may need thousands of markers, and thousands of transactions may time out together, so the work is done in
# slices. These are not settings, because 32 markers take some two milliseconds on any disk, and a client with more to
# end waits a little longer.
MARKERS_AT_ONCE = 32  # markers and records in a slice
SLICE_EVERY_MS = 10  # pause between slices; most of the time is left for requests
END_EVERY_MS = 5  # pause while a producer waits for the end of its transaction; half of the time is left
ABORTABLE_VERSION = 11  # of Produce, from which clients know TRANSACTION_ABORTABLE (KIP-890)

# Errors that clients receive when a record could not be appended (TransactionStateManager of Kafka).
_CLIENT_ERRORS: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
# Errors after which a marker must never be written: a later epoch has been seen, or the partition was deleted.
_NO_MARKER = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


class Keyed(NamedTuple):
    """A record of __transaction_state."""

    key: bytes
    value: bytes | None


class Open(NamedTuple):
    """A transaction that is open in a partition, with its producer's epoch there, and when it was begun there."""

    log: PartitionLog
    producer_id: int
    epoch: int | None
    written_ms: int | None


class Stranded(NamedTuple):
    """A transaction that is open in a partition and unknown to the coordinator. `commit` is its end."""

    log: PartitionLog
    producer_id: int
    commit: bool


class End(NamedTuple):
    """The purgatory key of requests that wait for the markers of a decided transaction."""

    transactional_id: str


class RequestedMarkers(Protocol):
    """Markers that a request asks for, without the coordinator (WriteTxnMarkers)."""

    @property
    def left(self) -> int: ...

    def write(self, most: int, now: Now) -> None:
        """Write at most `most` of the remaining markers. Raise Backpressure, writing none, if no ids are available."""

    def finish(self, now: Now) -> None:
        """Write all remaining markers, or have them refused."""


OffsetsEnded: TypeAlias = Callable[[int, int, bool, Now], None]
"""Receives the marker of a partition of __consumer_offsets: (partition, producer id, True for a commit, now)."""

Verb: TypeAlias = Callable[[Any, Now], int]
"""An action due for a transactional id or a stranded transaction. It returns how many markers and records it wrote."""


class TransactionCoordination:
    """The coordinator over `__transaction_state`. `start_ms` is on the monotonic clock."""

    def __init__(
        self, ports: CoordinatorPorts, config: TransactionConfig, start_ms: int, offsets_ended: OffsetsEnded
    ) -> None:
        self.config = config
        ids = ports.producer_ids
        self.core = TransactionCoordinator(config, ids.take, start_ms, ids.doubtful_end)
        properties = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
        }
        partitions = config.transaction_state_log_num_partitions
        self.topic = CoordinatorTopic(ports, TRANSACTIONS_TOPIC, partitions, properties, "transactional ids")
        self._ports = ports
        self._offsets_ended = offsets_ended
        self._unmarked: dict[str, set[Partition]] = {}
        """By transactional id: the partitions that still lack the marker of its decided transaction."""
        self._untried: dict[str, list[Partition]] = {}
        """By transactional id whose markers are being written: the partitions still to try, in reverse order."""
        self._deciding: set[str] = set()
        """Transactional ids in `_unmarked` whose decision is not on the disk yet."""
        self._stranded: dict[Stranded, None] = {}
        self._held_up: Counter[int] = Counter()
        """By producer id: the number of partitions in which it has a stranded transaction."""
        self._retry_ms: int | None = None
        self._due: dict[tuple[Verb, Any], None] = {}
        """Actions that are due, with their arguments, in order. Each slice does some of them."""
        self._due_ms = 0
        self._requested_markers: dict[RequestedMarkers, None] = {}
        """Requests whose markers are being written."""
        self._failing: set[Partition] = set()
        """Partitions that did not take a marker, so that the operator is informed once."""

    def check(self, transactional_id: str) -> ErrorCode:
        """Return NONE if this node coordinates the transactional id and can log its changes. An empty id belongs to no
        partition, so it also gets NONE, and the verbs refuse it."""
        return self.topic.check(transactional_id) if transactional_id else ErrorCode.NONE

    # --- applying decisions --------------------------------------------------------------------------------------

    def run(self, decision: Decision, now: Now) -> ErrorCode:
        """Log and apply a decision, and write its markers if it ends a transaction. Return the error for the client."""
        change = decision.change
        if change is None:
            return decision.error
        error = self._log(change, now)
        if error:
            return error
        if change.state.is_prepared:
            self._unmarked[change.transactional_id] = set(change.partitions)
            self._end_once_decided(change, now)
        return decision.error

    def _end_once_decided(self, change: Transaction, now: Now) -> None:
        """Begin to write markers when the decision is as safe as the topic promises. If a power cut took the decision
        and left some markers, half a transaction would remain."""
        self._deciding.add(change.transactional_id)

        def end(at: Now) -> None:
            self._deciding.discard(change.transactional_id)
            self._go_on(change.transactional_id, at)

        self.topic.once_on_disk(change.transactional_id, end, now)

    def _log(self, change: Transaction, now: Now) -> ErrorCode:
        """Write the record, and apply the change if that succeeded."""
        key, value = transaction_key(change.transactional_id), transaction_value(change)
        error = self._append(change.transactional_id, Keyed(key, value), now)
        if not error:
            self.core.apply(change)
        return error

    def _append(self, transactional_id: str, record: Keyed, now: Now) -> ErrorCode:
        log, error = self.topic.append(self.topic.partition_of(transactional_id), [record], now, _CLIENT_ERRORS)
        if log is not None:
            self._ports.appended(log, now)
        return error

    # --- ends ----------------------------------------------------------------------------------------------------

    def _go_on(self, transactional_id: str, now: Now) -> int:
        """Write a slice of the missing markers. When each was tried once, complete the transaction or schedule a retry.

        Return how many markers were tried.
        """
        unmarked = self._unmarked.get(transactional_id)
        if unmarked is None or transactional_id in self._deciding:
            return 0
        transaction = self.core.get(transactional_id)
        assert transaction is not None
        untried = self._untried.setdefault(transactional_id, sorted(unmarked, reverse=True))
        tried = [untried.pop() for _ in range(min(MARKERS_AT_ONCE, len(untried)))]
        unmarked.difference_update([partition for partition in tried if self._mark(transaction, partition, now)])
        if untried:
            self._later(self._go_on, transactional_id, now)
        else:
            self._tried(transaction, now)
        return len(tried)

    def _tried(self, transaction: Transaction, now: Now) -> None:
        """Complete the transaction after each partition was tried, or schedule a retry if a marker is missing."""
        del self._untried[transaction.transactional_id]
        if self._unmarked[transaction.transactional_id] or self._log(transaction.completed(now.wall_ms), now):
            self._again(now)
        else:
            del self._unmarked[transaction.transactional_id]
        self._ports.purgatory.touch(End(transaction.transactional_id), now)

    def when_ended(self, transactional_id: str, answer: Answer, now: Now) -> Answer | Delayed[Answer]:
        """Return the answer to an end, delayed until its decision is on the disk and each partition was tried.

        After offsets.commit.timeout.ms the answer is sent and the remaining markers follow it. If the decision is not
        on the disk by then, the answer is COORDINATOR_NOT_AVAILABLE.
        """
        deadline_ms = now.ms + self._ports.commit_timeout_ms
        decided = self.topic.when_on_disk([transactional_id], answer, now)
        if not isinstance(decided, Delayed):
            if transactional_id not in self._untried:
                return answer
            decided = Delayed((), deadline_ms, lambda at: answer, lambda at: answer)

        def try_complete(at: Now) -> Answer | None:
            result = decided.try_complete(at)
            goes_on = transactional_id in self._deciding or transactional_id in self._untried
            return None if result is answer and goes_on else result

        def expire(at: Now) -> Answer:
            return decided.try_complete(at) or decided.expire(at)

        return Delayed((End(transactional_id), *decided.keys), deadline_ms, try_complete, expire)

    def _again(self, now: Now) -> None:
        if self._retry_ms is None:
            self._retry_ms = now.ms + self.config.transaction_marker_retry_ms

    def _mark(self, transaction: Transaction, partition: Partition, now: Now) -> bool:
        """Write a partition's marker. Return True if the partition has it, or must not have it."""
        try:
            log = self._ports.log_of(*partition)
        except ApiError as error:
            return self._settled(partition, error)
        return self._append_marker(log, transaction.producer_id, transaction.producer_epoch, transaction.commits, now)

    def _append_marker(self, log: PartitionLog, producer_id: int, epoch: int, commit: bool, now: Now) -> bool:
        try:
            self.write_marker(log, producer_id, epoch, Marker(commit, COORDINATOR_EPOCH), now)
        except (ApiError, IdError) as error:
            return self._settled((log.topic, log.partition), error)
        self._failing.discard((log.topic, log.partition))
        return True

    def write_marker(self, log: PartitionLog, producer_id: int, epoch: int, marker: Marker, now: Now) -> None:
        """End a producer's transaction in a partition, and do what follows. Raise the errors of `append_marker`."""
        try:
            log_appender.append_marker(log, producer_id, epoch, marker, self._ports.id_stamper, now)
        except SequenceExhausted:
            self._ports.without_ids(log, now)
            raise
        self._ports.appended(log, now)
        if log.topic == GROUP_OFFSETS_TOPIC:
            self._offsets_ended(log.partition, producer_id, marker.commit, now)

    @property
    def has_room_for_markers(self) -> bool:
        """Return True if one more request may have its markers written in slices."""
        return len(self._requested_markers) < self.config.marker_requests_max

    def write_in_turn(self, markers: RequestedMarkers, now: Now) -> None:
        """Write the markers that a request asks for in slices, among all other actions that are due."""
        self._requested_markers[markers] = None
        self._later(self._write_requested, markers, now)

    def _write_requested(self, markers: RequestedMarkers, now: Now) -> int:
        before = markers.left
        try:
            markers.write(MARKERS_AT_ONCE, now)
        except Backpressure:
            before += MARKERS_AT_ONCE  # there will be no ids for other actions either
        if markers.left:
            self._later(self._write_requested, markers, now)
        else:
            del self._requested_markers[markers]
        return before - markers.left

    def _settled(self, partition: Partition, error: ApiError | IdError) -> bool:
        """Return True if a refused marker needs no retry. Otherwise report it once for each partition."""
        if isinstance(error, ApiError) and error.code in _NO_MARKER:
            return True
        if partition not in self._failing:
            self._failing.add(partition)
            name = f"{partition[0]}-{partition[1]}"
            self._ports.report(f"transactions in {name} cannot be ended, and are tried again: {error}")
        return False

    def unmarked(self, transaction: Transaction) -> Collection[Partition]:
        """Return the partitions of an open transaction, or those without a marker if it is being ended."""
        return self._unmarked.get(transaction.transactional_id, transaction.partitions)

    # --- verification --------------------------------------------------------------------------------------------

    def verify(
        self, transactional_id: str | None, header: BatchHeader, log: PartitionLog, produce_version: int
    ) -> None:
        """Raise ApiError unless this batch of a transaction goes to a partition that was added to it, from the producer
        that has it now, while it is open. Otherwise the transaction might never end in that partition (KIP-890)."""
        if transactional_id is None:
            reason = f"a batch of a transaction came to {log.name} without a transactional id"
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)
        if header.producer_id <= NO_PRODUCER_ID:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, "the batch is part of a transaction, and no producer's")
        partition, abortable = (log.topic, log.partition), produce_version >= ABORTABLE_VERSION
        error = self.refusal(transactional_id, header.producer_id, header.producer_epoch, partition, abortable)
        if error == ErrorCode.CONCURRENT_TRANSACTIONS:
            error = ErrorCode.NOT_ENOUGH_REPLICAS  # every client retries this code
        if error:
            reason = f"{log.name} is not part of an open transaction of {transactional_id} and this producer"
            raise ApiError(error, reason)

    def refusal(
        self, transactional_id: str, producer_id: int, epoch: int, partition: Partition, knows_abortable: bool
    ) -> ErrorCode:
        """Return the error for a client that writes to a partition in a transaction; NONE if the transaction has it."""
        if not self.config.transaction_partition_verification_enable:
            return ErrorCode.NONE
        error = self.core.verify(transactional_id, producer_id, epoch, partition)
        if error == ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
            return ErrorCode.INVALID_TXN_STATE
        return error

    # --- time ----------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        deadlines = [self._retry_ms, self.core.next_deadline_ms(), self._due_ms if self._due else None]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now: Now) -> None:
        """Retry ends, time out transactions and expire transactional ids, each if due."""
        if self._retry_ms is not None and self._retry_ms <= now.ms:
            self._retry_ms = None
            self._due.update(((self._end_stranded, stranded), None) for stranded in self._stranded)
            self._due.update(((self._go_on, transactional_id), None) for transactional_id in self._unmarked)
        self._due.update(((self._time_out, transactional_id), None) for transactional_id in self.core.timed_out(now))
        self._due.update(((self._expire, transactional_id), None) for transactional_id in self.core.expired(now))
        if self._due and self._due_ms <= now.ms:
            self._do_some(now)

    def _do_some(self, now: Now) -> None:
        """Do a slice of the due actions, small enough not to delay requests."""
        markers_left = MARKERS_AT_ONCE
        while self._due and markers_left > 0:
            verb, about = next(iter(self._due))
            del self._due[verb, about]
            markers_left -= 1 + verb(about, now)
        self._due_ms = now.ms + self._pause_ms()

    def _later(self, verb: Verb, about: Any, now: Now) -> None:
        """Make an action due in its turn, because no request has to wait for it now."""
        if not self._due:
            self._due_ms = now.ms + self._pause_ms()
        self._due[verb, about] = None

    def _pause_ms(self) -> int:
        return END_EVERY_MS if self._untried or self._requested_markers else SLICE_EVERY_MS

    def _time_out(self, transactional_id: str, now: Now) -> int:
        decision = self.core.time_out(transactional_id, now)
        self.run(decision, now)
        return 0 if decision.change is None else min(len(decision.change.partitions), MARKERS_AT_ONCE)

    def _expire(self, transactional_id: str, now: Now) -> int:
        tombstone = Keyed(transaction_key(transactional_id), None)
        if self.core.is_expired(transactional_id, now) and not self._append(transactional_id, tombstone, now):
            self.core.forget(transactional_id)
        return 0

    # --- start ---------------------------------------------------------------------------------------------------

    def load(self, now: Now) -> None:
        """Replay the partitions led here, and continue the ends that are decided. A damaged partition goes offline with
        its transactional ids; the others are served."""
        topic = self.topic.topic
        whole = True
        open_in = self._open_in_partitions()
        since_ms: dict[int, int] = {}
        for _, producer_id, _, written_ms in open_in:
            since_ms[producer_id] = min(written_ms or 0, since_ms.get(producer_id, LONG_MAX))
        self.core.remember(since_ms)
        for partition in range(len(topic.partitions) if topic else 0):
            whole = self._load(partition) and whole
        past = self.core.loaded()
        self._stranded = dict.fromkeys(self._find_stranded(open_in, past) if whole else [])
        self._held_up = Counter(stranded.producer_id for stranded in self._stranded)
        self._due.update(((self._end_stranded, stranded), None) for stranded in self._stranded)
        for transaction in self.core:
            if transaction.state.is_prepared:
                self._unmarked[transaction.transactional_id] = set(transaction.partitions)
                self._end_once_decided(transaction, now)  # after a crash the decision may be in the page cache only
        self._do_some(now)

    def resign(self, now: Now) -> None:
        """Write the remaining markers at once, because the topic of the records was deleted and no record would
        remember these ends."""
        for transactional_id, untried in self._untried.items():
            transaction = self.core.get(transactional_id)
            assert transaction is not None
            for partition in untried:
                self._mark(transaction, partition, now)
        ended, self._untried = self._untried, {}
        for transactional_id in ended:
            self._ports.purgatory.touch(End(transactional_id), now)
        for markers in self._requested_markers:
            markers.finish(now)

    def _load(self, partition: int) -> bool:
        try:
            log = self._ports.log_of(TRANSACTIONS_TOPIC, partition)
        except ApiError:
            return False  # offline and reported, or led by another node
        try:
            for record in read_back(log):
                if isinstance(record, Replayed):
                    self.core.load(record.key, record.value)
        except (CorruptBatch, BadTransactionRecord, ApiError) as error:
            log.offline = str(error)
            self._ports.report(f"partition {log.name} is offline, and the transactional ids it keeps: {error}")
            return False
        return True

    def _open_in_partitions(self) -> list[Open]:
        return [
            Open(log, producer_id, log.producers.epoch_of(producer_id), self._written_ms(log, first_offset))
            for log in self._ports.logs.all()
            for producer_id, first_offset in log.producers.open_transactions().items()
        ]

    def _find_stranded(self, open_in: Iterable[Open], past: Past) -> list[Stranded]:
        """Return the transactions that are open in a partition although the coordinator would not end them there.

        After a power cut a partition may have lost a marker, or the coordinator its record of a transaction. No
        read_committed consumer would ever get past such a transaction. Call this only if all partitions of the
        coordinator's topic were read, so that nothing is guessed.
        """
        stranded = []
        prepared = (transaction for transaction in self.core if transaction.state.is_prepared)
        going_on = {(end.producer_id, at, end.commits): end.producer_epoch for end in prepared for at in end.partitions}
        for log, producer_id, epoch, written_ms in open_in:
            partition = log.topic, log.partition
            commit = past.outcome(producer_id, partition, written_ms, epoch)
            if commit is None:
                continue
            marker_epoch = going_on.get((producer_id, partition, commit))  # a marker below its epoch is refused
            if marker_epoch is None or (epoch is not None and epoch > marker_epoch):
                stranded.append(Stranded(log, producer_id, commit))
                outcome = "commits, as decided" if commit else "aborts, as nobody else can"
                self._ports.report(f"partition {log.name}: the broker {outcome}, what producer {producer_id} began")
        return stranded

    def _written_ms(self, log: PartitionLog, offset: int) -> int | None:
        """Return when a record was written, by the time in its id, or None.

        The clock of ids is never behind the wall clock.
        """
        try:
            layout = self._ports.id_stamper.worker().layout
            runs = log_reader.ids_of(log, offset, offset + 1)
        except (ApiError, IdError):
            return None
        return layout.unpack(runs[0][0]).time_ms if runs else None

    def _end_stranded(self, stranded: Stranded, now: Now) -> int:
        epoch = stranded.log.producers.epoch_of(stranded.producer_id)
        if epoch is None or not self._ports.logs.has(stranded.log):
            self._settle(stranded)  # the log was deleted, or forgot the producer
        elif self._append_marker(stranded.log, stranded.producer_id, epoch, stranded.commit, now):
            self._settle(stranded)
        else:
            self._again(now)
        return 1

    def _settle(self, stranded: Stranded) -> None:
        del self._stranded[stranded]
        self._held_up[stranded.producer_id] -= 1

    def is_held_up(self, producer_id: int) -> bool:
        """Return True if a stranded transaction of the producer is not ended yet. Its late marker would end a
        transaction that the producer has begun since."""
        return self._held_up[producer_id] > 0
