"""Several brokers, one copy of each partition: what a core for each gives, as servers of their own and as processes of
one; transactions over three brokers beside three of Apache Kafka's; how soon a killed broker takes records again."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import apache, bulk
from benchmarks.apache import JVM_OPTIONS, Peer
from benchmarks.brokers import SETTINGS, Topics, brokers, flakelog
from benchmarks.load import CONNECTIONS, Load, run_load
from benchmarks.measure import OURS, Contenders, Figures, Row, Scale, numbered
from benchmarks.native import Unavailable, program, run_program
from benchmarks.plan import leader_acks, sizes_vary
from coordination.embedded_zookeeper import EmbeddedZooKeeper
from tests.compat.cluster_servers import SESSION_MS, Servers
from tests.compat.python.kafka_cluster import KafkaCluster
from tests.compat.several_processes import SeveralProcesses

BROKERS = 1, 2, 3
PARTITIONS = 50
TRANSACTION_PARTITIONS = 10
RETURN_PARTITIONS, RETURN_BYTES, RETURN_VALUE_BYTES = 1_000, 1 << 30, 1024
RETURNING = 2
TIMEOUT_S = 120
# Kafka's brokers with one copy of each partition, as ours have.
ONE_COPY = {
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
}
# A client that notices the return of a broker within a tenth of a second.
IMPATIENT = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 50,
}


def _need_cores(cores: int) -> None:
    here = len(os.sched_getaffinity(0))
    if here < cores:
        raise Unavailable(f"{cores} cores are needed, this machine has {here}")


# --- a core for each broker ------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A broker and its load program, on one core, or on any with `core` None."""

    peer: Peer
    topics: Topics
    directory: Path
    core: int | None = None


def _rates(pairs: Sequence[Pair], run: Callable[[Pair], Figures]) -> Figures:
    """Run the load of all pairs at once, and add up their rates."""

    def on_its_core(pair: Pair) -> Figures:
        if pair.core is not None:
            os.sched_setaffinity(0, {pair.core})  # of this thread, and of the programs that it starts
        return run(pair)

    with ThreadPoolExecutor(len(pairs)) as pool:
        figures = list(pool.map(on_its_core, pairs))
    units = [unit for unit in ("req/s", "MB/s", "msg/s") if unit in figures[0]]
    return {unit: sum(of_pair[unit] for of_pair in figures) for unit in units}


def _small(count: int, pair: Pair) -> Figures:
    return run_load(pair.peer, pair.topics, pair.directory, Load(leader_acks, partitions=PARTITIONS), count)


