"""The context of a request: its content, its client, and the broker's services.

`BrokerServices` is the composition of the broker: `broker.services.start` opens its logs, and `Coordinators` makes the
coordinators. It imports and makes the quota manager at its first use, because most brokers need none. The modules that
it makes take what they use as arguments and never import this module.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from broker.metadata.changes import MetadataChanges
from broker.metadata.file_executor import FileExecutor
from broker.metadata.image import Image, Node
from broker.metadata.local_metadata import LocalMetadata
from broker.metadata.producer_ids import ProducerIds
from broker.metadata.staged import Staged
from broker.metadata.topic import Topic
from broker.metrics import Metrics
from broker.now import Now
from broker.produce.turn import ProduceTurn
from broker.security.altered_settings import AlteredSettings
from broker.security.altered_tls import AlteredTls
from broker.security.authorization.audit_log import AuditLog
from broker.security.authorization.authorizer import Authorizer
from broker.security.authorization.rights import Rights
from broker.security.principal_rules import ANONYMOUS
from broker.security.sasl.listeners import SaslListeners
from broker.services.coordinators import Coordinators
from broker.services.fetch_sessions import FetchSessions
from broker.services.image_consequences import follow_alone, follow_metadata, follow_stored
from broker.services.kafka_messages import not_led
from broker.settings.config import BrokerConfig, ListenerLimits, TopicConfig, parse_super_users, with_properties
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
    from broker.services.coordinator_topic import CoordinatorPorts

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
    peer_security: AlteredSettings | None = None
    """The security of connections to other brokers; None on a server alone."""
    tls: AlteredTls = field(default_factory=lambda: AlteredTls({}, {}, lambda _: None))
    """The TLS settings, under those that are altered at run time."""
    sasl: SaslListeners = field(default_factory=SaslListeners.none)
    """The listeners that ask who a client is, and their settings."""
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
    coordinators: Coordinators = field(init=False)
    """The coordinators of groups and of transactions."""
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
    broker_listeners: frozenset[str] = field(init=False)
    """The listeners that settings name for other brokers."""
    protected_listeners: frozenset[str] = frozenset()
    """The listeners that brokers use and clients do not."""
    trusted_listener: str | None = None
    """The name of a listener that only the brokers of this machine reach; they may do everything."""
    own_listener: str | None = None
    """The name of a listener that only this process reaches. The console uses it."""
    own_user: str = ANONYMOUS
    """The user of the clients at `own_listener`."""
    authorizer: Authorizer | None = field(init=False, default=None)
    """Decides what clients may do; None if they may do everything."""
    audit: AuditLog = field(init=False)
    now_ms: Callable[[], int] = field(init=False, default=lambda: 0)
    """The clock of the engine, in monotonic ms, which the engine sets."""
    _led: dict[tuple[str | UUID, int], PartitionLog] = field(default_factory=dict)
    """A cache of `log_of` by topic (name or id) and partition; a change of topics clears it."""

    def __post_init__(self) -> None:
        self._started_with = self.config
        self.coordinators = Coordinators(self)
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
        self.sasl.credentials = lambda: self.metadata.credentials
        self.configure()
        self.audit = AuditLog(self.report, lambda: self.now_ms(), self.config.audit_lines_max)
        if self.config.authorizer_class_name:
            self.authorizer = Authorizer(
                parse_super_users(self.config.super_users),
                self.metadata.acls,
                allows_without_rules=self.config.allow_everyone_if_no_acl_found,
            )
        of_brokers = frozenset(filter(None, [self.inter_broker_listener]))
        self.broker_listeners = of_brokers if self.member is None else self.member.membership.listeners_of_brokers
        self.fetch_sessions = FetchSessions(
            self.config.max_incremental_fetch_session_cache_slots,
            self.config.fetch_session_partitions_max,
            lambda: self.new_uuid().int & FETCH_SESSION_ID_MAX,
            self.purgatory,
            self.serves_brokers,
        )
        wait_ms = self.id_stamper.max_wait_ms = self.config.max_id_wait_ms
        self.clock_waits = ClockWaits(self.logs, self.id_stamper, self.purgatory, self.report)
        self.turn = ProduceTurn(
            self.metadata,
            self.metrics,
            self.id_stamper,
            self.clock_waits,
            self.logs.disk,
            wait_ms,
            self.partition_of,
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
        of_brokers = member.membership.listeners_of_brokers
        listeners = {endpoint.listener for endpoint in member.membership.registration.endpoints}
        self.protected_listeners = of_brokers if listeners - of_brokers else frozenset()
        self.metadata = member.image
        if self.own_listener is not None:
            self.metadata.listener_of = {self.own_listener: member.membership.listener}
        self.metadata.on_change = self._led.clear
        self.producer_ids = member.producer_ids
        member.unknown_topics.hosted = self.hosted
        self.changes = MetadataChanges(member.executor, member.producer_ids, self.purgatory)
        member.consequences = partial(follow_metadata, self)
        member.touch = self.purgatory.touch
        if self.replicates:
            from broker.services.replicas import replicate

            self.replication = replicate(self, member)

    def serves_brokers(self, listener: str) -> bool:
        """Return True if a listener serves what only brokers send.

        With an authorizer all do, as in Kafka, because rights decide then.
        """
        return listener in self.broker_listeners or (bool(self.broker_listeners) and self.authorizer is not None)

    # --- settings ------------------------------------------------------------------------------------------------

    def configure(self) -> None:
        """Compute the settings: those altered at run time override those this process was started with."""
        config = self._started_with
        altered: dict[str, str] = {}
        for name in ("", str(self.node.id)):
            altered |= self.metadata.broker_properties.get(name, {})
        self.config = config = with_properties(config, altered)
        self.tls.use(altered)
        self.sasl.use(altered)
        if self.peer_security is not None:
            self.peer_security.use(altered)
        self.record_limits = limits_of(config)
        self.logs.use(config)

    def check_broker_settings(self, properties: Mapping[str, str]) -> None:
        """Raise InvalidSetting unless the settings this process was started with can be altered so."""
        with_properties(self._started_with, properties)
        self.tls.check(properties)
        self.sasl.check(properties)
        if self.peer_security is not None:
            self.peer_security.check(properties)
        if self.member is not None:
            self.member.check_passwords(properties)

    # --- quotas --------------------------------------------------------------------------------------------------

    def use_quotas(self) -> None:
        if not self.metadata.quotas:
            self.quotas = None
            return
        if self.quotas is None:
            from broker.quota.quota_manager import QuotaManager  # few brokers ever need it

            self.quotas = QuotaManager(self.config)
        self.quotas.use(self.metadata.quotas)

    # --- access rules --------------------------------------------------------------------------------------------

    def use_acls(self) -> None:
        """Decide by the rules of the image. Fetch sessions look at all their partitions anew."""
        if self.authorizer is not None:
            self.authorizer.use(self.metadata.acls)
            self.hosted.expire()

    # --- logs ----------------------------------------------------------------------------------------------------

    def close(self, run_jobs: RunJobs = run_in_turn) -> None:
        """Close the logs at a stop. The worker threads have ended; `run_jobs` runs what waits for the disk."""
        self.logs.close(run_jobs)
        if self.replication is not None:
            self.replication.close()

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

    def coordinator_ports(self) -> "CoordinatorPorts":
        """Return the services that a coordinator uses."""
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

    # --- appends -------------------------------------------------------------------------------------------------

    def touch(self, log: PartitionLog, now: Now, *, upto: int | None = None) -> None:
        """Answer requests that wait for a log, after a change of its records, its durable end or its availability.

        `upto` is the high watermark if nothing else has changed.
        """
        if log.offline is not None and self.replication is not None:
            self.replication.went_offline(log, now)
        self.purgatory.touch(log, now)
        self.purgatory.touch(log.durability.key, now, upto=upto)

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
    rights: Rights | None = None
    """The rights of the client; without an authorizer None, and the client may do everything."""

    @property
    def principal(self) -> str:
        """Return the client as Kafka writes it, "User:NAME"."""
        return f"User:{ANONYMOUS}" if self.rights is None else self.rights.principal

    def note_change(
        self, change: str, names: Iterable[str], failure: object = None, *, without_authorizer: bool = False
    ) -> None:
        """Write a line of the audit log about what the request has changed, if anything (`AuditLog.changed`).

        Call it once the change is stored, and not with the answer, which a client need not wait for. `names` may be
        empty. There is no line without an authorizer, unless the change is one that is noted `without_authorizer` too.
        """
        if (self.rights is not None or without_authorizer) and (changed := list(names)):
            principal = None if self.rights is None else self.rights.principal
            self.services.audit.changed(principal, self.peer, change, changed, failure)

    def note_topics(self, change: str, names: Iterable[str], staged: Staged) -> None:
        """Write a line about the topics that a change of the metadata has changed, and one about each failure."""
        topics: dict[str | None, list[str]] = {}
        for name in names:
            failure = staged.error or staged.errors.get(name)
            topics.setdefault(None if failure is None else str(failure), []).append(name)
        for reason, alike in topics.items():
            self.note_change(f"{change} topics ", alike, reason)

    def count_mutation(self, partitions: int, strict_from: int, now: Now) -> None:
        """Count partitions that the request creates or deletes, for the quota `controller_mutation_rate` (KIP-599).

        From version `strict_from` on, raise ApiError THROTTLING_QUOTA_EXCEEDED if the client is over it already.
        Clients of older versions do not know that error.
        """
        if self.meter is not None:
            self.meter.mutate(partitions, self.version >= strict_from, now.ms)
