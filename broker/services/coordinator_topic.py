"""An internal topic in which a coordinator keeps its records.

The key of a group or a transactional id selects one of the partitions, and the node that leads that partition
coordinates it.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from broker.group.offset_records import partition_of
from broker.log.keyed_records import KeyedRecord, append_records
from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.membership.peer_calls import PeerCalls
from broker.metadata.image import Image, Node
from broker.metadata.producer_ids import ProducerIds
from broker.metadata.topic import GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC, NewTopic, Topic
from broker.now import Now
from broker.replication.partition import Partition
from broker.replication.stored_end import Leadership, check_in_sync, unstored_end
from broker.stamping.id_stamper import IdStamper
from broker.waiting.purgatory import Delayed, Purgatory
from broker.wire.errors import ApiError, ErrorCode
from idgen.errors import IdError, SequenceExhausted
from idgen.settings import InvalidSetting

Answer: TypeAlias = dict[str, Any]

_FACTORS = {
    GROUP_OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTIONS_TOPIC: "transaction.state.log.replication.factor",
}
"""The settings with the copies of each topic."""


@dataclass(frozen=True)
class CoordinatorPorts:
    """The services that a coordinator uses."""

    node_id: int
    """The id of this broker."""
    metadata: Image
    hosted: Image
    """The partitions that this broker hosts."""
    is_alone: bool
    """True if this server is no part of a cluster."""
    producer_ids: ProducerIds
    logs: LogManager
    purgatory: Purgatory
    id_stamper: IdStamper
    report: Callable[[str], None]
    """Writes a line for the operator."""
    log_of: Callable[[str, int], PartitionLog]
    """Returns the log of a partition that this node leads, or raises ApiError."""
    appended: Callable[[PartitionLog, Now], None]
    """Must be called after each append: it asks for a sync that is due, and answers fetches that waited."""
    partition_of: Callable[[PartitionLog], Partition | None]
    """Returns the leader's view of a log's partition; None if the log has one copy."""
    without_ids: Callable[[PartitionLog, Now], None]
    """Must be called if a log had no ids for an append."""
    commit_timeout_ms: int
    """offsets.commit.timeout.ms: the longest wait of an answer for the disk."""
    peer_calls: PeerCalls | None = None
    """The requests to other brokers; None on a server alone."""
    replicates: bool = False
    """True if topics may have several copies."""


class CoordinatorTopic:
    """The topic of a coordinator, made at its first use. `keeps` names its content for the operator: "groups".

    It has `replication_factor` copies if topics may have several.
    """

    def __init__(
        self,
        ports: CoordinatorPorts,
        name: str,
        partitions: int,
        properties: Mapping[str, str],
        keeps: str,
        replication_factor: int = 1,
    ) -> None:
        self.name = name
        self._replication_factor = replication_factor if ports.replicates else 1
        self._ports = ports
        self.partitions = partitions
        self.properties = properties
        """Settings that the topic is made with unless a request gives others."""
        self.keeps = keeps
        self._failing: set[int] = set()
        """Partitions whose last append failed, so that the operator is informed once, not for every request."""

    @property
    def topic(self) -> Topic | None:
        return self._ports.metadata.topic(self.name)

    def partition_of(self, key: str) -> int:
        topic = self.topic
        return partition_of(key, self.partitions if topic is None else len(topic.partitions))

    def check(self, key: str) -> ErrorCode:
        """Return NONE if this node coordinates the key and can log its changes."""
        topic = self.topic
        if topic is None:
            return ErrorCode.NOT_COORDINATOR  # no client has called FindCoordinator yet, which makes the topic
        partition = partition_of(key, len(topic.partitions))
        hosted = self._ports.hosted.topic(topic.id)
        is_hosted = hosted is not None and partition < len(hosted.partitions)
        if hosted is None or not is_hosted or not hosted.is_led_by(self._ports.node_id, partition):
            return ErrorCode.NOT_COORDINATOR
        try:
            log = self._ports.logs.get(topic.name, partition)
        except ApiError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE if log.offline is None else ErrorCode.COORDINATOR_NOT_AVAILABLE

    @property
    def new(self) -> NewTopic:
        """Return the topic to create."""
        return NewTopic(self.name, self.partitions, self.properties, replication_factor=self._replication_factor)

    def find(self, key: str, listener: str) -> Node:
        """Return the node that coordinates the key, as clients of a listener reach it, once the topic exists.

        Raise ApiError COORDINATOR_NOT_AVAILABLE.
        """
        metadata, topic = self._ports.metadata, self.topic
        if topic is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{key} is kept in {self.name}, which does not exist")
        partition = partition_of(key, len(topic.partitions))
        leader = topic.partitions[partition].leader
        node = metadata.node(leader, listener)
        if node is None or (leader == self._ports.node_id and self.check(key)):
            name = f"{self.name}-{partition}"
            reason = self._ports.logs.offline.get(name, "its leader is not there")
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{key} is kept in {name}: {reason}")
        return node

    def not_made(self, error: ApiError | InvalidSetting) -> ApiError:
        """Report why the topic cannot be created, and return the error for clients."""
        reason = str(error)
        if isinstance(error, ApiError) and error.code == ErrorCode.INVALID_REPLICATION_FACTOR:
            reason = f"{reason} Start more brokers, or set {_FACTORS[self.name]}."
        self._ports.report(f"no {self.keeps} can be coordinated, {self.name} could not be made: {reason}")
        return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)

    def disk_keys(self, key: str) -> list[Hashable]:
        """Return what answers about this key wait for until they are on the disk, in the purgatory."""
        topic = self.topic
        try:
            return [] if topic is None else [self._ports.log_of(self.name, self.partition_of(key)).durability.key]
        except ApiError:
            return []

    # --- records -------------------------------------------------------------------------------------------------

    def once_stored(self, log: PartitionLog, then: Callable[[Now], None], now: Now) -> None:
        """Call `then` when a partition's log is stored as it is now: on all replicas in sync, and on the disk if the
        topic requires that. Never call it if the disk fails, or another broker leads the partition before."""
        once_stored(self._ports, log, lambda is_stored, at: then(at) if is_stored else None, now)

    def append(
        self,
        partition: int,
        records: Iterable[KeyedRecord],
        now: Now,
        returned: Mapping[ErrorCode, ErrorCode],
        producer: tuple[int, int] | None = None,
    ) -> tuple[PartitionLog | None, ErrorCode]:
        """Append records, optionally in a producer's transaction. Return the log, or None and the error for clients.

        The error is that of `returned` for the cause. For any other cause it is COORDINATOR_NOT_AVAILABLE, because that
        may pass.
        """
        try:
            log = self._ports.log_of(self.name, partition)
            check_in_sync(self._ports.partition_of(log))
            append_records(log, records, self._ports.id_stamper, now, producer)
        except (ApiError, IdError) as error:
            if isinstance(error, SequenceExhausted):
                self._ports.without_ids(log, now)
            if partition not in self._failing:
                self._failing.add(partition)
                self._ports.report(f"{self.keeps} kept in {self.name}-{partition} are refused: {error}")
            code = error.code if isinstance(error, ApiError) else ErrorCode.KAFKA_STORAGE_ERROR
            return None, returned.get(code, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._failing.discard(partition)
        return log, ErrorCode.NONE


def once_stored(
    ports: CoordinatorPorts, log: PartitionLog, then: Callable[[bool, Now], object], now: Now
) -> None:
    """Call `then(True, now)` when a log is stored as it is now: on all replicas in sync, and on the disk if its topic
    requires that. Do so at once if it is.

    Call `then(False, now)` if the log goes offline before, or another broker leads it. While the ISR has too few
    members the log is not stored, and may be once more of them are back.
    """
    end = unstored_end(log)
    if end is None:
        then(True, now)
        return

    def try_complete(at: Now) -> tuple[bool, Now] | None:
        if not end.is_settled(ports):
            return None
        error = end.error(ports)
        lacks_members = error is not None and error.code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return None if lacks_members else (error is None, at)

    waiting: Delayed[tuple[bool, Now]] = Delayed([log.durability.key], None, try_complete, lambda at: (False, at))
    ports.purgatory.watch(waiting, lambda outcome: then(*outcome), now, limited=False)


def answer_when_stored(
    leadership: Leadership,
    logs: Iterable[PartitionLog],
    answer: Answer,
    deadline_ms: int,
    keys: Iterable[Hashable] = (),
    refusal: Callable[[], ErrorCode] = lambda: ErrorCode.NONE,
) -> Answer | Delayed[Answer]:
    """Return the answer, delayed until these logs are stored as they are now.

    If this fails or takes too long, each NONE in the answer is COORDINATOR_NOT_AVAILABLE. If another broker leads a log
    by then, it is NOT_COORDINATOR. `keys` are touched when `refusal` may return another error to answer with.
    """
    ends = [end for end in map(unstored_end, logs) if end is not None]

    def try_complete(now: Now) -> Answer | None:
        if error := refusal():
            return refused_with(answer, error)
        if any(end.log.offline is not None for end in ends):
            return expire(now)
        if any(end.lost_leadership(leadership) for end in ends):
            return refused_with(answer, ErrorCode.NOT_COORDINATOR)
        if not all(end.is_stored for end in ends):
            return None
        return expire(now) if any(end.error(leadership) for end in ends) else answer

    def expire(now: Now) -> Answer:
        return refused_with(answer, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    if error := refusal():
        return refused_with(answer, error)
    if not ends:
        return answer
    return Delayed([*keys, *(end.log.durability.key for end in ends)], deadline_ms, try_complete, expire)


def refused_with(answer: Answer, error: ErrorCode) -> Answer:
    """Return an answer with the error in place of each NONE."""
    refused: Answer = _with_error(answer, error)
    return refused


def _with_error(part: Any, error: ErrorCode) -> Any:
    """Return an answer, or a part of one, with the error in place of each NONE."""
    if isinstance(part, dict):
        return {
            name: (value or error) if name.endswith("error_code") else _with_error(value, error)
            for name, value in part.items()
        }
    return [_with_error(value, error) for value in part] if isinstance(part, list) else part
