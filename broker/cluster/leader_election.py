"""Who leads a partition: one function for each occasion (Kafka's Election).

Each returns the next LeaderAndIsr and the brokers that must hear of it, or None if no replica can lead. The replica
that stands first in the assignment is preferred. Replicas are live if their broker is registered and not shutting down.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import RECOVERING, LeaderAndIsr, TopicPartition


class Elected(NamedTuple):
    leadership: LeaderAndIsr
    recipients: tuple[int, ...]


Strategy: TypeAlias = Callable[[ControllerContext, TopicPartition, LeaderAndIsr], Elected | None]


def elect_new(context: ControllerContext, partition: TopicPartition) -> LeaderAndIsr | None:
    """Return the first decision for a partition: its first live replica leads, and the live ones are the ISR."""
    live = context.live_replicas(partition)
    if not live:
        return None
    return LeaderAndIsr(live[0], live, controller_epoch=context.epoch)


def elect_offline(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Elected | None:
    """Elect the first live replica of the ISR, for a partition whose leader is not live."""
    live = context.live_replicas(partition)
    leader = next((replica for replica in live if replica in current.isr), None)
    if leader is None:
        return None
    return Elected(current.succeeded_by(leader, tuple(r for r in current.isr if context.is_live(r))), live)


def elect_unclean(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Elected | None:
    """Elect as `elect_offline`, or the first live replica, which may lack records that were acknowledged."""
    elected = elect_offline(context, partition, current)
    live = context.live_replicas(partition)
    if elected is not None or not live:
        return elected
    return Elected(current.succeeded_by(live[0], live[:1], RECOVERING), live)


def elect_preferred(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Elected | None:
    """Elect the first replica of the assignment, if it is live and in the ISR."""
    replicas = context.replicas(partition)
    if not replicas or not context.is_live(replicas[0]) or replicas[0] not in current.isr:
        return None
    return Elected(current.succeeded_by(replicas[0], current.isr), replicas)


def elect_for_shutdown(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Elected | None:
    """Elect the first live replica of the ISR in place of a broker that shuts down, which leaves the ISR."""
    live = context.live_replicas(partition)
    leader = next((replica for replica in live if replica in current.isr), None)
    if leader is None:
        return None
    isr = tuple(replica for replica in current.isr if replica not in context.shutting_down)
    recipients = tuple(replica for replica in context.replicas(partition) if replica in context.broker_epochs)
    return Elected(current.succeeded_by(leader, isr), recipients)
