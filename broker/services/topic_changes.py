"""Changes that requests make to topics: create, add partitions, alter settings, delete.

Each function here plans one change (broker.metadata.changes): all that a request changes is one write of the
metadata, however many topics it names. The write comes first and the logs follow. If the disk fails no topic is
created, altered, deleted or given partitions, and each is answered with the error.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from broker.cluster.assignment import Spread, assign_added, assign_replicas
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

    def spread(self, brokers: int, /) -> Spread: ...

    def report(self, line: str, /) -> None: ...

    def config_of(self, topic: Topic) -> TopicConfig: ...


# --- making ----------------------------------------------------------------------------------------------------------


def create_topic(
    services: TopicServices, name: str, partitions: int, properties: Mapping[str, str], now: Now
) -> Topic:
    """Create a topic at once, before requests are served. Raise InvalidSetting, or ApiError with nothing left behind.
    """
    (made,), staged = plan_creation(services, [NewTopic(name, partitions, properties)])
    if isinstance(made, ApiError):
        raise made
    services.file_executor.run_now(staged, now)
    return made


def plan_creation(services: TopicServices, new: Sequence[NewTopic]) -> tuple[list[Topic | ApiError], Staged]:
    """Return for each topic, in order, the topic to create or the error, and the change. Raise InvalidSetting."""
    for new_topic in new:
        services.config.topic_defaults.with_properties(new_topic.properties)
    room = _Room(services)
    answers: list[Topic | ApiError] = []
    for new_topic in new:
        try:
            room.take(new_topic.name, new_topic.partitions)
            topic = _new_topic(services, new_topic)
            _check_directories(services, topic, 0)
            answers.append(topic)
        except ApiError as error:
            answers.append(error)
    made = [answer for answer in answers if isinstance(answer, Topic)]
    return answers, Staged(_change(made), _new_logs(services, [(topic, 0) for topic in made]))


def plan_growth(
    services: TopicServices, partitions_wanted: Sequence[tuple[Topic, int]]
) -> tuple[list[ApiError | None], Staged]:
    """Raise topics' numbers of partitions to these. Return for each, in order, the error or None, and the change."""
    room = _Room(services)
    answers: list[ApiError | None] = []
    grown: list[tuple[Topic, int]] = []
    for topic, partitions in partitions_wanted:
        before = len(topic.partitions)
        try:
            room.take(topic.name, partitions - before)
            new = _grown(services, topic, partitions)
            _check_directories(services, new, before)
            grown.append((new, before))
            answers.append(None)
        except ApiError as error:
            answers.append(error)
    return answers, Staged(_change(topic for topic, _ in grown), _new_logs(services, grown))


def _new_topic(services: TopicServices, new: NewTopic) -> Topic:
    """Return a topic that is still to be committed.

    Raise ApiError TOPIC_ALREADY_EXISTS or INVALID_TOPIC_EXCEPTION. A name can collide with topics that exist, but not
    with topics created with it, as in Kafka's controller.
    """
    services.metadata.check_new(new.name)
    assignments = new.assignments
    if assignments is None:
        racks = _racks(services)
        assigned = assign_replicas(racks, new.partitions, 1, services.spread(len(racks)))
        assignments = list(assigned.values())
    return Topic(new.name, services.local.new_uuid(), new_partitions(assignments), dict(new.properties))


def _grown(services: TopicServices, topic: Topic, partitions: int) -> Topic:
    """Return the topic with more partitions. It is still to be committed."""
    existing, first_replicas = len(topic.partitions), topic.partitions[0].replicas
    assigned = assign_added(_racks(services), partitions - existing, first_replicas, existing)
    return replace(topic, partitions=topic.partitions + new_partitions(assigned.values()))


def _racks(services: TopicServices) -> dict[int, str | None]:
    return {broker.id: broker.rack for broker in services.metadata.brokers.values()}


def _check_directories(services: TopicServices, topic: Topic, first: int) -> None:
    """Raise ApiError if a new partition of the topic, from `first` on, would begin with the records of an earlier one.
    """
    directories = topic.directories[first:]
    for directory in directories:
        if services.local.is_deleting(directory):
            reason = f"the log of an earlier {directory} could not be put away; the next start tries again"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
    services.logs.check_new(directories)


def _change(topics: Iterable[Topic]) -> Change:
    return Change({topic.name: topic for topic in topics})


def _new_logs(services: TopicServices, added: Sequence[tuple[Topic, int]]) -> dict[tuple[str, int], NewLog]:
    """Return the logs of topics' partitions, of each topic from a number on."""
    return {
        (topic.name, partition): new
        for topic, first in added
        for new in [NewLog(services.config_of(topic), topic.id)]
        for partition in range(first, len(topic.partitions))
    }


class _Room:
    """The number of partitions for which `flakelog.max.partitions` leaves room."""

    def __init__(self, services: TopicServices) -> None:
        planned = services.changes.new_partitions
        self._max_partitions = services.config.max_partitions
        self._partitions_left = max(
            self._max_partitions - len(services.logs.all()) - services.logs.to_make - planned, 0
        )

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
