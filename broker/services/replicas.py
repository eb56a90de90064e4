"""A broker's part in replication, made of its services: copies, the life of its data, the controller's settings."""

from collections.abc import Callable
from typing import Protocol

from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.membership.life_file import note_start
from broker.membership.member import Member
from broker.membership.peer_calls import PeerCalls
from broker.membership.replica_manager import ReplicaManager
from broker.membership.replica_ports import ReplicaPorts
from broker.metadata.image import Image, Node
from broker.metrics import Metrics
from broker.now import Now
from broker.services.controller_policy import policy_of
from broker.settings.config import BrokerConfig
from broker.waiting.purgatory import Purgatory


class ReplicatedServices(Protocol):
    """The services that copies need."""

    config: BrokerConfig
    node: Node
    metadata: Image
    hosted: Image
    logs: LogManager
    purgatory: Purgatory
    metrics: Metrics
    replication: ReplicaManager | None

    def touch(self, log: PartitionLog, now: Now, *, upto: int | None = None) -> None: ...

    def report(self, line: str, /) -> None: ...


def begin_life(services: ReplicatedServices, member: Member) -> None:
    """At a start, note a broker's life in its directory, and read the stored high watermarks. Raise StorageError."""
    if services.replication is None:
        note_start(services.logs, member.membership.boot_id, services.report)
    else:
        services.replication.load()


def replicate(services: ReplicatedServices, member: Member) -> ReplicaManager:
    """Have a broker of a cluster take part in replication. Return the manager of its copies."""
    manager = replica_manager(
        services,
        member.peers,
        lambda: member.broker_epoch,
        boot_id=member.membership.boot_id,
        log_went_offline=member.log_went_offline,
    )
    member.replicate(manager, lambda: manager.life.life, policy_of(services, member.settings_of))
    return manager


def replica_manager(
    services: ReplicatedServices,
    peer_calls: PeerCalls,
    broker_epoch: Callable[[], int],
    *,
    boot_id: str = "",
    log_went_offline: Callable[[Now], None] = lambda now: None,
) -> ReplicaManager:
    """Return a manager of copies.

    `broker_epoch` returns the epoch of this life of the broker, and `log_went_offline` tells the controller. `boot_id`
    is that of the kernel.
    """
    ports = ReplicaPorts(
        broker_id=services.node.id,
        boot_id=boot_id,
        broker_epoch=broker_epoch,
        image=services.metadata,
        hosted=services.hosted,
        logs=services.logs,
        purgatory=services.purgatory,
        peer_calls=peer_calls,
        metrics=services.metrics,
        config=lambda: services.config,
        log_went_offline=log_went_offline,
        touch=services.touch,
        report=services.report,
    )
    return ReplicaManager(ports)
