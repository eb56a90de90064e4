"""The topics of coordinators that have one copy in a cluster that could have more, and what that means."""

from broker.metadata.image import Image
from broker.metadata.topic import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS


def one_copy_coordinators(image: Image) -> tuple[str, ...]:
    """Return the topics of coordinators that have a partition of one copy, although several brokers are live."""
    if len(image.live_ids) < 2:
        return ()
    topics = [topic for name in sorted(INTERNAL_TOPICS) if (topic := image.topic(name)) is not None]
    return tuple(topic.name for topic in topics if any(len(state.replicas) == 1 for state in topic.partitions))


def one_copy_warning(topic: str) -> str:
    """Return what it means that a topic of a coordinator has one copy."""
    affected = "groups" if topic == GROUP_OFFSETS_TOPIC else "transactions"
    return (
        f"{topic} has one copy: if a broker dies, its {affected} have no coordinator until it is back. The topic keeps "
        "the replication factor that it was made with"
    )
