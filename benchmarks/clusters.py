"""Clusters of three brokers: ours at a ZooKeeper, the processes of one server of ours, and Apache Kafka's."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import NamedTuple, Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import apache
from benchmarks.apache import JVM_OPTIONS, Peer
from benchmarks.measure import OURS, Scale
from coordination.embedded_zookeeper import EmbeddedZooKeeper
from tests.compat.cluster_servers import Servers
from tests.compat.python.kafka_cluster import KafkaCluster
from tests.compat.several_processes import SeveralProcesses

BROKERS = 1, 2, 3
PROCESSES = f"{OURS}, --processes 3"
TIMEOUT_S = 120
# A client that notices the return of a broker, or a new leader, within a tenth of a second.
IMPATIENT = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 50,
}
# One copy of each partition, also of the topics of coordinators.
ONE_COPY = {
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


class Settings(NamedTuple):
    """The settings of our brokers, and of Kafka's."""

    ours: Mapping[str, str] = MappingProxyType(ONE_COPY)
    apache: Mapping[str, str] = MappingProxyType(ONE_COPY)


class Cluster(Protocol):
    """Three brokers. `bootstrap` has their addresses in the order of their numbers."""

    bootstrap: str

    def pid(self, number: int) -> int:
        """Return the process of a broker."""

    def end(self, number: int, *, cleanly: bool = False) -> None:
        """Send SIGKILL to a broker, or SIGTERM if it shall end `cleanly`, and wait for the end of its process."""

    def start(self, number: int) -> None:
        """Start a broker that has ended on its data, without waiting for it."""


class OurCluster:
    def __init__(self, directory: Path, stack: ExitStack, settings: Mapping[str, str]) -> None:
        (directory / "zookeeper").mkdir()
        zookeeper = stack.enter_context(EmbeddedZooKeeper(directory / "zookeeper"))
        self._servers = Servers(directory, zookeeper.hosts, stack, settings=settings)
        self.bootstrap = self._servers.bootstrap

    def pid(self, number: int) -> int:
        return self._servers[number].pid

    def end(self, number: int, *, cleanly: bool = False) -> None:
        server = self._servers[number]
        if cleanly:
            server.stop()
        else:
            server.kill()

    def start(self, number: int) -> None:
        self._servers[number].launch()


class OurProcesses:
    """The brokers of one server, whose parent process starts a killed one again."""

    def __init__(self, directory: Path, stack: ExitStack, settings: Mapping[str, str]) -> None:
        server = SeveralProcesses(directory / "data", len(BROKERS), settings, stack=stack)
        self._server = stack.enter_context(server)
        self.bootstrap = self._server.address

    def pid(self, number: int) -> int:
        return self._server.child(number)

    def end(self, number: int, *, cleanly: bool = False) -> None:
        self._server.kill_child(number, signal.SIGTERM if cleanly else signal.SIGKILL)

    def start(self, number: int) -> None:
        """Do nothing, because the parent has done it."""


class ApacheCluster:
    def __init__(self, directory: Path, stack: ExitStack, settings: Mapping[str, str]) -> None:
        self._cluster = stack.enter_context(KafkaCluster(directory, JVM_OPTIONS, settings))
        self.bootstrap = self._cluster.servers

    def pid(self, number: int) -> int:
        return self._cluster.pid(number)

    def end(self, number: int, *, cleanly: bool = False) -> None:
        if cleanly:
            self._cluster.stop(number)
        else:
            self._cluster.kill(number)

    def start(self, number: int) -> None:
        self._cluster.launch(number)


@contextmanager
def clusters(
    scale: Scale, settings: Settings = Settings(), *, processes: bool = True
) -> Iterator[dict[str, Cluster]]:
    """Start three brokers of ours at a ZooKeeper, and three of Kafka's. With `processes`, also start a server of three.

    Each of Kafka's brokers has a JVM of its own.
    """
    with ExitStack() as stack:
        directories = [Path(stack.enter_context(TemporaryDirectory(prefix="flakelog-bench-"))) for _ in range(3)]
        started: dict[str, Cluster] = {OURS: OurCluster(directories[0], stack, settings.ours)}
        if processes:
            started[PROCESSES] = OurProcesses(directories[1], stack, settings.ours)
        if scale.kafka and apache.why_not() is None:
            started[apache.NAME] = ApacheCluster(directories[2], stack, settings.apache)
        yield started


def peer_of(cluster: Cluster) -> Peer:
    """Return the brokers as one peer, whose processor time is that of all three."""
    first, *others = map(cluster.pid, BROKERS)
    return Peer(cluster.bootstrap, first, tuple(others))


# --- topics ----------------------------------------------------------------------------------------------------------


def in_turn(partition: int, *, copies: int = 1) -> list[int]:
    """Place a partition: the first partition's leader is broker 1, and each next list starts one broker later."""
    turn = partition % len(BROKERS)
    return [*BROKERS[turn:], *BROKERS[:turn]][:copies]


def create(cluster: Cluster, topic: str, partitions: int) -> None:
    """Create a topic of one copy whose partitions lie on the brokers in turn, and wait until each has a leader."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assignment = [in_turn(partition) for partition in range(partitions)]
    admin.create_topics([NewTopic(topic, partitions, replica_assignment=assignment)])[topic].result()
    produce_to(cluster, topic, range(partitions))


def produce_to(cluster: Cluster, topic: str, partitions: Sequence[int]) -> None:
    """Produce a record to each partition, and wait until all are acknowledged."""
    errors: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0, **IMPATIENT})
    for partition in partitions:
        producer.produce(topic, b"x", partition=partition, on_delivery=delivered)
    if producer.flush(TIMEOUT_S) or errors:
        raise RuntimeError(f"not all partitions took a record: {errors[:1]}")
