"""An internal topic in which a coordinator keeps its records: by its key each group, or transactional id, has one of
the partitions, and the node that leads that partition coordinates it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from broker.group.offset_records import partition_of
from broker.handlers.call import Services
from broker.handlers.topic_changes import create_topic
from broker.log.keyed_records import KeyedRecord, append_records
from broker.log.partition_log import PartitionLog
from broker.metadata import Node, Topic
from broker.now import Now
from broker.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode
from idgen.config import InvalidSetting
from idgen.errors import IdError

ACKS_ALL = -1  # as which Kafka's coordinators write
Answer: TypeAlias = dict[str, Any]


class CoordinatorTopic:
    """`keeps` says what is kept in the topic, for the operator: "groups". It is made when it is first asked for."""

    def __init__(
        self, services: Services, name: str, partitions: int, properties: Mapping[str, str], keeps: str
    ) -> None:
        self.name = name
        self._services = services
        self.partitions = partitions
        self.properties = properties
        """As it is made where nobody says otherwise."""
        self._keeps = keeps
        self._failing: set[int] = set()
        """Partitions whose last append failed: the operator is told once, not for every request."""

    @property
    def topic(self) -> Topic | None:
        return self._services.metadata.topic(self.name)

    def partition_of(self, key: str) -> int:
        topic = self.topic
        return partition_of(key, self.partitions if topic is None else len(topic.partitions))

    def check(self, key: str) -> ErrorCode:
        """NONE when this node coordinates what has this key, and can write down what happens to it."""
        topic = self.topic
        if topic is None:
            return ErrorCode.NOT_COORDINATOR  # nobody asked FindCoordinator yet, which makes the topic
        partition = partition_of(key, len(topic.partitions))
        if not self._services.metadata.is_leader(topic, partition):
            return ErrorCode.NOT_COORDINATOR
        try:
            log = self._services.logs.get(topic.name, partition)
        except ApiError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE if log.offline is None else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def find(self, key: str) -> Node:
        """The node that coordinates it; ApiError COORDINATOR_NOT_AVAILABLE. Makes the topic the first time."""
        metadata = self._services.metadata
        topic = self.topic or self.make()
        partition = partition_of(key, len(topic.partitions))
        leader = topic.partitions[partition].leader
        node = next((node for node in metadata.nodes if node.id == leader), None)
        if node is None or (leader == metadata.node.id and self.check(key)):
            name = f"{self.name}-{partition}"
            reason = self._services.logs.offline.get(name, "its leader is not there")
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{key} is kept in {name}: {reason}")
        return node

    def make(self) -> Topic:
        """Make it; ApiError COORDINATOR_NOT_AVAILABLE."""
        try:
            return create_topic(self._services, self.name, self.partitions, self.properties)
        except (ApiError, InvalidSetting) as error:
            self._services.report(f"no {self._keeps} can be coordinated, {self.name} could not be made: {error}")
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error

    # --- the disk ------------------------------------------------------------------------------------------------

    def when_on_disk(self, keys: Iterable[str], answer: Answer, now: Now) -> Answer | Delayed[Answer]:
        """An answer, when all that is in these keys' partitions now is on the disk, where the topic asks for that; what
        could not be brought there in offsets.commit.timeout.ms is COORDINATOR_NOT_AVAILABLE, which clients try again.
        """
        ends = {log: log.log_end_offset for log in self._waiting(keys)}
        if not ends:
            return answer
        deadline_ms = now.ms + self._services.group_config.offsets_commit_timeout_ms

        def try_complete(now: Now) -> Answer | None:
            if any(log.offline is not None for log in ends):
                return expire(now)
            return answer if all(log.durable_end_offset >= end for log, end in ends.items()) else None

        def expire(now: Now) -> Answer:
            refused: Answer = _refused(answer)
            return refused

        return Delayed([log.on_disk for log in ends], deadline_ms, try_complete, expire)

    def once_on_disk(self, key: str, then: Callable[[Now], None], now: Now) -> None:
        """Call `then` as soon as what stands in the key's partition is on the disk, at once where the topic does not
        ask for that; never when the disk fails."""
        log = next(self._waiting([key]), None)
        if log is None:
            return then(now)
        end = log.log_end_offset

        def done(at: Now) -> None:
            if log.offline is None:
                then(at)

        settled: Delayed[Now] = Delayed(
            [log.on_disk],
            None,
            lambda at: at if log.durable_end_offset >= end or log.offline is not None else None,
            lambda at: at,
        )
        self._services.purgatory.watch(settled, done, now, limited=False)

    def _waiting(self, keys: Iterable[str]) -> Iterator[PartitionLog]:
        """The logs of these keys that are to be synced before anything is answered, and are not."""
        topic = self.topic
        for partition in {self.partition_of(key) for key in keys} if topic is not None else ():
            try:
                log = self._services.log_of(self.name, partition)
            except ApiError:
                continue  # whoever wrote there was told
            if ACKS_ALL in log.waiting_acks and log.durable_end_offset < log.log_end_offset:
                yield log

    def append(
        self,
        partition: int,
        records: Iterable[KeyedRecord],
        now: Now,
        told: Mapping[ErrorCode, ErrorCode],
        producer: tuple[int, int] | None = None,
    ) -> tuple[PartitionLog | None, ErrorCode]:
        """Append records, maybe in a producer's transaction; the log, for what follows from it, or what clients are
        told when it failed: what `told` has for the cause, and COORDINATOR_NOT_AVAILABLE for all that may pass."""
        try:
            log = self._services.log_of(self.name, partition)
            append_records(log, records, self._services.stamp, now, producer)
        except (ApiError, IdError) as error:
            if partition not in self._failing:
                self._failing.add(partition)
                self._services.report(f"{self._keeps} kept in {self.name}-{partition} are refused: {error}")
            code = error.code if isinstance(error, ApiError) else ErrorCode.KAFKA_STORAGE_ERROR
            return None, told.get(code, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._failing.discard(partition)
        return log, ErrorCode.NONE


def _refused(part: Any) -> Any:
    """An answer, or a part of one, that says COORDINATOR_NOT_AVAILABLE wherever it said NONE."""
    if isinstance(part, dict):
        return {
            name: _refused_code(each) if name.endswith("error_code") else _refused(each)
            for name, each in part.items()
        }
    return [_refused(each) for each in part] if isinstance(part, list) else part


def _refused_code(code: ErrorCode) -> ErrorCode:
    return code or ErrorCode.COORDINATOR_NOT_AVAILABLE
