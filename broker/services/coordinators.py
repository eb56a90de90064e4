"""The coordinators of groups and of transactions that a broker has, which are made at their first use.

Most brokers started for a test or a demo have neither groups nor transactions, and import nothing of them.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.metadata.image import Image
from broker.metadata.topic import GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from broker.now import Now
from broker.settings.group_config import GroupConfig
from broker.settings.transaction_config import TransactionConfig

if TYPE_CHECKING:
    from broker.services.coordinator_topic import CoordinatorPorts, CoordinatorTopic
    from broker.services.group_coordination import GroupCoordination
    from broker.services.transaction_coordination import TransactionCoordination


class CoordinatedServices(Protocol):
    """The services of a broker that its coordinators need."""

    hosted: Image
    logs: LogManager
    group_config: GroupConfig
    transaction_config: TransactionConfig

    def coordinator_ports(self) -> "CoordinatorPorts": ...


class Coordinators:
    """See the module."""

    def __init__(self, services: CoordinatedServices) -> None:
        self._services = services
        self._groups: "GroupCoordination | None" = None
        self._transactions: "TransactionCoordination | None" = None
        self._start_ms = 0

    @property
    def groups(self) -> "GroupCoordination":
        """The group coordinator."""
        if self._groups is None:
            from broker.services.group_coordination import GroupCoordination

            ports = self._services.coordinator_ports()
            self._groups = GroupCoordination(ports, self._services.group_config, self._start_ms)
        return self._groups

    @property
    def transactions(self) -> "TransactionCoordination":
        """The transaction coordinator."""
        if self._transactions is None:
            from broker.services.transaction_coordination import TransactionCoordination

            ports, config = self._services.coordinator_ports(), self._services.transaction_config
            self._transactions = TransactionCoordination(ports, config, self._start_ms, self._offsets_ended)
        return self._transactions

    @property
    def has_transactions(self) -> bool:
        """True if the transaction coordinator was made."""
        return self._transactions is not None

    def _offsets_ended(self, partition: int, producer_id: int, commit: bool, now: Now) -> None:
        """Pass the marker of a partition of `__consumer_offsets` to the group coordinator, which is made if needed."""
        self.groups.transaction_ended(partition, producer_id, commit, now)

    # --- figures -------------------------------------------------------------------------------------------------

    def group_states(self) -> Counter[str]:
        """Return the number of groups in each state."""
        groups = () if self._groups is None else self._groups.list_groups()
        return Counter(group.state for group in groups)

    def group_offsets(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield (group, topic, partition, committed offset) of all groups."""
        return iter(()) if self._groups is None else self._groups.offsets()

    def group_offsets_number(self) -> int:
        """Return how many offsets are committed, over all groups."""
        return 0 if self._groups is None else self._groups.offsets_number

    def transaction_states(self) -> Counter[str]:
        """Return the number of transactional ids in each state."""
        transactions = () if self._transactions is None else self._transactions
        return Counter(transaction.state.title for transaction in transactions)

    # --- what becomes of their partitions ------------------------------------------------------------------------

    def topic(self, name: str) -> "CoordinatorTopic | None":
        """Return the topic if a coordinator keeps its records in it, else None. The topic may not exist yet."""
        if name == GROUP_OFFSETS_TOPIC:
            return self.groups.topic
        return self.transactions.topic if name == TRANSACTIONS_TOPIC else None

    def lead(self, names: Collection[str], now: Now) -> None:
        """Lead the coordinators of these topics' partitions that this broker leads now, and resign the others."""
        if GROUP_OFFSETS_TOPIC in names:
            self.groups.partitions.follow_leaders(now)
        if TRANSACTIONS_TOPIC in names:
            self.transactions.partitions.follow_leaders(now)

    def resign(self, deleted: Mapping[str, Collection[int]], now: Now) -> None:
        """Drop the state of the coordinators that was kept in deleted logs, given as partitions by topic."""
        if GROUP_OFFSETS_TOPIC in deleted and self._groups is not None:
            self._groups.partitions.follow_leaders(now)
        if TRANSACTIONS_TOPIC in deleted:
            self.transactions.deleted(deleted[TRANSACTIONS_TOPIC], now)

    def forget_topics(self, names: Collection[str], now: Now) -> None:
        """Drop the offsets committed for these deleted topics."""
        if names:
            self.groups.forget_topics(names.__contains__, now)

    # --- loading -------------------------------------------------------------------------------------------------

    def load(self, now: Now) -> None:
        """Load groups, offsets and transactions from their records, once the logs are open. Groups are first, because
        the ends of transactions that are continued may commit offsets."""
        self._start_ms = now.ms
        if self._services.hosted.topic(GROUP_OFFSETS_TOPIC) is not None:
            self.groups.load_all(now)
        if _are_open(self._services.logs.all()) or self._services.hosted.topic(TRANSACTIONS_TOPIC) is not None:
            self.transactions.load_all(now)

    def load_late(self, opened: Collection[PartitionLog], now: Now) -> None:
        """Load the records of logs that were opened after the start."""
        for log in opened:
            if log.topic == GROUP_OFFSETS_TOPIC:
                self.groups.load_late(log.partition, now)
        if any(log.topic == TRANSACTIONS_TOPIC for log in opened) or _are_open(opened):
            self.transactions.load_again(now)

    # --- time ----------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        if self._groups is not None:
            self._groups.tick(now)
        if self._transactions is not None:
            self._transactions.tick(now)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due, on the monotonic clock; None without a deadline."""
        group = None if self._groups is None else self._groups.next_deadline_ms()
        transaction = None if self._transactions is None else self._transactions.next_deadline_ms()
        if group is None or transaction is None:
            return transaction if group is None else group
        return min(group, transaction)


def _are_open(logs: Collection[PartitionLog]) -> bool:
    """Return True if a log has an open transaction."""
    return any(log.producers.open_transactions() for log in logs)
