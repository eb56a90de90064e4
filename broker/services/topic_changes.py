"""Changes that requests make to topics: create, add partitions, alter settings, delete.

Each function here plans one change (broker.metadata.changes): all that a request changes is one write of the
metadata, however many topics it names. The write comes first and the logs follow. If the disk fails no topic is
created, altered, deleted or given partitions, and each is answered with the error.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from broker.cluster.assignment import Brokers, Spread, assign_added, assign_replicas, in_order
from broker.log.log_manager import LogManager
from broker.log.new_logs import NewLog
from broker.metadata.change import Change
from broker.metadata.changes import MetadataChanges
from broker.metadata.file_executor import FileExecutor
from broker.metadata.image import Image
from broker.metadata.local_metadata import LocalMetadata
from broker.metadata.staged import Staged
from broker.metadata.topic import NewTopic, Topic, new_partitions
from broker.now import Now
from broker.settings.config import BrokerConfig, TopicConfig
from broker.wire.errors import ApiError, ErrorCode


class TopicServices(Protocol):
    """The services that changes of topics use."""

    config: BrokerConfig
    local: LocalMetadata
    metadata: Image
    changes: MetadataChanges
    file_executor: FileExecutor
    logs: LogManager

    @property
    def is_alone(self) -> bool: ...

    def spread(self, brokers: int, /) -> Spread: ...

    def report(self, line: str, /) -> None: ...

    def config_of(self, topic: Topic) -> TopicConfig: ...


# --- making ----------------------------------------------------------------------------------------------------------


def create_topic(
    services: TopicServices, name: str, partitions: int, properties: Mapping[str, str], now: Now
) -> Topic:
    """Create a topic at once, before requests are served. Raise InvalidSetting, or ApiError with nothing left behind.
    """
    services.metadata.check_new(name)
    (made,), staged = plan_creation(services, [NewTopic(name, partitions, properties)])
    if isinstance(made, ApiError):
        raise made
    services.file_executor.run_now(staged, now)
    return made


def plan_creation(services: TopicServices, new: Sequence[NewTopic]) -> tuple[list[Topic | ApiError], Staged]:
    """Return for each topic, in order, the topic to create or the error, and the change. Raise InvalidSetting.

    The caller has checked the names (`Image.check_new`). A name can collide with topics that exist, but not with topics
    created with it, as in Kafka's controller.
    """
    for new_topic in new:
        services.config.topic_defaults.with_properties(new_topic.properties)
    room, brokers = _Room(services), _brokers(services)
    answers: list[Topic | ApiError] = []
    for new_topic in new:
        try:
            room.take(new_topic.name, new_topic.partitions)
            topic = _new_topic(services, new_topic, brokers)
            if services.is_alone:
                _check_directories(services, topic, 0)
            answers.append(topic)
        except ApiError as error:
            answers.append(error)
    made = [answer for answer in answers if isinstance(answer, Topic)]
    return answers, Staged(_change(made), _new_logs(services, [(topic, 0) for topic in made]))


def is_there_already(error: ApiError) -> bool:
    """Return True if a topic could not be made because it is there: in a cluster another broker may have made it, and
    the image of this one may be late."""
    return error.code == ErrorCode.TOPIC_ALREADY_EXISTS


class Growth(NamedTuple):
    """A topic that grows to `partitions`. `assignments` are the replicas of the new ones, if a client gives them."""

    topic: Topic
    partitions: int
    assignments: Sequence[tuple[int, ...]] | None = None


def plan_growth(services: TopicServices, growths: Sequence[Growth]) -> tuple[list[ApiError | None], Staged]:
    """Raise topics' numbers of partitions. Return for each, in order, the error or None, and the change."""
    room, brokers = _Room(services), _brokers(services)
    answers: list[ApiError | None] = []
    grown: list[tuple[Topic, int]] = []
    for growth in growths:
        topic, before = growth.topic, len(growth.topic.partitions)
        try:
            room.take(topic.name, growth.partitions - before)
            new = _grown(growth, brokers)
            if services.is_alone:
                _check_directories(services, new, before)
            grown.append((new, before))
            answers.append(None)
        except ApiError as error:
            answers.append(error)
    return answers, Staged(_change(topic for topic, _ in grown), _new_logs(services, grown))


