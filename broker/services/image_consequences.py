"""The consequences of a change of the image for this broker's settings, quotas, logs, offsets and metrics.

They are the same whoever decided the change: the controller of a server alone, or that of a cluster.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from broker.log.io_jobs import PutAway
from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.metadata.image import ImageDelta
from broker.metadata.topic import Topic
from broker.metrics import Metrics
from broker.now import Now
from broker.settings.config import TopicConfig


class ChangedServices(Protocol):
    """The services that a change of the image has consequences for."""

    logs: LogManager
    metrics: Metrics

    def configure(self) -> None: ...

    def topic_configs(self) -> Mapping[str, TopicConfig]: ...

    def config_of(self, topic: Topic) -> TopicConfig: ...

    def use_quotas(self) -> None: ...

    def touch(self, log: PartitionLog, now: Now) -> None: ...

    def lead_coordinators(self, names: Collection[str], now: Now) -> None: ...

    def forget_topics(self, names: Collection[str], now: Now) -> None: ...


def follow(services: ChangedServices, delta: ImageDelta, now: Now) -> PutAway | None:
    """Carry the consequences out. Return the job that puts the logs of deleted topics away, if there are any."""
    if delta.alters_brokers:
        services.configure()
        services.logs.configure(services.topic_configs())
    else:
        altered = [after for before, after in delta.altered if before.properties != after.properties]
        if altered:
            services.logs.configure({topic.name: services.config_of(topic) for topic in altered})
    if delta.alters_quotas:
        services.use_quotas()
    put_away = _delete(services, delta.deleted, now) if delta.deleted else None
    services.lead_coordinators([topic.name for topic in (*delta.made, *(after for _, after in delta.altered))], now)
    return put_away


def _delete(services: ChangedServices, topics: Sequence[Topic], now: Now) -> PutAway:
    """Delete topics' logs and committed offsets, and answer the requests that wait for the logs.

    A crash leaves the directories of the logs, which the metadata lists as deleted: the next start puts them away.
    Until then no topic of that name is created, because it would begin with the old records.
    """
    names = {topic.name for topic in topics}
    logs = [log for log in services.logs.all() if log.topic in names]
    put_away = services.logs.delete({topic.name: range(len(topic.partitions)) for topic in topics})
    services.metrics.deleted(names, logs)
    services.forget_topics(names, now)  # coordinators answer their waiting requests first
    for log in logs:
        services.touch(log, now)
    return put_away
