"""Shared parts of the transaction handlers: the coordinators, their topic, and the work that is due for all of them.

Each partition of `__transaction_state` that this node leads has a coordinator (broker.services.transaction_partition).
A handler asks `find` for that of the transactional id.
"""

from collections.abc import Collection, Iterator

from broker.metadata.topic import TRANSACTIONS_TOPIC
from broker.now import Now
from broker.services.coordinator_partitions import CoordinatorPartitions
from broker.services.coordinator_topic import CoordinatorPorts, CoordinatorTopic
from broker.services.due_actions import DueActions
from broker.services.stranded_transactions import StrandedTransactions
from broker.services.transaction_markers import LocalMarkers, OffsetsEnded, RequestedMarkers, TransactionMarkers
from broker.services.transaction_partition import SharedParts, TransactionPartition
from broker.services.transaction_verification import TransactionVerification
from broker.settings.transaction_config import TransactionConfig
from broker.txn.coordinator import Partition, Totals, TransactionCoordinator
from broker.txn.transaction import Transaction
from broker.wire.errors import ErrorCode

EPOCH_MAX = 2**31 - 1


class TransactionCoordination:
    """The coordinators over `__transaction_state`. `start_ms` is on the monotonic clock."""

    def __init__(
        self, ports: CoordinatorPorts, config: TransactionConfig, start_ms: int, offsets_ended: OffsetsEnded
    ) -> None:
        self.config = config
        properties = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
        }
        if ports.replicates:
            properties["min.insync.replicas"] = str(config.transaction_state_log_min_isr)
        partitions = config.transaction_state_log_num_partitions
        factor = config.transaction_state_log_replication_factor
        self.topic = CoordinatorTopic(ports, TRANSACTIONS_TOPIC, partitions, properties, "transactional ids", factor)
        self.partitions = CoordinatorPartitions(self.topic, ports, self._make)
        self.when_stored = self.partitions.when_stored
        self._ports = ports
        self._due = DueActions(config.transaction_marker_retry_ms)
        local = LocalMarkers(ports, offsets_ended)
        self.append_marker = local.append
        self.requested_markers = RequestedMarkers(self._due, config.marker_requests_max)
        self._stranded = StrandedTransactions(ports, local, self._due)
        self.is_held_up, self.end_earlier = self._stranded.is_held_up, self._stranded.end_earlier
        verification = TransactionVerification(config, self.topic, self.partitions, ports)
        self.verify, self.refusal, self.ask = verification.verify, verification.refusal, verification.ask
        markers = _markers(ports, local)
        self._shared = SharedParts(self.topic, ports, self._due, markers, self.when_stored, self._run_due)
        self._totals = Totals()
        self._abort_ms = start_ms + config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._expire_ms = start_ms + config.transaction_remove_expired_transaction_cleanup_interval_ms

    def _make(self, partition: int, leader_epoch: int, now: Now) -> TransactionPartition:
        ids = self._ports.producer_ids
        core = TransactionCoordinator(self.config, ids.take, lambda: ids.doubtful_end, self._totals)
        core.remember(self._stranded.since_ms)
        return TransactionPartition(partition, leader_epoch, core, self._shared, self._loaded)

    # --- lookup --------------------------------------------------------------------------------------------------

    def find(self, transactional_id: str) -> TransactionPartition | ErrorCode:
        """Return the coordinator of a transactional id, or the error of `CoordinatorPartitions.find`.

        An empty id belongs to no partition: INVALID_REQUEST.
        """
        return self.partitions.find(transactional_id) if transactional_id else ErrorCode.INVALID_REQUEST

    def __len__(self) -> int:
        """Return the number of transactional ids that are coordinated here."""
        return sum(len(led.core) for led in self.partitions)

    def __iter__(self) -> Iterator[Transaction]:
        """Iterate over the transactional ids that are coordinated here."""
        return (transaction for led in self.partitions for transaction in led.core)

    def unmarked(self, transaction: Transaction) -> Collection[Partition]:
        """Return the partitions of an open transaction, or those without a marker if it is being ended."""
        led = self.find(transaction.transactional_id)
        return transaction.partitions if isinstance(led, ErrorCode) else led.unmarked(transaction)

    @property
    def coordinator_epoch_max(self) -> int:
        """The highest epoch that a coordinator can have. Only a server alone knows it: its image has all leader epochs.
        """
        topic = self.topic.topic
        if not self._ports.is_alone:
            return EPOCH_MAX
        return max((state.leader_epoch for state in topic.partitions), default=0) if topic is not None else 0

    # --- time ----------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due, on the monotonic clock; None without a deadline."""
        deadlines = [self._due.next_deadline_ms(), self.partitions.next_deadline_ms()]
        if self._totals.ids:
            deadlines.append(min(self._abort_ms, self._expire_ms) if self._totals.ongoing else self._expire_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now: Now) -> None:
        """Load and unload, retry ends, time out transactions and expire transactional ids, each if due."""
        self.partitions.tick(now)
        self._end_search()
        if self._abort_ms <= now.ms:
            self._abort_ms = now.ms + self.config.transaction_abort_timed_out_transaction_cleanup_interval_ms
            for led in self.partitions:
                for transactional_id in led.core.timed_out(now):
                    self._due.add(led.time_out, transactional_id)
        if self._expire_ms <= now.ms:
            self._expire_ms = now.ms + self.config.transaction_remove_expired_transaction_cleanup_interval_ms
            for led in self.partitions:
                for transactional_id in led.core.expired(now):
                    self._due.add(led.expire, transactional_id)
        self._due.tick(now)

    # --- loading -------------------------------------------------------------------------------------------------

    def load_all(self, now: Now) -> None:
        """Load the partitions led here before requests are served, and search for stranded transactions.

        A damaged partition goes offline with its transactional ids; the others are served.
        """
        self._stranded.remember()
        self.partitions.load_all(now)
        self._end_search()
        self._due.do_some(now)

    def load_again(self, now: Now) -> None:
        """Load the partitions led here once more, because a log was opened late. Its open transactions may be stranded,
        and only the records of all partitions say so."""
        self.partitions.resign_all(now)
        self.load_all(now)

    def deleted(self, partitions: Collection[int], now: Now) -> None:
        """Forget the transactional ids of partitions whose logs were deleted, and write their last markers at once.
        Producers cannot end open transactions, so a server alone aborts these."""
        for partition in partitions:
            led = self.partitions.at(partition)
            if led is not None:
                led.finish_ends(now)
        self.partitions.follow_leaders(now)
        if self._ports.is_alone:
            self.requested_markers.finish(now)
            self.load_all(now)

    def _loaded(self, led: TransactionPartition, now: Now) -> None:
        self._stranded.loaded(led.core.loaded())
        if self._stranded.is_searching and self.leads_all:
            self._find_stranded()
        self._run_due(now)

    def _run_due(self, now: Now) -> None:
        if not self._stranded.is_searching:
            self._due.tick(now)

    def _end_search(self) -> None:
        """End the stranded transactions, if this node coordinates all transactional ids and has loaded all of them.

        Otherwise one that seems to be stranded may be in records that this node has not read. The search is given up
        when no load that has begun can change that.
        """
        if self._stranded.is_searching and not self.partitions.is_loading:
            if self.leads_all:
                self._find_stranded()
            else:
                self._stranded.give_up()

    def _find_stranded(self) -> None:
        self._stranded.find(transaction for led in self.partitions for transaction in led.core.prepared())

    @property
    def leads_all(self) -> bool:
        """True if all partitions of the topic are led here and loaded, or if there is no topic."""
        topic = self.topic.topic
        return all(self.partitions.at(partition) for partition in range(len(topic.partitions) if topic else 0))


def _markers(ports: CoordinatorPorts, local: LocalMarkers) -> TransactionMarkers:
    """Return what writes the markers of this broker's coordinators."""
    if ports.peer_calls is None:
        return local
    from broker.services.peer_markers import PeerMarkers  # a server alone needs none of its messages

    return PeerMarkers(ports, local, ports.peer_calls)
