"""Changes that requests make to topics: create, add partitions, alter settings, delete.

All changes of one request are one commit of the metadata, however many topics it names, because each commit waits for
the disk and delays all connections. The commit comes first and the logs follow; only a deletion removes the logs first.
If the disk fails no topic is created, altered or given partitions, and each is answered with the error.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from broker.log.log_manager import LogManager
from broker.log.new_logs import NewLog
from broker.log.partition_log import PartitionLog
from broker.log.storage.port import StorageError
from broker.now import Now
from broker.services.metadata import Metadata, NewTopic, Topic
from broker.services.metrics import Metrics
from broker.settings.config import BrokerConfig, TopicConfig
from broker.wire.errors import ApiError, ErrorCode


class TopicServices(Protocol):
    """The services that changes of topics use."""

    config: BrokerConfig
    metadata: Metadata
    logs: LogManager
    metrics: Metrics

    def report(self, line: str, /) -> None: ...

    def config_of(self, topic: Topic) -> TopicConfig: ...

    def touch(self, log: PartitionLog, now: Now) -> None: ...

    def forget_topics(self, names: Collection[str], now: Now) -> None: ...


# --- making ----------------------------------------------------------------------------------------------------------


def create_topic(services: TopicServices, name: str, partitions: int, properties: Mapping[str, str]) -> Topic:
    """Commit one topic and make its logs. Raise InvalidSetting, or ApiError with nothing left behind."""
    (made,) = create_topics(services, [NewTopic(name, partitions, properties)])
    if isinstance(made, ApiError):
        raise made
    return made


def create_topics(services: TopicServices, new: Sequence[NewTopic]) -> list[Topic | ApiError]:
    """Create topics. Return for each, in order, the topic or the error. Raise InvalidSetting, with none created."""
    for each in new:
        services.config.topic_defaults.with_properties(each.properties)
    room = _Room(services)
    refused = [room.refusal(each.name, each.partitions) for each in new]
    fitting = [each for each, refusal in zip(new, refused, strict=True) if refusal is None]
    made = iter(_create(services, fitting))
    return [next(made) if refusal is None else refusal for refusal in refused]


def _create(services: TopicServices, new: Sequence[NewTopic]) -> Sequence[Topic | ApiError]:
    try:
        answers = services.metadata.create_topics(new)
    except StorageError as error:
        return [_failed(error)] * len(new)
    topics = [each for each in answers if isinstance(each, Topic)]
    try:
        _make_logs(services, [(topic, 0) for topic in topics])
    except ApiError as error:
        _take_back(services, [(topic, 0) for topic in topics], services.metadata.delete_topics)
        return [error if isinstance(each, Topic) else each for each in answers]
    return answers


def grow_topics(services: TopicServices, asked: Sequence[tuple[Topic, int]]) -> list[ApiError | None]:
    """Raise topics' numbers of partitions to these. Return for each, in order, the error or None.

    The metadata is committed first, as for a new topic, because a log without a topic would keep its records for a
    later partition.
    """
    room = _Room(services)
    refused = [room.refusal(topic.name, partitions - len(topic.partitions)) for topic, partitions in asked]
    fitting = [each for each, refusal in zip(asked, refused, strict=True) if refusal is None]
    failure = _grow(services, fitting)
    return [failure if refusal is None else refusal for refusal in refused]


def _grow(services: TopicServices, asked: Sequence[tuple[Topic, int]]) -> ApiError | None:
    try:
        grown = services.metadata.resize_topics(asked)
    except StorageError as error:
        return _failed(error)
    added = [(new, len(old.partitions)) for (old, _), new in zip(asked, grown, strict=True)]
    try:
        _make_logs(services, added)
    except ApiError as error:
        before = {topic.name: first for topic, first in added}
        _take_back(
            services,
            added,
            lambda topics: services.metadata.resize_topics([(each, before[each.name]) for each in topics]),
        )
        return error
    return None


def _make_logs(services: TopicServices, added: Sequence[tuple[Topic, int]]) -> None:
    """Make the logs of topics' partitions, of each topic from a number on. Raise ApiError if one could not be made."""
    services.logs.make(
        {
            (topic.name, partition): new
            for topic, first in added
            for new in [NewLog(services.config_of(topic), topic.id)]
            for partition in range(first, len(topic.partitions))
        }
    )


def _failed(error: StorageError) -> ApiError:
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))


def _take_back(
    services: TopicServices, added: Sequence[tuple[Topic, int]], commit: Callable[[Sequence[Topic]], object]
) -> None:
    """Remove topics' partitions, of each topic from a number on, because not all their logs could be made. A full disk
    may have caused that, so the removal may fail too, and is then reported."""
    failed = services.logs.delete({topic.name: range(first, len(topic.partitions)) for topic, first in added})
    topics = [topic for topic, _ in added if topic.name not in failed]
    try:
        commit(topics)
    except StorageError as error:
        failed.update((topic.name, error) for topic in topics)
    for name, reason in failed.items():
        services.report(f"topic {name} is half made and could not be taken back: {reason}; delete it")


class _Room:
    """The number of partitions for which `flakelog.max.partitions` leaves room."""

    def __init__(self, services: TopicServices) -> None:
        self._max_partitions = services.config.max_partitions
        self._left = max(self._max_partitions - len(services.logs.all()) - services.logs.to_make, 0)

    def refusal(self, name: str, partitions: int) -> ApiError | None:
        """Take room for this many more partitions and return None, or return the error if there is not enough."""
        if partitions <= self._left:
            self._left -= partitions
            return None
        return ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {name} cannot have {partitions} more partitions: flakelog.max.partitions is "
            f"{self._max_partitions}, which leaves room for {self._left}",
        )


# --- altering --------------------------------------------------------------------------------------------------------


def alter_topics(services: TopicServices, altered: Sequence[tuple[Topic, Mapping[str, str]]]) -> None:
    """Replace the settings of topics. Raise InvalidSetting or StorageError, with nothing changed."""
    defaults = services.config.topic_defaults
    configs = {topic.name: defaults.with_properties(properties) for topic, properties in altered}
    services.metadata.alter_topics(altered)
    services.logs.configure(configs)


# --- deleting --------------------------------------------------------------------------------------------------------


def delete_topics(services: TopicServices, topics: Sequence[Topic], now: Now) -> list[StorageError | None]:
    """Delete topics with their logs and committed offsets. Return for each None, or why it stays; a client may retry.

    The logs go first. A crash in between leaves empty topics, whose deletion was requested anyway. In the other order a
    new topic of the same name would begin with the old records.
    """
    names = {topic.name for topic in topics}
    logs = [log for log in services.logs.all() if log.topic in names]
    failed = services.logs.delete({topic.name: range(len(topic.partitions)) for topic in topics})
    gone = [topic for topic in topics if topic.name not in failed]
    try:
        services.metadata.delete_topics(gone)
    except StorageError as error:
        failed.update((topic.name, error) for topic in gone)
        gone = []
    services.metrics.deleted({topic.name for topic in gone}, logs)
    for log in logs:
        services.touch(log, now)
    services.forget_topics({topic.name for topic in gone}, now)
    return [failed.get(topic.name) for topic in topics]
