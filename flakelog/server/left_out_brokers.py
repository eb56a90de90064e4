"""A check before a start in a cluster's directory: a broker that has partitions must not be left out."""

from collections.abc import Collection

from broker.cluster.documents import TOPICS, Topic, topic_path
from coordination.directory import DirectoryCoordinator
from coordination.listing import listed
from coordination.port import Children, Get, Node, NoNode
from flakelog.server.cluster_coordinator import ClusterDirectory
from flakelog.server.lifecycle import StartError

NAMED_MAX = 3
"""Topics in a message; a broker may have thousands."""


def check(directory: ClusterDirectory, first_id: int, processes: int) -> None:
    """Raise StartError if a broker beside those that start has partitions: they are `processes`, from `first_id` on.

    Raise CoordinationError if the directory cannot be read.
    """
    topics_by_broker = topics_of_brokers(directory)
    ids = range(first_id, first_id + processes)
    left_out = sorted(topics_by_broker.keys() - set(ids))
    if not left_out:
        return
    brokers = "; ".join(
        f"broker {broker_id} ({listed(topics_by_broker[broker_id], NAMED_MAX)})" for broker_id in left_out
    )
    if left_out[0] < first_id:
        fix = f"start it with node.id={left_out[0]}"
    else:
        fix = f"start it with --processes {left_out[-1] - first_id + 1}, or delete these topics first"
    raise StartError(
        f"{directory.first_data_dir} has brokers with partitions that would not run with {_count(processes)}: "
        f"{brokers}; {fix}"
    )


def topics_of_brokers(directory: ClusterDirectory) -> dict[int, list[str]]:
    """Return the names of the topics of which each broker has partitions. Raise CoordinationError."""
    session = DirectoryCoordinator(directory.path)
    try:
        try:
            names = session.execute(Children(TOPICS))
        except NoNode:
            return {}
        assert isinstance(names, tuple)
        topics: dict[int, list[str]] = {}
        nodes = session.execute_all([Get(topic_path(str(name))) for name in names])
        for name, node in zip(names, nodes, strict=True):
            if isinstance(node, Node):  # another answer: the topic was deleted meanwhile
                for broker_id in _brokers_of(str(name), node.data):
                    topics.setdefault(broker_id, []).append(str(name))
        return topics
    finally:
        session.close()


def _brokers_of(name: str, data: bytes) -> Collection[int]:
    assignments = Topic.decode(topic_path(name), data).assignments.values()
    return sorted({replica for assignment in assignments for replica in assignment.replicas})


def _count(processes: int) -> str:
    return f"{processes} process{'' if processes == 1 else 'es'}"
