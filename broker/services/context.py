"""The context of a request: its content, its client, and the broker's services.

`BrokerServices` is the composition of the broker. It imports and makes the coordinators and the quota manager at their
first use, because most brokers need none of them. These modules take what they use as arguments and never import this
module.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from broker.channel.partition_budget import PartitionBudget
from broker.cluster.assignment import Spread
from broker.log.io_jobs import RunJobs, run_in_turn
from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.log.validation.open_job import OpenJob
from broker.log.validation.opening import Limits, limits_of
from broker.membership.hosted_partitions import without_leaders
from broker.metadata.change import Change
from broker.metadata.changes import MetadataChanges
from broker.metadata.file_executor import FileExecutor
from broker.metadata.image import Image, Node
from broker.metadata.local_metadata import LocalMetadata
from broker.metadata.producer_ids import ProducerIds
from broker.metadata.topic import GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topic
from broker.metrics import Metrics
from broker.now import Now
from broker.produce.turn import ProduceTurn
from broker.services.fetch_sessions import FetchSessions
from broker.services.image_consequences import begin_epoch, follow_alone, follow_metadata, follow_stored
from broker.services.kafka_messages import not_led
from broker.settings.config import BrokerConfig, ListenerLimits, TopicConfig, with_properties
from broker.settings.group_config import GroupConfig
from broker.settings.transaction_config import TransactionConfig
from broker.stamping.clock_waits import ClockWaits
from broker.stamping.id_stamper import IdStamper
from broker.waiting.purgatory import Purgatory
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.primitives import Buffer

if TYPE_CHECKING:
    from broker.membership.member import Member
    from broker.membership.peer_calls import PeerCalls
    from broker.membership.replica_manager import ReplicaManager
    from broker.quota.quota_manager import Meter, QuotaManager
    from broker.replication.partition import Partition
    from broker.services.coordinator_topic import CoordinatorPorts, CoordinatorTopic
    from broker.services.group_coordination import GroupCoordination
    from broker.services.transaction_coordination import TransactionCoordination

FETCH_SESSION_ID_MAX = 2**31 - 1


def _from_the_first(brokers: int) -> Spread:
    return Spread(0, 0)


@dataclass
class BrokerServices:
    """The services that handlers work on. Each engine has one instance."""

    config: BrokerConfig
    local: LocalMetadata
    """Decides changes of the metadata."""
    logs: LogManager
    purgatory: Purgatory
    report: Callable[[str], None]
    """Writes a line for the operator."""
    id_stamper: IdStamper = field(default_factory=IdStamper)
    metrics: Metrics = field(default_factory=Metrics)
    advertised: Sequence[tuple[int, int, int]] = ()
    """The answer of ApiVersions: (API key, lowest version, highest version) of each API."""
    advertised_to_brokers: Sequence[tuple[int, int, int]] = ()
    """The answer of ApiVersions on the inter-broker listener."""
    group_config: GroupConfig = field(default_factory=GroupConfig)
    listener_limits: Mapping[str, ListenerLimits] = field(default_factory=dict)
    """The limits that apply to one listener in addition to the general ones, by its name."""
    given: Mapping[str, str] = field(default_factory=dict)
    """The properties this process was started with."""
    fixed_configs: Sequence[object] = ()
    """Further configurations, beside broker, groups and transactions, whose settings clients may read."""
    node: Node = field(init=False)
    """This broker, at the address that clients of its first listener receive."""
    metadata: Image = field(init=False)
    """What the controller decided."""
    hosted: Image = field(init=False)
    """The partitions that this broker's directory hosts. On a server alone it is `metadata`."""
    changes: MetadataChanges = field(init=False)
    """The requests that change the metadata."""
    producer_ids: ProducerIds = field(init=False)
    """The producer ids that are reserved for this broker."""
    hosting: MetadataChanges = field(init=False)
    """The controller's orders that change `hosted`. On a server alone it is `changes`."""
    file_executor: FileExecutor = field(init=False)
    """Carries out changes of `hosted`, and writes them to the broker's file."""
    fetch_sessions: FetchSessions = field(init=False)
    record_limits: Limits = field(init=False)
    """The limits on the records that producers send."""
    clock_waits: ClockWaits = field(init=False)
    """The partitions whose last id is ahead of the clock."""
    turn: ProduceTurn = field(init=False)
    quotas: "QuotaManager | None" = field(init=False, default=None)
    """None while no client has a quota."""
    transaction_config: TransactionConfig = field(default_factory=TransactionConfig)
    partition_budget: PartitionBudget = field(default_factory=PartitionBudget)
    """The partitions that reads may still handle in this turn."""
    member: "Member | None" = None
    """This broker's part in a cluster; None on a server alone."""
    spread: Callable[[int], Spread] = field(default=_from_the_first)
    """Draws the place of a new topic's first replica among so many brokers."""
    peer_calls: "PeerCalls | None" = None
    """The requests to other brokers; None on a server alone."""
    replication: "ReplicaManager | None" = None
    """The partitions of several copies; None on a server alone, and without `flakelog.replication.enable`."""
    inter_broker_listener: str | None = None
    """The name of the listener that other brokers use; None on a server alone."""
    protected_listener: str | None = None
    """The same, if clients have another listener."""
    _groups: "GroupCoordination | None" = None
    _transactions: "TransactionCoordination | None" = None
    _start_ms: int = 0
    _led: dict[tuple[str | UUID, int], PartitionLog] = field(default_factory=dict)
    """A cache of `log_of` by topic (name or id) and partition; a change of topics clears it."""

    def __post_init__(self) -> None:
        self._started_with = self.config
        self.node = self.local.broker.node
        self.hosted = self.local.image
        self.hosted.on_change = self._led.clear
        member = self.member
        follow = partial(follow_alone, self) if member is None else partial(follow_stored, self, member.settings_of)
        self.file_executor = FileExecutor(self.local, self.logs, follow, self.report)
        ids = self.producer_ids = self.local.producer_ids
        self.hosting = MetadataChanges(self.file_executor, ids, self.purgatory)
        if self.member is None:
            ids.reserve = self.file_executor.reserve_producer_ids
            self.metadata, self.changes = self.hosted, self.hosting
        else:
            self._join(self.member)
        self.configure()
        self.fetch_sessions = FetchSessions(
            self.config.max_incremental_fetch_session_cache_slots,
            self.config.fetch_session_partitions_max,
            lambda: self.new_uuid().int & FETCH_SESSION_ID_MAX,
            self.purgatory,
            self.inter_broker_listener,
        )
        wait_ms = self.id_stamper.max_wait_ms = self.config.max_id_wait_ms
        self.clock_waits = ClockWaits(self.logs, self.id_stamper, self.purgatory, self.report)
        self.turn = ProduceTurn(
            self.metadata, self.metrics, self.id_stamper, self.clock_waits, self.logs.disk, wait_ms
        )
        self.use_quotas()

    @property
    def is_alone(self) -> bool:
        """Return True if this server is no part of a cluster."""
        return self.peer_calls is None

    @property
    def replicates(self) -> bool:
        """Return True if topics may have several copies."""
        return self.config.replication_enable and not self.is_alone

    @property
    def default_replication_factor(self) -> int:
        """Return the number of copies of a topic that is made without saying how many."""
        return self.config.default_replication_factor if self.replicates else 1

    def _join(self, member: "Member") -> None:
        """Take part in a cluster: its controller decides, and this broker's file keeps the hosted partitions only."""
        self.peer_calls, self.inter_broker_listener = member.peers, member.membership.listener
        self.protected_listener = self.inter_broker_listener if len(self.local.broker.endpoints) > 1 else None
        self.metadata = member.image
        self.metadata.on_change = self._led.clear
        self.producer_ids = member.producer_ids
        self.changes = MetadataChanges(member.executor, member.producer_ids, self.purgatory)
        member.consequences = partial(follow_metadata, self)
        member.touch = self.purgatory.touch
        if self.replicates:
            from broker.services.replicas import replicate

            self.replication = replicate(self, member)

    # --- settings ------------------------------------------------------------------------------------------------

    def configure(self) -> None:
        """Compute the settings: those altered at run time override those this process was started with."""
        config = self._started_with
        for name in ("", str(self.node.id)):
            config = with_properties(config, self.metadata.broker_properties.get(name, {}))
        self.config = config
        self.record_limits = limits_of(config)
        self.logs.use(config)

    def check_broker_settings(self, properties: Mapping[str, str]) -> None:
        """Raise InvalidSetting unless the settings this process was started with can be altered so."""
        with_properties(self._started_with, properties)

    # --- quotas --------------------------------------------------------------------------------------------------

    def use_quotas(self) -> None:
        if not self.metadata.quotas:
            self.quotas = None
            return
        if self.quotas is None:
            from broker.quota.quota_manager import QuotaManager  # few brokers ever need it

            self.quotas = QuotaManager(self.config)
        self.quotas.use(self.metadata.quotas)

    # --- logs ----------------------------------------------------------------------------------------------------

    def open_logs(self) -> None:
        """At start, open the logs of all topics, and recover batches that a crash left in the journal.

        Raise CheckpointDamaged, JournalUnreadable or StorageError.
        """
        self.logs.load_checkpoint()
        if self.member is not None:
            from broker.services.replicas import begin_life  # a server alone needs none of it

            begin_life(self, self.member)
            self.hosted.apply([Change(self.member.with_settings(self.hosted.topics()))])
        self.local.put_away(self.logs.finish_deletions(self.local.deleting))
        for topic in self.hosted.topics():
            config = self.config_of(topic)
            for number in topic.copies_on(self.node.id):
                self.logs.open_at_start(topic.name, number, config, topic.id, topic.partitions[number].leader_epoch)
                if self.replication is not None:
                    self.replication.opened(topic, number)
        if self.is_alone:
            self._begin_epochs()
        else:
            self.hosted.apply([Change(without_leaders(self.hosted.topics()))])
            coordinates = self.hosted.topic(TRANSACTIONS_TOPIC) is not None
            self.local.begin_in_cluster(self.producer_ids, doubts=coordinates and not self.logs.stopped_cleanly)
        self.logs.opened()

    def close(self, run_jobs: RunJobs = run_in_turn) -> None:
        """Close the logs at a stop. The worker threads have ended; `run_jobs` runs what waits for the disk."""
        self.logs.close(run_jobs)
        if self.replication is not None:
            self.replication.close()

    def _begin_epochs(self) -> None:
        """Continue each partition in its leader epoch. After a crash begin a new one, as a new leader does in Kafka.

        A crash may have lost the end of a log. Without a new epoch no reader could see that, once other records are at
        these offsets (KIP-101). A log can be ahead of the metadata: after a start on a full disk, or after an operator
        put an older file back.
        """
        crashed = not self.logs.stopped_cleanly
        logs = {(log.topic, log.partition): log for log in self.logs.all()}
        begun = []
        for topic in self.metadata.topics():
            epochs = [state.leader_epoch for state in topic.partitions]
            for partition, epoch in enumerate(epochs):
                log = logs.get((topic.name, partition))
                epochs[partition] = max(epoch, -1 if log is None else log.leader_epoch) + crashed
                if log is not None:
                    log.start_leader_epoch(epochs[partition])
            if epochs != [state.leader_epoch for state in topic.partitions]:
                begun.append(topic.in_epochs(epochs))
        self.local.begin(begun, not crashed)

    def config_of(self, topic: Topic) -> TopicConfig:
        return self.config.topic_defaults.with_properties(topic.properties)

    def topic_configs(self) -> Mapping[str, TopicConfig]:
        """Return the settings of all topics that are hosted."""
        return {topic.name: self.config_of(topic) for topic in self.hosted.topics()}

    def log_of(self, topic: str | UUID, partition: int) -> PartitionLog:
        """Return the log of a partition. Raise ApiError if it does not exist, is offline, or has another leader."""
        log = self._led.get((topic, partition))
        if log is not None and log.offline is None:
            return log
        log = self._led[topic, partition] = self._find_log(topic, partition)
        return log

    def partition_of(self, log: PartitionLog) -> "Partition | None":
        """Return the leader's view of a log's partition; None if the log has one copy."""
        return None if self.replication is None else self.replication.partition_of(log)

    def _find_log(self, topic: str | UUID, partition: int) -> PartitionLog:
        hosted = self.hosted.topic(topic)
        is_hosted = hosted is not None and 0 <= partition < len(hosted.partitions)
        if hosted is None or not is_hosted or not hosted.is_led_by(self.node.id, partition):
            raise not_led(self.metadata, topic, partition)
        log = self.logs.get(hosted.name, partition)
        if log.offline is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name} is offline: {log.offline}")
        if log.leader_epoch < hosted.partitions[partition].leader_epoch:  # the log was made since that epoch began
            log.start_leader_epoch(hosted.partitions[partition].leader_epoch)
            self.logs.pending.changed()  # the next checkpoint stores the epoch
        return log

    def new_uuid(self) -> UUID:
        return self.local.new_uuid()

    # --- coordinators --------------------------------------------------------------------------------------------

    @property
    def groups(self) -> "GroupCoordination":
        """The group coordinator, imported and made at its first use, because most brokers started for a test or a demo
        have no groups."""
        if self._groups is None:
            from broker.services.group_coordination import GroupCoordination

            self._groups = GroupCoordination(self._coordinator_ports(), self.group_config, self._start_ms)
        return self._groups

    @property
    def transactions(self) -> "TransactionCoordination":
        """The transaction coordinator, imported and made at its first use."""
        if self._transactions is None:
            from broker.services.transaction_coordination import TransactionCoordination

            self._transactions = TransactionCoordination(
                self._coordinator_ports(), self.transaction_config, self._start_ms, self._offsets_ended
            )
        return self._transactions

    @property
    def has_transactions(self) -> bool:
        """True if the transaction coordinator was made."""
        return self._transactions is not None

    def _coordinator_ports(self) -> "CoordinatorPorts":
        from broker.services.coordinator_topic import CoordinatorPorts

        return CoordinatorPorts(
            node_id=self.node.id,
            metadata=self.metadata,
            hosted=self.hosted,
            is_alone=self.is_alone,
            producer_ids=self.producer_ids,
            logs=self.logs,
            purgatory=self.purgatory,
            id_stamper=self.id_stamper,
            report=self.report,
            log_of=self.log_of,
            partition_of=self.partition_of,
            appended=self.appended,
            without_ids=self.clock_waits.refused,
            commit_timeout_ms=self.group_config.offsets_commit_timeout_ms,
            peer_calls=self.peer_calls,
            replicates=self.replicates,
        )

    def _offsets_ended(self, partition: int, producer_id: int, commit: bool, now: Now) -> None:
        """Pass the marker of a partition of `__consumer_offsets` to the group coordinator, which is made if needed."""
        self.groups.transaction_ended(partition, producer_id, commit, now)

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

    def forget_topics(self, names: Collection[str], now: Now) -> None:
        """Drop the offsets committed for these deleted topics."""
        if names:
            self.groups.forget_topics(names.__contains__, now)

    def resign_coordinators(self, deleted: Mapping[str, Collection[int]], now: Now) -> None:
        """Drop the state of the coordinators that was kept in deleted logs, given as partitions by topic."""
        if GROUP_OFFSETS_TOPIC in deleted and self._groups is not None:
            self._groups.partitions.follow_leaders(now)
        if TRANSACTIONS_TOPIC in deleted:
            self.transactions.deleted(deleted[TRANSACTIONS_TOPIC], now)

    def lead_coordinators(self, names: Collection[str], now: Now) -> None:
        """Lead the coordinators of these topics' partitions that this broker leads now, and resign the others."""
        if GROUP_OFFSETS_TOPIC in names:
            self.groups.partitions.follow_leaders(now)
        if TRANSACTIONS_TOPIC in names:
            self.transactions.partitions.follow_leaders(now)

    def coordinator_topic(self, name: str) -> "CoordinatorTopic | None":
        """Return the topic if a coordinator keeps its records in it, else None. The topic may not exist yet."""
        if name == GROUP_OFFSETS_TOPIC:
            return self.groups.topic
        return self.transactions.topic if name == TRANSACTIONS_TOPIC else None

    def load_coordinators(self, now: Now) -> None:
        """Load groups, offsets and transactions from their records, once the logs are open. Groups are first, because
        the ends of transactions that are continued may commit offsets."""
        self._start_ms = now.ms
        if self.hosted.topic(GROUP_OFFSETS_TOPIC) is not None:
            self.groups.load_all(now)
        is_open = any(log.producers.open_transactions() for log in self.logs.all())
        if is_open or self.hosted.topic(TRANSACTIONS_TOPIC) is not None:
            self.transactions.load_all(now)

    def adopt_late_logs(self, now: Now) -> None:
        """Load what coordinators keep in logs that the start could not open (a full disk), as a start does."""
        opened = self.logs.take_opened_late()
        for log in opened:
            topic = self.hosted.topic(log.topic)
            if topic is None:
                continue
            if self.replication is not None:
                self.replication.opened(topic, log.partition)
            begin_epoch(self, log, topic.partitions[log.partition], now)
        late = {log.topic for log in opened}
        if self.local.lacks_space and not self.logs.disk.is_full:
            self.file_executor.store_again()
        for log in opened:
            if log.topic == GROUP_OFFSETS_TOPIC:
                self.groups.load_late(log.partition, now)
        if TRANSACTIONS_TOPIC in late or any(log.producers.open_transactions() for log in opened):
            self.transactions.load_again(now)

    def tick_coordinators(self, now: Now) -> None:
        if self._groups is not None:
            self._groups.tick(now)
        if self._transactions is not None:
            self._transactions.tick(now)

    def coordinators_deadline_ms(self) -> int | None:
        """Return when `tick_coordinators` is due, on the monotonic clock; None without a deadline."""
        group = None if self._groups is None else self._groups.next_deadline_ms()
        transaction = None if self._transactions is None else self._transactions.next_deadline_ms()
        if group is None or transaction is None:
            return transaction if group is None else group
        return min(group, transaction)

    # --- appends -------------------------------------------------------------------------------------------------

    def touch(self, log: PartitionLog, now: Now) -> None:
        """Answer requests that wait for a log, after a change of its records, its durable end or its availability."""
        if log.offline is not None and self.replication is not None:
            self.replication.went_offline(log, now)
        self.purgatory.touch(log, now)
        self.purgatory.touch(log.durability.key, now)

    def appended(self, log: PartitionLog, now: Now) -> None:
        """After an append, start a sync if one is due, and answer fetches that waited for the log."""
        self.logs.appended(log)
        self.purgatory.touch(log, now)


class RequestContext(NamedTuple):
    """A request and its client. `request` is the message as decoded by its row of the API table."""

    services: BrokerServices
    version: int
    client_id: str | None
    peer: str
    request: Any
    original: Any = None
    """APIs with `kio` schemas: the message as sent; `request` is the same in the newest version."""
    tags: Mapping[int, Buffer] = {}
    """APIs with `kio` schemas: top-level tagged fields that Kafka does not know."""
    listener: str = ""
    """The listener that received the request; `Image.node` chooses nodes' addresses by it."""
    meter: "Meter | None" = None
    """Counts the request if its client has quotas."""
    opened: OpenJob | None = None
    """Produce: what a thread has made of the request's records, if it had to open them."""
    records: memoryview | None = None
    """Produce: the records of its only partition, if a template has read them. Then `request` has no records."""

    def count_mutation(self, partitions: int, strict_from: int, now: Now) -> None:
        """Count partitions that the request creates or deletes, for the quota `controller_mutation_rate` (KIP-599).

        From version `strict_from` on, raise ApiError THROTTLING_QUOTA_EXCEEDED if the client is over it already.
        Clients of older versions do not know that error.
        """
        if self.meter is not None:
            self.meter.mutate(partitions, self.version >= strict_from, now.ms)
