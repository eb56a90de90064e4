"""Which partitions the controller gives back to their preferred leaders by itself (Kafka's auto.leader.rebalance).

A broker is the preferred leader of the partitions whose assignment it begins. If other brokers lead more of these than
leader.imbalance.per.broker.percentage allows, all that it may lead are elected.
"""

from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import TopicPartition


def led_by_others(context: ControllerContext) -> int:
    """Return how many partitions another broker leads than the first of their assignment, or none."""
    return sum(
        bool(replicas := context.replicas(partition)) and context.leadership[partition].leader != replicas[0]
        for partition in context.partitions_with_leadership()
    )


def imbalanced_partitions(context: ControllerContext, percentage: int) -> list[TopicPartition]:
    """Return the partitions to elect. A preferred leader that is not in the ISR is left out by the election."""
    preferred: dict[int, list[TopicPartition]] = {}
    for partition in context.partitions():
        replicas = context.replicas(partition)
        if replicas and partition.topic not in context.topics_to_delete:
            preferred.setdefault(replicas[0], []).append(partition)
    imbalanced: list[TopicPartition] = []
    for broker_id, partitions in sorted(preferred.items()):
        led_by_others = [p for p in partitions if p in context.leadership and context.leadership[p].leader != broker_id]
        if len(led_by_others) * 100 > len(partitions) * percentage:
            imbalanced += led_by_others
    return imbalanced
