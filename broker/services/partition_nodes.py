"""The leader and the replicas of a partition, as the APIs that describe topics answer them."""

from typing import Any

from broker.services.context import BrokerServices
from broker.services.metadata import Topic

NO_LEADER = -1


def partition_nodes(services: BrokerServices, topic: Topic, partition: int) -> dict[str, Any]:
    """Return a partition's leader, epoch and replicas.

    A partition that is offline here has no leader and no replica in sync, and its replica is offline. Apache Kafka
    answers so when the log directory of the only replica has failed (KIP-112). The leader epoch stays, because the next
    leader may be this one, without a new epoch.
    """
    state = topic.partitions[partition]
    found = {"partition_index": partition, "leader_epoch": state.leader_epoch, "replica_nodes": state.replicas}
    if services.logs.is_offline(topic.name, partition):
        return found | {"leader_id": NO_LEADER, "isr_nodes": (), "offline_replicas": state.replicas}
    return found | {"leader_id": state.leader, "isr_nodes": state.replicas, "offline_replicas": ()}
