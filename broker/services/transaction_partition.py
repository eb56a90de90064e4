"""The coordinator of the transactional ids in one partition of `__transaction_state`.

A handler lets `core` decide about its verb, and lets `run` log and apply the decision. When an end is decided, the
coordinator writes a marker into each partition of the transaction, and then a record that says so; many partitions get
their markers in slices. If a partition cannot take its marker the end stays open and is retried. Meanwhile its
transactional id answers CONCURRENT_TRANSACTIONS, and other transactions are not delayed.

The epoch of the coordinator, in its markers, is the leader epoch of its partition. A coordinator that resigns leaves
the ends that are open as they are: the next leader reads the decisions in the log, and goes on with them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.log.keyed_records import Ended, Replayed
from broker.now import Now
from broker.record.control import Marker
from broker.services.coordinator_partitions import LoadState, PartitionCoordinator
from broker.services.coordinator_topic import Answer, CoordinatorPorts, CoordinatorTopic, refused_with
from broker.services.due_actions import MARKERS_AT_ONCE, DueActions
from broker.services.transaction_markers import PartitionEnd, TransactionMarkers
from broker.steps import Pace, Steps
from broker.txn.coordinator import Decision, Partition, TransactionCoordinator
from broker.txn.records import BadTransactionRecord, transaction_key, transaction_value
from broker.txn.transaction import Transaction
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ErrorCode

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


class SharedParts(NamedTuple):
    """What the coordinators of all partitions share."""

    topic: CoordinatorTopic
    ports: CoordinatorPorts
    due: DueActions
    markers: TransactionMarkers
    when_stored: Callable[[Collection["TransactionPartition"], Answer, Now], Answer | Delayed[Answer]]
    run_due: Callable[[Now], None]
    """Does a slice of the due actions, unless it must wait for the search for stranded transactions."""


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


class TransactionPartition(PartitionCoordinator):
    """See the module. `when_loaded` receives the coordinator when it begins to serve."""

    bad_record = BadTransactionRecord

    def __init__(
        self,
        partition: int,
        leader_epoch: int,
        core: TransactionCoordinator,
        shared: SharedParts,
        when_loaded: Callable[["TransactionPartition", Now], None],
    ) -> None:
        super().__init__(partition, leader_epoch)
        self.core = core
        self._topic, self._ports, self._due, self._markers, self._when_stored, self._run_due = shared
        self._when_loaded = when_loaded
        self._endings: dict[str, Ending] = {}
        """By transactional id."""

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
            self._end_once_decided(change, self._go_on, now)
        return decision.error

    def _end_once_decided(self, change: Transaction, begin: Callable[[str, Now], object], now: Now) -> None:
        """Begin to write markers when the decision is as safe as the topic promises. If a power cut took the decision
        and left some markers, half a transaction would remain."""
        ending = self._endings[change.transactional_id] = Ending(set(change.partitions))
        assert self.log is not None

        def end(at: Now) -> None:
            ending.is_decided = True
            begin(change.transactional_id, at)

        self._topic.once_stored(self.log, end, now)

    def _log(self, change: Transaction, now: Now) -> ErrorCode:
        """Write the record, and apply the change if that succeeded."""
        error = self._append(Keyed(transaction_key(change.transactional_id), transaction_value(change)), now)
        if not error:
            self.core.apply(change)
        return error

    def _append(self, record: Keyed, now: Now) -> ErrorCode:
        log, error = self._topic.append(self.partition, [record], now, _CLIENT_ERRORS)
        if log is not None:
            self._ports.appended(log, now)
        return error

    # --- ends ----------------------------------------------------------------------------------------------------

    def _go_on(self, transactional_id: str, now: Now) -> int:
        """Write a slice of the missing markers. When each was tried once, complete the transaction or schedule a retry.

        Return how many markers were tried.
        """
        ending = self._endings.get(transactional_id)
        if ending is None or not ending.is_decided or self.state is not LoadState.ACTIVE:
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
            self._markers.write(self._ends_of(transaction, partitions), tried, now)
        else:
            self._tried(transaction, ending, now)
        return len(partitions)

    def _ends_of(self, transaction: Transaction, partitions: Iterable[Partition]) -> list[PartitionEnd]:
        marker = Marker(transaction.commits, self.leader_epoch)
        producer = transaction.producer_id, transaction.producer_epoch
        return [PartitionEnd(partition, *producer, marker) for partition in partitions]

    def _tried(self, transaction: Transaction, ending: Ending, now: Now) -> None:
        """Complete the transaction after each partition was tried, or schedule a retry if a marker is missing."""
        transactional_id = transaction.transactional_id
        if self.state is not LoadState.ACTIVE or self._endings.get(transactional_id) is not ending:
            return  # resigned before a leader had answered
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
        on the disk by then, the answer is COORDINATOR_NOT_AVAILABLE. If the coordinator resigns before, it is
        NOT_COORDINATOR.
        """
        deadline_ms = now.ms + self._ports.commit_timeout_ms

        def unless_resigned(at: Now) -> Answer:
            is_resigned = self.state is LoadState.RESIGNED
            return refused_with(answer, ErrorCode.NOT_COORDINATOR) if is_resigned else answer

        decided = self._when_stored([self], answer, now)
        if not isinstance(decided, Delayed):
            ending = self._endings.get(transactional_id)
            if ending is None or ending.untried is None:
                return answer
            decided = Delayed((self,), deadline_ms, unless_resigned, unless_resigned)

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

    def finish_ends(self, now: Now) -> None:
        """Write the remaining markers at once, because the topic of the records was deleted and no record would
        remember these ends."""
        for transactional_id, ending in list(self._endings.items()):
            if not ending.is_decided:
                continue
            transaction = self.core.get(transactional_id)
            assert transaction is not None
            missing = sorted(ending.unmarked - ending.unanswered)
            self._markers.write(self._ends_of(transaction, missing), lambda partition, is_settled, at: None, now)
            self._forget(transactional_id)
            self._ports.purgatory.touch(End(transactional_id), now)

    def _forget(self, transactional_id: str) -> None:
        self._due.awaited.discard(self._endings.pop(transactional_id))

    # --- time ----------------------------------------------------------------------------------------------------

    def time_out(self, transactional_id: str, now: Now) -> int:
        """Abort the id's transaction if it is still open and has timed out. Return how many markers that took."""
        if self.state is not LoadState.ACTIVE:
            return 0
        decision = self.core.time_out(transactional_id, now)
        self.run(decision, now)
        return 0 if decision.change is None else min(len(decision.change.partitions), MARKERS_AT_ONCE)

    def expire(self, transactional_id: str, now: Now) -> int:
        """Remove the id if it is still unused."""
        if self.state is LoadState.ACTIVE and self.core.is_expired(transactional_id, now):
            if not self._append(Keyed(transaction_key(transactional_id), None), now):
                self.core.forget(transactional_id)
        return 0

    # --- loading -------------------------------------------------------------------------------------------------

    def replay(self, entry: Replayed | Ended) -> None:
        if isinstance(entry, Replayed):
            self.core.load(entry.key, entry.value)

    def loaded(self, now: Now) -> None:
        """Go on with the ends that are decided, in slices. After a crash a decision may be in the page cache only."""
        for transaction in self.core.prepared():
            self._end_once_decided(transaction, self._go_on_in_turn, now)
        self._when_loaded(self, now)

    def _go_on_in_turn(self, transactional_id: str, now: Now) -> None:
        self._due.add(self._go_on, transactional_id)
        self._run_due(now)

    def unload(self, pace: Pace, now: Now) -> Steps[None]:
        """Leave the open ends to the next leader. The requests that wait have been answered."""
        self._due.awaited.difference_update(self._endings.values())
        self._endings = {}
        for _ in self.core.unload(pace):
            yield
