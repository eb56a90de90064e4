"""The leader and the replicas of a partition, as the APIs that describe topics answer them."""

from collections.abc import Sequence
from typing import Any

from broker.metadata.topic import NO_LEADER, Topic
from broker.services.context import BrokerServices


def partition_nodes(services: BrokerServices, topic: Topic, partition: int) -> dict[str, Any]:
    """Return a partition's leader, epoch and replicas.

    The controller tells which replicas are offline; those of brokers that are not live are too.

    A partition that is offline here has no leader and no replica in sync, and its replica is offline. Apache Kafka
    answers so when the log directory of the only replica has failed (KIP-112). The leader epoch stays, because the next
    leader may be this one, without a new epoch. A leader that has died is no leader either, as for Apache Kafka: the
    answer does not name its address, and the controller elects another one a moment later.
    """
    state = topic.partitions[partition]
    leader, isr, replicas = state.leader, state.isr, state.replicas
    offline: Sequence[int] = state.offline
    live = services.metadata.live_ids
    if not live.issuperset(replicas):
        offline = [member for member in replicas if member in state.offline or member not in live]
        leader = leader if leader in live else NO_LEADER
    if services.logs.is_offline(topic.name, partition):
        own = services.node.id
        leader = NO_LEADER if leader == own else leader
        isr = tuple(broker_id for broker_id in isr if broker_id != own)
        offline = offline if own in offline else [*offline, own]
    return {
        "partition_index": partition,
        "leader_id": leader,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": replicas,
        "isr_nodes": isr,
        "offline_replicas": offline,
    }
