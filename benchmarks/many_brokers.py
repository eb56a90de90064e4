"""Several brokers, one copy of each partition: what a core for each gives, as servers of their own and as processes of
one; transactions over three brokers beside three of Apache Kafka's; how soon a killed broker takes records again."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from confluent_kafka import Producer

from benchmarks import bulk
from benchmarks.apache import Peer
from benchmarks.brokers import SETTINGS, Topics, brokers, flakelog
from benchmarks.clusters import BROKERS, TIMEOUT_S, Cluster, clusters, create, in_turn, produce_to
from benchmarks.load import CONNECTIONS, Load, run_load
from benchmarks.measure import OURS, Contenders, Figures, Row, Scale, numbered
from benchmarks.native import Unavailable, program, run_program
from benchmarks.plan import leader_acks, sizes_vary
from tests.compat.cluster_servers import SESSION_MS
from tests.compat.several_processes import SeveralProcesses

PARTITIONS = 50
TRANSACTION_PARTITIONS = 10
RETURN_PARTITIONS, RETURN_BYTES, RETURN_VALUE_BYTES = 1_000, 1 << 30, 1024
RETURNING = 2


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


def _on(broker_id: int, partition: int) -> list[int]:
    return [broker_id]


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
            topics = Topics(address, partial(_on, broker_id), f"bench-{broker_id}")
            pairs.append(Pair(Peer(address, pid), topics, directory, core))
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
    with clusters(scale) as started:
        for cluster in started.values():
            create(cluster, "transactions", TRANSACTION_PARTITIONS)
        count = scale.of(1_000)
        yield {
            name: partial(_transactions, cluster, "transactions", count, numbered())
            for name, cluster in started.items()
        }


@contextmanager
def _return_row(scale: Scale) -> Iterator[Contenders]:
    """Kill one of three brokers, start it again at once, and produce to each of its partitions."""

    def run(cluster: Cluster) -> Figures:
        cluster.end(RETURNING)
        cluster.start(RETURNING)
        begin = time.perf_counter()
        of_the_broker = [partition for partition in range(partitions) if in_turn(partition) == [RETURNING]]
        produce_to(cluster, "returning", of_the_broker)
        return {"s": time.perf_counter() - begin}

    partitions = scale.of(RETURN_PARTITIONS, len(BROKERS))
    count = scale.of(RETURN_BYTES // RETURN_VALUE_BYTES)
    with clusters(scale) as started:
        for cluster in started.values():
            create(cluster, "returning", partitions)
            argv = "returning", str(partitions), str(count), str(RETURN_VALUE_BYTES)
            run_program(program("bulk_produce"), *argv, f"bootstrap.servers={cluster.bootstrap}")
        yield {name: partial(run, cluster) for name, cluster in started.items()}


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