def _new_topic(services: TopicServices, new: NewTopic, brokers: Brokers) -> Topic:
    """Return a topic that is still to be committed. Raise ApiError if its replicas cannot be placed."""
    assignments = new.assignments
    if assignments is None:
        spread = services.spread(len(brokers.ids))
        assigned = assign_replicas(brokers, new.partitions, new.replication_factor, spread)
        assignments = list(assigned.values())
    return Topic(new.name, services.local.new_uuid(), new_partitions(assignments), dict(new.properties))


def _grown(growth: Growth, brokers: Brokers) -> Topic:
    """Return the topic with more partitions. It is still to be committed."""
    topic, partitions, assignments = growth
    if assignments is None:
        existing = len(topic.partitions)
        lowest = tuple(sorted(brokers.ids)[:1])
        first_replicas = topic.partitions[0].replicas or lowest  # it may wait for its first leader
        assigned = assign_added(brokers, partitions - existing, first_replicas, existing)
        assignments = list(assigned.values())
    return replace(topic, partitions=topic.partitions + new_partitions(assignments))


def _brokers(services: TopicServices) -> Brokers:
    return in_order({broker.id: broker.rack for broker in services.metadata.brokers.values()})


def _check_directories(services: TopicServices, topic: Topic, first: int) -> None:
    """Raise ApiError if a new partition of the topic, from `first` on, would begin with the records of an earlier one.
    """
    for directory in topic.directories[first:]:
        check_directory(services, directory)


def check_directory(services: TopicServices, directory: str) -> None:
    """Raise ApiError KAFKA_STORAGE_ERROR if a new log of this name would begin with the records of an earlier one."""
    if services.local.is_deleting(directory):
        reason = f"the log of an earlier {directory} could not be put away; the next start tries again"
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
    services.logs.check_new([directory])


def _change(topics: Iterable[Topic]) -> Change:
    return Change({topic.name: topic for topic in topics})


def _new_logs(services: TopicServices, added: Sequence[tuple[Topic, int]]) -> dict[tuple[str, int], NewLog]:
    """Return the logs of topics' partitions, of each topic from a number on.

    In a cluster the controller orders a broker to make them.
    """
    if not services.is_alone:
        return {}
    return {
        (topic.name, partition): new
        for topic, first in added
        for new in [NewLog(services.config_of(topic), topic.id)]
        for partition in range(first, len(topic.partitions))
    }


class _Room:
    """The number of partitions for which `flakelog.max.partitions` leaves room."""

    def __init__(self, services: TopicServices) -> None:
        self._max_partitions = services.config.max_partitions
        if services.is_alone:
            existing = len(services.logs.all()) + services.logs.to_make + services.changes.new_partitions
        else:
            self._max_partitions *= max(len(services.metadata.brokers), 1)
            existing = sum(len(topic.partitions) for topic in services.metadata.topics())
        self._partitions_left = max(self._max_partitions - existing, 0)

    def take(self, name: str, partitions: int) -> None:
        """Take room for this many more partitions. Raise ApiError if there is not enough."""
        if partitions > self._partitions_left:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name} cannot have {partitions} more partitions: flakelog.max.partitions is "
                f"{self._max_partitions}, which leaves room for {self._partitions_left}",
            )
        self._partitions_left -= partitions


# --- altering --------------------------------------------------------------------------------------------------------


def plan_alteration(services: TopicServices, altered: Sequence[tuple[Topic, Mapping[str, str]]]) -> Staged:
    """Return the change that replaces the settings of topics. Raise InvalidSetting."""
    changed = [replace(topic, properties=dict(properties)) for topic, properties in altered]
    for topic in changed:
        services.config_of(topic)
    return Staged(_change(changed))


# --- deleting --------------------------------------------------------------------------------------------------------


def plan_deletion(topics: Iterable[Topic]) -> Staged:
    """Return the change that deletes topics with their logs and committed offsets."""
    return Staged(Change({topic.name: None for topic in topics}))