def _in_turn(count: int, pair: Pair) -> Figures:
    load = Load(sizes_vary, connections=CONNECTIONS // 2, partitions=PARTITIONS // 2, step=1)
    return run_load(pair.peer, pair.topics, pair.directory, load, count)


def _bulk(count: int, size: int, pair: Pair) -> Figures:
    with pair.topics.fresh() as topic:
        bulk.ready_memory(bulk.kept_bytes(count, size))
        return bulk.produce(pair.peer, topic, count, size, 1)


@contextmanager
def _processes(cores: Sequence[int | None]) -> Iterator[list[Pair]]:
    """Run a server with a process for each of `cores`, on that core; yield each with its load program."""
    with ExitStack() as stack:
        data_dir = Path(stack.enter_context(TemporaryDirectory(prefix="flakelog-bench-"))) / "data"
        server = stack.enter_context(SeveralProcesses(data_dir, len(cores), SETTINGS))
        pairs = []
        for broker_id, (address, core) in enumerate(zip(server.address.split(","), cores, strict=True), 1):
            pid = server.child(broker_id)
            for task in os.listdir(f"/proc/{pid}/task") if core is not None else ():
                os.sched_setaffinity(int(task), {core})
            directory = Path(stack.enter_context(TemporaryDirectory()))
            pairs.append(Pair(Peer(address, pid), Topics(address, broker_id, f"bench-{broker_id}"), directory, core))
        yield pairs


@contextmanager
def _cores_row(run: Callable[[Pair], Figures], scale: Scale) -> Iterator[Contenders]:
    """Compare a broker and its load program on one core with two such pairs on two cores."""
    _need_cores(2)
    cores = sorted(os.sched_getaffinity(0))[:2]
    with ExitStack() as stack:
        pairs = []
        for core in cores:
            server = stack.enter_context(flakelog(prefix=("taskset", "-c", str(core))))
            directory = Path(stack.enter_context(TemporaryDirectory()))
            pairs.append(Pair(Peer(server.address, server.pid), Topics(server.address), directory, core))
        processes = stack.enter_context(_processes(cores))
        yield {
            f"{OURS}, two servers on two cores": partial(_rates, pairs, run),
            f"{OURS}, --processes 2 on two cores": partial(_rates, processes, run),
            f"{OURS}, one server on one core": partial(_rates, pairs[:1], run),
        }


@contextmanager
def _processes_row(scale: Scale) -> Iterator[Contenders]:
    """Two load programs, whose broker shares all cores with them: a process for each program, one for both, Kafka."""
    _need_cores(2)
    count = scale.of(100_000, PARTITIONS)
    with ExitStack() as stack:
        contenders = {}
        for name, peer in stack.enter_context(brokers(scale._replace(against=None))).items():
            directories = [Path(stack.enter_context(TemporaryDirectory())) for _ in range(2)]
            topics = [Topics(peer.address, prefix=f"bench-{number}") for number in range(2)]
            pairs = [Pair(peer, own, at) for own, at in zip(topics, directories, strict=True)]
            contenders[name] = partial(_rates, pairs, partial(_in_turn, count))
        processes = stack.enter_context(_processes((None, None)))
        yield {f"{OURS}, --processes 2": partial(_rates, processes, partial(_in_turn, count)), **contenders}


# --- three brokers ---------------------------------------------------------------------------------------------------


class Cluster(Protocol):
    """Three brokers."""

    bootstrap: str

    def bounce(self, number: int) -> None:
        """Kill a broker, and start it again on its data without waiting for it."""


class OurCluster:
    def __init__(self, directory: Path, stack: ExitStack) -> None:
        (directory / "zookeeper").mkdir()
        zookeeper = stack.enter_context(EmbeddedZooKeeper(directory / "zookeeper"))
        self._servers = Servers(directory, zookeeper.hosts, stack)
        self.bootstrap = self._servers.bootstrap

    def bounce(self, number: int) -> None:
        self._servers[number].kill()
        self._servers[number].launch()


class OurProcesses:
    """The brokers of one server, whose parent process starts a killed one again."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._server = stack.enter_context(SeveralProcesses(directory / "data", len(BROKERS), stack=stack))
        self.bootstrap = self._server.address

    def bounce(self, number: int) -> None:
        self._server.kill_child(number)


class ApacheCluster:
    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._cluster = stack.enter_context(KafkaCluster(directory, JVM_OPTIONS, ONE_COPY))
        self.bootstrap = self._cluster.servers

    def bounce(self, number: int) -> None:
        self._cluster.kill(number)
        self._cluster.launch(number)


@contextmanager
def _clusters(scale: Scale) -> Iterator[dict[str, Cluster]]:
    """Start three brokers of ours at a ZooKeeper, three processes of one server, and three of Kafka's, each in a JVM of
    its own."""
    with ExitStack() as stack:
        directories = [Path(stack.enter_context(TemporaryDirectory(prefix="flakelog-bench-"))) for _ in range(3)]
        clusters: dict[str, Cluster] = {
            OURS: OurCluster(directories[0], stack),
            f"{OURS}, --processes 3": OurProcesses(directories[1], stack),
        }
        if scale.kafka and apache.why_not() is None:
            clusters[apache.NAME] = ApacheCluster(directories[2], stack)
        yield clusters


def _create(cluster: Cluster, topic: str, partitions: int) -> None:
    """Create a topic whose partitions lie on the brokers in turn, and wait until each has a leader."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assignment = [[broker] for broker in islice(cycle(BROKERS), partitions)]
    admin.create_topics([NewTopic(topic, partitions, replica_assignment=assignment)])[topic].result()
    _produce_to(cluster, topic, range(partitions))


def _produce_to(cluster: Cluster, topic: str, partitions: Sequence[int]) -> None:
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


def _transactions(cluster: Cluster, topic: str, count: int, run: Iterator[int]) -> Figures:
    """Time transactions with a record for each of ten partitions, from begin to commit."""
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"bench-{next(run)}", "linger.ms": 0}
    producer = Producer(settings)
    producer.init_transactions(TIMEOUT_S)
    times_ms = []
    for _ in range(count):
        begin = time.perf_counter()
        producer.begin_transaction()
        for partition in range(TRANSACTION_PARTITIONS):
            producer.produce(topic, bytes(100), partition=partition)
        producer.commit_transaction(TIMEOUT_S)
        times_ms.append((time.perf_counter() - begin) * 1e3)
    percentiles = statistics.quantiles(times_ms, n=100, method="inclusive") if count > 1 else times_ms * 99
    return {"p50 ms": percentiles[49], "p99 ms": percentiles[98]}


