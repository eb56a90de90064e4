"""Steps and looks that the tests of a cluster share."""

from broker.client.address import Address
from broker.client.connection import ClientConnection
from broker.client.message_exchange import exchange_of, response_to
from tests.broker.engine_client import DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS, METADATA
from tests.broker.engine_cluster import BROKERS

ALL = (1, 2, 3)


def leaders(cluster, topic, broker_id=1):
    """Return the leader of each partition, as a broker's clients hear it."""
    (described,) = cluster.client(broker_id).ask(METADATA, 12, {"topics": [{"name": topic}]}).topics
    return [partition.leader_id for partition in sorted(described.partitions, key=lambda row: row.partition_index)]


def epochs(cluster, topic):
    (described,) = cluster.client(1).ask(METADATA, 12, {"topics": [{"name": topic}]}).topics
    return [partition.leader_epoch for partition in sorted(described.partitions, key=lambda row: row.partition_index)]


def logs(cluster, topic):
    """Return the partitions that each broker has a log of."""
    return {
        broker_id: sorted(log.partition for log in node.broker.services.logs.all() if log.topic == topic)
        for broker_id, node in cluster.nodes.items()
    }


def order(cluster, broker_id, request):
    """Send a controller's order to a broker; return the response."""
    client = cluster.nodes[broker_id].broker.connect(listener=BROKERS)
    frames = ClientConnection()
    _, data = frames.request(exchange_of(Address("localhost", 1), request))
    client.feed(data)
    cluster.settle()
    (answer,) = frames.receive(memoryview(client.received), is_reused=True)
    return response_to(request, answer.body)


def delete(cluster, topic):
    request = {"topics": [{"name": topic, "topic_id": None}], "timeout": 30_000}
    return cluster.client(cluster.controller.id).ask(DELETE_TOPICS, 6, request).responses[0].error_code


def altering(kind, name, **properties):
    """Return the fields of IncrementalAlterConfigs that set these settings of a topic (2) or of brokers (4)."""
    configs = [
        {"name": key.replace("_", "."), "config_operation": 0, "value": str(value)} for key, value in properties.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return {"resources": [resource], "validate_only": False}


def alter(cluster, broker_id, kind, name, **properties):
    request = altering(kind, name, **properties)
    return cluster.client(broker_id).ask(INCREMENTAL_ALTER_CONFIGS, 1, request).responses[0].error_code
