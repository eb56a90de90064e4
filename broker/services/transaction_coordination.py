"""Shared parts of the transaction handlers: the coordinator, the topic with its records, and the ends of transactions.

A handler asks `check` whether this node coordinates the transactional id, lets `core` decide about its verb, and lets
`run` log and apply the decision. When an end is decided, the coordinator writes a marker into each partition of the
transaction, and then a record that says so; many partitions get their markers in slices. If a partition cannot take its
marker the end stays open and is retried. Meanwhile its transactional id answers CONCURRENT_TRANSACTIONS, and other
transactions are not delayed.

The epoch of a coordinator is always 0, because no other node could coordinate.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.log.keyed_records import Replayed, read_back
from broker.metadata.topic import TRANSACTIONS_TOPIC
from broker.now import Now
from broker.record.batch import CorruptBatch
from broker.record.control import Marker
from broker.services.coordinator_topic import Answer, CoordinatorPorts, CoordinatorTopic
from broker.services.due_actions import MARKERS_AT_ONCE, DueActions
from broker.services.stranded_transactions import StrandedTransactions
from broker.services.transaction_markers import LocalMarkers, OffsetsEnded, PartitionEnd, RequestedMarkers
from broker.services.transaction_verification import TransactionVerification
from broker.settings.transaction_config import TransactionConfig
from broker.txn.coordinator import Decision, Partition, TransactionCoordinator
from broker.txn.records import BadTransactionRecord, transaction_key, transaction_value
from broker.txn.transaction import Transaction
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode

COORDINATOR_EPOCH = 0

# Errors that clients receive when a record could not be appended (TransactionStateManager of Kafka).
_CLIENT_ERRORS: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


class Keyed(NamedTuple):
    """A record of __transaction_state."""

    key: bytes
    value: bytes | None


class End(NamedTuple):
    """The purgatory key of requests that wait for the markers of a decided transaction."""

    transactional_id: str


@dataclass(eq=False)
class Ending:
    """A decided transaction whose markers are being written."""

    unmarked: set[Partition]
    """The partitions that still lack the marker."""
    is_decided: bool = False
    """True if the decision is on the disk, as far as the topic promises."""
    untried: list[Partition] | None = None
    """The partitions still to try, in reverse order; None while it waits to try those that failed again."""
    unanswered: set[Partition] = field(default_factory=set)
    """The partitions whose leader was sent the marker and has not answered yet."""

    @property
    def is_being_tried(self) -> bool:
        """True until the decision is on the disk and each partition was tried once."""
        return not self.is_decided or self.untried is not None


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
        self._due = DueActions(config.transaction_marker_retry_ms)
        self._markers = LocalMarkers(ports, offsets_ended)
        self.append_marker = self._markers.append
        self.requested_markers = RequestedMarkers(self._due, config.marker_requests_max)
        self._stranded = StrandedTransactions(ports, self._markers, self._due, COORDINATOR_EPOCH)
        self.is_held_up = self._stranded.is_held_up
        self._verification = TransactionVerification(config, self.core)
        self.verify, self.refusal = self._verification.verify, self._verification.refusal
        self._endings: dict[str, Ending] = {}
        """By transactional id."""

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
            self._end_once_decided(change, now)
        return decision.error

    def _end_once_decided(self, change: Transaction, now: Now) -> None:
        """Begin to write markers when the decision is as safe as the topic promises. If a power cut took the decision
        and left some markers, half a transaction would remain."""
        ending = self._endings[change.transactional_id] = Ending(set(change.partitions))

        def end(at: Now) -> None:
            ending.is_decided = True
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
        ending = self._endings.get(transactional_id)
        if ending is None or not ending.is_decided:
            return 0
        transaction = self.core.get(transactional_id)
        assert transaction is not None
        if ending.untried is None:
            ending.untried = sorted(ending.unmarked, reverse=True)
            self._due.awaited.add(ending)
        untried = ending.untried
        partitions = [untried.pop() for _ in range(min(MARKERS_AT_ONCE, len(untried)))]
        ending.unanswered.update(partitions)

        def tried(partition: Partition, is_settled: bool, at: Now) -> None:
            ending.unanswered.discard(partition)
            if is_settled:
                ending.unmarked.discard(partition)
            if not untried and not ending.unanswered:
                self._tried(transaction, ending, at)

        if untried:
            self._due.later(self._go_on, transactional_id, now)
        if partitions:
            self._markers.write(_ends_of(transaction, partitions), tried, now)
        else:
            self._tried(transaction, ending, now)
        return len(partitions)

    def _tried(self, transaction: Transaction, ending: Ending, now: Now) -> None:
        """Complete the transaction after each partition was tried, or schedule a retry if a marker is missing."""
        transactional_id = transaction.transactional_id
        ending.untried = None
        self._due.awaited.discard(ending)
        if ending.unmarked or self._log(transaction.completed(now.wall_ms), now):
            self._due.try_again(self._go_on, transactional_id, now)
        else:
            del self._endings[transactional_id]
        self._ports.purgatory.touch(End(transactional_id), now)

    def when_ended(self, transactional_id: str, answer: Answer, now: Now) -> Answer | Delayed[Answer]:
        """Return the answer to an end, delayed until its decision is on the disk and each partition was tried.

        After offsets.commit.timeout.ms the answer is sent and the remaining markers follow it. If the decision is not
        on the disk by then, the answer is COORDINATOR_NOT_AVAILABLE.
        """
        deadline_ms = now.ms + self._ports.commit_timeout_ms
        decided = self.topic.when_on_disk([transactional_id], answer, now)
        if not isinstance(decided, Delayed):
            ending = self._endings.get(transactional_id)
            if ending is None or ending.untried is None:
                return answer
            decided = Delayed((), deadline_ms, lambda at: answer, lambda at: answer)

        def try_complete(at: Now) -> Answer | None:
            result = decided.try_complete(at)
            ending = self._endings.get(transactional_id)
            goes_on = ending is not None and ending.is_being_tried
            return None if result is answer and goes_on else result

        def expire(at: Now) -> Answer:
            return decided.try_complete(at) or decided.expire(at)

        return Delayed((End(transactional_id), *decided.keys), deadline_ms, try_complete, expire)

    def unmarked(self, transaction: Transaction) -> Collection[Partition]:
        """Return the partitions of an open transaction, or those without a marker if it is being ended."""
        ending = self._endings.get(transaction.transactional_id)
        return transaction.partitions if ending is None else ending.unmarked

    # --- time ----------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        deadlines = self._due.next_deadline_ms(), self.core.next_deadline_ms()
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now: Now) -> None:
        """Retry ends, time out transactions and expire transactional ids, each if due."""
        for transactional_id in self.core.timed_out(now):
            self._due.add(self._time_out, transactional_id)
        for transactional_id in self.core.expired(now):
            self._due.add(self._expire, transactional_id)
        self._due.tick(now)

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
        self.core.remember(self._stranded.remember())
        for partition in range(len(topic.partitions) if topic else 0):
            whole = self._load(partition) and whole
        past = self.core.loaded()
        if whole:
            self._stranded.find(past, self.core)
        for transaction in self.core:
            if transaction.state.is_prepared:
                self._end_once_decided(transaction, now)  # after a crash the decision may be in the page cache only
        self._due.do_some(now)

    def resign(self, now: Now) -> None:
        """Write the remaining markers at once, because the topic of the records was deleted and no record would
        remember these ends."""
        for transactional_id, ending in self._endings.items():
            if ending.untried is None:
                continue
            transaction = self.core.get(transactional_id)
            assert transaction is not None
            self._markers.write(_ends_of(transaction, ending.untried), lambda partition, is_settled, at: None, now)
            ending.untried = None
            self._ports.purgatory.touch(End(transactional_id), now)
        self.requested_markers.finish(now)

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


def _ends_of(transaction: Transaction, partitions: Iterable[Partition]) -> list[PartitionEnd]:
    marker = Marker(transaction.commits, COORDINATOR_EPOCH)
    return [
        PartitionEnd(partition, transaction.producer_id, transaction.producer_epoch, marker) for partition in partitions
    ]