@contextmanager
def _transactions_row(scale: Scale) -> Iterator[Contenders]:
    with _clusters(scale) as clusters:
        for cluster in clusters.values():
            _create(cluster, "transactions", TRANSACTION_PARTITIONS)
        count = scale.of(1_000)
        yield {
            name: partial(_transactions, cluster, "transactions", count, numbered())
            for name, cluster in clusters.items()
        }


@contextmanager
def _return_row(scale: Scale) -> Iterator[Contenders]:
    """Kill one of three brokers, start it again at once, and produce to each of its partitions."""

    def run(cluster: Cluster) -> Figures:
        cluster.bounce(RETURNING)
        begin = time.perf_counter()
        of_the_broker = [at for at, broker in enumerate(islice(cycle(BROKERS), partitions)) if broker == RETURNING]
        _produce_to(cluster, "returning", of_the_broker)
        return {"s": time.perf_counter() - begin}

    partitions = scale.of(RETURN_PARTITIONS, len(BROKERS))
    count = scale.of(RETURN_BYTES // RETURN_VALUE_BYTES)
    with _clusters(scale) as clusters:
        for cluster in clusters.values():
            _create(cluster, "returning", partitions)
            argv = "returning", str(partitions), str(count), str(RETURN_VALUE_BYTES)
            run_program(program("bulk_produce"), *argv, f"bootstrap.servers={cluster.bootstrap}")
        yield {name: partial(run, cluster) for name, cluster in clusters.items()}


ROWS = [
    Row(
        "two-cores-100-50p",
        f"one 100 B record per request, {CONNECTIONS} connections to {PARTITIONS} partitions, a broker and its load "
        "program on each core; the rates added up",
        lambda scale: _cores_row(partial(_small, scale.of(200_000, PARTITIONS)), scale),
    ),
    Row(
        "two-cores-produce-100",
        "the same with bulk produce, 100 B, librdkafka",
        lambda scale: _cores_row(partial(_bulk, scale.of(2_000_000), 100), scale),
    ),
    Row(
        "two-cores-produce-1k",
        "the same with bulk produce, 1 KiB, librdkafka",
        lambda scale: _cores_row(partial(_bulk, scale.of(300_000), 1024), scale),
    ),
    Row(
        "processes-turn-50p",
        f"turn-50p by two programs of {CONNECTIONS // 2} connections and {PARTITIONS // 2} partitions, on the cores of "
        "the broker; the rates added up",
        _processes_row,
    ),
    Row(
        "three-brokers-transactions",
        f"transactions of a record for each of {TRANSACTION_PARTITIONS} partitions on three brokers, librdkafka",
        _transactions_row,
    ),
    Row(
        "three-brokers-return",
        f"from kill -9 of one of three brokers, which starts again at once, until each of its partitions takes a "
        f"record: {RETURN_PARTITIONS:,} partitions, 1 GiB; our ZooKeeper session lasts {SESSION_MS / 1000:.0f} s",
        _return_row,
    ),
]
