"""Administration of brokers, disks and partitions: operations over a `ClientCore`, as those of broker.client.admin."""

from typing import NamedTuple

from broker.client.api_versions import DESCRIBE_LOG_DIRS, METADATA
from broker.client.core import ClientCore, Steps
from broker.client.errors import BrokerError
from broker.client.group_protocol import Partition


class Broker(NamedTuple):
    id: int
    address: str
    rack: str | None


class Cluster(NamedTuple):
    """A cluster. `controller` is the id of the broker that is the controller, or -1 while the cluster has none."""

    id: str | None
    controller: int
    brokers: tuple[Broker, ...]


class LogDir(NamedTuple):
    """A data directory of a broker. The sizes of its disk are None from brokers before KIP-827."""

    broker: int
    path: str
    error: int
    total_bytes: int | None
    usable_bytes: int | None
    sizes: dict[Partition, int]
    """Bytes of each partition's log."""


class Replicas(NamedTuple):
    """The nodes of a partition; `leader` is -1 if it has none now."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


def describe_cluster(core: ClientCore) -> Steps[Cluster]:
    """Return the cluster as its metadata describe it."""
    address = yield from core.controller()
    answer = yield from core.ask(address, METADATA, {"topics": (), "allow_auto_topic_creation": False})
    brokers = tuple(Broker(each.node_id, f"{each.host}:{each.port}", each.rack) for each in answer.brokers)
    return Cluster(answer.cluster_id, int(answer.controller_id), tuple(sorted(brokers)))


def log_dirs(core: ClientCore) -> Steps[list[LogDir]]:
    """Return the data directories of all brokers (DescribeLogDirs, KIP-113)."""
    found = []
    for node, address in (yield from core.nodes()).items():
        answer = yield from core.ask(address, DESCRIBE_LOG_DIRS, {"topics": None})
        for each in answer.results:
            sizes = {
                (str(topic.name), int(one.partition_index)): int(one.partition_size)
                for topic in each.topics
                for one in topic.partitions
            }
            total, usable = _size(each.total_bytes), _size(each.usable_bytes)
            found.append(LogDir(node, each.log_dir, int(each.error_code), total, usable, sizes))
    return found


def _size(number: int) -> int | None:
    return None if number < 0 else int(number)


def replicas(core: ClientCore, topics: tuple[str, ...]) -> Steps[dict[Partition, Replicas]]:
    """Return the nodes of all partitions of these topics, or of all topics if none is named. Raise BrokerError."""
    address = yield from core.controller()
    wanted = [{"name": name} for name in topics] or None
    answer = yield from core.ask(address, METADATA, {"topics": wanted, "allow_auto_topic_creation": False})
    found = {}
    for topic in answer.topics:
        if topic.error_code:
            raise BrokerError(int(topic.error_code), f"topic {topic.name}")
        for each in topic.partitions:
            found[str(topic.name), int(each.partition_index)] = Replicas(
                int(each.leader_id), int(each.leader_epoch), tuple(each.replica_nodes), tuple(each.isr_nodes)
            )
    return dict(sorted(found.items()))
