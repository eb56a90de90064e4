"""The topics as the brokers' Metadata shows them, for consumers that find the brokers without ZooKeeper."""

from broker.client.api_versions import METADATA
from broker.client.connector.assignment import TopicView
from broker.client.core import ClientCore, Steps
from broker.cluster.documents import encode_uuid


def metadata_topics(core: ClientCore) -> Steps[list[TopicView]]:
    """Return all topics, with the first replica of each partition, as `/brokers/topics` has it in ZooKeeper."""
    response = yield from core.ask_any(METADATA, {"topics": None, "allow_auto_topic_creation": False})
    topics = []
    for topic in response.topics:
        if topic.error_code:
            continue  # such as a topic that is being deleted
        first_replicas = {
            int(row.partition_index): int(next(iter(row.replica_nodes), -1)) for row in topic.partitions
        }
        topic_id = None if topic.topic_id is None else encode_uuid(topic.topic_id)
        topics.append(TopicView(str(topic.name), first_replicas, topic_id))
    return topics
