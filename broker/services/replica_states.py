"""The partitions that an operator should know of, by name, as one broker sees them: with several copies, or offline.

A leader knows the ISR of what it leads. A follower knows what it has stopped to copy. Each broker knows which of the
partitions that it has a copy of are without a leader, so all of these name such a partition.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from broker.metadata.coordinator_topics import one_copy_coordinators, one_copy_warning
from broker.metadata.image import Image
from broker.metadata.topic import NO_LEADER
from broker.services.context import BrokerServices

NAMED_MAX = 1_000
"""Partitions that are named of each kind. A broker may have more."""


@dataclass(frozen=True)
class ReplicaStates:
    """See the module. Only the first four are failures."""

    under_min_isr: tuple[str, ...]
    """Led here, with fewer in sync than min.insync.replicas: acks=all is refused."""
    offline: tuple[str, ...]
    """With a copy here, and without a leader."""
    failed: Mapping[str, str]
    """Followed here, and copied no more until the next order of the controller, with the reasons."""
    stalled: Mapping[str, str]
    """Followed here, and not copied while the disk does not take their records, with the reasons."""
    under_replicated: tuple[str, ...]
    """Led here, with a copy that is not in sync."""
    one_copy: tuple[str, ...]
    """Topics of coordinators with a partition of one copy, although several brokers are live."""

    @property
    def are_well(self) -> bool:
        return not (self.under_min_isr or self.offline or self.failed or self.stalled)


def replica_states(services: BrokerServices) -> ReplicaStates | None:
    """Return the states; None on a server alone, and without `flakelog.replication.enable`."""
    replication = services.replication
    if replication is None:
        return None
    led = replication.led.all()
    return ReplicaStates(
        _some(partition.log.name for partition in led if not partition.has_min_isr),
        _some(_without_leader(services.metadata, services.node.id)),
        dict(islice(replication.followed.failed.items(), NAMED_MAX)),
        dict(islice(replication.followed.stalled.items(), NAMED_MAX)),
        _some(partition.log.name for partition in led if partition.is_under_replicated),
        one_copy_coordinators(services.metadata),
    )


def offline_partitions(services: BrokerServices) -> Mapping[str, str]:
    """Return why partitions are not served here, by their names: their logs failed, or have records of another topic.
    """
    member = services.member
    return services.logs.offline if member is None else services.logs.offline | member.unknown_topics.offline


def _some(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(islice(names, NAMED_MAX))


def _without_leader(image: Image, broker_id: int) -> Iterable[str]:
    for topic in image.topics():
        for number, state in enumerate(topic.partitions):
            if state.leader == NO_LEADER and broker_id in state.replicas and len(state.replicas) > 1:
                yield f"{topic.name}-{number}"


def one_copy_warnings(services: BrokerServices) -> list[str]:
    """Return a line for each topic of a coordinator that has one copy; none without `flakelog.replication.enable`."""
    topics = one_copy_coordinators(services.metadata) if services.replicates else ()
    return [one_copy_warning(topic) for topic in topics]
