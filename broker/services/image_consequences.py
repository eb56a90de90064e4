"""The consequences of a change of an image for this broker's settings, quotas, logs, offsets and metrics.

    follow_hosted     what this broker's directory hosts has changed: its logs, and the coordinators it leads
    follow_metadata   what the controller decided has changed: settings, quotas, offsets of deleted topics

On a server alone both images are one, and `follow_alone` does both.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from broker.log.io_jobs import PutAway
from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.metadata.change import Change
from broker.metadata.image import Image, ImageDelta, Node
from broker.metadata.topic import PartitionState, Topic
from broker.metrics import Metrics
from broker.now import Now
from broker.services.coordinators import Coordinators
from broker.settings.config import TopicConfig

if TYPE_CHECKING:  # a server alone has no other copies
    from broker.membership.replica_manager import ReplicaManager


class ChangedServices(Protocol):
    """The services that a change of an image has consequences for."""

    hosted: Image
    logs: LogManager
    metrics: Metrics
    node: Node
    coordinators: Coordinators
    replication: "ReplicaManager | None"

    def configure(self) -> None: ...

    def topic_configs(self) -> Mapping[str, TopicConfig]: ...

    def config_of(self, topic: Topic) -> TopicConfig: ...

    def use_quotas(self) -> None: ...

    def use_acls(self) -> None: ...

    def touch(self, log: PartitionLog, now: Now) -> None: ...


def follow_alone(services: ChangedServices, delta: ImageDelta, now: Now) -> PutAway | None:
    """Carry out all consequences on a server alone. Return the job that puts deleted logs away, if there are any."""
    _use_settings(services, delta, now)
    put_away = follow_hosted(services, delta, now)
    services.coordinators.forget_topics({topic.name for topic in delta.deleted}, now)
    return put_away


def follow_metadata(services: ChangedServices, delta: ImageDelta, now: Now) -> None:
    """Carry out what follows from decisions of a cluster's controller, and from settings that a broker has changed."""
    _use_settings(services, delta, now)
    services.coordinators.forget_topics({topic.name for topic in delta.deleted}, now)
    altered = {}
    for topic in (*delta.made, *(after for before, after in delta.altered if before.properties != after.properties)):
        own = services.hosted.topic(topic.id)
        if own is not None and own.properties != topic.properties:
            altered[own.name] = own.with_properties(topic.properties)
    if altered:
        follow_hosted(services, services.hosted.apply([Change(altered)]), now)


def _use_settings(services: ChangedServices, delta: ImageDelta, now: Now) -> None:
    if delta.alters_brokers:
        services.configure()
        services.logs.configure(services.topic_configs())
        if services.replication is not None:
            services.replication.configured(now)
    if delta.alters_acls:
        services.use_acls()
    if delta.alters_quotas:
        services.use_quotas()


def follow_hosted(services: ChangedServices, delta: ImageDelta, now: Now) -> PutAway | None:
    """Carry out what follows for the logs. Return the job that puts deleted logs away, if there are any."""
    altered = [after for before, after in delta.altered if before.properties != after.properties]
    if altered and not delta.alters_brokers:
        services.logs.configure({topic.name: services.config_of(topic) for topic in altered})
        if services.replication is not None:
            services.replication.configured(now)
    lost = delta.copies_lost_by(services.node.id)
    put_away = _delete(services, lost, now) if lost else None
    led = [*delta.made, *(after for before, after in delta.altered if before.partitions is not after.partitions)]
    for topic in led:
        _begin_epochs(services, topic, now)
    services.coordinators.lead([topic.name for topic in led], now)
    return put_away


def follow_stored(
    services: ChangedServices, settings_of: Callable[[str], Mapping[str, str]], delta: ImageDelta, now: Now
) -> PutAway | None:
    """Carry out what follows once the file has what is hosted. Settings may have been altered while it was written."""
    put_away = follow_hosted(services, delta, now)
    late: dict[str, Topic | None] = {
        topic.name: topic.with_properties(dict(settings_of(topic.name)))
        for topic in (*delta.made, *(after for _, after in delta.altered))
        if topic.properties != settings_of(topic.name)
    }
    if late:
        host(services, late, now)
    return put_away


def host(services: ChangedServices, topics: Mapping[str, Topic | None], now: Now) -> None:
    """Change the leaders of hosted partitions. The file stays as it is, because no log is made or deleted."""
    put_away = follow_hosted(services, services.hosted.apply([Change(topics)]), now)
    assert put_away is None, "a log that is deleted must be noted in the file first"


def _begin_epochs(services: ChangedServices, topic: Topic, now: Now) -> None:
    """Begin the leader epochs in which this broker leads, and answer the requests that wait for other partitions."""
    for partition, state in enumerate(topic.partitions):
        log = services.logs.find(topic.name, partition)
        if log is not None:
            begin_epoch(services, log, state, now)
    services.logs.pending.changed()  # the next checkpoint stores the epochs


def begin_epoch(services: ChangedServices, log: PartitionLog, state: PartitionState, now: Now) -> None:
    """Begin a leader epoch in a log, or answer the requests that wait for it because another broker leads."""
    if state.leader == services.node.id:
        log.start_leader_epoch(state.leader_epoch)
    if services.replication is not None:
        services.replication.decided(log, state, now)
    if state.leader != services.node.id:
        services.touch(log, now)


def _delete(services: ChangedServices, lost: Mapping[str, Collection[int]], now: Now) -> PutAway:
    """Delete logs, given as partitions by topic, and answer the requests that wait for them.

    A crash leaves the directories of the logs, which the file lists as deleted: the next start puts them away. Until
    then no topic of that name is created, because it would begin with the old records.
    """
    logs = [log for log in services.logs.all() if log.partition in lost.get(log.topic, ())]
    put_away = services.logs.delete(lost)
    if services.replication is not None:
        services.replication.deleted(lost)
    services.metrics.deleted({name for name in lost if services.hosted.topic(name) is None}, logs)
    services.coordinators.resign(lost, now)  # coordinators answer their waiting requests first
    for log in logs:
        services.touch(log, now)
    return put_away
