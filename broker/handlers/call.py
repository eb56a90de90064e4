"""What a handler is given: the request, who sent it, and the services it works on."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from broker.config import BrokerConfig, ListenerLimits, TopicConfig, with_properties
from broker.fetch_session import FetchSessions
from broker.group.config import GroupConfig
from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.log.segment import SUFFIXES
from broker.metadata import GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Metadata, Topic
from broker.metrics import Metrics
from broker.now import Now
from broker.produce_turn import LEAD_RETRY_MS, ProduceTurn
from broker.purgatory import Purgatory
from broker.txn.config import TransactionConfig
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.primitives import Buffer
from idgen.errors import IdError, LeadExhausted, NoWorkerNumber
from idgen.worker import IdWorker, Run

if TYPE_CHECKING:
    from broker.client_quotas import Quotas
    from broker.handlers.coordinator_topic import CoordinatorTopic
    from broker.handlers.groups import GroupCoordination
    from broker.handlers.transactions import TransactionCoordination
    from broker.quota_manager import Meter, QuotaManager

FILES_PER_SEGMENT = len(SUFFIXES) - 1  # few have an index of aborted transactions
FILES_SPARE_MIN = 256  # for connections, registries and the checkpoint; half of a limit that is lower still
FETCH_SESSION_ID_MAX = 2**31 - 1


class Backpressure(Exception):
    """Nothing was done; try the same request again at `retry_wall_ms`. Reading from its connection waits for it."""

    def __init__(self, retry_wall_ms: int) -> None:
        super().__init__(f"again at {retry_wall_ms}")
        self.retry_wall_ms = retry_wall_ms


def _no_worker() -> IdWorker:
    raise NoWorkerNumber("no ids: no worker number is claimed yet")


class Stamp:
    """The ids of this process. `worker` gives the worker held now, which is another one after each claim."""

    def __init__(self) -> None:
        self.worker: Callable[[], IdWorker] = _no_worker

    @property
    def max_batch(self) -> int:
        return self.worker().max_batch

    def next_ids(self, n: int, now_ms: int, floor: int = -1) -> list[Run]:
        return self.worker().next_ids(n, now_ms, floor)

    def ensure(self, n: int, now: Now) -> None:
        """Backpressure unless `n` ids, or as many as there can be at once, can be had now; any other IdError is left
        to who appends."""
        try:
            worker = self.worker()
            ready = worker.ready_at_ms(min(n, worker.max_batch), now.wall_ms)
        except LeadExhausted:
            raise Backpressure(now.wall_ms + LEAD_RETRY_MS) from None
        except IdError:
            return
        if ready > now.wall_ms:
            raise Backpressure(ready)


@dataclass
class Services:
    """All that handlers work on: one of these in each engine."""

    config: BrokerConfig
    metadata: Metadata
    logs: LogManager
    purgatory: Purgatory
    report: Callable[[str], None]
    """A line for the operator."""
    stamp: Stamp = field(default_factory=Stamp)
    metrics: Metrics = field(default_factory=Metrics)
    advertised: Sequence[tuple[int, int, int]] = ()
    """What ApiVersions answers: (API key, lowest version, highest version)."""
    group_config: GroupConfig = field(default_factory=GroupConfig)
    listener_limits: Mapping[str, ListenerLimits] = field(default_factory=dict)
    """By a listener's name, what holds there beside the settings for all."""
    max_open_files: int = 1 << 30
    """What the system lets this process open; connections and other files have a share of it."""
    given: Mapping[str, str] = field(default_factory=dict)
    """The properties this process was started with."""
    fixed_configs: Sequence[object] = ()
    """Configurations beside those of broker, groups and transactions, of which clients may read the settings."""
    fetch_sessions: FetchSessions = field(init=False)
    turn: ProduceTurn = field(init=False)
    quotas: "QuotaManager | None" = field(init=False, default=None)
    """None while no client has any."""
    transaction_config: TransactionConfig = field(default_factory=TransactionConfig)
    _groups: "GroupCoordination | None" = None
    _transactions: "TransactionCoordination | None" = None
    _start_ms: int = 0
    _led: dict[tuple[str | UUID, int], PartitionLog] = field(default_factory=dict)
    """Logs that were asked for by topic (name or id) and partition, until topics change."""

    def __post_init__(self) -> None:
        self._started_with = self.config
        self.metadata.on_change = self._led.clear
        self._configure()
        slots, partitions = (
            self.config.max_incremental_fetch_session_cache_slots,
            self.config.fetch_session_partitions_max,
        )
        self.fetch_sessions = FetchSessions(slots, partitions, lambda: self.new_uuid().int & FETCH_SESSION_ID_MAX)
        self.turn = ProduceTurn(self)
        self._use_quotas()

    # --- settings ------------------------------------------------------------------------------------------------

    def _configure(self) -> None:
        """Settings as they are now, with what was altered at run time over what this process was started with."""
        config = self._started_with
        for name in ("", str(self.metadata.node.id)):
            config = with_properties(config, self.metadata.broker_properties.get(name, {}))
        self.config = config
        self.logs.use(config)

    def alter_broker(self, name: str, properties: Mapping[str, str]) -> None:
        """Altered settings of a node, or with "" of all, in place of those it had; InvalidSetting, StorageError."""
        with_properties(self._started_with, properties)
        self.metadata.alter_broker(name, properties)
        self._configure()
        self.logs.configure({topic.name: self.config_of(topic) for topic in self.metadata.topics()})

    # --- quotas --------------------------------------------------------------------------------------------------

    def alter_quotas(self, quotas: "Quotas") -> None:
        """Quotas of clients in place of those there are, which hold from now on; StorageError."""
        self.metadata.alter_quotas(quotas)
        self._use_quotas()

    def _use_quotas(self) -> None:
        if not self.metadata.quotas:
            self.quotas = None
            return
        if self.quotas is None:
            from broker.quota_manager import QuotaManager  # few brokers ever need it

            self.quotas = QuotaManager(self.config)
        self.quotas.use(self.metadata.quotas)

    # --- logs ----------------------------------------------------------------------------------------------------

    def open_logs(self) -> None:
        """At start: the logs of all topics, and what a crash left in the journal. CheckpointDamaged, StorageError."""
        self.logs.load_checkpoint()
        for topic in self.metadata.topics():
            for partition in range(len(topic.partitions)):
                self.logs.open(topic.name, partition, self.config_of(topic), topic.id)
        self.logs.opened()

    def config_of(self, topic: Topic) -> TopicConfig:
        return self.config.topic_defaults.with_properties(topic.properties)

    def log_of(self, topic: str | UUID, partition: int) -> PartitionLog:
        """Return the log of a partition that this node leads; ApiError says why there is none."""
        log = self._led.get((topic, partition))
        if log is not None and log.offline is None:
            return log
        log = self._led[topic, partition] = self._find_log(topic, partition)
        return log

    def _find_log(self, topic: str | UUID, partition: int) -> PartitionLog:
        known = self.metadata.topic(topic)
        if known is None:
            if isinstance(topic, UUID):
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic}")
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")
        if not 0 <= partition < len(known.partitions):
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {known.name} has partitions 0 to {len(known.partitions) - 1}, not {partition}",
            )
        if not self.metadata.is_leader(known, partition):
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"another node leads {known.name}-{partition}")
        log = self.logs.get(known.name, partition)
        if log.offline is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name} is offline: {log.offline}")
        return log

    def new_uuid(self) -> UUID:
        return self.metadata.new_uuid()

    # --- coordinators --------------------------------------------------------------------------------------------

    @property
    def groups(self) -> "GroupCoordination":
        """The group coordinator: imported and made when groups are first spoken of, as most brokers started for a
        test or a demo never have one."""
        if self._groups is None:
            from broker.handlers.groups import GroupCoordination

            self._groups = GroupCoordination(self, self.group_config, self._start_ms)
        return self._groups

    @property
    def transactions(self) -> "TransactionCoordination":
        """The transaction coordinator, made as late as that of groups."""
        if self._transactions is None:
            from broker.handlers.transactions import TransactionCoordination

            self._transactions = TransactionCoordination(self, self.transaction_config, self._start_ms)
        return self._transactions

    def group_states(self) -> Counter[str]:
        """How many groups are in each state."""
        groups = () if self._groups is None else self._groups.core.list_groups()
        return Counter(group.state for group in groups)

    def transaction_states(self) -> Counter[str]:
        """How many transactional ids are in each state."""
        known = () if self._transactions is None else self._transactions.core
        return Counter(transaction.state.title for transaction in known)

    def forget_groups(self, now: Now) -> None:
        """Their topic was deleted: they are gone, with their offsets, and who waits is told."""
        groups, self._groups = self._groups, None
        if groups is not None:
            groups.resign(now)

    def forget_transactions(self, now: Now) -> None:
        """Their topic was deleted: who had a transaction cannot end it any more."""
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            transactions.resign(now)
        self.transactions.load(now)

    def coordinator_topic(self, name: str) -> "CoordinatorTopic | None":
        """The topic of this name, where a coordinator keeps its records in it; it may not be made yet."""
        if name == GROUP_OFFSETS_TOPIC:
            return self.groups.topic
        return self.transactions.topic if name == TRANSACTIONS_TOPIC else None

    def load_coordinators(self, now: Now) -> None:
        """At start, once the logs are open: groups, offsets and transactions as their records have them. Groups come
        first, as ends of transactions may go on, which commit offsets."""
        self._start_ms = now.ms
        if self.metadata.topic(GROUP_OFFSETS_TOPIC) is not None:
            self.groups.load(now)
        is_open = any(log.producers.open_transactions() for log in self.logs.all())
        if is_open or self.metadata.topic(TRANSACTIONS_TOPIC) is not None:
            self.transactions.load(now)

    def tick_coordinators(self, now: Now) -> None:
        if self._groups is not None:
            self._groups.tick(now)
        if self._transactions is not None:
            self._transactions.tick(now)

    def coordinators_deadline_ms(self) -> int | None:
        """When `tick_coordinators` is wanted, on the monotonic clock."""
        group = None if self._groups is None else self._groups.core.next_deadline_ms()
        transaction = None if self._transactions is None else self._transactions.next_deadline_ms()
        if group is None or transaction is None:
            return transaction if group is None else group
        return min(group, transaction)

    # --- appends -------------------------------------------------------------------------------------------------

    def touch(self, log: PartitionLog, now: Now) -> None:
        """Its records, or what of it is on the disk, or whether it can be read at all has changed."""
        self.purgatory.touch(log, now)
        self.purgatory.touch(log.on_disk, now)

    def appended(self, log: PartitionLog, now: Now) -> None:
        """What follows from an append: a sync that falls due, and fetches that waited for it."""
        self.logs.appended(log)
        self.purgatory.touch(log, now)


class Call(NamedTuple):
    """One request. `request` is what its row of the API table decoded; see there."""

    services: Services
    version: int
    client_id: str | None
    peer: str
    request: Any
    original: Any = None
    """Cold APIs: the message as it was sent; `request` is lifted to the newest version."""
    tags: Mapping[int, Buffer] = {}
    """Cold APIs: top-level tagged fields that Kafka does not know."""
    listener: str = ""
    """The name of the listener it came in on: `Metadata.reached` tells nodes' addresses by it."""
    meter: "Meter | None" = None
    """What counts it, for a client that has quotas."""

    def count_mutation(self, partitions: int, strict_from: int, now: Now) -> None:
        """So many partitions are to be made or deleted. From a version on clients know how to be refused: ApiError
        THROTTLING_QUOTA_EXCEEDED for who is over `controller_mutation_rate` already (KIP-599)."""
        if self.meter is not None:
            self.meter.mutate(partitions, self.version >= strict_from, now.ms)


class Tagged(NamedTuple):
    """A cold API's answer with private tags at its top level (broker.wire.tags), for who asked for them."""

    fields: Mapping[str, Any]
    tags: dict[int, bytes]
