"""The leader and the replicas of a partition, as the APIs that describe topics answer them."""

from typing import Any

from broker.metadata.metadata import Topic
from broker.services.context import BrokerServices

NO_LEADER = -1


def partition_nodes(services: BrokerServices, topic: Topic, partition: int) -> dict[str, Any]:
    """Return a partition's leader, epoch and replicas.

    A partition that is offline here has no leader and no replica in sync, and its replica is offline. Apache Kafka
    answers so when the log directory of the only replica has failed (KIP-112). The leader epoch stays, because the next
    leader may be this one, without a new epoch.
    """
    leader, leader_epoch, replicas = topic.partitions[partition]
    is_offline = services.logs.is_offline(topic.name, partition)
    return {
        "partition_index": partition,
        "leader_id": NO_LEADER if is_offline else leader,
        "leader_epoch": leader_epoch,
        "replica_nodes": replicas,
        "isr_nodes": () if is_offline else replicas,
        "offline_replicas": replicas if is_offline else (),
    }
