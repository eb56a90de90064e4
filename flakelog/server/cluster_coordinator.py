"""The coordinator of a cluster, where its brokers meet: a ZooKeeper, or a directory of one machine.

    <data>/cluster            the nodes, as ZooKeeper would have them (coordination/directory.py)
    <data>/cluster/sockets    broker-<id>: the socket at which the other brokers reach this one (listener PROCESSES)
    <data>                    the directory of the first broker, with the registry of worker numbers (ids)
    <data>/nodes/<id>         the directory of each other broker

Once <data>/cluster has nodes it is the truth: each later start opens it, with one process too.
"""

from pathlib import Path
from typing import NamedTuple

from broker.cluster.documents import Endpoint
from broker.log.storage.os_storage import DIRECTORY_MODE
from coordination.directory import has_nodes
from coordination.socket_folder import SocketFolder, make_folder
from flakelog.server.lifecycle import StartError

CLUSTER, NODES, SOCKETS = "cluster", "nodes", "sockets"
PROCESSES = "PROCESSES"
"""The listener at which the brokers of one machine reach each other."""
OF_DIRECTORY, OF_ZOOKEEPER = "directory ", "zookeeper "  # beginnings of the scope of a session


class ClusterDirectory(NamedTuple):
    """The directory in which the brokers of one machine meet."""

    path: Path

    @property
    def first_data_dir(self) -> Path:
        return self.path.parent

    def is_begun(self) -> bool:
        """Return True if a broker has begun the cluster."""
        return has_nodes(self.path)

    def open_sockets(self) -> SocketFolder:
        """Open the folder of the sockets, which is made if it is missing. Raise OSError."""
        self.path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        folder = self.path / SOCKETS
        make_folder(folder)
        return SocketFolder(folder)


class ZooKeeperEnsemble(NamedTuple):
    """host:port,host:port/chroot of the ZooKeeper through which servers are one cluster."""

    hosts: str


ClusterCoordinator = ClusterDirectory | ZooKeeperEnsemble


def cluster_dir_of(data_dir: Path) -> Path:
    """Return the directory in which the brokers meet whose first one has this data directory."""
    return data_dir / CLUSTER


def data_dir_of(first_data_dir: Path, broker_id: int, first_id: int) -> Path:
    """Return the data directory of a broker."""
    return first_data_dir if broker_id == first_id else first_data_dir / NODES / str(broker_id)


def coordinator_of(data_dir: Path, zookeeper: str | None, cluster_dir: Path | None) -> ClusterCoordinator | None:
    """Return where a broker meets others; None for a server alone.

    `cluster_dir` is the directory that a parent of several brokers named, None without such a parent.
    """
    if zookeeper is not None:
        return ZooKeeperEnsemble(zookeeper)
    directory = ClusterDirectory(cluster_dir or cluster_dir_of(data_dir))
    return directory if cluster_dir is not None or directory.is_begun() else None


def name_of(scope: str) -> str:
    """Return how messages name the coordinator of a session with this scope."""
    if scope.startswith(OF_ZOOKEEPER):
        return f"ZooKeeper at {scope.removeprefix(OF_ZOOKEEPER)}"
    return f"the directory {scope.removeprefix(OF_DIRECTORY)}"


def socket_name(broker_id: int) -> str:
    return f"broker-{broker_id}"


def processes_endpoint(broker_id: int) -> Endpoint:
    """Return the endpoint of a broker's socket: its host is the socket's name, and it has no port."""
    return Endpoint(PROCESSES, "PLAINTEXT", socket_name(broker_id), 0)


def check_broker_id(data_dir: Path, owner_id: int | None, broker_id: int) -> None:
    """Raise StartError if a data directory is that of another broker.

    A broker that started with it would serve partitions from its own empty logs, or leave the logs here unserved.
    `owner_id` is the id of the directory's broker, None while it has no partitions.
    """
    if owner_id not in (None, broker_id):
        raise StartError(
            f"{data_dir} has the partitions of broker {owner_id}, and node.id is {broker_id}: start it with "
            f"node.id={owner_id}"
        )


def check_belongs(data_dir: Path, belongs_to: str, coordinator: ClusterCoordinator | None) -> None:
    """Raise StartError if a data directory belongs to another cluster, or to one whose nodes are gone.

    `belongs_to` is the scope of the session of its last start, "" for a server alone.
    """
    if isinstance(coordinator, ZooKeeperEnsemble):
        if belongs_to.startswith(OF_DIRECTORY) or has_nodes(cluster_dir_of(data_dir)):
            raise StartError(
                f"{data_dir} belongs to the cluster of its own processes: start it without zookeeper.connect, since "
                f"{cluster_dir_of(data_dir)} has its topics"
            )
        return
    if belongs_to.startswith(OF_ZOOKEEPER):
        raise StartError(
            f"{data_dir} belongs to the cluster of {belongs_to}: start it with zookeeper.connect, since that has its "
            "topics"
        )
    own_directory = cluster_dir_of(data_dir.absolute())
    is_first = belongs_to == f"{OF_DIRECTORY}{own_directory}"
    if belongs_to and is_first and not has_nodes(own_directory):
        raise StartError(f"{own_directory}, which had the topics of {data_dir}, is not there: put it back from a copy")
    if belongs_to and coordinator is None:
        raise StartError(
            f"{data_dir} belongs to the cluster of {belongs_to}: start the server with the directory of the first "
            "broker as --data-dir"
        )
